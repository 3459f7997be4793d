"""Between a device pool and block-major pages: `gather_pages` out of the pool, `scatter_pages` into it.

A block-major page is a row of a slab, uint8 `[slots, stride]`: `[layer][plane][token][kv_head][head_dim]`. All layers
go in one launch, or a range of neighbouring ones. Copies are of bytes: any dtype, head count and head_dim.

The slab may lie in the memory of the pool's device, of one whose memory it can reach (a peer's, mapped), or in
page-locked host memory, which CUDA maps into the device's address space: the kernel needs addresses only, and then
reads or writes across the link itself (zero-copy).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch

from .pool_planes import PoolPlanes, as_indices, check_slab

#: int64 [n]: on the host, or on the device.
Indices: TypeAlias = "np.ndarray | torch.Tensor"


def gather_pages(
    pool: PoolPlanes,
    pages: Indices,
    slab: torch.Tensor,
    slots: Indices,
    layers: range | None = None,
    offset: int | None = None,
) -> None:
    """Pool page `pages[i]` into slab row `slots[i]`, on the pool's current stream; `slots` must not repeat.

    `layers`: which, all unless given. `offset`: the byte of a slab row at which the first of them begins; unless given,
    its place in a whole page. Bytes of the slab beside these stay as they are. `pages` and `slots` are int64: numpy
    arrays, which are checked and uploaded, or tensors on the pool's device, which are trusted. Raises ValueError for
    indices from the host that lie outside, lists of different lengths, or a slab without room.
    """
    _copy(pool, pages, slab, slots, layers, offset, out=True)


def scatter_pages(
    pool: PoolPlanes,
    pages: Indices,
    slab: torch.Tensor,
    slots: Indices,
    layers: range | None = None,
    offset: int | None = None,
    most_programs: int | None = None,
) -> None:
    """Slab row `slots[i]` into pool page `pages[i]`; `pages` must not repeat. Otherwise as `gather_pages`.

    `most_programs`: of the kernel, at least 1; None: as many as the GPU holds at once. Page-locked memory is read as
    fast by a few, which leave the processors to a forward.
    """
    _copy(pool, pages, slab, slots, layers, offset, out=False, most_programs=most_programs)


def _copy(
    pool: PoolPlanes,
    pages: Indices,
    slab: torch.Tensor,
    slots: Indices,
    layers: range | None,
    offset: int | None,
    out: bool,
    most_programs: int | None = None,
) -> None:
    chosen = pool.range_of(layers)
    start = chosen.start * pool.layer_bytes if offset is None else offset
    check_slab(slab, start, len(chosen) * pool.layer_bytes)
    pool_pages = as_indices(pages, pool.pool_pages, pool.device, "pool pages")
    slab_slots = as_indices(slots, slab.shape[0], pool.device, "slots")
    if len(pool_pages) != len(slab_slots):
        raise ValueError(f"{len(pool_pages)} pool pages and {len(slab_slots)} slots: as many of both are needed")
    if not len(pool_pages) or not len(chosen):
        return
    if pool.device.type == "cuda":
        from .page_gather_triton import copy_pages_triton

        copy_pages_triton(pool, pool_pages, slab, slab_slots, chosen, start, out, most_programs)
    else:
        copy_pages_plain(pool, pool_pages, slab, slab_slots, chosen, start, out)


def copy_pages_plain(
    pool: PoolPlanes,
    pages: torch.Tensor,
    slab: torch.Tensor,
    slots: torch.Tensor,
    layers: range,
    offset: int,
    out: bool,
) -> None:
    """What the kernel must equal, in plain torch: plane after plane by index. Pool and slab on one device."""
    width = pool.page_size * pool.row_bytes
    for number, plane in enumerate(range(layers.start * pool.planes, layers.stop * pool.planes)):
        place = slice(offset + number * width, offset + (number + 1) * width)
        rows = pool.plane_pages(plane)
        if out:
            slab[:, place].index_copy_(0, slots, rows[pages].view(torch.uint8).view(len(pages), width))
        else:
            # As bytes throughout: indexing knows no 8-bit floats.
            source = slab[:, place].index_select(0, slots).view(len(pages), pool.page_size, -1)
            rows.view(torch.uint8).index_copy_(0, pages, source)
