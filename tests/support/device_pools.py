"""Pools and slabs for tests of kernels: any geometry, both layouts, on either device, poisoned where nothing is due."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from swift_tiers.kernels.pool_planes import PoolPlanes

#: Where a kernel runs: interpreted over host memory, and compiled on a GPU.
DEVICES = [pytest.param("cpu", id="interpreted"), pytest.param("cuda", id="gpu", marks=pytest.mark.gpu)]
#: Fills what nothing may write.
POISON = 0xA5


class Geometry(NamedTuple):
    layers: int = 2
    planes: int = 2
    heads: int = 2
    head_dim: int = 8
    page_size: int = 4
    pages: int = 5
    dtype: torch.dtype = torch.bfloat16
    block_major: bool = False


def bounded(geometry: Geometry) -> Geometry:
    """The same with shorter heads where the interpreter would take seconds over a page."""
    longest = max(1, 40_000 // (geometry.page_size * geometry.heads * geometry.layers))
    return geometry._replace(head_dim=min(geometry.head_dim, longest))


def random_bytes(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def make_pool(geometry: Geometry, device: str, seed: int = 0) -> tuple[PoolPlanes, torch.Tensor]:
    """A pool of random bytes, and the memory of all its planes as uint8 [bytes], which it shares.

    One row more than whole pages, as SGLang's pools have, so that something lies behind the last page.
    """
    rows, total = geometry.pages * geometry.page_size + 1, geometry.layers * geometry.planes
    item = geometry.dtype.itemsize
    row = geometry.heads * geometry.head_dim * item
    memory = random_bytes((rows * total * row,), seed).to(device)
    typed = memory.view(geometry.dtype)
    shape = (geometry.heads, geometry.head_dim)
    if geometry.block_major:
        flat = list(typed.view(rows, total, *shape).unbind(1))
    else:
        flat = list(typed.view(total, rows, *shape).unbind(0))
    layers = [flat[start : start + geometry.planes] for start in range(0, total, geometry.planes)]
    return PoolPlanes(layers, geometry.page_size), memory


def make_normal_pool(geometry: Geometry, device: str, seed: int = 0) -> tuple[PoolPlanes, torch.Tensor]:
    """As `make_pool`, of normally distributed values, each head at a magnitude of its own."""
    pool, memory = make_pool(geometry, device, seed)
    generator = torch.Generator().manual_seed(seed)
    for plane in pool.flat:
        magnitude = torch.exp2(torch.randint(-12, 12, (*plane.shape[:2], 1), generator=generator).float())
        plane.copy_((torch.randn(plane.shape, generator=generator) * magnitude).to(plane.dtype))
    return pool, memory


def make_slab(slots: int, stride: int, device: str) -> torch.Tensor:
    return torch.full((slots, stride), POISON, dtype=torch.uint8, device=device)


def page_of(pool: PoolPlanes, page: int) -> bytes:
    """The block-major bytes of a pool page, by plain slicing."""
    rows = slice(page * pool.page_size, (page + 1) * pool.page_size)
    return b"".join(plane[rows].contiguous().view(torch.uint8).cpu().numpy().tobytes() for plane in pool.flat)
