"""Layers that keep a state in place of KV (Mamba 2) on the portable CPU platform, which has no kernels for them, so
that tests see what lies around them.

Models, pools of states and when SGLang keeps which stay SGLang's; its kernels are plain torch, a token at a time.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn import functional

ENVIRONMENT = {"SGLANG_MAMBA_CONV_DTYPE": "float32", "TRITON_INTERPRET": "1"}
#: Of a server: with states at the ends of pages, and room for a good many.
ARGUMENTS = [
    "--mamba-radix-cache-strategy", "extra_buffer", "--max-mamba-cache-size", "48", "--mamba-track-interval", "64",
    "--chunked-prefill-size", "256",
]  # fmt: skip


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    import sglang.srt.layers.attention.mamba.mamba as module

    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        for variant in (name, f"{name}_triton"):
            setattr(module, variant, globals()[name])
    module.mamba_chunk_scan_combined = mamba_chunk_scan_combined
    module.selective_state_update = selective_state_update
    import sglang.srt.layers.attention.hybrid_linear_attn_backend as backend

    backend.scatter_mamba_states_after_mtp_verify = scatter_mamba_states_after_mtp_verify


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
    intermediate_conv_window: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Of one token of each request: `x` is `[requests, channels]`. Or of a chain of drafts of each, `[requests,
    channels, drafts]`: the state stays, and what it would be behind each draft is left in `intermediate_conv_window`,
    `[rows, drafts, channels, width - 1]`."""
    states, out = _windows(conv_state, weight.shape[0]), torch.empty_like(x)
    for row, slot in enumerate(conv_state_indices.tolist()):
        state = states[slot].to(x.dtype)
        for token in range(x.shape[2] if x.dim() == 3 else 1):
            at = (row, slice(None), token) if x.dim() == 3 else (row,)
            inputs = torch.cat([state, x[at][:, None]], 1)
            out[at] = (inputs * weight).sum(1) + (0 if bias is None else bias)
            state = inputs[:, 1:]
            if intermediate_conv_window is not None and intermediate_state_indices is not None:
                intermediate_conv_window[int(intermediate_state_indices[row]), token] = state.to(states.dtype)
        if intermediate_conv_window is None:
            states[slot] = state.to(states.dtype)
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
    intermediate_states_buffer: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    **_: Any,
) -> None:
    """Of one token of each request: `x` is `[requests, heads, dimensions]`. Or of a chain of drafts of each,
    `[requests, drafts, heads, dimensions]`: the state stays, and what it would be behind each draft is left in
    `intermediate_states_buffer`, `[rows, drafts, heads, dimensions, states]`."""
    if intermediate_states_buffer is None:
        x, dt, B, C, out = (m[:, None] for m in (x, dt, B, C, out))
    each = x.shape[2] // B.shape[2]
    for row, slot in enumerate(state_batch_indices.tolist()):
        after = state[slot].float()
        for token in range(x.shape[1]):
            steps = functional.softplus(dt[row, token].float() + dt_bias.float())[:, 0]
            to_state, from_state = (m[row, token].float().repeat_interleave(each, 0) for m in (B, C))
            decays = torch.exp(steps * A[:, 0, 0].float())
            after = _step(after, decays, steps, x[row, token].float(), to_state)
            seen = (after * from_state[:, None, :]).sum(-1) + D.float() * x[row, token].float()
            out[row, token] = seen.to(out.dtype)
            if intermediate_states_buffer is not None and intermediate_state_indices is not None:
                intermediate_states_buffer[int(intermediate_state_indices[row]), token] = after.to(state.dtype)
        if intermediate_states_buffer is None:
            state[slot] = after.to(state.dtype)


def scatter_mamba_states_after_mtp_verify(
    mamba_caches: Any,
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None,
    mamba_steps_to_track: torch.Tensor | None,
    src_indices_raw: torch.Tensor | None = None,
) -> None:
    """Of drafts that are verified: what the states would be behind the last right one of each request becomes its
    state, and another one that of a prefix, where one is to be kept."""
    kinds = [(mamba_caches.temporal, mamba_caches.intermediate_ssm)]
    kinds += zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True)
    for slots, steps in (
        (state_indices_tensor, last_correct_step_indices),
        (mamba_track_indices, mamba_steps_to_track),
    ):
        if slots is None or steps is None:
            continue
        for row, (slot, step) in enumerate(zip(slots.tolist(), steps.tolist(), strict=True)):
            for states, behind in kinds:
                if step >= 0 and states.numel():
                    states[:, slot] = behind[:, row, step]
