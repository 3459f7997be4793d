"""Gated delta nets (Qwen3.5, Qwen3-Next), and those of Kimi's that forget each key at its own pace, on the portable CPU
platform, which has no kernels for them, so that tests see what lies around them.

As `states_on_cpu` does it for Mamba 2, with its convolutions: a token at a time, in plain torch.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn import functional

from . import states_on_cpu

#: Tokens after each of which SGLang's kernel hands out the state before them.
CHUNK = 64


def with_states_of_pages() -> None:
    """As `states_on_cpu.with_states_of_pages`."""
    states_on_cpu.with_states_of_pages()
    import sglang.kernels.ops.attention.fla.layernorm_gated as norms
    import sglang.srt.layers.attention.linear.gdn_backend as backend
    import sglang.srt.layers.attention.linear.kernels.gdn_triton as kernels

    norms.rms_norm_gated = rms_norm_gated
    backend.causal_conv1d_fn = states_on_cpu.causal_conv1d_fn
    backend.causal_conv1d_update = states_on_cpu.causal_conv1d_update
    backend.fused_gdn_gating = gates
    kernels.chunk_gated_delta_rule = chunk_gated_delta_rule
    kernels.fused_recurrent_gated_delta_rule_packed_decode = packed_decode
    kernels.fused_sigmoid_gating_delta_rule_update = fused_sigmoid_gating_delta_rule_update


def of_kimi() -> None:
    """As `with_states_of_pages`, for Kimi-Linear."""
    states_on_cpu.with_states_of_pages()
    import sglang.kernels.ops.attention.fla.fused_norm_gate as norms
    import sglang.srt.layers.attention.linear.kda_backend as backend
    import sglang.srt.layers.attention.linear.kernels.kda_triton as kernels

    norms.rms_norm_gated = lambda x, gate, weight, bias, activation, *, eps, **_: rms_norm_gated(
        x=x, weight=weight, z=gate, eps=eps, activation=activation
    )
    backend.causal_conv1d_fn = states_on_cpu.causal_conv1d_fn
    backend.causal_conv1d_update = states_on_cpu.causal_conv1d_update
    kernels.chunk_kda = chunk_kda
    kernels.fused_recurrent_kda_packed_decode = packed_decode


def rms_norm_gated(
    *, x: torch.Tensor, weight: torch.Tensor, z: torch.Tensor, eps: float, activation: str, **_: Any
) -> torch.Tensor:
    gate = torch.sigmoid(z.float()) if activation == "sigmoid" else functional.silu(z.float())
    return (functional.rms_norm(x.float(), x.shape[-1:], weight.float(), eps) * gate).to(x.dtype)


def gates(
    a_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each head forgets of its state, as a logarithm, and how much it learns: `[1, tokens, heads]`. `a`:
    `[tokens, heads]`, or of each key, `[tokens, heads, keys]`."""
    rates = torch.exp(a_log.float()).view(-1, *[1] * (a.dim() - 2))
    forgets = -rates * functional.softplus(a.float() + dt_bias.float().view(a.shape[1:]))
    return forgets[None], torch.sigmoid(b.float())[None]


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forgets: torch.Tensor, learns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token further: `state` is `[heads, values, keys]`; the state after it, and what is seen in it."""
    each = len(v) // len(k)
    q, k = (_unit(m.float()).repeat_interleave(each, 0) for m in (q, k))
    state = state * torch.exp(forgets).view(len(v), 1, -1)
    differs = (v.float() - (state * k[:, None]).sum(-1)) * learns[:, None]
    state = state + differs[:, :, None] * k[:, None]
    return state, (state * q[:, None]).sum(-1) * q.shape[-1] ** -0.5


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    initial_state: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """Of several prompts one after the other, `[1, tokens, heads, dimensions]`, whose states are left behind; and the
    states before each chunk of each of them."""
    out, before = torch.empty_like(v), []
    for row, (begin, end) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        slot = int(initial_state_indices[row])
        state = initial_state[slot].float()
        for token in range(begin, end):
            if not (token - begin) % CHUNK:
                before.append(state)
            state, seen = _step(state, q[0, token], k[0, token], v[0, token], g[0, token], beta[0, token])
            out[0, token] = seen.to(out.dtype)
        initial_state[slot] = state.to(initial_state.dtype)
    return out, None, torch.stack(before)[None].to(v.dtype)


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    cu_seqlens: torch.Tensor,
    track_state: torch.Tensor | None,
    track_chunk_idx: torch.Tensor | None,
    output_intermediate_states: bool,
    **states: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """As `chunk_gated_delta_rule`; `track_state`, `[prompts, heads, values, keys]`, takes the state before the chunk of
    each prompt that `track_chunk_idx` names."""
    forgets, learns = gates(A_log, g[0], beta[0], dt_bias)
    out, _, before = chunk_gated_delta_rule(q, k, v, forgets, learns, cu_seqlens=cu_seqlens, **states)
    if track_state is not None and track_chunk_idx is not None:
        chunks = -(-cu_seqlens.diff() // CHUNK)
        for row, (first, chunk) in enumerate(
            zip((chunks.cumsum(0) - chunks).tolist(), track_chunk_idx.tolist(), strict=True)
        ):
            if 0 <= chunk < chunks[row]:
                track_state[row] = before[0, first + chunk]
    return (out, before) if output_intermediate_states else out


def packed_decode(
    *,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    initial_state: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    **_: Any,
) -> None:
    """Of one token of each request: `out` is `[requests, 1, heads, dimensions]`."""
    heads, values, keys = initial_state.shape[1:]
    of_keys = (mixed_qkv.shape[1] - heads * values) // 2
    q, k, v = torch.split(mixed_qkv, [of_keys, of_keys, heads * values], 1)
    fused_sigmoid_gating_delta_rule_update(
        A_log=A_log,
        dt_bias=dt_bias,
        q=q.view(1, len(a), -1, keys),
        k=k.view(1, len(a), -1, keys),
        v=v.view(1, len(a), -1, values),
        a=a,
        b=b,
        initial_state_source=initial_state,
        initial_state_indices=ssm_state_indices,
        cu_seqlens=torch.arange(len(a) + 1),
        out=out.transpose(0, 1),
    )


def fused_sigmoid_gating_delta_rule_update(
    *,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    intermediate_states_buffer: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Of the tokens of each request, `[1, tokens, heads, dimensions]`. Of chains of drafts the state stays, and what it
    would be behind each is left in `intermediate_states_buffer`, `[rows, drafts, heads, values, keys]`."""
    out = torch.empty_like(v) if out is None else out
    heads = v.shape[2]
    of_each = dt_bias.numel() // heads  # one, or as many as keys
    a = a.reshape(-1, heads, of_each) if of_each > 1 else a.reshape(-1, heads)
    forgets, learns = gates(A_log, a, b.reshape(-1, heads), dt_bias)
    for row, (begin, end) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        slot = int(initial_state_indices[row])
        state = initial_state_source[slot].float()
        for token in range(begin, end):
            state, seen = _step(state, q[0, token], k[0, token], v[0, token], forgets[0, token], learns[0, token])
            out[0, token] = seen.to(out.dtype)
            if intermediate_states_buffer is not None and intermediate_state_indices is not None:
                kept = intermediate_states_buffer[int(intermediate_state_indices[row])]
                kept[token - begin] = state.to(kept.dtype)
        if intermediate_states_buffer is None:
            initial_state_source[slot] = state.to(initial_state_source.dtype)
    return out
