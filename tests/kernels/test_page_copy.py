"""Copies between pools and block-major pages: both implementations, any geometry, against plain indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.kernels.page_copy import runs
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool
from swift_tiers.sglang_ext.pools.device_pool import HostMemoryPool, pool_geometry

from support.deferred_accelerator import DeferredAccelerator
from support.examples import examples

#: Layers, planes of each (K and V, or latent rows), heads, dimensions of one, tokens of a page.
GEOMETRIES = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(1, 3), st.integers(1, 8), st.sampled_from([1, 4, 16])),
    st.just((2, 1, 1, 576, 16)),  # of DeepSeek and Kimi
)


def late_pool(buffers, page_size):
    return AcceleratorPool(buffers, page_size, DeferredAccelerator(7, locked=True))


def make(
    layers: int, heads: int, head_dim: int, page_size: int, pages: int, dtype: torch.dtype, kind, *, planes: int = 2
):
    shape = ((pages + 1) * page_size, heads, head_dim)
    buffers = [[torch.randn(shape).to(dtype) for _ in range(planes)] for _ in range(layers)]
    return buffers, kind(buffers, page_size)


@pytest.mark.parametrize("kind", [HostMemoryPool, late_pool])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@settings(max_examples=examples(25), deadline=None)
@given(geometry=GEOMETRIES, pages=st.integers(1, 9), data=st.data())
def test_pages_go_out_block_major_and_come_back(kind, dtype, geometry, pages, data):
    layers, planes, heads, head_dim, page_size = geometry
    buffers, pool = make(layers, heads, head_dim, page_size, pages, dtype, kind, planes=planes)
    assert pool.geometry == PageGeometry(layers, planes, page_size, heads * head_dim * dtype.itemsize)
    count = data.draw(st.integers(1, pages))
    chosen = np.array(data.draw(st.permutations(range(pages + 1)))[:count], dtype=np.int64)
    slots = np.array(data.draw(st.permutations(range(pages + 3)))[:count], dtype=np.int64)
    slab = np.zeros((pages + 3, pool.geometry.stride_bytes), dtype=np.uint8)
    pool.copy_out(chosen, slab, slots)
    for page, slot in zip(chosen, slots, strict=True):
        rows = slice(page * page_size, (page + 1) * page_size)
        expected = b"".join(
            plane[rows].contiguous().view(torch.uint8).numpy().tobytes() for planes in buffers for plane in planes
        )
        assert slab[slot, : pool.geometry.page_bytes].tobytes() == expected
    untouched = [slot for slot in range(pages + 3) if slot not in slots]
    assert not slab[untouched].any()
    originals = [[plane.clone() for plane in planes] for planes in buffers]
    for planes_of_layer in buffers:
        for plane in planes_of_layer:
            plane.view(torch.uint8).zero_()
    done: list[int] = []
    pool.copy_in(chosen, slab, slots, lambda layer, mark: done.append(layer))
    assert done == list(range(layers))
    for planes, originals_of_layer in zip(buffers, originals, strict=True):
        for plane, original in zip(planes, originals_of_layer, strict=True):
            expected_plane = torch.zeros_like(original)
            for page in chosen:
                rows = slice(page * page_size, (page + 1) * page_size)
                expected_plane[rows] = original[rows]
            assert torch.equal(plane.view(torch.uint8), expected_plane.view(torch.uint8))


def test_layers_are_ready_one_after_the_other():
    buffers, pool = make(3, 1, 2, 4, 5, torch.float32, HostMemoryPool)
    slab = np.zeros((5, pool.geometry.stride_bytes), dtype=np.uint8)
    pages = np.arange(5)
    pool.copy_out(pages, slab, pages)
    expected = [[plane[:20].clone() for plane in planes] for planes in buffers]
    for planes in buffers:
        for plane in planes:
            plane.zero_()

    def layer_done(layer: int, mark: None) -> None:
        assert mark is None, "it waits for nothing"
        for number, planes in enumerate(buffers):
            for plane, original in zip(planes, expected[number], strict=True):
                assert torch.equal(plane[:20], original if number <= layer else torch.zeros_like(original))

    pool.copy_in(pages, slab, pages, layer_done)


def test_rows_must_be_whole_aligned_pages():
    _, pool = make(1, 1, 2, 4, 5, torch.float32, HostMemoryPool)
    assert list(pool.page_indices(torch.tensor([8, 9, 10, 11, 4, 5, 6, 7]))) == [2, 1]
    for rows in ([8, 9, 10], [9, 10, 11, 12], [8, 9, 11, 10], [24, 25, 26, 27], [-4, -3, -2, -1]):
        with pytest.raises(ValueError, match="rows"):
            pool.page_indices(torch.tensor(rows))


def test_layers_of_different_sizes_are_refused():
    layers = [[torch.zeros(8, 2, 4), torch.zeros(8, 2, 4)], [torch.zeros(8, 1, 4), torch.zeros(8, 1, 4)]]
    with pytest.raises(ConfigError, match="different sizes"):
        pool_geometry(layers, 4)


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(0, 100))
def test_runs_cover_everything_once(left, seed):
    left_array = np.array(left, dtype=np.int64)
    right = np.random.default_rng(seed).integers(0, 20, len(left))
    pairs = [(a + k, b + k) for a, b, count in runs(left_array, right) for k in range(count)]
    assert pairs == list(zip(left, right.tolist(), strict=True))


@pytest.mark.parametrize("kind", [HostMemoryPool, late_pool])
def test_one_layer_comes_alone(kind, monkeypatch):
    from swift_tiers.sglang_ext.pools import sides

    page_bytes = 3 * 2 * 4 * 2 * 4 * 4
    monkeypatch.setattr(sides, "STAGING_BYTES", 4 * page_bytes)
    buffers, pool = make(3, 2, 4, 4, 7, torch.float32, kind)
    assert pool.geometry.page_bytes == page_bytes
    slab = np.zeros((7, pool.geometry.stride_bytes), dtype=np.uint8)
    pages, slots = np.array([6, 0, 3, 1, 5]), np.array([4, 5, 0, 6, 2])
    originals = [[plane.clone() for plane in planes] for planes in buffers]
    pool.copy_out(pages, slab, slots)
    for planes in buffers:
        for plane in planes:
            plane.zero_()
    for copied in (2, 0, 1):
        pool.copy_layer(pages, slab, slots, copied)
        for layer, planes in enumerate(buffers):
            for plane, original in zip(planes, originals[layer], strict=True):
                there = original if layer in {2: (2,), 0: (2, 0), 1: (2, 0, 1)}[copied] else torch.zeros_like(original)
                for page in range(7):
                    rows = slice(page * 4, page * 4 + 4)
                    assert torch.equal(plane[rows], there[rows] if page in pages else torch.zeros_like(plane[rows]))
