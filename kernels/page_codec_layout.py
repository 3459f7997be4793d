"""Which codes the values of a page can have, and where codes and scales lie in an encoded one; see `page_codec`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from .pool_planes import VECTOR_BYTES, PoolPlanes

#: Heads of smaller magnitude are stored as zeros: their scale would not be a normal float32.
SMALLEST = 2.0**-96
#: What pools can be encoded: dtypes of which float32 holds every value.
ENCODABLE = (torch.bfloat16, torch.float16, torch.float32)


class Codec(enum.Enum):
    """How the values of a head are coded; `limit` is the largest code."""

    E4M3 = 448
    INT8 = 127
    INT4 = 7

    @property
    def limit(self) -> int:
        return self.value

    @classmethod
    def named(cls, name: str) -> Codec:
        """As users write it: "fp8", "int8" or "int4"."""
        return {"fp8": cls.E4M3, "int8": cls.INT8, "int4": cls.INT4}[name]

    def code_bytes(self, head_dim: int) -> int:
        """Bytes of the codes of one head of one token."""
        return -(-head_dim // 2) if self is Codec.INT4 else head_dim


def _padded(nbytes: int) -> int:
    return -(-nbytes // VECTOR_BYTES) * VECTOR_BYTES


@dataclass(frozen=True)
class EncodedLayout:
    """Where codes and scales of a page lie, bytes."""

    layers: int
    rows: int  # of a layer: a head of a token in a plane each
    code_bytes: int  # of a row

    @classmethod
    def of(cls, pool: PoolPlanes, codec: Codec) -> EncodedLayout:
        """Raises ValueError for a pool whose values cannot be encoded."""
        if pool.dtype not in ENCODABLE:
            raise ValueError(f"a pool of {pool.dtype} cannot be encoded; only {', '.join(map(str, ENCODABLE))} can")
        return cls(pool.layers, pool.planes * pool.page_size * pool.heads, codec.code_bytes(pool.head_dim))

    @property
    def scales_offset(self) -> int:
        """Where the scales of a layer begin, from the layer's begin."""
        return _padded(self.rows * self.code_bytes)

    @property
    def layer_bytes(self) -> int:
        return self.scales_offset + _padded(self.rows * 4)

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def gaps(self) -> list[tuple[int, int]]:
        """The bytes of a layer that hold nothing: (begin, end)."""
        behind_codes = self.rows * self.code_bytes, self.scales_offset
        behind_scales = self.scales_offset + self.rows * 4, self.layer_bytes
        return [(begin, end) for begin, end in (behind_codes, behind_scales) if begin < end]
