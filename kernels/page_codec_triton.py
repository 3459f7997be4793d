"""The page codec as Triton kernels, one for each direction.

A row is one head of one token in one plane: contiguous in the pool, with one scale. Rows are counted in the order of
the encoded page, `[page][layer][plane][token][kv_head]`; a tile is a power of two of them, whole, and programs take
tiles in turn. Everything between load and store is float32 or integer arithmetic in registers.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .float_bits_triton import (
    e4m3_to_float,
    float_to_e4m3,
    int_to_float,
    narrow,
    rounded_to_int,
    widen,
)
from .launch import COUNT_LIMIT, cdiv, launcher_of
from .page_codec_layout import Codec, EncodedLayout
from .pool_planes import PoolPlanes, alignment_of

#: Values of a tile: 32 to each of 128 threads, so that what is done once a row weighs little.
TILE_VALUES = 4096
#: Rows of a tile at most: what is kept for each of many short rows would fill the registers.
TILE_ROWS = 256

_FLOATS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
_E4M3 = tl.constexpr(Codec.E4M3.limit)
_INT4 = tl.constexpr(Codec.INT4.limit)
_FINITE = tl.constexpr(0x7F800000)  # bits of float32 magnitudes are below this, of infinity this, of NaN above
_SMALLEST = tl.constexpr((127 - 96) << 23)


@triton.jit
def row_places(
    table,
    pages,
    slab,
    slots,
    row,
    there,
    layers,
    PLANES: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    LAYER_BYTES: tl.constexpr,
    CODE_BYTES: tl.constexpr,
    SCALES: tl.constexpr,
):
    """Of each row: the addresses, int64, of its values in the pool, of its codes, and of its scale.

    Integers, since what is known of an alignment survives the compiler's rewriting only at a cast to a pointer.
    """
    LAYER_ROWS: tl.constexpr = PLANES * TOKENS * HEADS
    index = row // (layers * LAYER_ROWS)
    layer = row // LAYER_ROWS % layers
    place = row % LAYER_ROWS
    plane = layer * PLANES + place // (TOKENS * HEADS)
    token = place // HEADS % TOKENS
    page = tl.load(pages + index, mask=there, other=0)
    slot = tl.load(slots + index, mask=there, other=0)
    base = tl.load(table + plane, mask=there, other=0)
    address = base + (page * TOKENS + token) * ROW_STRIDE + place % HEADS * HEAD_BYTES
    begin = slab.to(tl.int64) + slot * SLOT_STRIDE + layer.to(tl.int64) * LAYER_BYTES
    return address, begin + place * CODE_BYTES, begin + SCALES + place * 4


@triton.jit(do_not_specialize=["count", "layers"], do_not_specialize_on_alignment=["table", "pages", "slab", "slots"])
def encode_tiles(
    table,  # int64 *: the address of each plane's first row
    pages,  # int64 *
    slab,  # uint8 *: where the first slot's first layer begins
    slots,  # int64 *
    count,  # pages
    layers,  # that are coded: any number of them by the same kernel
    PLANES: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FLOAT: tl.constexpr,  # the pool's dtype
    BITS: tl.constexpr,  # an unsigned dtype of its size
    ROW_STRIDE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    LAYER_BYTES: tl.constexpr,
    CODE_BYTES: tl.constexpr,
    SCALES: tl.constexpr,
    LIMIT: tl.constexpr,  # the codec's largest code, which also tells which codec
    POOL_ALIGNMENT: tl.constexpr,
    CODE_ALIGNMENT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    HEAD_BYTES: tl.constexpr = HEAD_DIM * (BITS.primitive_bitwidth // 8)
    rows = count * (layers * PLANES * TOKENS * HEADS)
    dims = tl.arange(0, TILE_DIM)
    for tile in range(tl.program_id(0), (rows + TILE_ROWS - 1) // TILE_ROWS, tl.num_programs(0)):
        row = tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
        there = row < rows
        address, code_place, scale_place = row_places(
            table,
            pages,
            slab,
            slots,
            row,
            there,
            layers,
            PLANES,
            TOKENS,
            HEADS,
            HEAD_BYTES,
            ROW_STRIDE,
            SLOT_STRIDE,
            LAYER_BYTES,
            CODE_BYTES,
            SCALES,
        )
        source = tl.multiple_of(address.to(tl.pointer_type(BITS)), POOL_ALIGNMENT)
        mask = there[:, None] & (dims < HEAD_DIM)[None, :]
        value = widen(tl.load(source[:, None] + dims[None, :], mask=mask, other=0), FLOAT)
        # Magnitudes of floats are ordered as their bits are, NaN above infinity.
        magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        peak_bits = tl.reduce(magnitude, 1, tl.standard._elementwise_max)
        finite = peak_bits < _FINITE
        sound = finite & (peak_bits >= _SMALLEST)
        peak = tl.where(sound, peak_bits, 0x3F800000).to(tl.float32, bitcast=True)
        # Both correctly rounded, as torch divides.
        limit = tl.full((TILE_ROWS,), LIMIT, tl.float32)
        scale = tl.div_rn(peak, limit).to(tl.int32, bitcast=True)
        scale = tl.where(sound, scale, tl.where(finite, 0, 0x7FC00000))
        inverse = tl.div_rn(limit, peak)
        # No magnitude is more than the limit by more than its rounding, which no code is near enough to follow.
        scaled = value * inverse[:, None]
        keep = tl.where(sound, 0xFF, 0)[:, None]
        target = tl.multiple_of(code_place.to(tl.pointer_type(tl.uint8)), CODE_ALIGNMENT)
        if LIMIT == _E4M3:
            code = float_to_e4m3(scaled, BOUNDED=True) & keep
            tl.store(target[:, None] + dims[None, :], code.to(tl.uint8), mask=mask)
        elif LIMIT == _INT4:
            code = rounded_to_int(scaled) & keep & 15
            low, high = tl.split(tl.reshape(code, (TILE_ROWS, TILE_DIM // 2, 2)))
            pairs = tl.arange(0, TILE_DIM // 2)
            pair_mask = there[:, None] & (pairs < CODE_BYTES)[None, :]
            tl.store(target[:, None] + pairs[None, :], (low | (high << 4)).to(tl.uint8), mask=pair_mask)
        else:
            code = rounded_to_int(scaled) & keep
            tl.store(target[:, None] + dims[None, :], code.to(tl.uint8), mask=mask)
        tl.store(tl.multiple_of(scale_place.to(tl.pointer_type(tl.int32)), 4), scale, mask=there)


@triton.jit(do_not_specialize=["count", "layers"], do_not_specialize_on_alignment=["table", "pages", "slab", "slots"])
def decode_tiles(
    table,
    pages,
    slab,
    slots,
    count,
    layers,
    PLANES: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    FLOAT: tl.constexpr,
    BITS: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr,
    LAYER_BYTES: tl.constexpr,
    CODE_BYTES: tl.constexpr,
    SCALES: tl.constexpr,
    LIMIT: tl.constexpr,
    POOL_ALIGNMENT: tl.constexpr,
    CODE_ALIGNMENT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """The way back; parameters as of `encode_tiles`."""
    HEAD_BYTES: tl.constexpr = HEAD_DIM * (BITS.primitive_bitwidth // 8)
    rows = count * (layers * PLANES * TOKENS * HEADS)
    dims = tl.arange(0, TILE_DIM)
    for tile in range(tl.program_id(0), (rows + TILE_ROWS - 1) // TILE_ROWS, tl.num_programs(0)):
        row = tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
        there = row < rows
        address, code_place, scale_place = row_places(
            table,
            pages,
            slab,
            slots,
            row,
            there,
            layers,
            PLANES,
            TOKENS,
            HEADS,
            HEAD_BYTES,
            ROW_STRIDE,
            SLOT_STRIDE,
            LAYER_BYTES,
            CODE_BYTES,
            SCALES,
        )
        mask = there[:, None] & (dims < HEAD_DIM)[None, :]
        source = tl.multiple_of(code_place.to(tl.pointer_type(tl.uint8)), CODE_ALIGNMENT)
        if LIMIT == _INT4:
            pairs = tl.arange(0, TILE_DIM // 2)
            pair_mask = there[:, None] & (pairs < CODE_BYTES)[None, :]
            both = tl.load(source[:, None] + pairs[None, :], mask=pair_mask, other=0).to(tl.int32)
            halves = tl.reshape(tl.join(both & 15, both >> 4), (TILE_ROWS, TILE_DIM))
            number = int_to_float((halves ^ 8) - 8)
        else:
            code = tl.load(source[:, None] + dims[None, :], mask=mask, other=0)
            if LIMIT == _E4M3:
                number = e4m3_to_float(code)
            else:
                number = int_to_float(code.to(tl.int8, bitcast=True).to(tl.int32))
        scale_pointer = tl.multiple_of(scale_place.to(tl.pointer_type(tl.int32)), 4)
        scale_bits = tl.load(scale_pointer, mask=there, other=0)
        unsound = (scale_bits & 0x7FFFFFFF) > _FINITE
        scale = scale_bits.to(tl.float32, bitcast=True)
        if LIMIT == _E4M3:
            scale = scale * 256.0
        value = number * scale[:, None]
        target = tl.multiple_of(address.to(tl.pointer_type(BITS)), POOL_ALIGNMENT)
        tl.store(target[:, None] + dims[None, :], narrow(value, unsound[:, None], FLOAT), mask=mask)


class CodeShape(NamedTuple):
    """How coding is cut: the constants of both kernels, and rows of a page and of a tile."""

    constants: dict[str, Any]
    page_rows: int
    tile_rows: int


def code_shape(
    layout: EncodedLayout,
    codec: Codec,
    dtype: torch.dtype,
    planes: int,
    page_size: int,
    heads: int,
    head_dim: int,
    row_stride: int,
    slot_stride: int,
    pool_alignment: int,
    layers: int,
) -> CodeShape:
    """The cut for `layers` layers of pages of `planes` planes each; the constants are those of any number of layers.
    `pool_alignment`: of every row's address, a power of two."""
    tile_dim = max(2, triton.next_power_of_2(head_dim))
    tile_rows = max(1, min(TILE_ROWS, TILE_VALUES // tile_dim))
    constants = {
        "PLANES": planes,
        "TOKENS": page_size,
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "FLOAT": _FLOATS[dtype],
        "BITS": tl.uint32 if dtype == torch.float32 else tl.uint16,
        "ROW_STRIDE": row_stride,
        "SLOT_STRIDE": slot_stride,
        "LAYER_BYTES": layout.layer_bytes,
        "CODE_BYTES": layout.code_bytes,
        "SCALES": layout.scales_offset,
        "LIMIT": codec.limit,
        "POOL_ALIGNMENT": min(pool_alignment, alignment_of(head_dim * dtype.itemsize)),
        "CODE_ALIGNMENT": alignment_of(slot_stride, layout.code_bytes),
        "TILE_ROWS": tile_rows,
        "TILE_DIM": tile_dim,
    }
    return CodeShape(constants, layers * layout.rows, tile_rows)


class TritonPageCode:
    """One kind of coding, by the kernels; see `page_codec.PageCode`. Over a pool in host memory interpreted."""

    def __init__(
        self, pool: PoolPlanes, slab: torch.Tensor, codec: Codec, layers: range, offset: int, out: bool
    ) -> None:
        self._pool = pool
        self._slab = slab
        self._begin = slab[:, offset:]
        self._offset = offset
        self._layers = len(layers)
        self._table = pool.table[layers.start * pool.planes :]
        self._layout = EncodedLayout.of(pool, codec)
        self._out = out
        self._shape = code_shape(
            self._layout,
            codec,
            pool.dtype,
            pool.planes,
            pool.page_size,
            pool.heads,
            pool.head_dim,
            pool.row_stride,
            slab.stride(0),
            pool.alignment,
            len(layers),
        )
        self._launcher = launcher_of(encode_tiles if out else decode_tiles, pool.device, self._shape.constants)

    def prepare(self) -> None:
        """A launch over no pages: what is compiled for it is what `run` launches, of however many layers."""
        none = torch.zeros(1, dtype=torch.int64, device=self._pool.device)
        self._launch(1, none, none, 0)

    def run(self, pages: torch.Tensor, slots: torch.Tensor, most_programs: int | None = None) -> None:
        """On the current stream. `pages`, `slots`: int64 [n], n > 0, on the pool's device."""
        if self._out:
            _clear_gaps(self._slab, slots, self._layout, self._layers, self._offset)
        step = max(1, COUNT_LIMIT // self._shape.page_rows)
        for start in range(0, len(pages), step):
            some, places = pages[start : start + step], slots[start : start + step]
            tiles = cdiv(len(some) * self._shape.page_rows, self._shape.tile_rows)
            self._launch(self._launcher.share(tiles, most_programs), some, places, len(some))

    def _launch(self, programs: int, pages: torch.Tensor, slots: torch.Tensor, count: int) -> None:
        self._launcher(programs, self._table, pages, self._begin, slots, count, self._layers)


def code_pages_triton(
    pool: PoolPlanes,
    pages: torch.Tensor,
    slab: torch.Tensor,
    slots: torch.Tensor,
    codec: Codec,
    layers: range,
    offset: int,
    out: bool,
) -> None:
    """As `code_pages_plain`, by the kernels; over a pool in host memory they are interpreted."""
    TritonPageCode(pool, slab, codec, layers, offset, out).run(pages, slots)


def _clear_gaps(slab: torch.Tensor, slots: torch.Tensor, layout: EncodedLayout, layers: int, offset: int) -> None:
    """Zero what is neither code nor scale: a slot's last page may not show through. Usual shapes have no gaps."""
    where = slots.to(slab.device)
    for layer in range(layers if layout.gaps() else 0):
        base = offset + layer * layout.layer_bytes
        for begin, end in layout.gaps():
            slab[:, base + begin : base + end].index_fill_(0, where, 0)
