"""A SwiftKV model beside the one that it was made from, in plain torch: both share all weights but the later layers'
projections, so one copy of them is enough for teacher and pupil.

Shapes: B windows, T tokens of each, d hidden size, H query heads, h KV heads, D head dimension. Whole windows are
computed at once, without any cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from swift_tiers.sglang_ext.models.later_layers import LaterLayers

from .checkpoint import Tensors
from .ranks import Ranks


class Rotation(NamedTuple):
    """Of the tokens of a window: `[T, D]` each."""

    cos: torch.Tensor
    sin: torch.Tensor

    def of(self, heads: torch.Tensor) -> torch.Tensor:
        """`[B, heads, T, D]`, rotated."""
        low, high = heads.chunk(2, -1)
        return heads * self.cos + torch.cat((-high, low), -1) * self.sin


class TeacherAndPupil:
    """Frozen weights, and the ways through them. The later layers' own projections are handed in by whoever calls."""

    def __init__(self, config: Any, weights: Tensors, later: LaterLayers, dtype: torch.dtype, ranks: Ranks) -> None:
        """`config`: of transformers; `weights`: of the original model by their names, converted to `dtype`."""
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        self.config, self.later, self.dtype, self.ranks = config, later, dtype, ranks
        self.weights = ranks.weights(weights, dtype)
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._rotary = LlamaRotaryEmbedding(config).to(ranks.device)

    @property
    def head(self) -> torch.Tensor:
        """`[vocabulary, d]`."""
        name = "lm_head.weight"
        return self.weights[name if name in self.weights else "model.embed_tokens.weight"]

    def rotation(self, tokens: int) -> Rotation:
        cos, sin = self._rotary(
            torch.empty(1, dtype=self.dtype, device=self.ranks.device),
            torch.arange(tokens, device=self.ranks.device)[None],
        )
        return Rotation(cos[0], sin[0])

    # ---- the ways ----

    def front(self, ids: torch.Tensor) -> torch.Tensor:
        """`[B, T, d]` that leaves the last layer before the later ones; the same for teacher and pupil."""
        hidden = self.weights["model.embed_tokens.weight"][ids.to(self.ranks.device)]
        rotation = self.rotation(ids.shape[1])
        for layer in range(self.later.first):
            hidden = self._original_layer(layer, hidden, rotation)
        return hidden

    def original(
        self, hidden: torch.Tensor, seen: Callable[[int, torch.Tensor], None] = lambda layer, read: None
    ) -> torch.Tensor:
        """`[B, T, d]` after the last norm, as the original model computes it from `front`'s. `seen`: told what each
        later layer's projections read."""
        rotation = self.rotation(hidden.shape[1])
        for layer in range(self.later.first, self.later.layers):
            hidden = self._original_layer(layer, hidden, rotation, seen)
        return self.norm(hidden, "model.norm")

    def rewired(self, front: torch.Tensor, new: Tensors) -> torch.Tensor:
        """The same as the SwiftKV model computes it, with its own projections `new`, by the checkpoint's names."""
        rotation, hidden = self.rotation(front.shape[1]), front
        stopped = self.stopped(front, new)
        pairs = {layer: self._pair(new, layer, stopped, rotation, "_swiftkv") for layer in self.later.leaders}
        for layer in range(self.later.first, self.later.layers):
            pair = pairs[self.later.leaders[self.later.leader_of(layer)]]
            if self.ranks.number > 1 and torch.is_grad_enabled():
                # Else all weights that were gathered would stay until the backward pass.
                hidden = checkpoint(self._later_layer, new, layer, hidden, rotation, pair, use_reentrant=False)
            else:
                hidden = self._later_layer(new, layer, hidden, rotation, pair)
        return self.norm(hidden, "model.norm")

    def _later_layer(
        self,
        new: Tensors,
        layer: int,
        hidden: torch.Tensor,
        rotation: Rotation,
        pair: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        read = self.norm(hidden, f"model.layers.{layer}.input_layernorm")
        return self._rest_of_layer(layer, hidden, self._query(new, layer, read, rotation, "_swiftkv"), *pair)

    def stopped(self, front: torch.Tensor, new: Tensors) -> torch.Tensor:
        """`[B, T, d]` that later keys and values, and an early exit, are projected from."""
        return self._normed(front, new["model.norm_swiftkv.weight"])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self.head)

    # ---- parts of a layer ----

    def norm(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        return self._normed(hidden, self.weights[f"{name}.weight"])

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = rows.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return wide.to(self.dtype) * weight.to(self.dtype)

    def _original_layer(
        self,
        layer: int,
        hidden: torch.Tensor,
        rotation: Rotation,
        seen: Callable[[int, torch.Tensor], None] = lambda layer, read: None,
    ) -> torch.Tensor:
        read = self.norm(hidden, f"model.layers.{layer}.input_layernorm")
        seen(layer, read)
        query = self._query(self.weights, layer, read, rotation)
        return self._rest_of_layer(layer, hidden, query, *self._pair(self.weights, layer, read, rotation))

    def _query(
        self, weights: Mapping[str, torch.Tensor], layer: int, read: torch.Tensor, rotation: Rotation, suffix: str = ""
    ) -> torch.Tensor:
        return rotation.of(
            self._head_norm(weights, layer, "q", suffix, self.projected(weights, layer, "q", read, suffix))
        )

    def _pair(
        self, weights: Mapping[str, torch.Tensor], layer: int, read: torch.Tensor, rotation: Rotation, suffix: str = ""
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key = self._head_norm(weights, layer, "k", suffix, self.projected(weights, layer, "k", read, suffix))
        return rotation.of(key), self.projected(weights, layer, "v", read, suffix)

    def projected(
        self, weights: Mapping[str, torch.Tensor], layer: int, part: str, read: torch.Tensor, suffix: str = ""
    ) -> torch.Tensor:
        """Queries, keys or values `[B, heads, T, D]` of `read`, `[B, T, d]`; not rotated, heads not normalised."""
        name = f"model.layers.{layer}.self_attn.{part}_proj{suffix}"
        bias = weights.get(f"{name}.bias")
        found = linear(read, weights[f"{name}.weight"].to(self.dtype), None if bias is None else bias.to(self.dtype))
        return found.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _head_norm(
        self, weights: Mapping[str, torch.Tensor], layer: int, part: str, suffix: str, heads: torch.Tensor
    ) -> torch.Tensor:
        """Of Qwen 3."""
        weight = weights.get(f"model.layers.{layer}.self_attn.{part}_norm{suffix}.weight")
        return heads if weight is None else self._normed(heads, weight)

    def _rest_of_layer(
        self, layer: int, hidden: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        place, groups = f"model.layers.{layer}", query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        found = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        hidden = hidden + self._linear(f"{place}.self_attn.o_proj", found)
        read = self.norm(hidden, f"{place}.post_attention_layernorm")
        inner = silu(self._linear(f"{place}.mlp.gate_proj", read)) * self._linear(f"{place}.mlp.up_proj", read)
        return hidden + self._linear(f"{place}.mlp.down_proj", inner)

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))


def new_names(later: LaterLayers, weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, str]]:
    """(name of a SwiftKV model's own tensor, name of the original's that it begins as)."""
    yield "model.norm_swiftkv.weight", f"model.layers.{later.first}.input_layernorm.weight"
    for layer in range(later.first, later.layers):
        for part in "qkv" if layer in later.leaders else "q":
            for kind in ("proj.weight", "proj.bias", "norm.weight"):
                old = f"model.layers.{layer}.self_attn.{part}_{kind}"
                if old in weights:
                    yield old.replace(kind, kind.replace(".", "_swiftkv.")), old
