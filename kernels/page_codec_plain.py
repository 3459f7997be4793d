"""The page codec in plain torch: what the kernels of `page_codec_triton` must equal bit by bit."""

from __future__ import annotations

import torch

from .page_codec_layout import SMALLEST, Codec, EncodedLayout
from .pool_planes import PoolPlanes


def encode_rows(values: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
    """Values `[..., head_dim]` as codes, uint8 `[..., code bytes]`, and scales, float32 `[...]`."""
    wide = values.float()
    peak = wide.abs().amax(-1)
    finite = wide.isfinite().all(-1)
    sound = finite & (peak >= SMALLEST)
    peak = torch.where(sound, peak, 1.0)
    limit = torch.tensor(float(codec.limit), device=values.device)
    scales = torch.where(sound, peak / limit, torch.where(finite, 0.0, torch.nan)).float()
    scaled = torch.where(sound[..., None], wide, 0.0) * (limit / peak)[..., None]
    if codec is Codec.E4M3:
        # Saturating: what rounds past the largest would become NaN.
        return scaled.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8), scales
    numbers = scaled.round().clamp(-codec.limit, codec.limit).to(torch.int8)
    if codec is Codec.INT8:
        return numbers.view(torch.uint8), scales
    if numbers.shape[-1] % 2:
        numbers = torch.nn.functional.pad(numbers, (0, 1))
    halves = (numbers & 15).view(torch.uint8)
    return halves[..., 0::2] | (halves[..., 1::2] << 4), scales


def decode_rows(
    codes: torch.Tensor, scales: torch.Tensor, codec: Codec, head_dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """The way back: values `[..., head_dim]` of `dtype`."""
    if codec is Codec.E4M3:
        numbers = codes.view(torch.float8_e4m3fn).float()
    elif codec is Codec.INT8:
        numbers = codes.view(torch.int8).float()
    else:
        halves = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)[..., :head_dim].to(torch.int8)
        numbers = ((halves ^ 8) - 8).float()
    values = numbers * scales[..., None]
    if dtype == torch.float32:
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)  # the scale was rounded, perhaps up
    # Filled after the cast: torch's casts of NaN to bfloat16 give different bits in vectors and alone.
    return values.to(dtype).masked_fill_(scales.isnan()[..., None], torch.nan)


def code_pages_plain(
    pool: PoolPlanes,
    pages: torch.Tensor,
    slab: torch.Tensor,
    slots: torch.Tensor,
    codec: Codec,
    layers: range,
    offset: int,
    out: bool,
) -> None:
    """`encode_pages` or, if not `out`, `decode_pages`, layer after layer. Pool and slab on one device."""
    layout = EncodedLayout.of(pool, codec)
    shape = (len(pages), pool.planes, pool.page_size, pool.heads)
    codes_end, scales_end = layout.rows * layout.code_bytes, layout.scales_offset + layout.rows * 4
    for number, layer in enumerate(layers):
        planes = [pool.plane_pages(layer * pool.planes + plane) for plane in range(pool.planes)]
        begin = offset + number * layout.layer_bytes
        encoded = slab[:, begin : begin + layout.layer_bytes]
        if out:
            values = torch.stack([plane[pages] for plane in planes], 1).view(*shape, pool.head_dim)
            codes, scales = encode_rows(values, codec)
            content = torch.zeros((len(pages), layout.layer_bytes), dtype=torch.uint8, device=slab.device)
            content[:, :codes_end] = codes.reshape(len(pages), -1)
            content[:, layout.scales_offset : scales_end] = scales.view(len(pages), -1).view(torch.uint8)
            encoded.index_copy_(0, slots, content)
        else:
            content = encoded.index_select(0, slots)
            codes = content[:, :codes_end].reshape(*shape, layout.code_bytes)
            scales = content[:, layout.scales_offset : scales_end].contiguous().view(torch.float32).view(shape)
            values = decode_rows(codes, scales, codec, pool.head_dim, pool.dtype)
            for index, plane in enumerate(planes):
                plane.index_copy_(0, pages, values[:, index].reshape(len(pages), pool.page_size, -1))
