"""Methods of SGLang's that classes of ours override, call, or take the place of: each with its parameters and why.

Checked like the hooks, at every start and by `swift-tiers doctor`.
"""

from __future__ import annotations

from typing import NamedTuple


class Override(NamedTuple):
    """A method of SGLang's that a class of ours overrides, calls, or takes the place of."""

    target: str  # dotted path
    parameters: tuple[str, ...] | None  # as they must be; None: it is no method, but what a class of SGLang's keeps
    reason: str


def overrides() -> tuple[Override, ...]:
    """What `PatientAdder` and `RestoringAdder` override, beside `add_one_req`, which is among the hooks; what a forward
    that is ended early is made of; and, where that is the platform, what the portable CPU platform's attention is made
    of."""
    runner, layers = "sglang.srt.model_executor.model_runner.ModelRunner", "compute a chunk layer by layer"
    adder, reason = "sglang.srt.managers.schedule_policy.PrefillAdder", "cut chunks where pages have arrived"
    shape = (
        "self", "req", "total_tokens", "host_hit_length", "swa_host_hit_length", "truncation_align_size",
        "has_chunked_req",
    )  # fmt: skip
    return (
        Override(f"{adder}.add_chunked_req", ("self", "req"), reason),
        Override(f"{adder}.budget_state", ("self",), reason),
        Override(
            f"{adder}.preempt_to_schedule",
            ("self", "req"),
            "take nobody off the device for one that waits for its pages",
        ),
        Override(f"{adder}._select_prefill_admission", shape, reason),
        Override(
            f"{runner}.forward_split_prefill", ("self", "forward_batch", "reinit_attn_backend", "forward_count"), layers
        ),
        Override("sglang.srt.layers.layer_boundary.residual.batch.clear", ("forward_batch",), layers),
        *tree_overrides(),
        *linker_overrides(),
        *allocator_overrides(),
        *storage_overrides(),
        *swiftkv_overrides(),
        *(cpu_overrides() if _on_portable_cpu() else ()),
    )


