"""What SGLang's KV pools keep, as buffers of layers, and what lies in front of these in a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.radix_tiering.base.errors import ConfigError

from .states import dtype_name
from .supported import OTHER_DRAFT, PLAIN_WINDOWS


def layer_planes(kvcache: Any, whose: str = "model") -> list[list[torch.Tensor]]:
    """The buffers of every layer of SGLang's pool, the model's or the draft's: K and V, `[rows, heads, head_dim]` each;
    or, of multi-head latent attention (MLA), the one of its latent rows, `[rows, 1, latent + rotary]`, whose first part
    is V.

    Of KV that is compressed (DeepSeek V4) `[pages, bytes]`: those of rows that stand for four tokens.

    Raises ConfigError for a pool whose bytes mean more than that, and than `index_planes`: scaled, vectorised, hybrid
    ones, parts of one.
    """
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool, MLATokenToKVPool

    from .shared_pool import LentKVPool

    if type(kvcache) in (MLATokenToKVPool, DSATokenToKVPool):
        return _latent_planes(kvcache)
    if _is_by_blocks(kvcache) and whose == "model":
        kvcache = kvcache.main_pool
    if is_compressed(kvcache) and whose == "model":
        return [[rows] for rows in kvcache.c4_kv_pool.kv_buffer]
    if type(kvcache) is not MHATokenToKVPool and not isinstance(kvcache, LentKVPool):
        raise ConfigError(
            f"--enable-swift-tiers: the {whose}'s KV pool is a {type(kvcache).__name__}; only those of plain attention "
            f"(multi-head, grouped-query, latent) are supported: {_remedy(kvcache, whose)}"
        )
    scaled = [name for name in ("k_scale_buffer", "native_k_scale_buffer") if getattr(kvcache, name, None) is not None]
    if scaled or kvcache.kv_cache_layout != "nhd":
        raise ConfigError(
            "--enable-swift-tiers: the KV pool is scaled or not in NHD layout; "
            "choose another --kv-cache-dtype or attention backend, or remove the flag"
        )
    return [[key, value] for key, value in zip(kvcache.k_buffer, kvcache.v_buffer, strict=True)]


def _latent_planes(kvcache: Any) -> list[list[torch.Tensor]]:
    if kvcache.kv_scale_buffer is not None or kvcache.layer_shard_enabled:
        raise ConfigError(
            "--enable-swift-tiers: the pool of latent KV is scaled, or its layers are spread over ranks; "
            "choose another --kv-cache-dtype or parallelism, or remove the flag"
        )
    return [[latent] for latent in kvcache.kv_buffer]


def _remedy(kvcache: Any, whose: str) -> str:
    """What helps where `kvcache` is of a kind that is not supported."""
    if whose == "draft":
        return OTHER_DRAFT
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool

    has_plain_windows = isinstance(kvcache, BaseSWAKVPool) and not is_compressed(kvcache)
    return f"{PLAIN_WINDOWS}, or remove the flag" if has_plain_windows else "remove the flag"


def _is_by_blocks(kvcache: Any) -> bool:
    """Whether an index picks blocks of tokens (MiniMax M3), with rows of its own beside those of K and V."""
    from sglang.srt.mem_cache.memory_pool import MiniMaxSparseKVPool

    return type(kvcache) is MiniMaxSparseKVPool


def is_compressed(kvcache: Any) -> bool:
    """Whether a row stands for several tokens, beside one for each of the last ones (DeepSeek V4)."""
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    return type(kvcache) is DeepSeekV4TokenToKVPool


def check_compressed(kvcache: Any, page_size: int) -> None:
    """Raises ConfigError where KV that is compressed is kept otherwise than page by page, and the last tokens' in pages
    of their own. `kvcache`: SGLang's `DeepSeekV4TokenToKVPool`."""
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import HiSparseC4DevicePool

    window, flag = kvcache.swa_kv_pool, "the flag"
    for refused, what, remedy in (
        (set(kvcache.present_ratios) != {4, 128}, "of other numbers of tokens than 4 and 128", flag),
        (window is None or kvcache.request_window is not None, "of the last tokens with each request", flag),
        (
            window is not None and window.page_size != page_size,
            "of the last tokens in pages of another size",
            "SGLANG_OPT_SM120_DIRECT_SWA_KV, or the flag",
        ),
        (isinstance(kvcache.c4_kv_pool, HiSparseC4DevicePool), "in part in host memory", "--enable-hisparse"),
        (
            getattr(kvcache.c4_indexer_kv_pool, "index_k_with_scale_buffer", None) is None,
            "of its index in two parts",
            flag,
        ),
    ):
        if refused:
            raise ConfigError(
                f"--enable-swift-tiers: SGLang keeps rows {what}, which is not supported with compressed KV: "
                f"remove {remedy}"
            )


