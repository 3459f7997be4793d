"""Which of SGLang's settings tell the KV of two servers apart: every argument that this release has is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
from sglang.srt.arg_groups.overrides import declare_resolution
from sglang.srt.server_args import ServerArgs

from swift_tiers.sglang_ext.build import identity, settings
from swift_tiers.sglang_ext.build.content_names import ContentNames
from swift_tiers.sglang_ext.build.settings import attention_counts, variables
from swift_tiers.sglang_ext.build.weights import LoadedFiles, sources_of

#: Arguments that the namespace has in other words (configuration, weights, dtype, rank, pages), or with which no server
#: starts beside the tiers.
SAID_OTHERWISE = """
    model_path revision download_dir dtype context_length json_model_override_args model_config_parser
    trust_remote_code decrypted_config_file mamba_ssm_dtype lora_target_modules lora_paths speculative_algorithm
    speculative_draft_model_path speculative_draft_model_revision speculative_draft_load_format attention_backend
    prefill_attention_backend decode_attention_backend dsa_prefill_backend dsa_decode_backend page_size tp_size
    node_rank weight_cache_mode disable_hybrid_swa_memory pp_size attn_cp_size enable_prefill_cp dcp_size
    enable_kv_cache_sharding enable_dsa_cache_layer_split enable_hisparse hisparse_config dllm_algorithm
    dllm_algorithm_config enable_int8_mamba_checkpoint int8_mamba_ckpt_size enable_linear_replayssm
    linear_replayssm_cache_len enable_linear_replayssm_spec enable_unified_memory kv_canary kv_canary_real_data
    kv_canary_sweep_interval prefill_only_disable_kv_cache enable_mis c128_page_size dsv4_attn_backend
    dsv4_prefill_backend enable_page_major_kv_layout
