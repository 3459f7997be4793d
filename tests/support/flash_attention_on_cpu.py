"""SGLang's backend of FlashAttention 3 on the portable CPU platform. For tests of what it is made to plan.

The backend is SGLang's own. What it calls is not FlashAttention, whose kernels only a GPU runs, but stands in for it in
plain torch: attention of new rows over pages of the pool, and the plan of how a decoding batch is split, which has to
be that of the batch that it is used for.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import types
from typing import Any
from unittest import mock

import torch

from .flashinfer_on_cpu import attended

#: SGLang's Triton kernels make the lists of pages.
ENVIRONMENT = {"TRITON_INTERPRET": "1"}
ARGUMENTS = ["--attention-backend", "fa3"]


def install() -> None:
    """To be called before the scheduler is made, in its process."""
    kernels, attention = types.ModuleType("sgl_kernel"), types.ModuleType("sgl_kernel.flash_attn")
    kernels.merge_state_v2 = attention.flash_attn_varlen_func = not_here  # type: ignore[attr-defined]
    attention.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    attention.get_scheduler_metadata = get_scheduler_metadata  # type: ignore[attr-defined]
    sys.modules |= {"sgl_kernel": kernels, "sgl_kernel.flash_attn": attention}
    backend: Any = importlib.import_module("sglang.srt.layers.attention.flashattention_backend")
    backend.flash_attn_with_kvcache, backend.flash_attn_varlen_func = flash_attn_with_kvcache, not_here
    mock.patch("sglang.srt.layers.attention.attention_registry.get_device_capability", return_value=(9, 0)).start()


def not_here(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing here is expected to call this")


def get_scheduler_metadata(*, batch_size: int, cache_seqlens: torch.Tensor, **_: Any) -> torch.Tensor:
    assert len(cache_seqlens) == batch_size
    return cache_seqlens.clone()


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    page_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    scheduler_metadata: torch.Tensor | None = None,
    return_softmax_lse: bool = False,
    **_: Any,
) -> torch.Tensor:
    """Of rows `[rows, heads, dim]` over a pool `[pages, page, kv heads, dim]`."""
    assert window_size == (-1, -1)
    assert not softcap
    assert not return_softmax_lse
    requests, rows = len(cache_seqlens), cu_seqlens_q.tolist()
    assert len(page_table) == requests == len(rows) - 1, "lists are of different batches"
    assert max_seqlen_q == max(end - start for start, end in itertools.pairwise(rows))
    if scheduler_metadata is not None:
        assert torch.equal(scheduler_metadata, cache_seqlens), "it is a plan of another batch"
    page, ends, slots = k_cache.shape[1], [0], []
    for pages, length in zip(page_table, cache_seqlens.tolist(), strict=True):
        places = torch.arange(length)
        slots.append(pages[places // page].long() * page + places % page)
        ends.append(ends[-1] + length)
    keys, values = (cache.flatten(0, 1)[torch.cat(slots)] for cache in (k_cache, v_cache))
    return attended(q, rows, keys, values, ends, causal, softmax_scale)[0]
