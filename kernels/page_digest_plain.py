"""The digest of pages in plain torch, and the constants that every way of computing it shares; see `page_digest`."""

from __future__ import annotations

import torch

GOLDEN = 0x9E3779B97F4A7C15
#: SplitMix64's finalizer: shift, multiply, shift, multiply, shift.
SHIFTS = (30, 27, 31)
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def page_digests_plain(slab: torch.Tensor, slots: torch.Tensor, nbytes: int, offset: int) -> torch.Tensor:
    """The same in plain torch, page after page: what the kernel must equal."""
    return torch.stack([_digest_torch(slab[slot, offset : offset + nbytes]) for slot in slots.tolist()])


def _signed(value: int) -> int:
    """The int64 of the same bits: torch does no arithmetic on uint64."""
    return value - 2**64 if value >= 2**63 else value


def _mix_torch(x: torch.Tensor) -> torch.Tensor:
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        x = (x ^ ((x >> shift) & (2 ** (64 - shift) - 1))) * _signed(factor)
    return x ^ ((x >> SHIFTS[2]) & (2 ** (64 - SHIFTS[2]) - 1))


def _digest_torch(page: torch.Tensor) -> torch.Tensor:
    padded = torch.zeros(-(-len(page) // 8) * 8, dtype=torch.uint8, device=page.device)
    padded[: len(page)] = page
    words = padded.view(torch.int64)
    keys = torch.arange(1, len(words) + 1, device=page.device) * _signed(GOLDEN)
    mixed = _mix_torch(words + keys)
    first = _mix_torch(mixed.sum() + _signed(len(page) * GOLDEN % 2**64))
    second = _mix_torch((mixed * (keys | 1)).sum() + first)
    return torch.stack([first, second])