"""
#: Arguments that change no KV, or no more of it than the order in which sums are made.
HARMLESS = """
    tokenizer_path tokenizer_mode tokenizer_backend tokenizer_worker_num detokenizer_worker_num skip_tokenizer_init
    enable_multimodal enable_fp32_lm_head modelopt_checkpoint_save_path modelopt_export_path mem_fraction_static
    max_running_requests max_queued_requests max_total_tokens chunked_prefill_size prefill_decode_interval
    enable_dynamic_chunking max_prefill_tokens prefill_max_requests schedule_policy enable_priority_scheduling
    disable_priority_preemption default_priority_value abort_on_priority_when_disabled
    schedule_low_priority_values_first priority_scheduling_preemption_threshold retraction_policy
    schedule_conservativeness swa_full_tokens_ratio radix_eviction_policy radix_eviction_policy_config
    disable_radix_cache disable_chunked_prefix_cache disable_overlap_schedule num_continuous_decode_steps
    scheduler_recv_interval enable_mixed_chunk nccl_port dist_timeout dist_init_addr gated_launch_port nnodes
    pp_max_micro_batch_size pp_async_batch_depth dp_size attn_dp_size load_balance_method moe_dp_size dwdp_size
    dcp_comm_backend dcp_replicate_q_proj cp_strategy enable_cp_decode_attn_tp enable_dp_attention
    enable_dp_attention_local_control_broadcast enable_dp_lm_head enable_tp_lm_head_all_to_all
    enable_attn_tp_input_scattered enable_shared_experts_attn_tp shared_experts_tp_size enable_dense_mlp_attn_tp
    enable_layernorm_sp disable_attn_tp_gather enable_p2p_check device base_gpu_id gpu_id_step random_seed
    mlx_enable_sampling watchdog_timeout soft_watchdog_timeout sleep_on_idle use_ray custom_sigquit_handler numa_node
    gc_threshold host port fastapi_root_path smg_grpc_mode grpc_mode grpc_port grpc_worker_threads sidecar
    sidecar_args skip_server_warmup warmups enable_http2 http2_max_concurrent_streams
    http2_initial_connection_window_size ssl_keyfile ssl_certfile ssl_ca_certs ssl_keyfile_password enable_ssl_refresh
    api_key admin_api_key served_model_name weight_version chat_template trust_request_chat_template
    hf_chat_template_name completion_template file_storage_path enable_cache_report return_input_ids return_output_ids
    reasoning_parser default_chat_template_kwargs strip_thinking_cache enable_strict_thinking tool_call_parser
    tool_server sampling_defaults asr_max_buffer_seconds asr_max_concurrent_sessions preferred_sampling_params
    allow_auto_truncate stream_interval batch_notify_size stream_response_default_include_usage
    incremental_streaming_output enable_streaming_session enable_session_radix_cache log_level log_level_http
    log_requests log_requests_level log_requests_format log_requests_target uvicorn_access_log_exclude_prefixes
    crash_dump_folder show_time_cost enable_metrics smg_http_sidecar_port enable_mfu_metrics
    enable_metrics_for_all_schedulers load_snapshot_publish_interval tokenizer_metrics_custom_labels_header
    tokenizer_metrics_allowed_custom_labels extra_metric_labels bucket_time_to_first_token bucket_inter_token_latency
    bucket_e2e_request_latency prompt_tokens_buckets generation_tokens_buckets gc_warning_threshold_secs
    decode_log_interval enable_request_time_stats_logging kv_events_config load_publish_endpoint
    enable_forward_pass_metrics forward_pass_metrics_worker_id forward_pass_metrics_ipc_name enable_trace
    trace_modules otlp_traces_endpoint export_metrics_to_file export_metrics_to_file_dir stat_loggers
    constrained_json_whitespace_pattern constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt
    enable_lean_attention sampling_backend grammar_backend radix_cache_backend mm_attention_backend bf16_gemm_backend
    dsa_paged_mqa_logits_backend disable_flashinfer_autotune flashinfer_autotune_skip_ops mamba_backend
    cuda_graph_config cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_max_bs_decode
    cuda_graph_max_bs_prefill cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_prefill_max_context
    disable_prefill_cuda_graph disable_decode_cuda_graph disable_cuda_graph disable_cuda_graph_padding
    enable_profile_cuda_graph enable_cudagraph_gc debug_cuda_graph enable_layerwise_nvtx_marker enable_nccl_nvls
    enable_symm_mem triton_attention_num_kv_splits triton_attention_split_tile_size flashinfer_mla_disable_ragged
    enable_fused_qk_norm_rope enable_fused_moe_sum_all_reduce disable_custom_all_reduce enable_mscclpp
    enable_torch_symm_mem enable_scattered_sconv pre_warm_nccl boundary_reduction enable_flashinfer_allreduce_fusion
    enforce_disable_flashinfer_allreduce_fusion flashinfer_allreduce_fusion_backend enable_aiter_allreduce_fusion
    enable_torch_compile enable_torch_compile_debug_mode torch_compile_max_bs speculative_num_steps
    speculative_eagle_topk speculative_num_draft_tokens speculative_dflash_block_size speculative_dspark_block_size
    speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path
    speculative_dspark_align_verify_tokens_to_graph_tier speculative_accept_threshold_single
    speculative_accept_threshold_acc speculative_use_rejection_sampling speculative_token_map
    speculative_attention_mode _speculative_draft_quantization_explicitly_set speculative_adaptive
    speculative_adaptive_config decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank
    decoupled_spec_role spec_trace_dir speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth
    speculative_ngram_match_type speculative_ngram_max_trie_depth speculative_ngram_capacity
    speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
    speculative_ngram_external_corpus_max_tokens ep_size deepep_v2_mode fuseep_mode ep_num_redundant_experts
    init_expert_location enable_eplb eplb_algorithm eplb_rebalance_num_iterations eplb_rebalance_layers_per_chunk
    eplb_min_rebalancing_utilization_threshold expert_distribution_recorder_mode
    expert_distribution_recorder_buffer_size expert_balancedness_report_mode deepep_config moe_dense_tp_size
    elastic_ep_backend enable_elastic_expert_backup mooncake_ib_device enable_waterfill ep_join_mode
    ep_join_rank_offset elastic_ep_initial_size max_ep_size elastic_ep_scale_timeout
    disable_flashinfer_cutlass_moe_fp4_allgather max_mamba_cache_size mamba_max_states_per_path
    mamba_full_memory_ratio mamba_radix_cache_strategy uses_mamba_radix_cache mamba_track_interval linear_attn_backend
    linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend enable_hierarchical_cache
    hicache_host_memory_mode hicache_ratio hicache_size hicache_write_policy hicache_io_backend hicache_mem_layout
    hicache_storage_backend hicache_storage_prefetch_policy hicache_storage_backend_extra_config
    hicache_storage_prefetch_retry_poll_interval hicache_storage_prefetch_retry_max_attempts
    enable_unified_cache_external_linker unified_cache_external_linker_backend enable_broadcast_mm_inputs_process
    enable_prefix_mm_cache mm_enable_dp_encoder mm_process_config mm_processor_worker_num mm_io_worker_num
    allowed_media_domains media_url_max_file_size_mb mm_preprocess_cache_size_mb trust_mm_content_hashes
    limit_mm_data_per_request enable_mm_global_cache image_processor_backend mm_global_cache_backend
    disable_fast_image_processor mm_feature_transport enable_lora enable_lora_overlap_loading max_lora_rank
    max_loaded_loras max_loras_per_batch lora_eviction_policy lora_backend max_lora_chunk_size lora_strict_loading
    lora_drain_wait_threshold enable_two_batch_overlap enable_single_batch_overlap tbo_token_distribution_threshold
    cpu_offload_gb offload_group_size offload_num_in_group offload_prefetch_step offload_mode enable_lmcache
    lmcache_config_file enable_flexkv flexkv_config_file kt_method kt_cpuinfer kt_threadpool_count kt_num_gpu_experts
    kt_max_deferred_experts_per_token dllm_fdfo disaggregation_mode disaggregation_transfer_backend
    disaggregation_bootstrap_port disaggregation_ib_device disaggregation_decode_enable_radix_cache
    disaggregation_decode_enable_offload_kvcache disaggregation_decode_retraction_backup num_reserved_decode_tokens
    disaggregation_decode_extra_slots disaggregation_decode_polling_interval optimistic_prefill_attempts encoder_only
    language_model_only encoder_transfer_backend encoder_bootstrap_port encoder_register_urls
    enable_adaptive_dispatch_to_encoder enable_pdmux pdmux_config_path sm_group_num startup_weight_load_mode
    weight_loader_disable_mmap weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads
    weight_loader_drop_cache_after_load remote_instance_weight_loader_seed_instance_ip
    remote_instance_weight_loader_seed_instance_service_port remote_instance_weight_loader_send_weights_group_ports
    remote_instance_weight_loader_backend remote_instance_weight_loader_start_seed_via_transfer_engine
    engine_info_bootstrap_port modelexpress_config model_checksum delete_ckpt_after_loading
    checkpoint_engine_wait_weights_before_ready enable_prefill_delayer prefill_delayer_max_delay_passes
    prefill_delayer_token_usage_low_watermark prefill_delayer_forward_passes_buckets
    prefill_delayer_wait_seconds_buckets prefill_delayer_queue_min_ratio prefill_delayer_max_delay_ms
    min_free_slots_delay enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size
    dynamic_batch_tokenizer_batch_timeout enable_tokenizer_batch_encode disable_tokenizer_batch_decode
    debug_tensor_dump_output_folder debug_tensor_dump_layers enable_memory_saver enable_weights_cpu_backup
    enable_draft_weights_cpu_backup enable_custom_logit_processor enable_return_hidden_states
    return_hidden_states_mode enable_return_routed_experts enable_return_indexer_topk sampling_mask_max_tokens
    disable_outlines_disk_cache weight_cache_socket weight_cache_timeout msprobe_dump_config ple_offload_embedding
    ple_offload_backend ple_offload_dir disaggregation_enable_kv_checksum enable_pd_role_switch
    speculative_domino_candidate_pool_size cuda_graph_max_seq_len_prefill otlp_service_name
    _radix_eviction_policy_explicitly_set hicache_host_memory_fraction enable_linker_mla_dedup
    _swa_full_tokens_ratio_explicitly_set swa_prefix_tails enable_response_store
    disaggregation_decode_host_receive_threshold disaggregation_decode_allocation_policy
    speculative_boundary_reduction speculative_use_block_verification disable_aiter_allreduce_fusion_in_prefill
    disable_aiter_allreduce_fusion_in_decode enable_amd_monokernel dsa_triton_union enable_dsa_fused_indexer
    enable_cp_tp_group_sharing enable_watermark watermark_config watermark_key watermark_key_b
    watermark_context_window watermark_mixing_probability watermark_max_probability watermark_default_enabled
    watermark_enforce_all grpc_response_timeout_secs enable_paged_experts paged_experts_num_resident
    enable_nvidia_megakernel enable_megamoe_for_layernorm_sp enable_http_worker_reuseport
    prefill_decode_interval_min_bs unified_cache_external_linker_config enable_return_aux_hidden_states
    aux_hidden_state_capture return_aux_hidden_state_layer_ids
