"""Encoded pages: kernels equal plain torch bit by bit, errors keep their bounds, what is not finite says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.kernels import page_codec_triton
from swift_tiers.kernels.page_codec import (
    Codec,
    EncodedLayout,
    decode_pages,
    encode_pages,
)
from swift_tiers.kernels.page_codec_plain import code_pages_plain, decode_rows, encode_rows
from swift_tiers.kernels.page_codec_triton import code_pages_triton

from support.device_pools import DEVICES, POISON, Geometry, bounded, make_normal_pool, make_pool, make_slab
from support.examples import examples

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
_ANY = st.builds(
    Geometry,
    layers=st.integers(1, 3),
    planes=st.integers(1, 2),
    heads=st.integers(1, 9),
    head_dim=st.integers(1, 256),
    page_size=st.sampled_from([1, 4, 16, 64]),
    pages=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
    block_major=st.booleans(),
).map(bounded)
#: The latent rows of MLA as DeepSeek and Kimi have them: one plane, 576 values.
_LATENT = st.builds(
    Geometry,
    layers=st.just(2),
    planes=st.just(1),
    heads=st.just(1),
    head_dim=st.just(576),
    page_size=st.sampled_from([1, 16]),
    pages=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    block_major=st.booleans(),
)
GEOMETRIES = _ANY | _LATENT


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=examples(12), deadline=None)
@given(geometry=GEOMETRIES, normal=st.booleans(), shift=st.sampled_from([0, 16, 64]), data=st.data())
def test_kernels_equal_plain_torch_bit_by_bit(device, codec, geometry, normal, shift, data):
    """Random bytes, full of NaN and infinities, and normal values at magnitudes far apart."""
    make = make_normal_pool if normal else make_pool
    pool, memory = make(geometry, device)
    twin, _ = make(geometry, "cpu")
    layout = EncodedLayout.of(pool, codec)
    begin = data.draw(st.integers(0, pool.layers - 1))
    layers = range(begin, data.draw(st.integers(begin + 1, pool.layers)))
    count = data.draw(st.integers(1, geometry.pages))
    pages = torch.tensor(data.draw(st.permutations(range(geometry.pages)))[:count])
    slots = torch.tensor(data.draw(st.permutations(range(geometry.pages + 2)))[:count])
    stride = -(-(shift + len(layers) * layout.layer_bytes + 1) // 16) * 16
    found, wanted = make_slab(geometry.pages + 2, stride, device), make_slab(geometry.pages + 2, stride, "cpu")
    index = pages.to(device), slots.to(device)
    code_pages_triton(pool, index[0], found, index[1], codec, layers, shift, out=True)
    code_pages_plain(twin, pages, wanted, slots, codec, layers, shift, out=True)
    assert torch.equal(found.cpu(), wanted)
    memory.fill_(POISON)
    image, image_memory = make_pool(geometry, "cpu")
    image_memory.fill_(POISON)
    code_pages_triton(pool, index[0], found, index[1], codec, layers, shift, out=False)
    code_pages_plain(image, pages, wanted, slots, codec, layers, shift, out=False)
    assert torch.equal(memory.cpu(), image_memory)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=examples(30), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    head_dim=st.integers(1, 256),
    exponent=st.integers(-95, 126),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
)
def test_errors_stay_within_their_bounds_against_float64(codec, dtype, seed, head_dim, exponent, spread):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.float16:
        exponent = max(-20, min(exponent, 14))
    powers = exponent - spread * torch.rand((16, head_dim), generator=generator, dtype=torch.float64)
    values = (torch.randn((16, head_dim), generator=generator).clamp(-1.9, 1.9).double() * 2**powers).to(dtype)
    codes, scales = encode_rows(values, codec)
    back = decode_rows(codes, scales, codec, head_dim, dtype).double()
    exact = values.double()
    scale = exact.abs().amax(-1, keepdim=True) / codec.limit
    kept = scale * codec.limit >= 2.0**-96
    assert torch.equal(scales[~kept[:, 0]], torch.zeros(int((~kept).sum())))
    # Division and product are rounded too: a few parts in 2^23 of the largest value.
    slack = scale * codec.limit * 2.0**-21
    step = torch.maximum(exact.abs() / 16, scale * 2.0**-10) if codec is Codec.E4M3 else scale / 2
    cast = torch.finfo(dtype).eps / 2 * (exact.abs() + step) + torch.finfo(dtype).smallest_normal * 2.0**-9
    bound = torch.where(kept, step + slack + cast, 2.0**-96)
    assert ((back - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", Codec)
def test_what_is_exact_in_a_code_comes_back_exact(codec, dtype):
    """A head whose largest value is the largest code has a scale of one: codes are then the values."""
    if codec is Codec.E4M3:
        values = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
        values = torch.where(values.isnan(), 448.0, values)
    else:
        values = torch.arange(-codec.limit, codec.limit + 1).float()
    codes, scales = encode_rows(values.to(dtype)[None], codec)
    assert scales.tolist() == [1.0]
    assert torch.equal(decode_rows(codes, scales, codec, len(values), dtype)[0].float(), values)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", Codec)
def test_heads_of_extreme_values(device, codec, dtype):
    largest = torch.finfo(dtype).max
    rows = torch.tensor(
        [
            [0.0, -0.0, 0.0, 0.0],
            [largest, -largest, largest / 2, 0.0],
            [1.0, torch.nan, 2.0, 3.0],
            [1.0, torch.inf, 2.0, 3.0],
            [-torch.inf, torch.inf, torch.nan, 0.0],
            [2.0**-97, -(2.0**-100), 0.0, 2.0**-126],
            [1.0, -1.0, 1e-5, -1e-7],
            [torch.finfo(dtype).tiny, 0.0, 0.0, -torch.finfo(dtype).tiny],
            [2.0**-96, 0.0, -(2.0**-96), 0.0],
        ]
    ).to(dtype)
    pool, _ = make_pool(Geometry(1, 1, 9, 4, 1, 2, dtype), device)
    pool.flat[0][1] = rows.to(device)
    layout = EncodedLayout.of(pool, codec)
    slab = make_slab(1, layout.page_bytes, device)
    code_pages_triton(pool, torch.tensor([1]).to(device), slab, torch.tensor([0]).to(device), codec, range(1), 0, True)
    scales = slab[0, layout.scales_offset :].view(torch.float32)[:9].cpu()
    assert scales.isnan().tolist() == [index in (2, 3, 4) for index in range(9)]
    codes = slab[0, : 9 * layout.code_bytes].view(9, -1).cpu()
    assert not codes[2:5].any()
    code_pages_triton(pool, torch.tensor([0]).to(device), slab, torch.tensor([0]).to(device), codec, range(1), 0, False)
    back = pool.flat[0][0].cpu()
    assert not back[0].any()
    assert back[1].tolist() == pytest.approx(rows[1].tolist(), rel=0.15 if codec is Codec.INT4 else 2.0**-6)
    assert back[1, :2].tolist() == [largest, -largest]
    assert back[2:5].isnan().all()
    quiet = torch.full((3, 4), torch.nan, dtype=dtype)
    assert torch.equal(back[2:5].contiguous().view(torch.uint8), quiet.view(torch.uint8))
    assert back[6, :2].tolist() == [1.0, -1.0]
    if dtype != torch.float16:
        assert not back[5].any()
        assert not back[7].any()
        assert back[8].tolist() == rows[8].tolist()


def test_the_layout_is_codes_then_scales_layer_by_layer():
    pool, _ = make_normal_pool(Geometry(layers=3, heads=3, head_dim=5, page_size=1, dtype=torch.float16), "cpu")
    for codec, code_bytes in ((Codec.E4M3, 5), (Codec.INT8, 5), (Codec.INT4, 3)):
        layout = EncodedLayout.of(pool, codec)
        assert (layout.rows, layout.code_bytes) == (2 * 3, code_bytes)
        assert layout.layer_bytes == layout.scales_offset + 32
        slab = make_slab(2, layout.page_bytes, "cpu")
        encode_pages(pool, np.array([2]), slab, np.array([1]), codec)
        assert (slab[0] == POISON).all()
        for layer in range(3):
            part = slab[1, layer * layout.layer_bytes : (layer + 1) * layout.layer_bytes]
            for plane in range(2):
                codes, scales = encode_rows(pool.plane_pages(layer * 2 + plane)[2].view(3, 5), codec)
                assert torch.equal(part[plane * 3 * code_bytes : (plane + 1) * 3 * code_bytes], codes.flatten())
                at = layout.scales_offset + plane * 12
                assert torch.equal(part[at : at + 12].clone().view(torch.float32), scales)
            for begin, end in layout.gaps():
                assert not part[begin:end].any()
    assert encode_rows(torch.tensor([[7.0, -7.0, 1.0]]), Codec.INT4)[0].tolist() == [[0x97, 0x01]]


@pytest.mark.parametrize("device", DEVICES)
def test_layers_come_back_one_at_a_time_from_staging(device):
    pool, memory = make_normal_pool(Geometry(layers=3, heads=2, head_dim=16), device)
    layout = EncodedLayout.of(pool, Codec.INT8)
    slab = make_slab(3, layout.page_bytes, device)
    pages, slots = np.array([4, 0, 1]), np.array([0, 2, 1])
    encode_pages(pool, pages, slab, slots, Codec.INT8)
    decode_pages(pool, pages, slab, slots, Codec.INT8)
    whole = memory.clone()
    memory.fill_(POISON)
    for layer in (2, 0, 1):
        begin = layer * layout.layer_bytes
        staging = slab[:, begin : begin + layout.layer_bytes].contiguous()
        decode_pages(pool, pages, staging, slots, Codec.INT8, range(layer, layer + 1), offset=0)
    for page in pages.tolist():
        for plane in pool.flat:
            rows = slice(page * 4, page * 4 + 4)
            image = whole.view(pool.dtype).as_strided(plane.shape, plane.stride(), plane.storage_offset())
            assert torch.equal(plane[rows], image[rows])


@pytest.mark.parametrize("device", DEVICES)
def test_lists_longer_than_a_launch_counts_are_split(device, monkeypatch):
    pool, _ = make_normal_pool(Geometry(), device)
    slab, whole = (make_slab(5, EncodedLayout.of(pool, Codec.INT8).page_bytes, device) for _ in range(2))
    pages = torch.arange(5).to(device)
    code_pages_triton(pool, pages, whole, pages, Codec.INT8, range(2), 0, True)
    monkeypatch.setattr(page_codec_triton, "COUNT_LIMIT", 1)
    code_pages_triton(pool, pages, slab, pages, Codec.INT8, range(2), 0, True)
    assert torch.equal(slab, whole)


def test_the_door_checks_what_it_is_given():
    pool, _ = make_pool(Geometry(), "cpu")
    layout = EncodedLayout.of(pool, Codec.INT8)
    slab = make_slab(2, layout.page_bytes + 16, "cpu")
    one = np.array([0])
    with pytest.raises(ValueError, match="multiples of 16"):
        encode_pages(pool, one, slab, one, Codec.INT8, offset=8)
    with pytest.raises(ValueError, match="multiples of 16"):
        encode_pages(pool, one, make_slab(2, layout.page_bytes + 1, "cpu"), one, Codec.INT8)
    with pytest.raises(ValueError, match="do not fit"):
        encode_pages(pool, one, slab, one, Codec.INT8, offset=32)
    with pytest.raises(ValueError, match="slots must lie"):
        decode_pages(pool, one, slab, np.array([2]), Codec.INT8)
    with pytest.raises(ValueError, match="as many of both"):
        decode_pages(pool, np.array([0, 1]), slab, one, Codec.INT8)
    eight, _ = make_pool(Geometry(dtype=torch.float8_e4m3fn), "cpu")
    with pytest.raises(ValueError, match="float8_e4m3fn cannot be encoded"):
        encode_pages(eight, one, slab, one, Codec.INT8)
    encode_pages(pool, np.array([], dtype=np.int64), slab, np.array([], dtype=np.int64), Codec.INT8)
    assert (slab == POISON).all()