def tree_overrides() -> tuple[Override, ...]:
    """What `SwiftRadixCache` and `KeepingRadixCache` override, and what they and the hooks call beside that."""
    tree, reason = (
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache",
        "tell what a donor keeps of all that is",
    )
    waits, ends = "let requests wait for their pages without blocking others", "keep nothing for a request that is over"
    beams = "leave nothing of a beam search whose load has failed"
    session = "sglang.srt.session.streaming_session.StreamingSession"
    request = "sglang.srt.managers.schedule_batch.Req"
    core = "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface.UnifiedTreeCoreInterface"
    events = "tell routers what is beneath the device"
    return (
        Override(f"{tree}.__init__", ("self", "params"), "count what the device evicts from the first on"),
        Override(f"{tree}.init_cache_linker", ("self", "cache_linker"), "drive the linker by a wrapper of ours"),
        Override(f"{tree}.check_hicache_events", ("self",), waits),
        Override(
            f"{tree}.prefetch_from_storage",
            (
                "self", "request", "last_host_node_id", "new_input_tokens", "last_hash", "prefix_keys",
                "matched_prefix_tokens", "extra_key", "cache_salt", "storage_hit_end",
            ),
            waits,
        ),
        Override(f"{tree}.check_prefetch_progress", ("self", "request"), waits),
        Override(f"{tree}.pop_prefetch_loaded_span", ("self", "request"), "count what came from storage"),
        Override(f"{tree}.finish_external_linker_loads", ("self", "reqs"), ends),
        Override(
            "sglang.srt.beam_search.fork.free_member_rows",
            ("group", "req_to_token_pool", "token_to_kv_pool_allocator"),
            beams,
        ),
        Override("sglang.srt.beam_search.coordinator.BeamCoordinator.retire_group", ("self", "req"), beams),
        Override(f"{tree}.checkpoint", ("self", "req", "up_to", "kwargs"), ends),
        Override(f"{tree}.on_release", ("self", "req", "checkpointed"), ends),
        Override(f"{tree}.claim_kv_row", ("self", "req"), ends),
        Override(f"{tree}.release_aborted_request", ("self", "request"), ends),
        Override(
            "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.finish", ("self", "handle", "outcome"), ends
        ),
        Override(f"{tree}.clear_storage_backend", ("self",), "empty our tiers where SGLang empties its own"),
        Override(f"{tree}.reset", ("self",), "look anew for what waiting requests had found"),
        Override(
            f"{tree}._evict",
            ("self", "params", "available_size_targets", "allocation_reclaim_satisfied"),
            "have waiting requests look anew where the device has lost a state or a window",
        ),
        Override(f"{tree}.take_events", ("self",), events),
        Override(f"{core}.take_events", ("self",), events),
        Override(f"{core}.finish_write_through", ("self", "node_ids", "ack_id"), events),
        Override(f"{core}.collect_path_info", ("self", "end_node_ids"), events),
        Override(f"{tree}._match_tree", ("self", "params"), reason),
        Override(f"{tree}.touch_prefix", ("self", "key"), reason),
        Override(f"{tree}.insert", ("self", "params"), f"{reason}, and offer states that come later than their prefix"),
        Override(f"{tree}.inc_lock_ref", ("self", "node_id", "skip_lock_components"), reason),
        Override(f"{tree}.dec_lock_ref", ("self", "node_id", "params", "skip_swa"), reason),
        Override(f"{tree}._evict_device_leaf", ("self", "node_id", "tracker"), reason),
        Override(f"{tree}.get_prefix_hash_values", ("self", "node_id"), "name the pages before a node"),
        Override(f"{tree}.mamba_evictable_size", ("self",), "leave SGLang slots for the states that it needs"),
        Override(f"{tree}.evictable_size", ("self",), "store what waits where the device has room for it meanwhile"),
        Override(
            f"{tree}.evict_for_alloc",
            ("self", "params", "allocation_reclaim_satisfied"),
            "copy nothing out that would cost a request its room",
        ),
        Override(f"{tree}.path_device_indices", ("self", "node"), "offer again what the tiers have lost"),
        Override(f"{session}.will_lend_record", ("self", "req"), "leave turns of streaming sessions alone"),
        Override(f"{session}.borrowed_slot", ("self", "req"), "give none of a session's KV to another adapter's name"),
        Override("sglang.srt.session.streaming_session.is_virtual_node", ("node",), "take no such node for the tree's"),
        Override(f"{request}._compute_max_prefix_len", ("self", "input_len"), "leave a token to be computed"),
        *(
            Override(f"sglang.srt.lora.lora_manager.LoRAManager.{name}", arguments, "know adapters by what they hold")
            for name, arguments in (
                ("load_lora_weights", ("self", "lora_ref")),
                ("load_lora_weights_from_tensors", ("self", "lora_ref", "tensors")),
            )
        ),
    )  # fmt: skip


