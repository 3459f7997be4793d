"""How few programs fill the link with a kernel that reads host memory, from what is measured where it is to be used.

Such a kernel waits for the link most of its time, on processors that a forward would use: so it gets no more of them
than make it faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from .copy_queue import Accelerator, ListedCopy
from .page_gather import PageCopy
from .pool_planes import PoolPlanes

#: What is moved in one sample: so much that a launch weighs nothing beside it. Samples that count.
SAMPLE_BYTES = 64 * 2**20
_SAMPLES = 3
#: Pages of the pool that samples are copied to.
_POOL_PAGES = 64
#: A kernel may take so much longer with fewer programs; those that are tried, by doubling. Wide ones are few.
_SLOWER = 1.05
_FEWEST_PROGRAMS, _MOST_PROGRAMS = 1, 512


def measure_load_programs(
    accelerator: Accelerator,
    like: Sequence[torch.Tensor],
    page_size: int,
    slab: torch.Tensor,
    sample_bytes: int | None = None,
    load: Callable[[PoolPlanes, torch.Tensor], ListedCopy] = lambda pool, slab: PageCopy(pool, slab, out=False),
) -> int | None:
    """With which a load takes hardly longer than with all; None if that many are needed. In some tens of milliseconds,
    by the device's clock: asking for a copy takes the host longer than a link takes for a small one.

    `like`: the planes of one layer, `[rows, heads, head_dim]`; `slab`: page-locked rows of pages, which are read and
    not written; `load`: the kernel that brings pages of a pool from there; `sample_bytes`: None for `SAMPLE_BYTES`.
    Waits for the device."""
    if sample_bytes is None:
        sample_bytes = SAMPLE_BYTES
    shape = (_POOL_PAGES * page_size, *like[0].shape[1:])
    pool = PoolPlanes([[torch.zeros(shape, dtype=plane.dtype, device=accelerator.device) for plane in like]], page_size)
    queue = accelerator.queue()
    queue.after(accelerator.mark_here())  # the planes are zeroed, and whoever had their memory before is done with it
    count = -(-sample_bytes // pool.layer_bytes)
    pages = np.arange(count, dtype=np.int64) % pool.pool_pages
    slots = np.random.default_rng(0).integers(0, len(slab), count)
    copy, lists = load(pool, slab), queue.lists(pool, pages, slab, slots)

    def seconds(programs: int | None) -> float:
        """The best of some samples after one that is not counted (a kernel is compiled at its first call)."""
        return min([queue.seconds(partial(queue.copy, copy, lists, programs)) for _ in range(1 + _SAMPLES)][1:])

    bound = seconds(None) * _SLOWER
    programs = _FEWEST_PROGRAMS
    while seconds(programs) > bound:
        programs *= 2
        if programs > _MOST_PROGRAMS:
            return None
    return programs