"""


def counted() -> set[str]:
    tables = (settings.ARGUMENTS, settings.OF_QUANTIZED, settings.REPRODUCIBLE)
    beside = (identity._DRAFT_ARGUMENTS, identity._SETTINGS, identity._OTHER_WEIGHTS)
    return {name for table in (*tables, *beside) for name in table}


def test_every_argument_of_sglang_is_known():
    """A release with a new one fails here until somebody has looked at what it changes."""
    tables = [counted(), set(SAID_OTHERWISE.split()), set(HARMLESS.split())]
    assert set.union(*tables) == set(ServerArgs.__struct_fields__)
    assert sum(map(len, tables)) == len(ServerArgs.__struct_fields__), "each is in one table"


@pytest.mark.parametrize("name", [*settings.ARGUMENTS, *settings.REPRODUCIBLE])
def test_an_argument_that_changes_kv_tells_namespaces_apart(name):
    plain = ServerArgs(model_path="org/model")
    other = ServerArgs(model_path="org/model")
    declare_resolution(other, "a test", **{name: "another"})
    seen = [settings.settings(identity.resolved(given), is_quantized=False) for given in (plain, other)]
    assert seen[0] != seen[1]


@pytest.mark.parametrize("name", settings.OF_QUANTIZED)
def test_kernels_count_where_weights_are_quantised(name):
    def seen(is_quantized: bool) -> int:
        given = [SimpleNamespace(**{name: value}) for value in ("one", "another")]
        return len({str(settings.settings(view, is_quantized=is_quantized)) for view in given})

    assert (seen(True), seen(False)) == (2, 1)


def test_variables_count_but_those_that_say_where_and_when(tmp_path):
    path = tmp_path / "quantisation.json"
    path.write_text("{}")
    given = {
        "SGLANG_INT4_WEIGHT": "1",
        "SGLANG_OF_A_LATER_RELEASE": "x",
        "SGLANG_HUMMING_ONLINE_QUANT_CONFIG": str(path),
        "SGLANG_RUN_ID": "random",
        "SGLANG_PORT": "30000",
        "SGLANG_DP_RANK": "1",
        "SGLANG_TORCH_PROFILER_DIR": "/somewhere",
        "PATH": "/bin",
    }
    found = variables(given)
    assert found.keys() == {"SGLANG_INT4_WEIGHT", "SGLANG_OF_A_LATER_RELEASE", "SGLANG_HUMMING_ONLINE_QUANT_CONFIG"}
    path.write_text("{1}")
    assert variables(given) != found, "of a file its content counts"


def test_attention_counts_where_answers_are_to_be_the_same_to_the_last_bit():
    assert not attention_counts(SimpleNamespace(), "fa3, triton")
    assert attention_counts(SimpleNamespace(enable_deterministic_inference=True), "fa3, fa3")
    assert attention_counts(SimpleNamespace(rl_on_policy_target="fsdp"), "fa3, fa3")
    assert attention_counts(SimpleNamespace(), "minicpm_flashattn, minicpm_flashattn")
    assert set(ATTENTION_BACKEND_CHOICES) >= settings.OTHER_ATTENTION, "each is one of this release"


def test_what_sglang_loads_is_looked_at_and_not_what_was_named(tmp_path):
    """Its model hub may be another than the one in whose cache a model of the same name lies."""
    digests = []
    for content in (b"of the first", b"of the second"):
        (tmp_path / "model.safetensors").write_bytes(content)
        given = ServerArgs(model_path="org/model")
        declare_resolution(given, "a test", model_path=str(tmp_path))
        (model, *_) = sources_of(identity.resolved(given))
        digests.append(LoadedFiles([model], ContentNames(None, read_all=True)).digest(model))
    assert len({*digests}) == 2
    assert not any(digest.startswith("unnamed-") for digest in digests)


def test_other_plugins_and_packages_of_kernels_count(monkeypatch):
    from importlib.metadata import version

    monkeypatch.setattr(identity, "_version", lambda package: f"{package} 1")
    names = identity.software()
    for package in ("sglang", "torch", "triton", "flashinfer-python", "transformers", "swift-tiers"):
        assert f"{package} 1" in names
    monkeypatch.undo()
    assert f"torch {version('torch')}" in identity.software()