def linker_overrides() -> tuple[Override, ...]:
    """What `SwiftLinkerWrapper`, `SwiftLinker` and `WatchedLoadCounter` override."""
    linker = "sglang.srt.mem_cache.unified_cache.unified_cache_linker"
    wrapper, ours = f"{linker}.UnifiedCacheLinkerWrapper", f"{linker}.UnifiedCacheLinker"
    reason, interface = "keep one object for each request", "be the linker"
    counter, dies = f"{linker}.LayerWiseLoadCounter", "end a forward's wait where the loading thread has died"
    pools, states = "sglang.srt.mem_cache.memory_pool", "have layers with a state wait for it"
    return (
        Override(f"{wrapper}.__init__", ("self", "cache", "cache_linker"), reason),
        Override(f"{wrapper}.match", ("self", "key", "req", "result"), reason),
        Override(f"{wrapper}.load_back", ("self", "req"), reason),
        Override(f"{wrapper}.release_request", ("self", "rid"), reason),
        Override(
            f"{wrapper}.commit_completed_offloads",
            ("self", "successes"),
            "have SGLang admit requests to the room of what has been stored",
        ),
        Override(
            f"{wrapper}._tail_hashes",
            ("self", "key", "result", "device_hit_len"),
            "compute the hashes of a prompt once",
        ),
        Override(
            f"{wrapper}._sync_restorable_prefix",
            ("self", "restorable", "num_pages", "device_hit_pages"),
            "agree with one number: tiers restore any length up to their longest",
        ),
        Override(
            f"{wrapper}._offload_node", ("self", "node_id", "transfers"), "tell the linker which page comes before"
        ),
        Override(
            f"{wrapper}.replace_pending_offload_node",
            ("self", "ack_id", "old_node_id", "new_node_ids"),
            "tell of a node that is cut who copies it, and not who copies its state",
        ),
        Override(f"{wrapper}.offload_nodes", ("self", "node_ids"), "offer a window where a prompt or an answer ends"),
        Override(f"{linker}._PendingOffload.publish_node_ids", None, "offer a state of which no node is told"),
        Override(f"{ours}.lookup", ("self", "rid", "transfers"), interface),
        Override(f"{ours}.load", ("self", "rid", "transfers"), interface),
        Override(f"{ours}.cancel_queued_load", ("self", "rid"), interface),
        Override(f"{ours}.start_layer_wise_loading", ("self",), interface),
        Override(f"{ours}.finish_layer_wise_loading", ("self", "counter_index"), interface),
        Override(f"{ours}.offload", ("self", "transfers", "session_id"), interface),
        Override(f"{ours}.num_completed_offloads", ("self",), interface),
        Override(f"{ours}.pop_completed_offload", ("self",), interface),
        Override(f"{ours}.reset", ("self",), interface),
        Override(f"{ours}.close", ("self",), interface),
        Override(f"{counter}.update_producer", ("self",), dies),
        Override(f"{counter}.complete", ("self", "index", "layer"), dies),
        Override(f"{counter}.fail", ("self", "index", "error"), dies),
        Override(f"{counter}.wait_until", ("self", "threshold"), dies),
        Override(
            f"{counter}.set_consumer", ("self", "index"), "have states before a graph that waits for none of them"
        ),
        Override(f"{counter}.finish", ("self", "index"), dies),
        Override(f"{counter}.reset", ("self",), dies),
        *(
            Override(
                f"sglang.srt.mem_cache.cache_init_params.CacheInitParams.{pools}",
                None,
                "keep the KV of models that draft in the pages of the served one",
            )
            for pools in ("mtp_draft_device_pools", "sidecar_draft_device_pools")
        ),
        Override(
            "sglang.srt.configs.model_config.ModelConfig.from_server_args",
            ("server_args", "model_path", "model_revision", "is_draft_model", "context_length", "kwargs"),
            "have the configuration of a draft in the namespace",
        ),
        Override(
            f"{pools}.HybridReqToTokenPool.register_layer_transfer_counter", ("self", "layer_transfer_counter"), states
        ),
        *(Override(f"{pools}.MambaPool.State.{kind}", None, states) for kind in ("replayssm_d", "replayssm_rawv")),
        Override(
            f"{pools}.DSATokenToKVPool.index_k_with_scale_buffer", None, "keep the index of sparse attention in pages"
        ),
        Override(
            f"{pools}.MiniMaxSparseKVPool.register_layer_transfer_counter",
            ("self", "layer_transfer_counter"),
            "keep the index that picks blocks of tokens in pages",
        ),
        *(
            Override(f"sglang.srt.mem_cache.{name}", parameters, "keep the KV of windows in pages of their own")
            for name, parameters in (
                ("swa_memory_pool.SWAKVPool.register_layer_transfer_counter", ("self", "layer_transfer_counter")),
                ("allocator.swa.SWATokenToKVPoolAllocator.translate_swa_indices_for_transfer", ("self", "kv_indices")),
                ("allocator.swa.SWATokenToKVPoolAllocator.swa_available_size", ("self",)),
                ("allocator.swa.SWATokenToKVPoolAllocator.swa_req_ring", None),
                ("cache_init_params.CacheInitParams.swa_retain_window", None),
                ("cache_init_params.CacheInitParams.swa_gates_prefix_match", None),
            )
        ),
        *(
            Override(f"sglang.srt.mem_cache.{name}", parameters, "keep compressed KV, page by page")
            for name, parameters in (
                ("deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool.wait_layer_transfer", ("self", "layer_id")),
                ("deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool.pd_kv_layout", ("self",)),
                ("deepseek_v4_memory_pool.HiSparseC4DevicePool", None),
                (
                    "deepseek_v4_compress_state.CompressStatePool.translate_from_swa_loc_to_state_loc",
                    ("self", "swa_loc"),
                ),
            )
        ),
    )


