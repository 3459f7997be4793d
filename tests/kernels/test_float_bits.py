"""Casts by integer arithmetic, over every bfloat16 and every float16, against torch's; bit by bit."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from swift_tiers.kernels.float_bits_triton import (
    e4m3_to_float,
    float_to_e4m3,
    int_to_float,
    narrow,
    rounded_to_int,
    widen,
)
from swift_tiers.kernels.launch import launch

from support.device_pools import DEVICES

ALL_16_BITS = torch.arange(-(2**15), 2**15).to(torch.int16)


@triton.jit
def to_e4m3(source, target, BOUNDED: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target + at, float_to_e4m3(tl.load(source + at), BOUNDED).to(tl.uint8))


@triton.jit
def from_e4m3(source, target, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(target + at, e4m3_to_float(tl.load(source + at)))


@triton.jit
def round_trip(source, rounded, target, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    number = rounded_to_int(tl.load(source + at))
    tl.store(rounded + at, number)
    tl.store(target + at, int_to_float(number))


@triton.jit
def widen_all(source, target, FLOAT: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target + at, widen(tl.load(source + at), FLOAT))


@triton.jit
def narrow_all(source, nan, target, FLOAT: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target + at, narrow(tl.load(source + at), tl.load(nan + at) != 0, FLOAT))


def bits(values: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return values.contiguous().view(kinds[values.element_size()]).cpu()


def around_every_e4m3() -> torch.Tensor:
    """Every finite e4m3 value, every tie between two of them, and the float32 next to these on both sides."""
    values = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    points = torch.cat([values, (values[1:] + values[:-1]) / 2])
    near = torch.cat([points, points.nextafter(torch.tensor(1e9)), points.nextafter(torch.tensor(-1e9))])
    near = torch.cat([near, -near])
    return torch.cat([near, near.new_zeros(-len(near) % 1024)])


def all_of(dtype: torch.dtype) -> torch.Tensor:
    return around_every_e4m3() if dtype == torch.float32 else ALL_16_BITS.view(dtype).float()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_every_value_becomes_the_e4m3_that_torch_makes_of_it_clamped(device, dtype):
    values = all_of(dtype)
    number = values.isnan()
    found = torch.full(values.shape, 0x55, dtype=torch.uint8, device=device)
    launch(to_e4m3, found.device, len(values) // 1024, values.to(device), found, False, 1024)
    assert torch.equal(found.cpu()[~number], bits(values.clamp(-448, 448).to(torch.float8_e4m3fn))[~number])
    assert torch.equal(found.cpu()[number] & 0x7F, torch.full((int(number.sum()),), 0x7F, dtype=torch.uint8))
    # Where the caller promises no more than the largest, the shorter form is the same.
    bounded = torch.where(values.abs() <= 448, values, 0.0)
    launch(to_e4m3, found.device, len(values) // 1024, bounded.to(device), found, True, 1024)
    assert torch.equal(found.cpu(), bits(bounded.to(torch.float8_e4m3fn)))


@pytest.mark.parametrize("device", DEVICES)
def test_every_e4m3_code_becomes_its_value(device):
    codes = torch.arange(256).to(torch.uint8)
    found = torch.full((256,), torch.nan, device=device)
    launch(from_e4m3, found.device, 1, codes.to(device), found, 256)
    wanted = codes.view(torch.float8_e4m3fn).float() / 256
    wanted[[0x7F, 0xFF]] = torch.tensor([480.0, -480.0]) / 256
    assert torch.equal(bits(found), bits(wanted))


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_round_to_the_nearest_and_ties_to_even(device):
    quarters = torch.arange(-2048, 2048) / 4
    values = torch.cat([quarters, quarters.nextafter(torch.tensor(1e9)), quarters.nextafter(torch.tensor(-1e9))])
    rounded = torch.zeros(len(values), dtype=torch.int32, device=device)
    back = torch.zeros(len(values), device=device)
    launch(round_trip, back.device, len(values) // 1024, values.to(device), rounded, back, 1024)
    assert torch.equal(rounded.cpu(), values.round().to(torch.int32))
    assert torch.equal(back.cpu(), values.round() + 0.0)  # there is no negative zero among numbers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_value_widens_and_narrows_to_itself_and_halfway_as_torch_rounds(device, dtype):
    name = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
    values = ALL_16_BITS.view(dtype)
    wide = torch.zeros(len(values), device=device)
    launch(widen_all, wide.device, 16, values.view(torch.uint16).to(device), wide, name, 4096)
    number = ~values.isnan()
    assert torch.equal(bits(wide)[number], bits(values.float())[number])
    assert wide.cpu()[~number].isnan().all()
    exact = values.float()
    # The value itself, halfway to the next one of more magnitude, and a hair to both sides of that.
    halfway = (exact + (ALL_16_BITS + 1).view(dtype).float()) / 2
    halfway = torch.where(halfway.isfinite(), halfway, 0.0)
    for tried in (torch.where(number, exact, 0.0), halfway, halfway * (1 + 2.0**-23), halfway * (1 - 2.0**-23)):
        nan = torch.zeros(len(tried), dtype=torch.int32)
        nan[::7] = 1
        found = torch.zeros(len(tried), dtype=torch.uint16, device=device)
        launch(narrow_all, found.device, 16, tried.to(device), nan.to(device), found, name, 4096)
        wanted = bits(tried.to(dtype))
        wanted[::7] = bits(torch.tensor([torch.nan], dtype=dtype))
        assert torch.equal(bits(found), wanted)
