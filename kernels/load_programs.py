"""From how many neighbouring pages on the copy engine is the better way, and how few programs fill the link with a
kernel, both from what is measured where they are to be used.

A call of the engine has a price, whatever it moves: most of it is the caller's, who holds the interpreter meanwhile. A
kernel reaches scattered pages in one call, on processors that a forward would use: so no more of them than make it
faster. The engine is worth its calls where the link takes longer over what they move than the caller over making them:
shorter runs would leave the link waiting for their caller, who would keep the scheduler from its turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from .copy_queue import Accelerator, CopyQueue, ListedCopy
from .page_gather import PageCopy
from .pool_planes import PoolPlanes

#: What is moved in one sample: so much that a launch weighs nothing beside it. Samples that count.
SAMPLE_BYTES = 64 * 2**20
_SAMPLES = 3
#: Calls of the engine in one sample of their price; what one moves in a sample of the link.
_CALLS = 256
_CALL_BYTES = 4 * 2**20
#: Whole pages that are stored at a time: a run of more is never asked for.
STORE_PAGES = 64
#: A kernel may take so much longer with fewer programs; those that are tried, by doubling.
_SLOWER = 1.05
_FEWEST_PROGRAMS, _MOST_PROGRAMS = 32, 512
#: A store by kernel gets no more: nobody waits for it, and a forward needs the processors.
_STORE_PROGRAMS = 64


class SwitchOver(NamedTuple):
    """Neighbouring pages that are worth a call of the copy engine."""

    load_pages: int = 4  # one layer of them, to the device
    store_pages: int = 1  # whole ones, from the device; `STORE_PAGES` at most
    load_programs: int | None = None  # of a kernel that reads host memory; None: as many as the device holds

    @property
    def store_programs(self) -> int:
        """Of a kernel that writes host memory; never all."""
        return min(self.load_programs or _STORE_PROGRAMS, _STORE_PROGRAMS)


class EnginePrice(NamedTuple):
    """Of the copy engine, from host memory."""

    call_seconds: float
    bytes_per_second: float

    def run(self, calls: int, run_bytes: int) -> int:
        """The shortest run of pages, of `run_bytes` each, that the link takes as long for as `calls` calls cost."""
        return max(1, math.ceil(calls * self.call_seconds * self.bytes_per_second / run_bytes))


def measure_switch_over(
    accelerator: Accelerator,
    like: Sequence[torch.Tensor],
    page_size: int,
    layers: int,
    slab: torch.Tensor,
    clock: Callable[[], float] = time.perf_counter,
    sample_bytes: int | None = None,
    load: Callable[[PoolPlanes, torch.Tensor], ListedCopy] = lambda pool, slab: PageCopy(pool, slab, out=False),
) -> SwitchOver:
    """In some tens of milliseconds. `like`: the planes of one layer, `[rows, heads, head_dim]`; `layers`: how many a
    page has; `slab`: page-locked rows of such pages, which are read and not written; `load`: the kernel that brings
    pages of a pool from there; `sample_bytes`: None for `SAMPLE_BYTES`. Waits for the device."""
    if sample_bytes is None:
        sample_bytes = SAMPLE_BYTES
    plane_bytes = page_size * like[0][0].numel() * like[0].element_size()
    pages = min(len(slab), max(STORE_PAGES, -(-_CALL_BYTES // plane_bytes)))
    shape = (pages * page_size, *like[0].shape[1:])
    planes = [torch.zeros(shape, dtype=plane.dtype, device=accelerator.device) for plane in like]
    pool = PoolPlanes([planes], page_size)
    queue = accelerator.queue()
    queue.after(accelerator.mark_here())  # the planes are zeroed, and whoever had their memory before is done with it
    price = _engine_price(queue, clock, slab[:pages, :plane_bytes], planes[0].view(pages, -1), sample_bytes)
    programs = _fewest_programs(queue, pool, slab, sample_bytes, load(pool, slab))
    layer_bytes = pool.layer_bytes
    # To the host the link is as fast as from there, and a page's bytes go in one piece.
    store = min(price.run(1, layers * layer_bytes), STORE_PAGES)
    return SwitchOver(price.run(len(like), layer_bytes), store, programs)


def _engine_price(
    queue: CopyQueue, clock: Callable[[], float], source: torch.Tensor, target: torch.Tensor, sample_bytes: int
) -> EnginePrice:
    """Of rows from host memory to the device."""
    target = target.view(torch.uint8)
    times = -(-sample_bytes // source.numel())

    def calls() -> None:
        for number in range(_CALLS):
            row = number % len(source)
            queue.rows(source[row : row + 1], target[row : row + 1])

    def by_the_host() -> float:
        queue.mark().synchronize()
        began = clock()
        calls()
        queue.mark().synchronize()
        return clock() - began

    def whole() -> None:
        for _ in range(times):
            queue.rows(source, target)

    rate = times * source.numel() / _fastest(lambda: queue.seconds(whole))
    return EnginePrice(max(0.0, _fastest(by_the_host) / _CALLS - source.shape[1] / rate), rate)


def _fewest_programs(
    queue: CopyQueue, pool: PoolPlanes, slab: torch.Tensor, sample_bytes: int, copy: ListedCopy
) -> int | None:
    """With which a load takes hardly longer than with all; None if that many are needed. By the device's clock: asking
    for a copy takes the host longer than a link takes for a small one."""
    count = -(-sample_bytes // pool.layer_bytes)
    pages = np.arange(count, dtype=np.int64) % pool.pool_pages
    slots = np.random.default_rng(0).integers(0, len(slab), count)
    lists = queue.lists(pool, pages, slab, slots)

    def load(programs: int | None) -> float:
        return _fastest(lambda: queue.seconds(partial(queue.copy, copy, lists, programs)))

    bound = load(None) * _SLOWER
    programs = _FEWEST_PROGRAMS
    while load(programs) > bound:
        programs *= 2
        if programs > _MOST_PROGRAMS:
            return None
    return programs


def _fastest(sample: Callable[[], float]) -> float:
    """Seconds, the best of some samples after one that is not counted (a kernel is compiled at its first call)."""
    return min([sample() for _ in range(1 + _SAMPLES)][1:])