def allocator_overrides() -> tuple[Override, ...]:
    """What the allocators and the pool of a server that lends override."""
    allocator, pool = "sglang.srt.mem_cache.allocator", "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool"
    base, paged = f"{allocator}.base.BaseTokenToKVPoolAllocator", f"{allocator}.paged.PagedTokenToKVPoolAllocator"
    reason, memory = "lend pages that nobody uses", "have the pool in memory that others may map"
    return (
        Override(f"{base}.__init__", ("self", "size", "page_size", "dtype", "device", "kvcache", "need_sort"), reason),
        Override(f"{base}.available_size", ("self",), reason),
        Override(f"{base}.get_all_free_pages", ("self",), reason),
        Override(f"{base}.merge_and_sort_free", ("self",), reason),
        Override(f"{base}.alloc", ("self", "need_size"), reason),
        Override(f"{base}.clear", ("self",), reason),
        Override(
            f"{paged}.alloc_extend",
            (
                "self", "prefix_lens", "prefix_lens_cpu", "seq_lens", "seq_lens_cpu", "last_loc", "extend_num_tokens",
                "num_new_pages",
            ),
            reason,
        ),
        Override(f"{paged}.alloc_decode", ("self", "seq_lens", "seq_lens_cpu", "last_loc"), reason),
        Override(f"{pool}._create_buffers", ("self",), memory),
        Override(f"{pool}._create_buffers_normal", ("self",), memory),
    )  # fmt: skip


def storage_overrides() -> tuple[Override, ...]:
    """What the remote tier's driver calls of SGLang's storage backends, and where their names are."""
    storage, reason = "sglang.srt.mem_cache.hicache_storage", "keep objects in any engine that SGLang has a driver for"
    backend = f"{storage}.HiCacheStorage"
    return (
        Override(
            "sglang.srt.mem_cache.storage.backend_factory.StorageBackendFactory.create_backend",
            ("backend_name", "storage_config", "mem_pool_host", "kwargs"),
            reason,
        ),
        Override(
            "sglang.srt.mem_cache.storage.backend_factory.StorageBackendFactory._registry",
            None,
            "refuse an engine that SGLang has no driver for before a model is loaded",
        ),
        *(
            Override(
                f"sglang.srt.environ.Envs.SGLANG_HICACHE_{engine}_BACKEND_STORAGE_DIR",
                None,
                "refuse an engine of files that nobody has told where: its own directory is anybody's to make",
            )
            for engine in ("FILE", "NIXL")
        ),
        Override(f"{backend}.register_mem_pool_host", ("self", "mem_pool_host"), reason),
        Override(f"{backend}.register_mem_host_pool_v2", ("self", "host_pool", "host_pool_name"), reason),
        Override(f"{backend}.on_host_pools_registered", ("self",), reason),
        Override(f"{backend}.batch_exists", ("self", "keys", "extra_info"), reason),
        Override(f"{backend}.batch_get_v1", ("self", "keys", "host_indices", "extra_info"), reason),
        Override(f"{backend}.batch_set_v1", ("self", "keys", "host_indices", "extra_info"), reason),
        Override(f"{backend}.batch_get_v2", ("self", "transfers", "extra_info"), reason),
        Override(f"{backend}.batch_set_v2", ("self", "transfers", "extra_info"), reason),
        Override(
            f"{storage}.HiCacheStorageConfig",
            (
                "tp_rank", "tp_size", "pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size", "is_mla_model",
                "enable_storage_metrics", "is_page_first_layout", "model_name", "tp_lcm_size", "should_split_heads",
                "dp_rank", "extra_config", "dcp_size", "dcp_rank", "logical_page_size",
            ),
            "say of an object that it is whole: no rank, no model name, no halves",
        ),
        Override(
            f"{storage}.PoolTransfer",
            (
                "name", "host_indices", "device_indices", "keys", "hit_policy", "nodes_to_load", "indices_from_pool",
                "block_pages", "group_pages",
            ),
            reason,
        ),
    )  # fmt: skip