def attention_pool(kvcache: Any) -> Any:
    """The pool of the layers that keep KV of all tokens: SGLang's `kvcache`, or the part of it beside which others keep
    states, or KV of the last tokens alone."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    return kvcache.full_kv_pool if type(kvcache) is SWAKVPool else without_states(kvcache)


def without_states(kvcache: Any) -> Any:
    """SGLang's `kvcache`, or the part of it beside which others keep states."""
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

    return kvcache.full_kv_pool if type(kvcache) is HybridLinearKVPool else kvcache


def attention_allocator(allocator: Any) -> Any:
    """What hands out slots of `attention_pool`: SGLang's `allocator`, or the part of it beside which another one hands
    out those of KV of the last tokens alone."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    return allocator.full_attn_allocator if type(allocator) is SWATokenToKVPoolAllocator else allocator


def window_pool(params: Any) -> Any:
    """SGLang's pool of the layers that keep KV of the last `params.swa_retain_window` tokens alone; None where there is
    none. `params`: its `CacheInitParams`. Raises ConfigError where it keeps those otherwise than in a tree's nodes."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    allocator = params.token_to_kv_pool_allocator
    kvcache = allocator.get_kvcache()
    if type(kvcache) is not SWAKVPool and not is_compressed(kvcache):
        return None
    if type(allocator) is not SWATokenToKVPoolAllocator or allocator.swa_req_ring or not params.swa_gates_prefix_match:
        raise ConfigError(
            f"--enable-swift-tiers: KV of windows is handed out by a {type(allocator).__name__}, or to requests alone, "
            f"which is not supported: {_remedy(kvcache, 'model')}"
        )
    if is_compressed(kvcache):
        return kvcache.swa_kv_pool
    if not kvcache.full_layer_nums or index_planes(kvcache.swa_kv_pool):
        raise ConfigError(
            "--enable-swift-tiers: all layers have a window, or some of these an index, which is not supported: "
            f"{PLAIN_WINDOWS}, or remove the flag"
        )
    return kvcache.swa_kv_pool


def state_layers(params: Any) -> list[list[torch.Tensor]]:
    """Of layers that keep a state in place of KV, the tensor of each, `[slots, ...]`, by kind; none where there are no
    such layers. `params`: SGLang's `CacheInitParams`. Raises ConfigError where it keeps more of them than that."""
    from sglang.srt.mem_cache.memory_pool import MambaPool

    pool = getattr(params.req_to_token_pool, "mamba_pool", None)
    if pool is None:
        return []
    beside = params.req_to_token_pool
    if type(pool) is not MambaPool:
        raise ConfigError(
            f"--enable-swift-tiers: states are in a {type(pool).__name__}, which is not supported: remove "
            "--enable-unified-memory, or the flag"
        )
    if beside.mamba_ckpt_pool is not None or beside.short_conv_pool.enabled or beside.ngram_pool.enabled:
        raise ConfigError(
            "--enable-swift-tiers: states are kept as 8-bit checkpoints, or with others beside them, which is not "
            "supported: remove --enable-int8-mamba-checkpoint, or the flag"
        )
    kept = pool.mamba_cache
    if kept.replayssm_d is not None or kept.replayssm_rawv is not None:
        raise ConfigError(
            "--enable-linear-replayssm: a state is kept in parts, which is not supported: remove one of the two"
        )
    return [list(kind) for kind in (kept.temporal, *kept.conv) if kind.numel()]


def window_planes(
    window: Any, kvcache: Any, page_size: int, drafts: Sequence[Any] = ()
) -> tuple[list[PoolPlanes], str]:
    """What lies in each page of `window_pool`: the KV itself, and where rows stand for several tokens, what is not yet
    such a row, and what `drafts` keep; and what tells it from others, of other layouts. Raises ConfigError where drafts
    keep more than that."""
    if not is_compressed(kvcache):
        return [PoolPlanes(layer_planes(window), page_size)], ""
    layers = _layers_of_four(kvcache)
    groups = [PoolPlanes([[rows] for rows in window.kv_buffer], 1)]
    for pools in (kvcache.compress_state_pools, kvcache.indexer_compress_state_pools):
        states = [pools[kvcache.start_layer + layer] for layer in layers]
        groups.append(PoolPlanes([[_ring_of_a_page(pool)] for pool in states], 1))
    for draft in drafts:
        rows = draft.swa_kv_pool if is_compressed(draft) and not draft.present_ratios else None
        if rows is None or rows.page_size != page_size:
            raise ConfigError(
                f"--speculative-algorithm: what drafts keeps KV in a {type(draft).__name__}, not of the last tokens "
                "alone, which is not supported with compressed KV: remove it"
            )
        groups.append(PoolPlanes([[layer] for layer in rows.kv_buffer], 1))
    return groups, f", {kvcache.pd_kv_layout()}, states in {dtype_name(states[0].kv_score_buffer.kv_score)}"


