"""What asking for copies takes of a core: loads and offloads between host memory and a GPU that does nothing.

Pages of Qwen3-8B, 16 tokens each, by the code that serves, layer counter included. Kernels are compiled and bound by
Triton itself; launches, copies and marks of the driver's do nothing. Left out is what needs a driver: per load
its lists are page-locked and uploaded, and per launch a stream is entered and an event recorded. By turns with
it, what SGLang's own HiCache takes to start a load of as many tokens, and to write them back, over such a driver.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...commands.bench.report import Figure, finish, parser, spread, take_turns

if TYPE_CHECKING:
    from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool

LAYERS, KV_HEADS, HEAD_DIM, PAGE = 36, 8, 128, 16
LENGTHS = (160, 1024, 8192)  # tokens
#: Of the loading thread, for each layer of scattered pages: a layer of 160 tokens takes a link 12 us.
LAYER_US_AT_MOST = 40.0
#: A load of so few tokens takes the link half a millisecond.
SHORT_MS_AT_MOST = 1.0
#: Of what HiCache takes for a load.
OF_HICACHE_AT_MOST = 1.2


def main(argv: Sequence[str] | None = None) -> int:
    options = parser("launch", __doc__, rounds=20).parse_args(argv)
    from .idle_gpu import idle_gpu

    with idle_gpu() as accelerator:
        return _measure(_pool(accelerator), options.rounds, options.json)


def _pool(accelerator: object) -> AcceleratorPool:
    import torch

    from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool

    shape = (2 * max(LENGTHS), KV_HEADS, HEAD_DIM)
    # Never touched, so that it takes no memory.
    layers = [[torch.empty(shape, dtype=torch.bfloat16) for _ in "kv"] for _ in range(LAYERS)]
    return AcceleratorPool(layers, PAGE, accelerator)  # type: ignore[arg-type]


def _measure(pool: AcceleratorPool, rounds: int, file: object) -> int:
    from swift_tiers.radix_tiering.base.runner import THREADS
    from swift_tiers.radix_tiering.table.page_table import PAGES_PER_HOLD
    from swift_tiers.sglang_ext.way.loads import WatchedLoadCounter

    from .idle_hicache import IdleHiCache, KvShape

    counter = WatchedLoadCounter(LAYERS, 0, lambda: True, THREADS)
    slab = np.empty((2 * max(LENGTHS) // PAGE, pool.geometry.stride_bytes), dtype=np.uint8)

    def load(pages: np.ndarray, slots: np.ndarray) -> None:
        index = counter.update_producer()
        pool.copy_in(pages, slab, slots, lambda layer, mark: counter.complete(index, layer, mark))

    def offload(pages: np.ndarray, slots: np.ndarray) -> None:
        for step in range(0, len(pages), PAGES_PER_HOLD):
            pool.copy_out(pages[step : step + PAGES_PER_HOLD], slab, slots[step : step + PAGES_PER_HOLD])

    hicache = IdleHiCache(KvShape(LAYERS, KV_HEADS, HEAD_DIM, PAGE))
    gc.freeze()  # what is loaded by now is not looked through while something is measured
    microseconds: dict[str, list[float]] = {}
    for length in LENGTHS:
        cases: dict[str, Callable[[], float]] = {
            "hicache_load": lambda length=length: hicache.load_microseconds(length),  # type: ignore[misc]
            "hicache_write": lambda length=length: hicache.write_microseconds(length),  # type: ignore[misc]
        }
        for kind, pages in lists(length // PAGE).items():
            slots = np.arange(len(pages), dtype=np.int64)
            for name, work in (("load", load), ("offload", offload)):
                cases[f"{name}_{kind}"] = CopyCase(work, pages, slots)
        for case, taken in take_turns(cases, rounds).items():
            name, _, rest = case.partition("_")
            microseconds[f"{name}_{length}_{rest}"] = taken
            print(spread(f"{name} of {length} tokens, {rest}", taken, "us"))
    best = {name: min(taken) for name, taken in microseconds.items()}
    longest, pages_of_it = max(LENGTHS), max(LENGTHS) // PAGE
    short = min(LENGTHS)
    figures = [
        *(
            Figure(f"layer_{length}", best[f"load_{length}_scattered"] / LAYERS, "us", at_most=LAYER_US_AT_MOST)
            for length in LENGTHS
        ),
        *(
            Figure(f"load_{short}_{kind}", best[f"load_{short}_{kind}"] / 1e3, "ms", at_most=SHORT_MS_AT_MOST)
            for kind in ("scattered", "neighbours")
        ),
        *(
            Figure(
                f"load_{length}_of_hicache",
                best[f"load_{length}_scattered"] / best[f"hicache_{length}_load"],
                at_most=OF_HICACHE_AT_MOST,
            )
            for length in LENGTHS
        ),
        Figure("offload_page", best[f"offload_{longest}_neighbours"] / pages_of_it, "us"),
        Figure("offload_page_scattered", best[f"offload_{longest}_scattered"] / pages_of_it, "us"),
    ]
    return finish("launch", figures, {"cpu_microseconds": microseconds}, file)  # type: ignore[arg-type]


def lists(pages: int) -> dict[str, np.ndarray]:
    """Pool pages as a load finds them: all apart, all together."""
    anywhere = 2 * np.random.default_rng(0).permutation(pages).astype(np.int64)
    return {"scattered": anywhere, "neighbours": np.arange(pages, dtype=np.int64)}


class CopyCase:
    """Asks for copies of pages, and never for the same ones twice running, whose lists would be there."""

    def __init__(self, work: Callable[[np.ndarray, np.ndarray], object], pages: np.ndarray, slots: np.ndarray) -> None:
        self._work, self._pages, self._slots, self._next = work, pages, slots, 1

    def __call__(self) -> float:
        """What that takes of this thread, microseconds."""
        some = self._pages + self._next
        self._next = 1 - self._next
        began = time.thread_time()
        self._work(some, self._slots)
        return (time.thread_time() - began) * 1e6


if __name__ == "__main__":
    raise SystemExit(main())
