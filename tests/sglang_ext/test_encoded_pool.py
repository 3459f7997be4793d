"""Pages that are kept in a codec below the device: by every pool, both ways, whole and layer by layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.kernels.page_codec import Codec, decode_pages, encode_pages
from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.sglang_ext.pools import accelerator_pool, sides
from swift_tiers.sglang_ext.pools.accelerator_pool import AcceleratorPool
from swift_tiers.sglang_ext.pools.device_pool import DevicePool
from swift_tiers.sglang_ext.pools.encoded_pool import CODED_TOGETHER, EncodedPool

from support.deferred_accelerator import DeferredAccelerator
from support.examples import examples

Layers = list[list[torch.Tensor]]
POISON = 0x5A
CODECS = ("fp8", "int8", "int4")


def in_host_memory(layers: Layers, page_size: int, codec: str) -> DevicePool:
    return EncodedPool(layers, page_size, codec)


def page_locked(layers: Layers, page_size: int, codec: str) -> DevicePool:
    accelerator = DeferredAccelerator(1, locked=True)
    return AcceleratorPool(layers, page_size, accelerator, codec)


def by_lists(layers: Layers, page_size: int, codec: str) -> DevicePool:
    accelerator = DeferredAccelerator(3, locked=True, lists=True)
    return AcceleratorPool(layers, page_size, accelerator, codec)


def pageable(layers: Layers, page_size: int, codec: str) -> DevicePool:
    accelerator = DeferredAccelerator(2, locked=False)
    return AcceleratorPool(layers, page_size, accelerator, codec)


KINDS = pytest.mark.parametrize("kind", [in_host_memory, page_locked, by_lists, pageable])
Kind = Callable[[Layers, int, str], DevicePool]


@pytest.fixture(autouse=True)
def small_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that several pieces are needed, and buffers are used again."""
    monkeypatch.setattr(sides, "STAGING_BYTES", 8192)
    monkeypatch.setattr(accelerator_pool, "TOGETHER_BYTES", 512)


def buffers(layers: int, planes: int, rows: int, heads: int, head_dim: int, *, block_major: bool, seed: int) -> Layers:
    """Values of many magnitudes, bfloat16; block-major, a token's rows of all layers lie together."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn((rows, layers * planes, heads, head_dim), generator=generator)
    table *= torch.exp2(torch.randint(-9, 9, (rows, layers * planes, heads, 1), generator=generator).float())
    flat = list(table.to(torch.bfloat16).unbind(1))
    if not block_major:
        flat = [plane.contiguous() for plane in flat]
    return [flat[start : start + planes] for start in range(0, layers * planes, planes)]


def copies(layers: Layers) -> Layers:
    return [[plane.clone() for plane in planes] for planes in layers]


@KINDS
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_pages_go_down_coded_and_come_up_decoded(kind: Kind, data: st.DataObject) -> None:
    """What is in the slab, and what comes back, is what the codec says; nothing else is touched."""
    draw = data.draw
    codec, page_size = draw(st.sampled_from(CODECS)), draw(st.sampled_from([1, 4, 16]))
    planes, heads, head_dim = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([2, 7, 16]))
    count, spare = draw(st.integers(1, 2 * CODED_TOGETHER)), 3
    block_major = kind is in_host_memory and draw(st.booleans())
    layers = buffers(
        draw(st.integers(1, 3)), planes, (count + spare) * page_size, heads, head_dim, block_major=block_major, seed=3
    )
    pool, name = kind(layers, page_size, codec), Codec.named(codec)
    pages, slots = (np.array(draw(st.permutations(range(count + spare)))[:count], np.int64) for _ in range(2))
    slab = np.full((count + spare, pool.geometry.stride_bytes), POISON, np.uint8)
    wanted = torch.full((count + spare, pool.geometry.stride_bytes), POISON, dtype=torch.uint8)
    encode_pages(PoolPlanes(copies(layers), page_size), pages, wanted, slots, name)

    pool.copy_out(pages, slab, slots)

    assert np.array_equal(slab, wanted.numpy())
    others = np.setdiff1d(np.arange(count + spare), slots)
    assert (slab[others] == POISON).all()

    target = np.array(draw(st.permutations(range(count + spare)))[:count], np.int64)
    expected, came = copies(layers), []
    decode_pages(PoolPlanes(expected, page_size), target, wanted, slots, name)
    if draw(st.booleans()):
        for layer in draw(st.permutations(range(len(layers)))):
            pool.copy_layer(target, slab, slots, layer)
    else:
        pool.copy_in(target, slab, slots, lambda layer, mark: came.append(layer))
        assert came == list(range(len(layers)))
    for plane, value in zip(
        (plane for planes in layers for plane in planes),
        (plane for planes in expected for plane in planes),
        strict=True,
    ):
        assert torch.equal(plane.view(torch.int16), value.view(torch.int16))


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_what_has_landed_is_decoded_from_there(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(CODECS))
    layers = buffers(2, 2, 6 * 4, 2, 16, block_major=False, seed=5)
    pool = page_locked(layers, 4, codec)
    pages = np.arange(6, dtype=np.int64)
    slab = np.zeros((6, pool.geometry.stride_bytes), np.uint8)
    pool.copy_out(pages, slab, pages)
    landed = np.array(data.draw(st.lists(st.booleans(), min_size=6, max_size=6)))
    pool.landing = torch.zeros((6, pool.geometry.page_bytes), dtype=torch.uint8)
    pool.landing[torch.from_numpy(landed)] = torch.from_numpy(slab[landed, : pool.geometry.page_bytes])
    expected = copies(layers)
    decode_pages(PoolPlanes(expected, 4), pages, torch.from_numpy(slab.copy()), pages, Codec.named(codec))
    slab[landed] = POISON
    for planes in layers:
        for plane in planes:
            plane.zero_()
    pool.copy_in(pages, slab, np.where(landed, 6 + pages, pages), lambda layer, mark: None)
    for planes, wanted in zip(layers, expected, strict=True):
        assert all(torch.equal(plane, value) for plane, value in zip(planes, wanted, strict=True))


@pytest.mark.parametrize(("codec", "share"), [("fp8", 0.53125), ("int8", 0.53125), ("int4", 0.28125)])
def test_a_page_takes_what_codes_and_scales_take(codec: str, share: float) -> None:
    """Of bfloat16 heads of 64: a code for each value, and four bytes for each head."""
    layers = buffers(2, 2, 16, 8, 64, block_major=False, seed=1)
    geometry = EncodedPool(layers, 16, codec).geometry
    assert geometry.device_page_bytes == 2 * 2 * 16 * 8 * 64 * 2
    assert geometry.page_bytes == geometry.device_page_bytes * share
    assert geometry.codec == codec


def test_values_of_eight_bits_are_refused_in_one_line() -> None:
    layers = [[torch.zeros(32, 2, 16, dtype=torch.float8_e4m3fn)]]
    with pytest.raises(ConfigError, match=r"^host\.codec: a pool of torch\.float8_e4m3fn cannot be encoded.*remove it"):
        EncodedPool(layers, 16, "int8")
