"""Listed pieces of one memory into another, of any lengths: `copy_pieces`.

For memory that is no pool of pages of one size, as what a donor lends is: a page lies there in as many pieces as its
lease has extents for it. The source may be memory of another process, or of another device, that is mapped for the
device that copies, or page-locked host memory; a kernel needs addresses only.
"""

from __future__ import annotations

import numpy as np
import torch

from . import pool_planes


def copy_pieces(source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray) -> None:
    """Copy each of `pieces`, int64 `[n, 3]`: offset in `source`, offset in `target`, length; all in bytes.

    `source` and `target` are contiguous uint8 `[bytes]`. Pieces may touch each other and be empty; none may overlap
    what is written. In one launch on the current stream of the target's device, or of the source's where the target is
    page-locked host memory; waits for nothing, and needs neither list nor array afterwards. Between tensors in host
    memory alone it is done on return. Raises ValueError, before anything is copied, for pieces that reach outside.
    """
    _check("source", source)
    _check("target", target)
    if pieces.dtype != np.int64 or pieces.ndim != 2 or pieces.shape[1] != 3:
        raise ValueError(f"pieces must be int64 [n, 3]; got {pieces.dtype} {pieces.shape}")
    if not len(pieces):
        return
    for what, memory, offsets in (("source", source, pieces[:, 0]), ("target", target, pieces[:, 1])):
        # Not by offset + length, which may pass 64 bits.
        outside = (offsets < 0) | (pieces[:, 2] < 0) | (offsets > len(memory) - pieces[:, 2])
        if outside.any():
            offset, length = offsets[outside][0], pieces[outside][0, 2]
            raise ValueError(f"{length} bytes from byte {offset} do not lie in the {what}'s {len(memory)}")
    device = target.device if target.device.type == "cuda" else source.device
    if pool_planes.by_kernel(device):
        from .piece_copy_triton import copy_pieces_triton

        copy_pieces_triton(source, target, pieces, device)
    else:
        copy_pieces_plain(source, target, pieces)


def prepare_pieces(target: torch.Tensor) -> None:
    """Compile and load what `copy_pieces` to `target` launches, on the current stream; nothing is copied."""
    _check("target", target)
    if pool_planes.by_kernel(target.device):
        from .piece_copy_triton import prepare_pieces_triton

        prepare_pieces_triton(target)


def copy_pieces_plain(source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray) -> None:
    """What the kernel must equal, in plain torch: piece after piece."""
    for start, place, length in pieces.tolist():
        target[place : place + length] = source[start : start + length]


def _check(what: str, memory: torch.Tensor) -> None:
    if memory.dtype != torch.uint8 or memory.dim() != 1 or not memory.is_contiguous():
        raise ValueError(f"the {what} must be contiguous uint8 [bytes]; got {memory.dtype} {tuple(memory.shape)}")