def swiftkv_overrides() -> tuple[Override, ...]:
    """What SwiftKV models are derived from, and what their forward does in SGLang's place."""
    models, boundary = "sglang.srt.models", "sglang.srt.layers.layer_boundary.residual.batch"
    attention, pool = "sglang.srt.layers.radix_attention.RadixAttention", "sglang.srt.mem_cache.memory_pool"
    reason = "let few of a prompt's tokens go on to the later layers"
    families = ("llama.LlamaForCausalLM", "qwen2.Qwen2ForCausalLM", "qwen3.Qwen3ForCausalLM")
    forward = ("self", "input_ids", "positions", "forward_batch", "input_embeds", "get_embedding", "pp_proxy_tensors")
    split = ("self", "input_ids", "positions", "forward_batch", "split_interval", "input_embeds")
    init = ("self", "config", "quant_config", "prefix")
    return (
        *(Override(f"{models}.{family}.__init__", init, reason) for family in families),
        *(Override(f"{models}.{family}.forward", forward, reason) for family in families),
        *(Override(f"{models}.{family}.forward_split_prefill", split, reason) for family in families),
        *(Override(f"{models}.{family}.load_weights", ("self", "weights"), reason) for family in families),
        Override(
            f"{attention}.forward",
            ("self", "q", "k", "v", "forward_batch", "save_kv_cache", "key_value_num_tokens", "kwargs"),
            reason,
        ),
        Override(
            f"{pool}.MHATokenToKVPool.set_kv_buffer",
            (
                "self",
                "layer",
                "loc_info",
                "cache_k",
                "cache_v",
                "k_scale",
                "v_scale",
                "layer_id_override",
                "dcp_kv_mask",
            ),
            "write the KV of all later layers at once",
        ),
        Override(f"{pool}.KVWriteLoc.for_layer", ("forward_batch", "layer", "swa_loc", "full_loc"), reason),
        Override(f"{boundary}.start", ("forward_batch",), reason),
        Override(f"{boundary}.fold", ("hidden_states", "forward_batch"), reason),
        Override(f"{boundary}.set_written", ("hidden_states", "forward_batch"), reason),
        Override(
            f"{boundary}.final_norm",
            ("hidden_states", "forward_batch", "layernorm", "capture", "finalize_norm", "skip_empty", "read_kwargs"),
            reason,
        ),
        Override(
            "sglang.srt.layers.logits_processor.LogitsProcessor.forward",
            (
                "self",
                "input_ids",
                "hidden_states",
                "lm_head",
                "logits_metadata",
                "aux_hidden_states",
                "hidden_states_before_norm",
            ),
            "ask a second output matrix for an early exit",
        ),
        Override(
            "sglang.srt.distributed.parallel_state.GroupCoordinator.broadcast",
            ("self", "input_", "src"),
            "have all ranks exit early for the same tokens",
        ),
    )


def cpu_overrides() -> tuple[Override, ...]:
    """What `CpuAttentionBackend` overrides, and where models are told how to compute with it."""
    backend = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
    handlers = "sglang.srt.models.deepseek_common.attention_backend_handler.AttentionBackendRegistry"
    reason = "compute attention on a CPU over the new tokens only"
    forward = ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache")
    decode = (
        "self", "query", "output", "k_cache", "v_cache", "req_to_token", "req_pool_indices", "seq_lens", "encoder_lens",
        "scaling", "enable_gqa", "causal", "is_cross_attn", "sliding_window_size",
    )  # fmt: skip
    extend = (*decode[:8], "extend_prefix_lens", "extend_seq_lens", *decode[8:])
    return (
        Override(f"{backend}.init_forward_metadata", ("self", "forward_batch"), reason),
        Override(f"{backend}.forward_extend", forward, reason),
        Override(f"{backend}.forward_decode", forward, reason),
        Override(f"{backend}._run_sdpa_forward_extend", extend, reason),
        Override(f"{backend}._run_sdpa_forward_decode", decode, reason),
        Override(
            f"{handlers}.register",
            ("backend_name", "handler_func"),
            "have latent attention (MLA) read the pool: for a backend that it does not know, SGLang takes Triton's way",
        ),
    )


def _on_portable_cpu() -> bool:
    from sglang.srt.platforms import current_platform

    from .platform.cpu_platform import PortableCpuPlatform

    return isinstance(current_platform, PortableCpuPlatform)
