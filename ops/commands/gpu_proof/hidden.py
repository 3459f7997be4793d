"""(d) How much of a load is hidden behind the forward that follows it layer by layer, and what loads and stores cost
other work on the same GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator

from .figures import ProofFigure
from .layouts import DTYPE, PAGE_SIZE, Layout, layer_first
from .stopwatch import Stopwatch

#: Tokens of the prefill chunk.
CHUNK = 512
#: Of a layer's load, at least.
HIDDEN_SHARE = 0.95
#: Rows of products that are launched for as long as they are computed, and of those that are computed for longer, and
#: how many there are of each.
FEW_ROWS, MANY_ROWS = (256, 400), (4096, 60)
#: Of what they take alone, at most. SGLang's own kernel, which loads for HiCache, costs as much on an H100.
FEW_AT_MOST, MANY_AT_MOST = 1.3, 1.1
#: A load as long as this much of the chunk's computation can be hidden whole, with something to spare.
_LOAD_SHARE = 0.8


class LayerProducts:
    """The matrix products of a chunk in one layer: as much arithmetic, and as many bytes of weights, as a model's."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        shapes = (
            (layout.hidden, layout.hidden + 2 * layout.kv_heads * layout.head_dim),  # queries, keys and values
            (layout.hidden, layout.hidden),  # output
            (layout.hidden, 2 * layout.inner),
            (layout.inner, layout.hidden),
        )
        self.weights = [torch.randn(shape, dtype=DTYPE, device=device) / 64 for shape in shapes]
        self.wide = torch.randn((CHUNK, layout.hidden), dtype=DTYPE, device=device)
        self.inner = torch.randn((CHUNK, layout.inner), dtype=DTYPE, device=device)

    def layer(self) -> None:
        for weight in self.weights:
            (self.inner if weight.shape[0] == self.inner.shape[1] else self.wide) @ weight


def hidden(layout: Layout, accelerator: Accelerator, watch: Stopwatch, most_pages: int) -> Iterator[ProofFigure]:
    """Scattered pages, as many as arithmetic allows to hide, loaded from page-locked memory as a server loads them, on
    a thread of its own, while another launches each layer's products once that layer has its mark. Raises ImportError
    where what a server needs is not installed."""
    from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool

    forward = LayerProducts(layout, accelerator.device)
    pool = AcceleratorPool(layer_first(layout, most_pages, accelerator.device), PAGE_SIZE, accelerator)
    slab = accelerator.host_memory(most_pages, pool.geometry.stride_bytes).numpy()
    pool.prepare(slab)
    random = np.random.default_rng(3)
    places, rows = (random.permutation(most_pages).astype(np.int64) for _ in "to")

    def load(pages: int, layer_done: Callable[[int, Any], None] = lambda layer, mark: None) -> None:
        pool.copy_in(places[:pages], slab, rows[:pages], layer_done, [accelerator.mark_here()])

    def compute() -> None:
        for _ in range(layout.layers):
            forward.layer()

    def follow(pages: int) -> None:
        with ThreadPoolExecutor(1) as loading:
            marks: SimpleQueue[Any] = SimpleQueue()
            copied = loading.submit(load, pages, lambda layer, mark: marks.put(mark))
            for _ in range(layout.layers):
                marks.get().wait()
                forward.layer()
            accelerator.mark_here().synchronize()
            copied.result()

    # By the host's clock: that is how long a forward takes whose thread is kept from launching it, too.
    def complete(work: Callable[[], None]) -> float:
        def whole() -> None:
            work()
            accelerator.mark_here().synchronize()

        return watch.host_seconds(whole)

    computing = complete(compute)
    whole = complete(lambda: load(most_pages))
    pages = max(1, min(most_pages, int(most_pages * _LOAD_SHARE * computing / whole)))
    loading = complete(lambda: load(pages))
    both = complete(lambda: follow(pages))
    # The first layer's load has nothing to hide behind.
    behind = loading * (layout.layers - 1) / layout.layers
    share = (computing + loading - both) / behind
    allowed = loading <= computing
    yield ProofFigure(
        "streaming",
        f"{layout.name}: hidden of {pages * PAGE_SIZE} tokens' load behind a chunk of {CHUNK}",
        share,
        "",
        at_least=HIDDEN_SHARE if allowed else None,
        note=f"{computing * 1e3:.2f} ms computing, {loading * 1e3:.2f} ms loading, {both * 1e3:.2f} ms both"
        + ("" if allowed else ": more than can be hidden"),
    )


def beside(layout: Layout, accelerator: Accelerator, watch: Stopwatch, most_pages: int) -> Iterator[ProofFigure]:
    """What matrix products take, by the host's clock, while another thread loads scattered pages, or stores them, again
    and again: of few rows, where whoever launches them must not be kept from it, and of many. Raises ImportError where
    what a server needs is not installed."""
    from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool

    device = accelerator.device
    pool = AcceleratorPool(layer_first(layout, most_pages, device), PAGE_SIZE, accelerator)
    slab = accelerator.host_memory(most_pages, pool.geometry.stride_bytes).numpy()
    pool.prepare(slab)
    random = np.random.default_rng(4)
    places, rows = (random.permutation(most_pages).astype(np.int64) for _ in "to")
    moves: dict[str, Callable[[], None]] = {
        "loads": lambda: pool.copy_in(places, slab, rows, lambda layer, mark: None),
        "stores": lambda: pool.copy_out(places, slab, rows),
    }
    weight = torch.randn((layout.hidden, layout.inner), dtype=DTYPE, device=device) / 64
    for (count, times), most in ((FEW_ROWS, FEW_AT_MOST), (MANY_ROWS, MANY_AT_MOST)):
        tokens = torch.randn((count, layout.hidden), dtype=DTYPE, device=device)

        def compute(tokens: torch.Tensor = tokens, times: int = times) -> None:
            for _ in range(times):
                tokens @ weight
            accelerator.mark_here().synchronize()

        alone = watch.host_seconds(compute)
        for name, move in moves.items():
            with again_and_again(move):
                taken = watch.host_seconds(compute)
            yield ProofFigure(
                "streaming",
                f"{layout.name}: products of {count} rows beside {name}",
                taken / alone,
                "",
                at_most=most,
                note=f"{times} take {alone * 1e3:.1f} ms alone",
            )


@contextmanager
def again_and_again(work: Callable[[], None]) -> Iterator[None]:
    """Another thread does it all the time; what it raises is raised when it has ended."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            work()

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(repeat)
        try:
            yield
        finally:
            over.set()
        done.result()
