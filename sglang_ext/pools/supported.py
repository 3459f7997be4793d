"""Which models and modes of SGLang the tiers can carry. Others are refused in one line before a weight is loaded.

What is not refused here and may not be carried either is refused by `kept.layer_planes`, which sees the pool
itself. docs/models.md says of each kind whether it works, and which test holds that.
"""

from __future__ import annotations

from typing import Any

from swift_tiers.radix_tiering.base.config import TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError

#: Algorithms of speculative decoding that work: one that drafts from tokens, and those whose models keep KV at the same
#: slots as the served one.
SPECULATIVE = ("NGRAM", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
#: The remedy for a draft that is not supported.
OTHER_DRAFT = "use a draft of plain attention (multi-head, grouped-query, latent), or NGRAM, or remove it"
#: The remedy for a model whose layers with a sliding window have a pool of their own.
PLAIN_WINDOWS = "add --disable-hybrid-swa-memory (its window layers then keep the KV of all tokens)"


def check_device(device: str | None) -> None:
    """`device`: SGLang's `--device`; None: it takes the accelerator that torch finds. Raises ConfigError for one that
    the tiers copy nothing from."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    kind = device.partition(":")[0] if device else found.type if found else "cpu"
    if kind == "cuda" and torch.version.hip:
        kind = "AMD GPUs (ROCm)"
    if kind not in ("cpu", "cuda"):
        raise ConfigError(
            f"--enable-swift-tiers: the tiers are for NVIDIA GPUs, and to be tried out on the CPU, not for {kind}: "
            "remove the flag"
        )


def check_modes(view: Any) -> None:
    """`view`: SGLang's arguments as they are resolved so far. Raises ConfigError."""
    from sglang.srt.environ import envs

    for flag, is_set, remedy in (
        ("--disable-radix-cache", view.disable_radix_cache, "remove it: the tiers lie beneath the radix tree"),
        ("--enable-hierarchical-cache", view.enable_hierarchical_cache, "use one of the two"),
        ("--hicache-storage-backend", view.hicache_storage_backend is not None, "use one of the two"),
        ("--radix-cache-backend", view.radix_cache_backend is not None, "use one of the two"),
        ("--enable-lmcache", view.enable_lmcache, "use one of the two"),
        ("--enable-flexkv", view.enable_flexkv, "use one of the two"),
        ("--pp-size", view.pp_size > 1, "pipeline stages are not supported: use --tp-size"),
        # What splits KV otherwise than by heads over all tensor-parallel ranks: a rank's number would not say which KV
        # it has (`Rank.identity`). Groups of experts (--ep-size, --moe-dp-size, --dwdp-size) split the MLPs alone.
        (
            "--attn-dp-size",
            view.nnodes > 1 and (view.attn_dp_size > 1 or view.enable_dp_attention),
            "over several machines it is not supported: use --tp-size alone, or a server on each machine",
        ),
        ("--attn-cp-size", view.attn_cp_size > 1, "it is not supported: use --tp-size alone"),
        ("--enable-prefill-cp", view.enable_prefill_cp, "it is not supported: use --tp-size alone"),
        ("--dcp-size", view.dcp_size > 1, "it is not supported: use --tp-size alone"),
        ("--enable-unified-memory", view.enable_unified_memory, "it is not supported: remove it"),
        ("--enable-kv-cache-sharding", view.enable_kv_cache_sharding, "it is not supported: remove it"),
        ("--enable-dsa-cache-layer-split", view.enable_dsa_cache_layer_split, "it is not supported: remove it"),
        (
            "--disaggregation-mode",
            view.disaggregation_mode == "decode",
            "a server that decodes computes no prompts: use it on those that do (--disaggregation-mode prefill)",
        ),
        ("--enable-pd-role-switch", view.enable_pd_role_switch, "a server that decodes has no tiers: remove it"),
        # Loops of SGLang's own around the scheduler that never begin what has been queued to be loaded.
        ("--dllm-algorithm", view.dllm_algorithm is not None, "it is not supported: remove one of the two"),
        (
            "--enable-hisparse",
            view.enable_hisparse,
            "it keeps KV where the tiers cannot reach it: remove one of the two",
        ),
        ("--enable-pdmux", view.enable_pdmux, "it is not supported: remove one of the two"),
        ("--use-ray", view.use_ray, "Ray's actors load no plugins of SGLang's: remove it"),
        # What SGLang keeps by the slot of a token beside its KV is of whoever had the slot before.
        (
            "--enable-return-routed-experts",
            view.enable_return_routed_experts,
            "the experts of a restored prefix are not kept in the tiers: remove one of the two",
        ),
        (
            "--enable-return-indexer-topk",
            view.enable_return_indexer_topk,
            "what the index picked of a restored prefix is not kept in the tiers: remove one of the two",
        ),
        ("--kv-canary", view.kv_canary != "none", "a restored prefix has no canaries: remove one of the two"),
        (
            "SGLANG_VIT_ENABLE_CUDA_GRAPH",
            envs.SGLANG_VIT_ENABLE_CUDA_GRAPH.get(),
            "it captures a graph with the first picture of each shape, which a copy of the tiers would spoil: unset it",
        ),
    ):
        if is_set:
            raise ConfigError(f"{flag}: cannot be combined with --enable-swift-tiers; {remedy}")
    algorithm = view.speculative_algorithm
    if algorithm is not None and algorithm.upper() not in SPECULATIVE:
        raise ConfigError(
            f"--speculative-algorithm: {algorithm} cannot be combined with --enable-swift-tiers; the KV of its draft "
            "is not kept in the tiers, and behind a restored prefix it would draft from rows of others: "
            f"use one of {', '.join(SPECULATIVE)}, or remove it"
        )


def check_speculation(view: Any, config: TiersConfig) -> None:
    """What SGLang says of NGRAM in other words than a user's; our default of pages leads there. And whose memory cannot
    be lent. Raises ConfigError."""
    if config.peer.donate and (view.attn_dp_size > 1 or view.enable_dp_attention):
        raise ConfigError(
            "peer.donate: with --attn-dp-size a server cannot lend its memory so far; remove one of the two"
        )
    if config.peer.donate and view.disaggregation_mode != "null":
        raise ConfigError(
            "peer.donate: with --disaggregation-mode a server's memory is registered with what sends from it, and "
            "cannot be lent; remove one of the two"
        )
    if config.peer.donate and drafts_by_model(view.speculative_algorithm):
        raise ConfigError(
            f"peer.donate: a server that drafts by a model ({view.speculative_algorithm}) cannot lend its memory so "
            "far; remove peer.donate"
        )
    if view.speculative_adaptive and drafts_by_model(view.speculative_algorithm):
        from sglang.srt.environ import envs

        if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
            raise ConfigError(
                "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND: with --speculative-adaptive, pages would keep the rows that "
                "a draft skips, of whoever had their slots before; unset one of the two"
            )
    breadth = view.speculative_ngram_max_bfs_breadth
    is_ngram = view.speculative_algorithm is not None and view.speculative_algorithm.upper() == "NGRAM"
    if is_ngram and breadth > 1 and view.page_size > 1 and view.attention_backend != "flashinfer":
        raise ConfigError(
            f"--speculative-ngram-max-bfs-breadth: with pages of {view.page_size} tokens SGLang drafts trees on the "
            f"flashinfer backend only, not on {view.attention_backend}; add --speculative-ngram-max-bfs-breadth 1"
        )


def drafts_by_model(algorithm: str | None) -> bool:
    """Whether a model drafts for the served one by this algorithm of speculative decoding."""
    return algorithm is not None and algorithm.upper() != "NGRAM"


def draft_config_of(server_args: Any, view: Any) -> Any:
    """SGLang's configuration of the model that drafts. `view`: its arguments, resolved so far."""
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig.from_server_args(
        server_args,
        model_path=view.speculative_draft_model_path,
        model_revision=view.speculative_draft_model_revision,
        is_draft_model=True,
    )


def check_model(model_config: Any, config: TiersConfig) -> None:
    """What no argument makes fit. `model_config`: SGLang's. Raises ConfigError."""
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.configs.model_config import (
        AttentionArch,
        get_dsa_index_kpool_compress,
        is_deepseek_dsa,
        is_minimax_sparse,
    )

    name = _name(model_config)
    if model_config.is_encoder_decoder:
        raise ConfigError(
            f"--enable-swift-tiers: {name} has an encoder, whose KV belongs to no token of a prompt; "
            "such models are not supported: remove the flag"
        )
    if model_config.is_hybrid_swa and _keeps_several_kinds(model_config):
        raise ConfigError(
            f"--enable-swift-tiers: {name} keeps KV of several kinds in a pool each, which is not supported: "
            "remove the flag"
        )
    if model_config.is_hybrid_swa and model_config.is_deepseek_v4_arch:
        for field, codec in (("host.codec", config.host.codec), ("ssd.codec", config.ssd.codec)):
            if codec != "none":
                raise ConfigError(
                    f"{field}: {name} keeps no row of KV for each token, but bytes that {codec} does not code; "
                    f"use {field} none"
                )
    if mambaish_config(model_config) is not None:
        _check_beside(config, f"{name} has layers that keep a state in place of KV")
    if is_deepseek_dsa(model_config.hf_config) and get_dsa_index_kpool_compress(model_config.hf_config):
        raise ConfigError(
            f"--enable-swift-tiers: {name} keeps parts of its index by request, which is not supported: remove the flag"
        )
    for what, is_kept in (
        ("latent KV (MLA)", model_config.attention_arch == AttentionArch.MLA),
        ("an index beside its KV", is_minimax_sparse(model_config.hf_config)),
    ):
        if config.peer.donate and is_kept:
            raise ConfigError(
                f"peer.donate: {name} keeps {what}, whose memory cannot be lent so far; remove peer.donate"
            )


def _keeps_several_kinds(model_config: Any) -> bool:
    """Whether SGLang keeps more of layers with a window than rows of one size, be it another one than of the others;
    and of compressed KV (DeepSeek V4) other rows than of four tokens and of 128."""
    if model_config.is_deepseek_v4_arch:
        return {4, 128} != {ratio for ratio in model_config.compress_ratios if ratio}
    return model_config.is_hybrid_swa_compress and (
        model_config.has_asymmetric_kv or _name(model_config).startswith("Inkling")
    )


def check_windows(server_args: Any, view: Any, model_config: Any, config: TiersConfig) -> None:
    """`view`: SGLang's arguments, adjusted to the model: for some it keeps all KV by itself. Raises ConfigError."""
    if not model_config.is_hybrid_swa or view.disable_hybrid_swa_memory:
        return
    if model_config.is_deepseek_v4_arch:
        _check_beside(config, f"{_name(model_config)} keeps the KV of the last tokens in a pool of its own")
        return  # what SGLang has draft for it keeps KV of these alone
    _check_beside(
        config,
        f"{_name(model_config)} keeps the KV of layers with a sliding window in a pool of their own",
        PLAIN_WINDOWS,
    )
    if drafts_by_model(view.speculative_algorithm) and draft_config_of(server_args, view).is_hybrid_swa:
        raise ConfigError(
            f"--speculative-algorithm: what drafts for {_name(model_config)} keeps KV of windows itself, which is not "
            f"supported; {OTHER_DRAFT}, or {PLAIN_WINDOWS}"
        )


def _check_beside(config: TiersConfig, why: str, remedy: str = "") -> None:
    """What is not supported where a prefix needs more behind it than pages. Raises ConfigError."""
    for field, is_set in (
        ("peer.donate", config.peer.donate),
        ("remote.engine", config.remote.engine is not None),
        ("ssd.gpu_direct", config.ssd.gpu_direct == "on"),
    ):
        if is_set:
            otherwise = f", or {remedy}" if remedy else ""
            raise ConfigError(f"{field}: {why}, for which that is not supported so far; remove {field}{otherwise}")


def check_radix_cache(view: Any) -> None:
    """`view`: SGLang's arguments, with what it cannot do in a mode switched off. Raises ConfigError."""
    if view.disable_radix_cache:
        raise ConfigError(
            "--enable-swift-tiers: SGLang switches its radix cache off for another argument, or for this model on this "
            "machine (a warning of it says for which), and the tiers lie beneath it: change that argument (with "
            "--enable-deterministic-inference or --rl-on-policy-target the --attention-backend), or remove the flag"
        )


def check_capability(view: Any, model_config: Any) -> None:
    """`view`: SGLang's arguments, with what it cannot do with a model switched off. Raises ConfigError."""
    if view.disable_radix_cache:
        raise ConfigError(
            f"--enable-swift-tiers: SGLang switches its radix cache off for {_name(model_config)}, and the tiers lie "
            "beneath it: remove the flag"
        )


def _name(model_config: Any) -> str:
    return (model_config.hf_config.architectures or ["the model"])[0]
