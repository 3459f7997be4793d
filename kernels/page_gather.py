"""Between a device pool and block-major pages: `gather_pages` out of the pool, `scatter_pages` into it.

A block-major page is a row of a slab, uint8 `[slots, stride]`: `[layer][plane][token][kv_head][head_dim]`. All layers
go in one launch, or a range of neighbouring ones. Copies are of bytes: any dtype, head count and head_dim.

The slab may lie in the memory of the pool's device, of one whose memory it can reach (a peer's, mapped), or in
page-locked host memory, which CUDA maps into the device's address space: the kernel needs addresses only, and then
reads or writes across the link itself (zero-copy).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from . import pool_planes
from .pool_planes import PoolPlanes, as_indices, check_slab

if TYPE_CHECKING:
    from .page_gather_triton import TritonPageCopy

#: int64 [n]: on the host, or on the device.
Indices: TypeAlias = "np.ndarray | torch.Tensor"


class PageLists(NamedTuple):
    """Which pages are copied, where kernels look for it: int64 [n] each, on the pool's device."""

    pages: torch.Tensor
    slots: torch.Tensor


def page_lists(pool: PoolPlanes, pages: Indices, slab: torch.Tensor, slots: Indices) -> PageLists:
    """Pool page `pages[i]` and slab row `slots[i]`, for any copy between these two: checked and uploaded once.

    int64: numpy arrays, which are checked and go up together on the current stream, or tensors on the pool's device,
    which are trusted. Raises ValueError for indices from the host that lie outside, and lists of different lengths.
    """
    if len(pages) != len(slots):
        raise ValueError(f"{len(pages)} pool pages and {len(slots)} slots: as many of both are needed")
    found = PageLists(
        as_indices(pages, pool.pool_pages, pool.device, "pool pages", upload=False),
        as_indices(slots, slab.shape[0], pool.device, "slots", upload=False),
    )
    if any(one.device.type != "cpu" for one in found):
        return PageLists(*(pool_planes.uploaded(one, pool.device) for one in found))
    both = pool_planes.uploaded(torch.stack(found), pool.device)
    return PageLists(both[0], both[1])


class ListedCopy(Protocol):
    """Between a pool and a slab, of any list of pages: a `PageCopy`, or a `PageCode`, which codes them besides."""

    def prepare(self) -> None:
        """Compile and load what `run` launches; nothing is copied."""

    def run(self, lists: PageLists, most_programs: int | None = None) -> None:
        """On the current stream, of these pages."""


class PageCopy:
    """One kind of copy between a pool and a slab, to be made of any lists and any number of times: which layers, from
    which byte of a row, and which way. What follows from these is checked and found once."""

    def __init__(
        self,
        pool: PoolPlanes,
        slab: torch.Tensor,
        layers: range | None = None,
        offset: int | None = None,
        *,
        out: bool,
        wide: bool = False,
    ) -> None:
        """`layers` and `offset` as of `gather_pages`; `out`: of the pool, or into it; `wide`: by programs of many
        threads, of which a few fill a link. Keeps the slab alive. Raises ValueError for a slab without room."""
        self.pool = pool
        self.slab = slab
        self.layers = pool.range_of(layers)
        self.offset = self.layers.start * pool.layer_bytes if offset is None else offset
        self.out = out
        check_slab(slab, self.offset, len(self.layers) * pool.layer_bytes)
        self._kernel: TritonPageCopy | None = None
        if pool_planes.by_kernel(pool.device):
            from .page_gather_triton import TritonPageCopy

            self._kernel = TritonPageCopy(pool, slab, self.layers, self.offset, out, wide)

    def prepare(self) -> None:
        """Compile and load what `run` launches, on the pool's current stream; nothing is copied."""
        if self._kernel is not None:
            self._kernel.prepare()

    def run(self, lists: PageLists, most_programs: int | None = None) -> None:
        """On the pool's current stream. `lists`: of these two, see `page_lists`."""
        if not len(lists.pages) or not len(self.layers):
            return
        if self._kernel is not None:
            self._kernel.run(*lists, most_programs)
        else:
            copy_pages_plain(self.pool, lists.pages, self.slab, lists.slots, self.layers, self.offset, self.out)


class JoinedCopies:
    """Several copies between a slab and pools, each of another part of a page, to be made of the same lists."""

    def __init__(self, *copies: ListedCopy) -> None:
        self.copies = copies

    def prepare(self) -> None:
        for copy in self.copies:
            copy.prepare()

    def run(self, lists: PageLists, most_programs: int | None = None) -> None:
        for copy in self.copies:
            copy.run(lists, most_programs)


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
    PageCopy(pool, slab, layers, offset, out=True).run(page_lists(pool, pages, slab, slots))


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
    PageCopy(pool, slab, layers, offset, out=False).run(page_lists(pool, pages, slab, slots), most_programs)


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
