"""Sparse attention with an index (DeepSeek's DSA) on the portable CPU platform, which has no kernels for it, so that
tests see what lies around it.

Models, their pools of latent KV and of index keys, and SGLang's layout of the latter stay SGLang's. What computes index
keys, picks tokens by them and attends to these alone is plain torch in place of kernels for GPUs.
"""

from __future__ import annotations

from typing import Any

import torch

FP8 = torch.float8_e4m3fn


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    import torch._dynamo
    from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer

    from swift_tiers.sglang_ext.platform.cpu_attention_backend import CpuAttentionBackend

    torch._dynamo.config.disable = True  # there may be no compiler
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # asked for before a backend is chosen
    Indexer.forward = picked
    _keep_whole_floats()
    for name in ("forward_extend", "forward_decode"):
        setattr(CpuAttentionBackend, name, _sparsely(getattr(CpuAttentionBackend, name)))


def _keep_whole_floats() -> None:
    """SGLang keeps 2 bytes a value or one. Of what is rounded so, a last digit more or less, as of batches of another
    size, makes other answers."""
    from sglang.srt.mem_cache import kv_cache_dtype

    configure = kv_cache_dtype.configure_kv_cache_dtype
    kv_cache_dtype.configure_kv_cache_dtype = lambda **known: (configure(**known)[0], torch.float32)


def picked(
    self: Any,
    x: torch.Tensor,
    q_lora: torch.Tensor,
    positions: torch.Tensor,
    forward_batch: Any,
    layer_id: int,
    **_: Any,
) -> torch.Tensor:
    """`Indexer.forward`: the tokens of its sequence that each new token attends to, int64 [tokens, topk], -1 where
    there are no more."""
    from sglang.srt.model_executor.forward_context import get_req_to_token_pool, get_token_to_kv_pool

    pool, slots_of = get_token_to_kv_pool(), get_req_to_token_pool().req_to_token
    buffer = pool.index_k_with_scale_buffer[layer_id]
    write_keys(buffer, pool.page_size, forward_batch.out_cache_loc.long(), self.k_norm(self.wk(x)[0].float()))
    queries = self.wq_b(q_lora)[0].float().unflatten(-1, (self.n_heads, self.head_dim))
    weights = self.weights_proj(x.to(self.weights_proj.weight.dtype))[0].float()
    found = torch.full((len(x), self.index_topk), -1, dtype=torch.int64)
    if pool.layer_transfer_counter is not None:
        pool.layer_transfer_counter.wait_until(layer_id - pool.start_layer)
    for row, (request, position) in enumerate(zip(requests_of(forward_batch), positions.tolist(), strict=True)):
        keys = read_keys(buffer, pool.page_size, slots_of[request, : position + 1].long())
        scores = (torch.relu(queries[row] @ keys.T) * weights[row][:, None]).sum(0)
        most = scores.topk(min(self.index_topk, len(scores))).indices
        found[row, : len(most)] = most
    return found


def requests_of(batch: Any) -> list[int]:
    """The row of `req_to_token` of each new token."""
    if batch.forward_mode.is_target_verify():
        lengths = [batch.spec_info.draft_token_num] * batch.batch_size
    elif batch.forward_mode.is_extend(include_draft_extend_v2=True):
        lengths = batch.extend_seq_lens.tolist()
    else:
        lengths = [1] * batch.batch_size
    return [row for row, length in zip(batch.req_pool_indices.tolist(), lengths, strict=True) for _ in range(length)]


def write_keys(buffer: torch.Tensor, page_size: int, slots: torch.Tensor, keys: torch.Tensor) -> None:
    """As SGLang lays them out: of a page its keys of one byte a value, then their scales, float32."""
    scales = (keys.abs().amax(-1, keepdim=True) / 448).clamp(min=1e-10)
    values, dim = (keys / scales).to(FP8).view(torch.uint8), keys.shape[-1]
    pages, places = slots // page_size, slots % page_size
    buffer[:, : page_size * dim].view(-1, page_size, dim)[pages, places] = values
    buffer[:, page_size * dim :].view(-1, page_size, 4)[pages, places] = scales.float().view(torch.uint8)


def read_keys(buffer: torch.Tensor, page_size: int, slots: torch.Tensor) -> torch.Tensor:
    dim = buffer.shape[1] // page_size - 4
    pages, places = slots // page_size, slots % page_size
    values = buffer[:, : page_size * dim].view(-1, page_size, dim)[pages, places].view(FP8).float()
    return values * buffer[:, page_size * dim :].view(-1, page_size, 4)[pages, places].view(torch.float32)


def _sparsely(dense: Any) -> Any:
    def forward(
        self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True, topk_indices: Any = None
    ) -> torch.Tensor:
        if topk_indices is None:
            return dense(self, q, k, v, layer, batch, save_kv_cache)
        pool = self.token_to_kv_pool
        pool.set_kv_buffer(layer, batch.out_cache_loc, k, v)
        latent = pool.get_key_buffer(layer.layer_id)
        queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim).float()
        out = q.new_empty((len(queries), layer.tp_q_head_num, layer.v_head_dim))
        for row, (request, tokens) in enumerate(zip(requests_of(batch), topk_indices, strict=True)):
            chosen = self.req_to_token_pool.req_to_token[request, tokens[tokens >= 0]].long()
            rows = latent[chosen].view(len(chosen), -1).float()
            shares = (queries[row] @ rows.T * layer.scaling).softmax(-1)
            out[row] = shares @ rows[:, : layer.v_head_dim]
        return out.view(len(queries), -1)

    return forward
