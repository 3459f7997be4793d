"""The copies of `page_gather` as one Triton kernel for both directions.

The unit is a piece: a run of bytes that is contiguous in the pool and in the page. Layer-first that is a page's part of
a plane, block-major one token's row of it. A tile is one or several pieces by a power of two of words; programs take
tiles in turn until none is left, so the grid does not depend on how many pages there are.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .launch import COUNT_LIMIT, WARPS, cdiv, launcher_of
from .pool_planes import WIDER, PoolPlanes, alignment_of, pieces_of

#: Bytes of a tile: with 128 threads, four accesses of 16 bytes each under way before the first is waited for.
TILE_BYTES = 8192

_WORDS: dict[int, Any] = {16: tl.int32, 8: tl.int32, 4: tl.int32, 2: tl.int16, 1: tl.uint8}


# Pieces of lists and tables begin anywhere: no variant is compiled in the middle of serving because one is aligned.
@triton.jit(do_not_specialize=["count", "planes"], do_not_specialize_on_alignment=["table", "pages", "slab", "slots"])
def copy_pieces(
    table,  # int64 *: the address of each plane's first row
    pages,  # int64 *
    slab,  # uint8 *: where the first slot's bytes begin
    slots,  # int64 *
    count,  # pages
    planes,  # of all layers that are copied
    PIECES: tl.constexpr,  # pieces of a page in one plane
    PIECE_BYTES: tl.constexpr,
    PIECE_STRIDE: tl.constexpr,  # bytes from a piece in the pool to the next of its page and plane
    PAGE_STRIDE: tl.constexpr,  # bytes from a page in a plane to the next
    SLOT_STRIDE: tl.constexpr,
    ALIGNMENT: tl.constexpr,  # bytes: divides every address and length here
    WORD: tl.constexpr,  # the dtype that is copied
    TILE_PIECES: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    OUT: tl.constexpr,  # out of the pool, or into it
):
    WORDS: tl.constexpr = PIECE_BYTES // (WORD.primitive_bitwidth // 8)
    PARTS: tl.constexpr = (WORDS + TILE_WORDS - 1) // TILE_WORDS
    pieces = count * (planes * PIECES)
    tiles = (pieces + TILE_PIECES - 1) // TILE_PIECES * PARTS
    rows = tl.arange(0, TILE_PIECES)
    columns = tl.arange(0, TILE_WORDS)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        piece = tile // PARTS * TILE_PIECES + rows
        column = tile % PARTS * TILE_WORDS + columns
        there = piece < pieces
        index = piece // (planes * PIECES)
        place = piece % (planes * PIECES)  # of the piece in its page
        page = tl.load(pages + index, mask=there, other=0)
        slot = tl.load(slots + index, mask=there, other=0)
        base = tl.load(table + place // PIECES, mask=there, other=0)
        # 64 bits before any product: pools and slabs are larger than 4 GiB.
        address = base + page * PAGE_STRIDE + (place % PIECES).to(tl.int64) * PIECE_STRIDE
        in_pool = tl.multiple_of(address.to(tl.pointer_type(WORD)), ALIGNMENT)
        in_slab = slab + slot * SLOT_STRIDE + place.to(tl.int64) * PIECE_BYTES
        in_slab = tl.multiple_of(in_slab.to(tl.pointer_type(WORD)), ALIGNMENT)
        pool_words = in_pool[:, None] + column[None, :]
        slab_words = in_slab[:, None] + column[None, :]
        mask = there[:, None] & (column < WORDS)[None, :]
        if OUT:
            tl.store(slab_words, tl.load(pool_words, mask=mask), mask=mask)
        else:
            tl.store(pool_words, tl.load(slab_words, mask=mask), mask=mask)


class CopyShape(NamedTuple):
    """How a copy is cut: the constants of its kernel, and what the grid follows from."""

    constants: dict[str, Any]
    parts: int  # tiles, side by side, for one piece

    @property
    def tile_pieces(self) -> int:
        return self.constants["TILE_PIECES"]


def copy_shape(
    page_size: int, row_bytes: int, row_stride: int, slot_stride: int, alignment: int, out: bool, wider: int = 1
) -> CopyShape:
    """The cut for such pages, whatever their number of planes. `alignment`: of every address, a power of two; `wider`:
    than usual so many times."""
    pieces, piece_bytes = pieces_of(page_size, row_bytes, row_stride)
    alignment = min(alignment, alignment_of(piece_bytes, row_stride, slot_stride))
    word = _WORDS[alignment]
    words, tile_bytes = piece_bytes // word.itemsize, TILE_BYTES * wider
    tile_words = min(triton.next_power_of_2(words), tile_bytes // word.itemsize)
    constants = {
        "PIECES": pieces,
        "PIECE_BYTES": piece_bytes,
        "PIECE_STRIDE": row_stride,
        "PAGE_STRIDE": page_size * row_stride,
        "SLOT_STRIDE": slot_stride,
        "ALIGNMENT": alignment,
        "WORD": word,
        "TILE_PIECES": tile_bytes // word.itemsize // tile_words,
        "TILE_WORDS": tile_words,
        "OUT": out,
    }
    return CopyShape(constants, cdiv(words, tile_words))


class TritonPageCopy:
    """One kind of copy, by the kernel; see `page_gather.PageCopy`. Over a pool in host memory it is interpreted."""

    def __init__(
        self, pool: PoolPlanes, slab: torch.Tensor, layers: range, offset: int, out: bool, wide: bool = False
    ) -> None:
        self._device, wider = pool.device, WIDER if wide else 1
        self._begin = slab[:, offset:]
        self._table = pool.table[layers.start * pool.planes :]
        self._planes = len(layers) * pool.planes
        alignment = min(pool.alignment, alignment_of(self._begin.data_ptr()))
        self._shape = copy_shape(pool.page_size, pool.row_bytes, pool.row_stride, slab.stride(0), alignment, out, wider)
        self._launch = launcher_of(copy_pieces, self._device, self._shape.constants, WARPS * wider)
        self._page_pieces = self._planes * self._shape.constants["PIECES"]
        self._step = max(1, COUNT_LIMIT // (self._page_pieces * self._shape.parts) - self._shape.tile_pieces)

    def prepare(self) -> None:
        """A launch over no pages: what is compiled for it is what `run` launches."""
        none = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._launch(1, self._table, none, self._begin, none, 0, self._planes)

    def run(self, pages: torch.Tensor, slots: torch.Tensor, most_programs: int | None = None) -> None:
        """On the current stream. `pages`, `slots`: int64 [n], n > 0, on the pool's device."""
        total = pages.shape[0]
        for start in range(0, total, self._step):
            some, places, count, shape = pages, slots, total, self._shape
            if total > self._step:
                some, places = pages[start : start + self._step], slots[start : start + self._step]
                count = some.shape[0]
            tiles = cdiv(count * self._page_pieces, shape.tile_pieces) * shape.parts
            programs = self._launch.share(tiles, most_programs)
            self._launch(programs, self._table, some, self._begin, places, count, self._planes)


def copy_pages_triton(
    pool: PoolPlanes,
    pages: torch.Tensor,
    slab: torch.Tensor,
    slots: torch.Tensor,
    layers: range,
    offset: int,
    out: bool,
    most_programs: int | None = None,
) -> None:
    """As `copy_pages_plain`, by the kernel; over a pool in host memory it is interpreted."""
    TritonPageCopy(pool, slab, layers, offset, out).run(pages, slots, most_programs)
