"""Keys and values of all later layers from one layer's output, and attention that has only queries of its own.

Shapes: N tokens of a forward, S leading layers (`LaterLayers.leaders`), H KV heads of this rank, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_context import get_token_to_kv_pool
from torch import nn

from .later_layers import LaterLayers


class NewRows:
    """Keys and values of the tokens of one forward, for attention that wants them beside the pool: `[N, H, D]` each,
    by leading layer. None where the pool alone is read, as it is for one query a request."""

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] | None = None

    def keep(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._pairs = pairs

    def forget(self) -> None:
        self._pairs = None

    def of(self, leader: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return (None, None) if self._pairs is None else self._pairs[leader]


class LaterProjection(nn.Module):
    """One matrix for the keys and values of every leading layer: first the keys of all, then the values of all."""

    def __init__(self, config: Any, later: LaterLayers, attentions: list[LaterAttention], bias: bool) -> None:
        """`attentions`: of the leading layers, as SGLang has made them for this rank."""
        super().__init__()
        one = attentions[0]
        self.later = later
        self.heads, self.head_dim, self.eps = one.kv_heads, one.head_dim, config.rms_norm_eps
        outputs = [config.num_key_value_heads * one.head_dim] * (2 * len(later.leaders))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.proj = MergedColumnParallelLinear(config.hidden_size, outputs, bias=bias, prefix="later_projection.proj")
        #: Of Qwen 3, which normalises the keys of each head; float32 or the model's dtype, `[S, D]`.
        self.k_norm = nn.Parameter(torch.ones(len(later.leaders), one.head_dim)) if one.q_norm is not None else None
        self.rotary = one.rotary_emb
        # Not modules of this one: they belong to their layers.
        self._readers = [attention.attn for attention in attentions]

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, batch: Any) -> list[tuple[Any, Any]]:
        """Write the KV of all later layers for `hidden`, the `[N, hidden_size]` that leaves layer `first - 1`, into the
        pool; returns the rows, `[N, H, D]` for keys and values of each leading layer."""
        projected, _ = self.proj(self.norm(hidden))
        tokens, layers = len(hidden), len(self._readers)
        keys, values = projected.view(tokens, 2, layers, self.heads, self.head_dim).unbind(1)
        if self.k_norm is not None:
            keys = _normalised(keys, self.k_norm[:, None], self.eps)
        keys = rotated(self.rotary, positions, keys.reshape(tokens, -1)).view(values.shape)
        pool, pairs = get_token_to_kv_pool(), []
        for index, reader in enumerate(self._readers):
            key, value = keys[:, index].contiguous(), values[:, index].contiguous()
            pool.set_kv_buffer(reader, KVWriteLoc.for_layer(batch, reader), key, value)
            pairs.append((key, value))
        return pairs

    def shard_of(self, layer: int, part: str) -> int:
        """Where the weights of "k" or "v" of a leading layer go in `proj`."""
        return self.later.leader_of(layer) + (len(self.later.leaders) if part == "v" else 0)


class LaterAttention(nn.Module):
    """Attention of a later layer: its input makes the queries; keys and values are in the pool when it is reached."""

    def __init__(self, original: Any, hidden_size: int, bias: bool, eps: float, leader: int, rows: NewRows) -> None:
        """`original`: SGLang's attention of that layer, of which all is taken over but the projection."""
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = original.num_heads, original.num_kv_heads, original.head_dim
        self.q_proj_swiftkv = ColumnParallelLinear(
            hidden_size, original.total_num_heads * original.head_dim, bias=bias, prefix="q_proj_swiftkv"
        )
        self.q_norm_swiftkv = RMSNorm(self.head_dim, eps=eps) if hasattr(original, "q_norm") else None
        self.o_proj, self.rotary_emb, self.attn = original.o_proj, original.rotary_emb, original.attn
        self._leader, self._rows = leader, rows

    @property
    def q_norm(self) -> Any:
        return self.q_norm_swiftkv

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        query, _ = self.q_proj_swiftkv(hidden_states)
        if self.q_norm_swiftkv is not None:
            query = self.q_norm_swiftkv(query.reshape(-1, self.head_dim)).view(query.shape)
        query = rotated(self.rotary_emb, positions, query)
        key, value = self._rows.of(self._leader)
        found = self.attn(query, key, value, forward_batch, save_kv_cache=False)
        output: torch.Tensor = self.o_proj(found)[0]
        return output


def rotated(rotary: Any, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`[N, heads * D]`, rotated. SGLang's rotary embedding wants two tensors: the second one is thrown away."""
    rows = rows.contiguous()
    turned: torch.Tensor = rotary(positions, rows, rows.new_zeros(len(rows), rotary.head_size))[0]
    return turned


def _normalised(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm over the last dimension, computed in float32, as SGLang's."""
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(rows.dtype)


def expected_names(later: LaterLayers, bias: bool, normed: bool) -> Iterator[str]:
    """Every tensor that a checkpoint has to have beyond those of the model that it was made from."""
    yield "model.norm_swiftkv.weight"
    kinds = ("weight", "bias") if bias else ("weight",)
    for layer in range(later.first, later.layers):
        parts = "qkv" if layer in later.leaders else "q"
        for part in parts:
            yield from (f"model.layers.{layer}.self_attn.{part}_proj_swiftkv.{kind}" for kind in kinds)
        if normed:
            yield from (f"model.layers.{layer}.self_attn.{part}_norm_swiftkv.weight" for part in parts if part != "v")
