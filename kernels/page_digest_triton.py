"""The page digest as two Triton kernels: sums over parts of pages, then one digest for each page.

Pages are cut into parts so that a few large pages occupy all of a GPU too. Sums of parts are kept apart and added in
the second kernel: no atomics, nothing to be zeroed before.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from .launch import COUNT_LIMIT, cdiv, launcher_of
from .page_digest_plain import FACTORS, GOLDEN, SHIFTS
from .pool_planes import PoolPlanes, alignment_of, pieces_of

#: Words of 8 bytes in a tile: 8 to each of 128 threads.
TILE_WORDS = 1024
#: Tiles of a part: 128 KiB.
PART_TILES = 16
#: Of sums that there are at a time. torch serves more than this from a segment of its own, which may be had no more
#: when a server has been serving for a while; pages of few tokens have many parts for their size.
SUMS_BYTES = 1 << 20
#: Pages that a program of the second kernel finishes at a time.
FINISH_PAGES = 32

_GOLDEN = tl.constexpr(GOLDEN)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = (tl.constexpr(shift) for shift in SHIFTS)
_FACTOR_1, _FACTOR_2 = (tl.constexpr(factor) for factor in FACTORS)


@triton.jit
def mix(x):
    """SplitMix64's finalizer, on uint64."""
    x = (x ^ (x >> _SHIFT_1)) * _FACTOR_1
    x = (x ^ (x >> _SHIFT_2)) * _FACTOR_2
    return x ^ (x >> _SHIFT_3)


@triton.jit
def with_words(a, b, word, index, there):
    """Both sums with these words of a page besides; `index`: their places in it, from 0."""
    key = (index + 1).to(tl.uint64) * _GOLDEN
    mixed = tl.where(there, mix(word + key), 0).to(tl.uint64)
    return a + mixed, b + mixed * (key | 1)


@triton.jit
def store_sums(target, a, b):
    tl.store(target, tl.reduce(a, 0, tl.standard._sum_combine))
    tl.store(target + 1, tl.reduce(b, 0, tl.standard._sum_combine))


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slab", "slots", "sums"])
def sum_parts(
    slab,  # uint8 *: where the first slot's page begins
    slots,  # int64 *
    sums,  # uint64 * [count, PARTS, 2]
    count,  # pages
    NBYTES: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    ALIGNMENT: tl.constexpr,  # bytes: divides every page's address; less than 8 if its length has a last word in parts
    PARTS: tl.constexpr,
    PART_TILES: tl.constexpr,
    TILE_WORDS: tl.constexpr,
):
    WORDS: tl.constexpr = (NBYTES + 7) // 8
    for item in range(tl.program_id(0), count * PARTS, tl.num_programs(0)):
        slot = tl.load(slots + item // PARTS)
        begin = slab.to(tl.int64) + slot * SLOT_STRIDE
        a = tl.full((TILE_WORDS,), 0, dtype=tl.uint64)
        b = tl.full((TILE_WORDS,), 0, dtype=tl.uint64)
        first = item % PARTS * PART_TILES
        for tile in range(PART_TILES):  # of so many that the compiler takes several at a time
            index = (first + tile) * TILE_WORDS + tl.arange(0, TILE_WORDS)
            there = index < WORDS
            if ALIGNMENT >= 8:
                words = tl.multiple_of(begin.to(tl.pointer_type(tl.uint64)), ALIGNMENT)
                word = tl.load(words + index, mask=there, other=0)
            else:
                places = index[:, None] * 8 + tl.arange(0, 8)[None, :]
                pieces = tl.load(begin.to(tl.pointer_type(tl.uint8)) + places, mask=places < NBYTES, other=0)
                shifts = (tl.arange(0, 8) * 8)[None, :].to(tl.uint64)
                word = tl.reduce(pieces.to(tl.uint64) << shifts, 1, tl.standard._sum_combine)
            a, b = with_words(a, b, word, index, there)
        store_sums(sums + item * 2, a, b)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["table", "pages", "sums"])
