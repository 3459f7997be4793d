"""Layers that keep a state in place of KV (Mamba 2) on the portable CPU platform, which has no kernels for them, so
that tests see what lies around them.

Models, pools of states and when SGLang keeps which stay SGLang's; its four kernels are plain torch, a token at a time.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn import functional


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    import sglang.srt.layers.attention.mamba.mamba as module

    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        for variant in (name, f"{name}_triton"):
            setattr(module, variant, globals()[name])
    module.mamba_chunk_scan_combined = mamba_chunk_scan_combined
    module.selective_state_update = selective_state_update


def with_states_of_pages() -> None:
    """As `install`; and SGLang keeps states at the ends of pages, as it does on GPUs."""
    from sglang.srt.platforms import current_platform

    install()
    type(current_platform).support_mamba_cache_extra_buffer = lambda self: True
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]  # there is no driver to ask for it


def _windows(states: torch.Tensor, channels: int) -> torch.Tensor:
    """The last inputs of each slot, `[slots, channels, width - 1]`."""
    return states if states.shape[1] == channels else states.transpose(1, 2)


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    activation: str,
    conv_states: torch.Tensor,
    has_initial_state: torch.Tensor | None,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """Of several prompts one after the other: `x` is `[channels, tokens]`."""
    channels, width = weight.shape
    states, out = _windows(conv_states, channels), torch.empty_like(x)
    bounds = query_start_loc.tolist()
    for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
        slot, before = int(cache_indices[row]), torch.zeros(channels, width - 1, dtype=x.dtype)
        if has_initial_state is not None and bool(has_initial_state[row]):
            before = states[slot].to(x.dtype)
        inputs = torch.cat([before, x[:, begin:end]], 1)
        out[:, begin:end] = functional.conv1d(inputs[None], weight[:, None], bias, groups=channels)[0]
        states[slot] = inputs[:, -(width - 1) :].to(states.dtype)
    return functional.silu(out)


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    *,
    conv_state_indices: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """Of one token of each request: `x` is `[requests, channels]`."""
    states, out = _windows(conv_state, weight.shape[0]), torch.empty_like(x)
    for row, slot in enumerate(conv_state_indices.tolist()):
        inputs = torch.cat([states[slot].to(x.dtype), x[row][:, None]], 1)
        out[row] = (inputs * weight).sum(1) + (0 if bias is None else bias)
        states[slot] = inputs[:, 1:].to(states.dtype)
    return functional.silu(out)


def _step(state: torch.Tensor, decay: torch.Tensor, dt: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One token further: `state` is `[heads, dimensions, states]`."""
    return state * decay[:, None, None] + (dt[:, None] * x)[:, :, None] * b[:, None, :]


def mamba_chunk_scan_combined(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    *,
    chunk_size: int,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    cu_seqlens: torch.Tensor,
    initial_states: torch.Tensor | None,
    out: torch.Tensor,
    state_dtype: torch.dtype,
    track_seq_idx: torch.Tensor | None = None,
    track_end_locs: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The states before each chunk of the batch, those behind each of its sequences, and those before the tokens
    `track_end_locs`: SGLang keeps some of them as states of prefixes."""
    heads, dimensions = x.shape[2:]
    each = heads // B.shape[2]
    steps = functional.softplus(dt[0].float() + dt_bias.float())
    decays = torch.exp(steps * A.float())
    inputs, to_state, from_state = x[0].float(), *(m[0].float().repeat_interleave(each, 1) for m in (B, C))
    last, before = [], {}
    bounds = cu_seqlens.tolist()
    for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
        state = torch.zeros(heads, dimensions, B.shape[3]) if initial_states is None else initial_states[row].float()
        before[begin] = state
        for token in range(begin, end):
            state = _step(state, decays[token], steps[token], inputs[token], to_state[token])
            seen = (state * from_state[token][:, None, :]).sum(-1)
            out[0, token] = (seen + D.float()[:, None] * inputs[token]).to(out.dtype)
            before[token + 1] = state
        last.append(state)
    tracked = None
    if track_end_locs is not None and len(track_end_locs):
        tracked = torch.stack([before[token] for token in track_end_locs.tolist()])[None].to(state_dtype)
    chunks = torch.stack([before[token] for token in range(0, bounds[-1] + 1, chunk_size)])[None].to(state_dtype)
    return chunks, torch.stack(last).to(state_dtype), tracked


def selective_state_update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    *,
    dt_bias: torch.Tensor,
    state_batch_indices: torch.Tensor,
    out: torch.Tensor,
    **_: Any,
) -> None:
    heads = x.shape[1]
    each = heads // B.shape[1]
    for row, slot in enumerate(state_batch_indices.tolist()):
        steps = functional.softplus(dt[row].float() + dt_bias.float())[:, 0]
        to_state, from_state = (m[row].float().repeat_interleave(each, 0) for m in (B, C))
        decays = torch.exp(steps * A[:, 0, 0].float())
        after = _step(state[slot].float(), decays, steps, x[row].float(), to_state)
        state[slot] = after.to(state.dtype)
        out[row] = ((after * from_state[:, None, :]).sum(-1) + D.float() * x[row].float()).to(out.dtype)
