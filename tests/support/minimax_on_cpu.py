"""Sparse attention by blocks with an index (MiniMax M3) on the portable CPU platform, which has no kernels for it, so
that tests see what lies around it.

The model, its pools of KV and of its index, and what routes between both kinds of layers stay SGLang's. What picks
blocks of tokens and attends to these alone is plain torch in place of kernels for GPUs.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from support.sparse_on_cpu import requests_of


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    import sglang.srt.layers.attention.minimax_sparse_backend as backend
    import sglang.srt.mem_cache.kv_cache_configurator as configurator

    backend.MiniMaxSparseAttnBackend = BlockSparse
    configurator.reject_out_of_tree_path = lambda *_, **__: None  # it has no such pool for platforms of others


class BlockSparse(AttentionBackend):
    """Each token attends to the blocks whose best token its index likes best, and to its own."""

    def __init__(self, runner: Any) -> None:
        from sglang.srt.configs import model_config

        config = model_config.get_minimax_sparse_attention_config(runner.model_config.hf_config)
        self.sparse_layer_ids = model_config.get_minimax_sparse_layer_ids(config)[1]
        self.has_no_value = model_config.get_minimax_sparse_disable_value_layer_ids(config)
        self.block, self.most = config["sparse_block_size"], config["sparse_topk_blocks"]
        self.pool, self.slots_of = runner.token_to_kv_pool, runner.req_to_token_pool.req_to_token

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """There is none."""

    def forward_extend(self, *parts: Any, **index: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        return self._forward(*parts, **index)

    def forward_decode(self, *parts: Any, **index: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        return self._forward(*parts, **index)

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        batch: Any,
        save_kv_cache: bool = True,
        *,
        idx_q: torch.Tensor,
        idx_k: torch.Tensor,
        idx_v: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """What the index sees itself, in layers in which it has values, and what is attended to."""
        number = layer.layer_id
        index_sees = number not in self.has_no_value
        self.pool.set_fused_kv_index_buffer(
            layer, batch.out_cache_loc, k, v, idx_k, idx_v if index_sees else None,
            layer.k_scale_float, layer.v_scale_float, layer.idx_k_scale_float, layer.idx_v_scale_float,
        )  # fmt: skip
        keys, values = self.pool.get_kv_buffer(number)
        index_keys = self.pool.get_index_k_buffer(number)
        index_values = self.pool.get_index_kv_buffer(number)[1] if index_sees else None
        out, seen = torch.empty_like(q), torch.empty_like(idx_q)
        for row, (request, position) in enumerate(zip(requests_of(batch), batch.positions.tolist(), strict=True)):
            slots = self.slots_of[request, : position + 1].long()
            scores = torch.einsum("hd,td->ht", idx_q[row], index_keys[slots, 0]) * idx_q.shape[-1] ** -0.5
            if index_values is not None:
                seen[row] = scores.softmax(-1) @ index_values[slots, 0]
            # Heads of the index pick for their part of the heads of keys and values, wherever these are computed.
            picks = scores.view(keys.shape[1], -1, len(slots)).amax(1)
            for head, (own, parts) in enumerate(zip(picks, q[row].chunk(keys.shape[1]), strict=True)):
                chosen = slots[self._chosen(own)]
                shares = (parts @ keys[chosen, head].T * layer.scaling).softmax(-1)
                out[row].chunk(keys.shape[1])[head][:] = shares @ values[chosen, head]
        return (seen.flatten(1) if index_sees else None), out.flatten(1)

    def _chosen(self, scores: torch.Tensor) -> torch.Tensor:
        """Which tokens are attended to, by a score each."""
        blocks = torch.stack([part.max() for part in scores.split(self.block)])
        blocks[-1] = torch.inf
        picked = torch.zeros(len(blocks), dtype=torch.bool)
        picked[blocks.topk(min(self.most, len(blocks))).indices] = True
        return picked.repeat_interleave(self.block)[: len(scores)]
