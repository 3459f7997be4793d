"""The copies of `piece_copy` as one Triton kernel.

Pieces are of any lengths, so they are cut on the host into chunks, of which programs take one after the other: long
enough that their list is short, and short enough that all of the GPU has some. Each goes by 16 bytes at once where both
its addresses are multiples of that, up to what an odd length leaves over, and else byte by byte.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from .launch import COUNT_LIMIT, launch, programs_for
from .pool_planes import uploaded

#: Bytes that a program has under way: with 128 threads, four accesses of 16 bytes each.
TILE_BYTES = 8192
#: The same where single bytes are copied: sixteen accesses of one byte each.
ODD_TILE_BYTES = 2048
#: Of a chunk, at most: its entry in the list is then 0.02 % of what it says to copy.
CHUNK_BYTES = 16 * TILE_BYTES
#: Chunks for each program, at least, where there is so much to copy: a program that is late then costs little.
_TURNS = 4


# Memory and lists begin anywhere: no variant is compiled in the middle of serving because one is aligned.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["source", "target", "chunks"])
def copy_chunks(
    source,  # uint8 *
    target,  # uint8 *
    chunks,  # int64 *: offset in the source, offset in the target, length of each
    count,
    WORDS: tl.constexpr,  # of 4 bytes, in a tile
    BYTES: tl.constexpr,  # in a tile of single bytes
):
    for chunk in range(tl.program_id(0), count, tl.num_programs(0)):
        # 64 bits before any product: memory is larger than 4 GiB, and so may lists be.
        entry = chunks + tl.cast(chunk, tl.int64) * 3
        read = source + tl.load(entry)
        write = target + tl.load(entry + 1)
        length = tl.load(entry + 2).to(tl.int32)
        whole = 0  # bytes that go by 16
        if ((read.to(tl.int64) | write.to(tl.int64)) & 15) == 0:
            whole = length // 16 * 16
        read_words = tl.multiple_of(read.to(tl.pointer_type(tl.int32)), 16)
        write_words = tl.multiple_of(write.to(tl.pointer_type(tl.int32)), 16)
        words = tl.multiple_of(whole // 4, 4)
        for first in range(0, words, WORDS):
            word = first + tl.arange(0, WORDS)
            tl.store(write_words + word, tl.load(read_words + word, mask=word < words), mask=word < words)
        for first in range(whole, length, BYTES):
            byte = first + tl.arange(0, BYTES)
            tl.store(write + byte, tl.load(read + byte, mask=byte < length), mask=byte < length)


CONSTANTS = {"WORDS": TILE_BYTES // 4, "BYTES": ODD_TILE_BYTES}


def copy_pieces_triton(source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray, device: torch.device) -> None:
    """As `copy_pieces_plain`, by the kernel, on the current stream of `device`; on "cpu" it is interpreted."""
    most = programs_for(device, COUNT_LIMIT)
    share = -(-int(pieces[:, 2].sum()) // (most * _TURNS))
    chunks = cut(pieces, min(CHUNK_BYTES, -(-share // TILE_BYTES) * TILE_BYTES))
    for start in range(0, len(chunks), COUNT_LIMIT):
        some = uploaded(torch.from_numpy(chunks[start : start + COUNT_LIMIT]), device)
        launch(copy_chunks, device, min(len(some), most), source, target, some, len(some), **CONSTANTS)


def prepare_pieces_triton(target: torch.Tensor) -> None:
    """A launch over no pieces: what is compiled for it is what `copy_pieces_triton` launches."""
    none = torch.zeros(3, dtype=torch.int64, device=target.device)
    launch(copy_chunks, target.device, 1, target, target, none, 0, **CONSTANTS)


def cut(pieces: np.ndarray, size: int) -> np.ndarray:
    """The same pieces, none longer than `size` bytes and none empty, in the same order: int64 `[m, 3]`."""
    if not pieces[:, 2].any():
        return pieces[:0]
    counts = -(-pieces[:, 2] // size)
    chunks = np.repeat(pieces, counts, axis=0)
    steps = (np.arange(len(chunks)) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    chunks[:, :2] += steps[:, None]
    chunks[:, 2] = np.minimum(chunks[:, 2] - steps, size)
    return chunks
