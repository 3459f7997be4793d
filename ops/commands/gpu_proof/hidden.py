"""(d) How much of a load is hidden behind the forward that follows it layer by layer, and what loads and stores cost
other work on the same GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator

from .figures import ProofFigure
from .layouts import DTYPE, PAGE_SIZE, Layout, layer_first
from .stopwatch import Stopwatch

if TYPE_CHECKING:
    from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool

#: Tokens of the prefill chunk.
CHUNK = 512
#: Of a layer's load, at least.
HIDDEN_SHARE = 0.95
#: Of small products, which take a GPU less than their launch: rows and columns, and how many are launched. Of large
#: ones: rows, and how many.
SMALL, LARGE = (16, 1024, 400), (4096, 60)
#: Of what they take alone, at most. SGLang's own kernel, which loads for HiCache, costs as much on an H100.
LAUNCHING_AT_MOST, COMPUTING_AT_MOST = 1.3, 1.1
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


def scattered_pages(
    layout: Layout, accelerator: Accelerator, pages: int, seed: int
) -> tuple[AcceleratorPool, np.ndarray, np.ndarray, np.ndarray]:
    """A pool that is ready to serve, as many pages in page-locked memory, and an order of the one's and of the other's.
    Raises ImportError where what a server needs is not installed."""
    from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool

    pool = AcceleratorPool(layer_first(layout, pages, accelerator.device), PAGE_SIZE, accelerator)
    slab = accelerator.host_memory(pages, pool.geometry.stride_bytes).numpy()
    pool.prepare(slab)
    random = np.random.default_rng(seed)
    places, rows = (random.permutation(pages).astype(np.int64) for _ in "to")
    return pool, slab, places, rows


def hidden(layout: Layout, accelerator: Accelerator, watch: Stopwatch, most_pages: int) -> Iterator[ProofFigure]:
    """Scattered pages, as many as arithmetic allows to hide, loaded from page-locked memory as a server loads them, on
    a thread of its own, while another launches each layer's products once that layer has its mark. Raises ImportError
    where what a server needs is not installed."""
    forward = LayerProducts(layout, accelerator.device)
    pool, slab, places, rows = scattered_pages(layout, accelerator, most_pages, seed=3)

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
    """What other work takes while another thread loads scattered pages, or stores them, again and again: launching
    small matrix products, as a forward of few tokens is as long as its launching takes, and computing large ones. By
    the host's clock. Raises ImportError where what a server needs is not installed."""
    device = accelerator.device
    pool, slab, places, rows = scattered_pages(layout, accelerator, most_pages, seed=4)
    moves: dict[str, Callable[[], None]] = {
        "loads": lambda: pool.copy_in(places, slab, rows, lambda layer, mark: None),
        "stores": lambda: pool.copy_out(places, slab, rows),
    }

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=DTYPE, device=device) / 64

    def complete() -> None:
        accelerator.mark_here().synchronize()

    small = made(SMALL[0], SMALL[1]), made(SMALL[1], SMALL[1])
    large = made(LARGE[0], layout.hidden), made(layout.hidden, layout.inner)

    def launch() -> float:
        complete()
        began = time.perf_counter()
        for _ in range(SMALL[2]):
            small[0] @ small[1]
        return time.perf_counter() - began

    def compute() -> None:
        for _ in range(LARGE[1]):
            large[0] @ large[1]
        complete()

    works: dict[str, tuple[Callable[[], float], float]] = {
        f"launching {SMALL[2]} small products": (lambda: median(launch() for _ in range(9)), LAUNCHING_AT_MOST),
        f"{LARGE[1]} products of {LARGE[0]} rows": (lambda: watch.host_seconds(compute), COMPUTING_AT_MOST),
    }
    with ThreadPoolExecutor(1) as mover:  # one thread, since each that copies takes streams and memory of its own
        for what, (seconds, most) in works.items():
            alone = seconds()
            for name, move in moves.items():
                with again_and_again(mover, move):
                    taken = seconds()
                yield ProofFigure(
                    "streaming",
                    f"{layout.name}: {what} beside {name}",
                    taken / alone,
                    "",
                    at_most=most,
                    note=f"{alone * 1e3:.2f} ms alone",
                )


@contextmanager
def again_and_again(thread: ThreadPoolExecutor, work: Callable[[], None]) -> Iterator[None]:
    """`thread` does it all the time, once at least; what it raises is raised when that has ended."""
    over = threading.Event()

    def repeat() -> None:
        work()
        while not over.is_set():
            work()

    done = thread.submit(repeat)
    try:
        yield
    finally:
        over.set()
    done.result()
