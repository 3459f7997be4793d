"""Casts between float formats by integer arithmetic, for use in kernels.

Triton's interpreter gets casts to 8-bit floats and to bfloat16 wrong (it truncates, or loses a carry). As integer
arithmetic, they give the same bits interpreted, on every GPU, and in torch.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import triton
import triton.language as tl

#: 1.5 * 2^23: a float32 of magnitude below 2^22 added to it is rounded to a whole number, ties to even, which then
#: stands in the sum's low bits.
ROUNDER = tl.constexpr(12582912.0)
ROUNDER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def rounded_to_int(value):
    """float32 of magnitude below 2^22 as int32, to nearest, ties to even."""
    return (value + ROUNDER).to(tl.int32, bitcast=True) - ROUNDER_BITS


@triton.jit
def int_to_float(number):
    """int32 of magnitude below 2^22 as float32, exactly. By an addition, which GPUs do faster than a conversion."""
    return (number + ROUNDER_BITS).to(tl.float32, bitcast=True) - ROUNDER


@triton.jit
def float_to_e4m3(value, BOUNDED: tl.constexpr):
    """float32 as e4m3 codes in int32, as torch casts values clamped to +-448: to nearest even, saturating.

    Infinities become +-448, NaN 0x7f with its sign. BOUNDED: no value is NaN, or of a magnitude that rounds past 448.
    """
    bits = value.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    # From 2^-6 on: drop 20 bits of the significand, half of what is dropped added before, and move the exponent's bias.
    normal = (size + (0x7FFFF - (120 << 23)) + ((size >> 20) & 1)) >> 20
    # Below, steps are of 2^-9: as far apart as float32 lie from 2^14 on, so that the addition rounds.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    if BOUNDED:
        return tl.where(size < 0x3C800000, small, normal) | sign
    else:
        code = tl.where(size < 0x3C800000, small, tl.minimum(normal, 0x7E))
        return tl.where(size > 0x7F800000, 0x7F, code) | sign


@triton.jit
def e4m3_to_float(code):
    """e4m3 codes, any integers from 0 to 255, as float32: 2^-8 of their values, exactly. For NaN, 0x7f, of 480.

    The bits of a code are those of a float16 of 2^-8 of its value, subnormals included; casts from that are exact.
    """
    bits = code.to(tl.uint16)
    return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def widen(bits, FLOAT: tl.constexpr):
    """The bits of a bfloat16, float16 or float32, as unsigned integers, as float32."""
    if tl.bfloat16 == FLOAT:
        return (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif tl.float16 == FLOAT:
        return bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def narrow(value, nan, FLOAT: tl.constexpr):
    """float32 as the bits of a bfloat16, float16 or float32, to nearest even; where `nan` is set, the quiet NaN.

    Otherwise `value` is no NaN. As float32, infinities become the largest number.
    """
    if tl.bfloat16 == FLOAT:
        bits = value.to(tl.uint32, bitcast=True)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16)
        return tl.where(nan, 0x7FC0, rounded).to(tl.uint16)
    elif tl.float16 == FLOAT:
        return tl.where(nan, 0x7E00, value.to(tl.float16).to(tl.uint16, bitcast=True)).to(tl.uint16)
    else:
        held = tl.minimum(tl.maximum(value, -3.4028234663852886e38), 3.4028234663852886e38)
        return tl.where(nan, 0x7FC00000, held.to(tl.uint32, bitcast=True)).to(tl.uint32)
