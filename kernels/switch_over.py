"""From how many neighbouring pages on the copy engine is the better way, and how few programs fill the link with a
kernel, both measured where they are to be used.

A call of the engine has a price, whatever it moves; a kernel reaches scattered pages in one call, but moves them more
slowly over a host's link, and on processors that a forward would use: so no more of them than make it faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from .copy_queue import Accelerator, CopyQueue
from .pool_planes import PoolPlanes

#: Pages moved in one sample; so many neighbours are tried at most.
_PAGES = 64
_SAMPLES = 3
#: The engine is taken while it costs no more than this much of a kernel: it leaves the processors to the forward.
_WORTH = 1.1
#: A kernel may take so much longer with fewer programs; those that are tried, by doubling; copies in one sample of
#: them, so that waiting for the last one weighs little.
_SLOWER = 1.05
_FEWEST_PROGRAMS, _MOST_PROGRAMS = 16, 512
_COPIES = 8


class SwitchOver(NamedTuple):
    """Neighbouring pages that are worth a call of the copy engine; more than any run has where it never is."""

    load_pages: int = 4  # one layer of them, to the device
    store_pages: int = 1  # whole ones, from the device
    load_programs: int | None = None  # of a kernel that reads host memory; None: as many as the device holds


def measure_switch_over(
    accelerator: Accelerator,
    like: Sequence[torch.Tensor],
    page_size: int,
    layers: int,
    clock: Callable[[], float] = time.perf_counter,
) -> SwitchOver:
    """In memory of its own, some tens of milliseconds. `like`: the planes of one layer, `[rows, heads, head_dim]`;
    `layers`: how many a page has. Waits for the device."""
    shape = (_PAGES * page_size, *like[0].shape[1:])
    planes = [torch.zeros(shape, dtype=plane.dtype, device=accelerator.device) for plane in like]
    pool = PoolPlanes([planes], page_size)
    queue = accelerator.queue()
    slab = accelerator.host_memory(_PAGES, pool.page_bytes)
    slab.zero_()
    staging = accelerator.device_memory(_PAGES, pool.page_bytes)
    queue.after(accelerator.mark_here())  # the planes are zeroed, and whoever had their memory before is done with it
    flat = [plane.view(_PAGES, -1).view(torch.uint8) for plane in planes]
    everything = np.arange(_PAGES, dtype=np.int64)
    scattered = np.random.default_rng(0).permutation(_PAGES).astype(np.int64)

    def load_runs(length: int) -> None:
        for first in range(0, _PAGES, length):
            at = 0
            for plane in flat:
                width = plane.shape[1]
                queue.rows(slab[first : first + length, at : at + width], plane[first : first + length])
                at += width

    def store_runs(length: int) -> None:
        queue.gather(pool, everything, staging, everything)
        for first in range(0, _PAGES, length):
            queue.rows(staging[first : first + length], slab[first : first + length])

    def load_by_kernel(programs: int | None, copies: int = 1) -> None:
        for _ in range(copies):
            queue.scatter(pool, scattered, slab, everything, most_programs=programs)

    programs = _fewest_programs(queue, clock, partial(load_by_kernel, copies=_COPIES))
    load = _crossover(queue, clock, load_runs, partial(load_by_kernel, programs))
    # A store has a page's bytes in one piece: as many neighbours as one layer of a page has bytes are fewer pages.
    store = _crossover(queue, clock, store_runs, lambda: queue.gather(pool, scattered, slab, everything))
    return SwitchOver(load, max(1, -(-store // layers)) if store <= _PAGES else store, programs)


def _fewest_programs(queue: CopyQueue, clock: Callable[[], float], load: Callable[[int | None], None]) -> int | None:
    """With which a load takes hardly longer than with all; None if that many are needed."""
    bound = _fastest(queue, clock, partial(load, None)) * _SLOWER
    programs = _FEWEST_PROGRAMS
    while _fastest(queue, clock, partial(load, programs)) > bound:
        programs *= 2
        if programs > _MOST_PROGRAMS:
            return None
    return programs


def _crossover(
    queue: CopyQueue, clock: Callable[[], float], engine: Callable[[int], None], kernel: Callable[[], None]
) -> int:
    """The shortest run that the engine moves as cheaply, a power of two; more than are tried if none is."""
    bound = _fastest(queue, clock, kernel) * _WORTH
    length = 1
    while length <= _PAGES and _fastest(queue, clock, partial(engine, length)) > bound:
        length *= 2
    return length


def _fastest(queue: CopyQueue, clock: Callable[[], float], work: Callable[[], None]) -> float:
    """Seconds, the best of some samples after one that is not counted (kernels are compiled at their first call)."""
    seconds = []
    for _ in range(1 + _SAMPLES):
        queue.mark().synchronize()
        began = clock()
        work()
        queue.mark().synchronize()
        seconds.append(clock() - began)
    return min(seconds[1:])