def _layers_of_four(kvcache: Any) -> list[int]:
    """Which layers, from 0, have rows of four tokens. A layer that predicts further tokens is none of them."""
    ratios = kvcache.compression_ratios[kvcache.start_layer : kvcache.end_layer]
    return [layer for layer, ratio in enumerate(ratios) if ratio == 4]


def _ring_of_a_page(pool: Any) -> torch.Tensor:
    """Of SGLang's `CompressStatePool`, which has a few rows for each page of the last tokens: uint8 [pages, bytes]."""
    rows = pool.kv_score_buffer.kv_score
    pages = len(rows) // pool.ring_size
    return rows.view(torch.uint8)[: pages * pool.ring_size].view(pages, -1)


def window_layers(kvcache: Any) -> tuple[list[int], int]:
    """Which layer of a model some of whose layers have a window, from 0, each layer with KV of all tokens is of; and
    how many there are up to the last with KV of its own. `kvcache`: SGLang's `SWAKVPool`."""
    if is_compressed(kvcache):
        # In front of the first of them lie rows of 128 tokens, of layers that may come before it.
        return [0, *_layers_of_four(kvcache)[1:]], kvcache.end_layer - kvcache.start_layer
    whole = {number: layer for layer, (number, has_window) in kvcache.layers_mapping.items() if not has_window}
    layers = [whole[number] - kvcache.start_layer for number in range(len(whole))]
    return layers, max(kvcache.layers_mapping) - kvcache.start_layer + 1


def model_layers(params: Any) -> tuple[list[int], int]:
    """Which layer of a model some of whose layers keep states, from 0, each layer of KV is of; and how many there are.
    `params`: SGLang's `CacheInitParams`."""
    kvcache = params.token_to_kv_pool_allocator.get_kvcache()
    order = sorted(kvcache.full_attention_layer_id_mapping.items(), key=lambda pair: pair[1])
    layers = [layer - kvcache.start_layer for layer, _ in order]
    with_states = [layer - kvcache.start_layer for layer in params.req_to_token_pool.mamba_map]
    return layers, max(*layers, *with_states) + 1


def index_planes(kvcache: Any) -> list[list[torch.Tensor]]:
    """Of sparse attention (DSA) the index keys and their scales, `[pages, bytes of a page]`, of every layer that has
    some, and of KV that is compressed those of rows of four tokens; where an index picks blocks, its keys and values,
    `[pages, values of a page]`; of other pools none."""
    if is_compressed(kvcache):
        return [[buffer] for buffer in kvcache.c4_indexer_kv_pool.index_k_with_scale_buffer]
    if _is_by_blocks(kvcache):
        both, keys = kvcache.index_kv_pool, kvcache.index_k_pool
        rows = [*(both.k_buffer + both.v_buffer if both else ()), *(keys.k_buffer if keys else ())]
        pages = len(rows[0]) // kvcache.page_size
        return [[buffer[: pages * kvcache.page_size].view(pages, -1)] for buffer in rows]
    buffers = getattr(kvcache, "index_k_with_scale_buffer", ())
    return [[buffer] for buffer in buffers if len(buffer)]


def front_of(kvcache: Any, page_size: int, drafts: Sequence[Any] = ()) -> list[PoolPlanes]:
    """What lies in front of the layers of a page: all that models keep which draft, then the model's own index.

    It is copied with the first layer, and a forward of the model waits for its last one before any draft is made. So a
    draft's KV is there by then, though SGLang has nothing wait for it. Raises ConfigError as `layer_planes` does.
    """
    front = list[PoolPlanes]()
    if is_compressed(kvcache):
        drafts = ()  # they keep rows of the last tokens alone, which lie in the window
    for pool in (*drafts, kvcache):
        if pool is not kvcache:
            front.append(PoolPlanes(layer_planes(pool, "draft"), page_size))
        if index := index_planes(pool):
            front.append(PoolPlanes(index, 1))
    if is_compressed(kvcache):
        front.append(PoolPlanes([[rows] for rows in kvcache.c128_kv_pool.kv_buffer], 1))
    return front


def row_shape(kvcache: Any) -> tuple[int, int]:
    """(heads, dimensions of one) of a token's row in a plane; latent rows are one head, which all share."""
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    pool = attention_pool(kvcache)
    if is_compressed(pool):
        return 1, pool.qk_nope_head_dim + pool.qk_rope_head_dim
    if isinstance(pool, MLATokenToKVPool):
        return 1, pool.kv_cache_dim
    return pool.head_num, pool.head_dim
