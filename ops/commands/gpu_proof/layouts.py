"""The models whose pages are moved: what their published configurations say of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from swift_tiers.kernels.pool_planes import PoolPlanes

#: Tokens of a page, SGLang's own choice where an attention backend asks for pages.
PAGE_SIZE = 16
DTYPE = torch.bfloat16


class Layout(NamedTuple):
    """One model on one GPU, KV in bfloat16."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int  # width of a token's state
    inner: int  # width of the feed-forward part

    @property
    def row_bytes(self) -> int:
        return self.kv_heads * self.head_dim * DTYPE.itemsize

    @property
    def layer_bytes(self) -> int:
        """Of one page."""
        return 2 * PAGE_SIZE * self.row_bytes

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_bytes


LAYOUTS = (
    Layout("Qwen3-8B", 36, 8, 128, 4096, 12288),
    Layout("Qwen3-14B", 40, 8, 128, 5120, 17408),
    Layout("Qwen3-32B", 64, 8, 128, 5120, 25600),
    Layout("Llama-3.1-8B", 32, 8, 128, 4096, 14336),
    Layout("LWM-7B", 32, 32, 128, 4096, 11008),
)


def layer_first(layout: Layout, pages: int, device: torch.device) -> list[list[torch.Tensor]]:
    """SGLang's own pool: K and V of each layer in memory of their own, zeroed."""
    shape = (pages * PAGE_SIZE, layout.kv_heads, layout.head_dim)
    return [[torch.zeros(shape, dtype=DTYPE, device=device) for _ in "kv"] for _ in range(layout.layers)]


def block_major(layout: Layout, pages: int, device: torch.device) -> list[list[torch.Tensor]]:
    """A token's rows of all layers beside each other, zeroed; views of one tensor."""
    shape = (pages * PAGE_SIZE, 2 * layout.layers, layout.kv_heads, layout.head_dim)
    views = torch.zeros(shape, dtype=DTYPE, device=device).unbind(1)
    return [[views[2 * layer], views[2 * layer + 1]] for layer in range(layout.layers)]


POOLS = {"layer-first": layer_first, "block-major": block_major}


def planes_of(layers: Sequence[Sequence[torch.Tensor]]) -> PoolPlanes:
    """The pool as kernels see it."""
    return PoolPlanes(layers, PAGE_SIZE)
