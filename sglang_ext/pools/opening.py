"""Which of our pools serves a KV pool of SGLang."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from swift_tiers.kernels.pool_planes import PoolPlanes
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.units import format_size

from .accelerator_pool import open_cuda_pool
from .device_pool import BlockMajorPool, DevicePool, HostMemoryPool
from .encoded_pool import EncodedPool
from .kept import (
    attention_pool,
    check_compressed,
    front_of,
    index_planes,
    is_compressed,
    layer_planes,
    model_layers,
    state_layers,
    window_layers,
    window_planes,
    window_pool,
    without_states,
)
from .states import StatePool
from .supported import OTHER_DRAFT, check_device, drafts_by_model

logger = logging.getLogger(__name__)


def open_pool(params: Any, codec: str, forward_stream: Any = None) -> DevicePool:
    """The pool of a rank, as SGLang's `CacheInitParams` tell of it, of which pages are kept in `codec`; none of its
    queues is `forward_stream`, between whose layers copies would run, not beside them. Raises ConfigError if it is of a
    kind that is not supported."""
    kvcache = params.token_to_kv_pool_allocator.get_kvcache()
    if is_compressed(kvcache):
        check_compressed(kvcache, params.page_size)
        _check_graphs()
    states, window = state_layers(params), window_pool(params)
    drafts = draft_pools(params)
    pool = open_device_pool(attention_pool(kvcache), params.page_size, codec, drafts)
    if states and window is not None:
        raise ConfigError(
            "--enable-swift-tiers: the model keeps states and KV of windows beside each other, which is not "
            "supported: remove the flag"
        )
    page_bytes, accelerator = pool.geometry.page_bytes, pool.accelerator
    if accelerator is not None and forward_stream is not None:
        accelerator.keep_clear_of(forward_stream)
    if states:
        pool.keep_states(StatePool.of_layers(states, page_bytes, accelerator), *model_layers(params))
    elif window is not None:
        planes, kinds = window_planes(window, kvcache, params.page_size, drafts)
        tokens = params.swa_retain_window
        kept = StatePool.of_windows(planes, tokens, params.page_size, page_bytes, accelerator, kinds=kinds)
        pool.keep_states(kept, *window_layers(kvcache))
    if pool.states is not None and accelerator is not None:
        logger.info(
            "swift-tiers: states pass through %s of the device's memory, one on its way out and one on its way in",
            format_size(2 * pool.states.nbytes),
        )
    return pool


def _check_graphs() -> None:
    """Raises ConfigError where a forward reads compressed KV without waiting for it."""
    from sglang.srt.model_executor.cuda_graph_config import Backend
    from sglang.srt.runtime_context import get_exec

    graphs = get_exec().graph.cuda_graph_config
    if graphs is not None and graphs.prefill.backend == Backend.BREAKABLE:
        raise ConfigError(
            "--cuda-graph-backend-prefill: breakable graphs read the index of compressed KV before it has come; "
            "remove it, which SGLang takes for disabled with this model"
        )


def open_device_pool(kvcache: Any, page_size: int, codec: str = "", drafts: Sequence[Any] = ()) -> DevicePool:
    """The pool behind SGLang's `kvcache` and those of models that draft, of which pages are kept in `codec`; empty: as
    they are. Raises ConfigError if it is of a kind that is not supported."""
    layers, front = layer_planes(kvcache), front_of(kvcache, page_size, drafts)
    pool = _open(kvcache, layers, page_size, codec, front)
    pool.drafts = bool(drafts)
    if front:
        logger.info(
            "swift-tiers: a page has %s in front of the model's layers, %s",
            format_size(pool.geometry.front_bytes),
            " and ".join(
                what
                for what, is_there in (
                    ("a draft's KV", drafts and not is_compressed(kvcache)),
                    ("an index", index_planes(kvcache)),
                    ("rows of 128 tokens", is_compressed(kvcache)),
                )
                if is_there
            ),
        )
    return pool


def draft_pools(params: Any) -> tuple[Any, ...]:
    """The KV pools of the models that draft, whose rows lie at the slots of the model's; none where nothing drafts by a
    model. `params`: SGLang's `CacheInitParams`. Raises ConfigError where there is a draft whose KV SGLang does not tell
    of, or one that keeps states of its own."""
    from sglang.srt.runtime_context import get_spec

    # A layer that predicts further tokens of a model with states has none itself, but is in a pool of that kind.
    pools = (*map(without_states, params.mtp_draft_device_pools), *params.sidecar_draft_device_pools)
    algorithm = get_spec().speculative_algorithm
    if params.mtp_draft_mamba_pools:
        raise ConfigError(
            f"--speculative-algorithm: the draft of {algorithm} keeps states of its own, which is not supported; "
            f"{OTHER_DRAFT}"
        )
    if drafts_by_model(algorithm) and not pools:
        raise ConfigError(
            f"--speculative-algorithm: {algorithm} keeps the KV of its draft where the tiers cannot reach it, which is "
            f"not supported; {OTHER_DRAFT}"
        )
    return pools


def _open(
    kvcache: Any, layers: list[list[torch.Tensor]], page_size: int, codec: str, front: list[PoolPlanes]
) -> DevicePool:
    from .shared_pool import BlockMajorKVPool

    device = layers[0][0].device.type
    check_device(device)  # as it was resolved in the end
    rows = 1 if is_compressed(kvcache) else 0
    if codec and device == "cpu":
        return EncodedPool(layers, page_size, codec, front)
    if isinstance(kvcache, BlockMajorKVPool):
        return BlockMajorPool(layers, page_size, kvcache.table)
    if device == "cpu":
        return HostMemoryPool(layers, page_size, front, rows)
    return open_cuda_pool(layers, page_size, codec, front, rows)
