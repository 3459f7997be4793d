"""A 128-bit digest of a page that a GPU computes as fast as it reads, and the host reproduces.

For pages that go from one device to another and never through host memory, where their xxh3-128 checksum is computed;
and for pages in host memory that the device has had before: it says whether it has the same ones again.

A page is cut into 64-bit little-endian words, the last one filled up with zeros. Modulo 2^64, with w_i the words from
i = 1, k_i = i * GOLDEN, and `mix` the finalizer of SplitMix64, a bijection after which every bit depends on every bit:

    x_i = mix(w_i + k_i);  a = sum of x_i;  b = sum of x_i * (k_i | 1)
    first = mix(a + length * GOLDEN);  second = mix(b + first)

Sums, so that words may be taken in any order by any number of programs. What follows: a page that differs from another
of its length in one word (a flipped bit, any burst within a word) always has another digest, since `mix` is a bijection
and `a` then differs; so has one of the same words and another length. Anything else (words or layers swapped, a tail
zeroed, another page, a torn write) passes with a probability of about 2^-128, as far as chance is what changes pages.

It does not protect against a person: sums of a bijection can be solved for pages of a wished digest. Nor does it say
whose page this is: key and namespace are verified apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from . import pool_planes
from .page_digest_plain import FACTORS, GOLDEN, SHIFTS, page_digests_plain
from .page_gather import Indices, copy_pages_plain
from .pool_planes import PoolPlanes, as_indices, check_slab

#: Words that the host takes at once: they stay in its cache from step to step.
_HOST_WORDS = 32768


def host_page_digest(data: np.ndarray | bytes | bytearray | memoryview) -> bytes:
    """The digest, 16 bytes, of a page's bytes in host memory; about ten passes of numpy over each."""
    page = np.ascontiguousarray(data).view(np.uint8).ravel() if isinstance(data, np.ndarray) else _bytes(data)
    words = np.zeros(-(-len(page) // 8), dtype="<u8")
    words.view(np.uint8)[: len(page)] = page
    a = b = np.uint64(0)
    with np.errstate(over="ignore"):
        for start in range(0, len(words), _HOST_WORDS):
            some = words[start : start + _HOST_WORDS]
            keys = np.arange(start + 1, start + 1 + len(some), dtype=np.uint64) * np.uint64(GOLDEN)
            mixed = _mix_numpy(some + keys)
            a += mixed.sum(dtype=np.uint64)
            b += (mixed * (keys | np.uint64(1))).sum(dtype=np.uint64)
        first = _mix_numpy(a + np.uint64(len(page)) * np.uint64(GOLDEN))
        second = _mix_numpy(b + first)
    return np.array([first, second], dtype="<u8").tobytes()


def _bytes(data: bytes | bytearray | memoryview) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


def _mix_numpy(x: np.ndarray | np.uint64) -> np.ndarray:
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(SHIFTS[2]))  # type: ignore[return-value]


def page_digests(slab: torch.Tensor, slots: Indices, nbytes: int, offset: int = 0) -> torch.Tensor:
    """The digests of slab rows `slots[i]`, `nbytes` from byte `offset` each: int64 [n, 2], for `digest_bytes`.

    `slab`: uint8 `[slots, stride]`, in device memory, or page-locked host memory if `slots` is a tensor on a GPU, which
    then reads it across the link. On the current stream; indices as with `gather_pages`.
    """
    check_slab(slab, offset, nbytes)
    device = slab.device
    if isinstance(slots, torch.Tensor) and slots.device.type == "cuda":
        device = slots.device
    rows = as_indices(slots, slab.shape[0], device, "slots")
    if not len(rows):
        return torch.empty((0, 2), dtype=torch.int64, device=device)
    if pool_planes.by_kernel(device):
        from .page_digest_triton import page_digests_triton

        return page_digests_triton(slab, rows, nbytes, offset)
    return page_digests_plain(slab, rows, nbytes, offset)


def prepare_digests(slab: torch.Tensor, nbytes: int) -> None:
    """Compile and load what `page_digests` of this slab's rows launches, on the current stream; nothing is read."""
    check_slab(slab, 0, nbytes)
    if pool_planes.by_kernel(slab.device):
        from .page_digest_triton import prepare_digests_triton

        prepare_digests_triton(slab, nbytes)


def digests_pools(pools: Sequence[PoolPlanes]) -> bool:
    """Whether `pool_digests` takes these pools: those whose rows are whole words at their own places."""
    return all(pool.row_bytes % 8 == 0 and pool.alignment % 8 == 0 for pool in pools)


def pool_digests(pools: Sequence[PoolPlanes], pages: Indices) -> torch.Tensor:
    """The digests that pages have as block-major pages (`page_gather`) with what each pool has of them, one after the
    other, read where they lie: int64 [n, 2], on the pools' device. On the current stream; `pages` as with
    `gather_pages`. Raises ValueError for pools without."""
    if not digests_pools(pools):
        raise ValueError("pages whose rows are no whole words have no digest where they lie; gather them")
    device = pools[0].device
    chosen = as_indices(pages, min(pool.pool_pages for pool in pools), device, "pool pages")
    if not len(chosen):
        return torch.empty((0, 2), dtype=torch.int64, device=device)
    if pool_planes.by_kernel(device):
        from .page_digest_triton import pool_digests_triton

        return pool_digests_triton(pools, chosen)
    slab = torch.empty((len(chosen), sum(pool.page_bytes for pool in pools)), dtype=torch.uint8, device=device)
    rows, offset = torch.arange(len(chosen), device=device), 0
    for pool in pools:
        copy_pages_plain(pool, chosen, slab, rows, range(pool.layers), offset, True)
        offset += pool.page_bytes
    return page_digests_plain(slab, rows, offset, 0)


def prepare_pool_digests(pools: Sequence[PoolPlanes]) -> None:
    """Compile and load what `pool_digests` launches, on the current stream; nothing is read."""
    if pool_planes.by_kernel(pools[0].device):
        from .page_digest_triton import prepare_pool_digests_triton

        prepare_pool_digests_triton(pools)


def digest_bytes(digests: torch.Tensor) -> list[bytes]:
    """Digests as 16 bytes each, as `host_page_digest` gives them. Waits for the device."""
    return [row.tobytes() for row in digests.cpu().numpy().astype("<i8")]