def sum_planes(
    table,  # int64 *: the address of each plane's first row
    pages,  # int64 *
    sums,  # uint64 * [count, PARTS, 2]
    count,  # pages
    PLANES: tl.constexpr,
    FIRST_PART: tl.constexpr,  # of the page that is summed here, a part for each plane
    PARTS: tl.constexpr,  # of a whole page
    FIRST_WORD: tl.constexpr,  # of the page, in the first of these planes
    PIECES: tl.constexpr,  # runs of a page in a plane
    PIECE_WORDS: tl.constexpr,
    PIECE_STRIDE: tl.constexpr,  # bytes from one to the next
    PAGE_STRIDE: tl.constexpr,
    ALIGNMENT: tl.constexpr,  # bytes, 8 at least: divides every address and stride here
    TILE_WORDS: tl.constexpr,
):
    WORDS: tl.constexpr = PIECES * PIECE_WORDS
    TILES: tl.constexpr = (WORDS + TILE_WORDS - 1) // TILE_WORDS
    for item in range(tl.program_id(0), count * PLANES, tl.num_programs(0)):
        plane = item % PLANES
        page = tl.load(pages + item // PLANES)
        begin = tl.load(table + plane) + page * PAGE_STRIDE
        before = FIRST_WORD + plane * WORDS  # words of the page in planes before this one
        a = tl.full((TILE_WORDS,), 0, dtype=tl.uint64)
        b = tl.full((TILE_WORDS,), 0, dtype=tl.uint64)
        for tile in range(TILES):
            index = tile * TILE_WORDS + tl.arange(0, TILE_WORDS)
            there = index < WORDS
            if PIECES == 1:
                words = tl.multiple_of(begin.to(tl.pointer_type(tl.uint64)), ALIGNMENT) + index
            else:
                place = begin + (index // PIECE_WORDS).to(tl.int64) * PIECE_STRIDE + (index % PIECE_WORDS) * 8
                words = place.to(tl.pointer_type(tl.uint64))
            word = tl.load(words, mask=there, other=0)
            a, b = with_words(a, b, word, index + before, there)
        store_sums(sums + ((item // PLANES) * PARTS + FIRST_PART + plane) * 2, a, b)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["sums", "digests"])
def finish_digests(
    sums,  # uint64 * [count, PARTS, 2]
    digests,  # uint64 * [count, 2]
    count,
    NBYTES: tl.constexpr,
    PARTS: tl.constexpr,
    PAGES: tl.constexpr,
    COLUMNS: tl.constexpr,  # a power of two, PARTS or more
):
    page = tl.program_id(0) * PAGES + tl.arange(0, PAGES)
    part = tl.arange(0, COLUMNS)
    there = page < count
    mask = there[:, None] & (part < PARTS)[None, :]
    places = sums + (page.to(tl.int64) * PARTS)[:, None] * 2 + part[None, :] * 2
    a = tl.reduce(tl.load(places, mask=mask, other=0), 1, tl.standard._sum_combine)
    b = tl.reduce(tl.load(places + 1, mask=mask, other=0), 1, tl.standard._sum_combine)
    LENGTH: tl.constexpr = (NBYTES * _GOLDEN) % 18446744073709551616
    first = mix(a + LENGTH)
    tl.store(digests + page.to(tl.int64) * 2, first, mask=there)
    tl.store(digests + page.to(tl.int64) * 2 + 1, mix(b + first), mask=there)


def digest_constants(nbytes: int, slot_stride: int, address: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The constants of both kernels for pages of `nbytes`, the first of a slab at `address`."""
    parts = max(1, cdiv(cdiv(nbytes, 8), TILE_WORDS * PART_TILES))
    alignment = alignment_of(address, slot_stride)
    if nbytes % 8:
        alignment = 1  # byte by byte, so that nothing behind the page is taken for a part of it
    summing = {
        "NBYTES": nbytes,
        "SLOT_STRIDE": slot_stride,
        "ALIGNMENT": alignment,
        "PARTS": parts,
        "PART_TILES": PART_TILES,
        "TILE_WORDS": TILE_WORDS,
    }
    return summing, finish_constants(nbytes, parts)


def finish_constants(nbytes: int, parts: int) -> dict[str, Any]:
    """Of the second kernel, for pages of `nbytes` that were summed in so many parts."""
    columns = triton.next_power_of_2(parts)
    pages = max(1, FINISH_PAGES * 32 // max(32, columns))
    return {"NBYTES": nbytes, "PARTS": parts, "PAGES": pages, "COLUMNS": columns}


def pool_constants(pools: Sequence[PoolPlanes]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The constants of both kernels, of the first for each pool, for pages of which the pools have parts."""
    summing = list[dict[str, Any]]()
    parts, words = sum(len(pool.flat) for pool in pools), 0
    for pool in pools:
        pieces, piece_bytes = pieces_of(pool.page_size, pool.row_bytes, pool.row_stride)
        summing.append(
            {
                "PLANES": len(pool.flat),
                "FIRST_PART": sum(known["PLANES"] for known in summing),
                "PARTS": parts,
                "FIRST_WORD": words,
                "PIECES": pieces,
                "PIECE_WORDS": piece_bytes // 8,
                "PIECE_STRIDE": pool.row_stride,
                "PAGE_STRIDE": pool.page_size * pool.row_stride,
                "ALIGNMENT": min(pool.alignment, alignment_of(pool.page_size * pool.row_stride)),
                "TILE_WORDS": min(TILE_WORDS, triton.next_power_of_2(pieces * piece_bytes // 8)),
            }
        )
        words += pool.page_bytes // 8
    return summing, finish_constants(8 * words, parts)


def pool_digests_triton(pools: Sequence[PoolPlanes], pages: torch.Tensor) -> torch.Tensor:
    """As `page_digest.pool_digests` says, by the kernels, on the pools' device; in host memory they are interpreted."""
    device = pools[0].device
    summing, finishing = pool_constants(pools)
    launchers = [launcher_of(sum_planes, device, constants) for constants in summing]

    def sum_up(start: int, end: int, sums: torch.Tensor) -> None:
        for pool, summed in zip(pools, launchers, strict=True):
            share = summed.share((end - start) * len(pool.flat))
            summed(share, pool.table, pages[start:end], sums, end - start)

    return _digests(len(pages), finishing, device, sum_up)


def _digests(
    count: int, finishing: Mapping[str, Any], device: torch.device, sum_up: Callable[[int, int, torch.Tensor], None]
) -> torch.Tensor:
    """Of pages some at a time, whose parts `sum_up(start, end, sums)` has summed, in the same memory each time."""
    parts = finishing["PARTS"]
    some = max(1, min(count, COUNT_LIMIT // parts, SUMS_BYTES // (16 * parts)))
    # uint64 in the kernels: shifts bring in zeros.
    sums = torch.empty((some, parts, 2), dtype=torch.int64, device=device).view(torch.uint64)
    digests = torch.empty((count, 2), dtype=torch.int64, device=device)
    for start in range(0, count, some):
        end = min(start + some, count)
        sum_up(start, end, sums)
        _finish(sums, digests[start:end], end - start, finishing)
    return digests


def _finish(sums: torch.Tensor, digests: torch.Tensor, count: int, constants: Mapping[str, Any]) -> None:
    finished = launcher_of(finish_digests, digests.device, constants)
    finished(cdiv(max(count, 1), constants["PAGES"]), sums, digests.view(torch.uint64), count)


def prepare_pool_digests_triton(pools: Sequence[PoolPlanes]) -> None:
    """Launches over no pages: what is compiled for them is what `pool_digests_triton` launches."""
    device = pools[0].device
    summing, finishing = pool_constants(pools)
    pages = torch.zeros(1, dtype=torch.int64, device=device)
    sums = torch.zeros((1, finishing["PARTS"], 2), dtype=torch.int64, device=device).view(torch.uint64)
    digests = torch.zeros((1, 2), dtype=torch.int64, device=device)
    for pool, constants in zip(pools, summing, strict=True):
        launcher_of(sum_planes, device, constants)(1, pool.table, pages, sums, 0)
    _finish(sums, digests, 0, finishing)


def page_digests_triton(slab: torch.Tensor, slots: torch.Tensor, nbytes: int, offset: int) -> torch.Tensor:
    """As `page_digests_plain`, by the kernels, on the device of `slots`; in host memory they are interpreted."""
    begin, device = slab[:, offset:], slots.device
    summing, finishing = digest_constants(nbytes, slab.stride(0), begin.data_ptr())
    summed = launcher_of(sum_parts, device, summing)

    def sum_up(start: int, end: int, sums: torch.Tensor) -> None:
        summed(summed.share((end - start) * summing["PARTS"]), begin, slots[start:end], sums, end - start)

    return _digests(len(slots), finishing, device, sum_up)


def prepare_digests_triton(slab: torch.Tensor, nbytes: int) -> None:
    """Launches over no pages: what is compiled for them is what `page_digests_triton` launches."""
    device = slab.device
    summing, finishing = digest_constants(nbytes, slab.stride(0), slab.data_ptr())
    slots = torch.zeros(1, dtype=torch.int64, device=device)
    sums = torch.zeros((1, summing["PARTS"], 2), dtype=torch.int64, device=device).view(torch.uint64)
    digests = torch.zeros((1, 2), dtype=torch.int64, device=device)
    launcher_of(sum_parts, device, summing)(1, slab, slots, sums, 0)
    _finish(sums, digests, 0, finishing)
