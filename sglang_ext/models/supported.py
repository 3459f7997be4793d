"""What a SwiftKV model cannot be combined with, each refused in one line before a weight is loaded.

docs/swiftkv.md says of each why.
"""

from __future__ import annotations

from typing import Any

from swift_tiers.radix_tiering.base.errors import ConfigError

from .later_layers import LaterLayers

#: Those whose metadata may be made twice in one forward: for all tokens, then for the last one of each request.
BACKENDS = ("swift_cpu", "torch_native", "triton", "flashinfer", "fa3")


def check_swiftkv(view: Any, model_config: Any) -> None:
    """`view`: SGLang's arguments as resolved so far, `model_config`: of a SwiftKV model. Raises ConfigError."""
    config = model_config.hf_config
    name = config.architectures[0]
    LaterLayers.of(config)
    for flag, is_set, remedy in (
        ("--is-embedding", not model_config.is_generation, "it has no embeddings: its prompts stop at a middle layer"),
        ("--pp-size", view.pp_size > 1, "use --tp-size"),
        ("--enable-dp-attention", view.enable_dp_attention or view.attn_dp_size > 1, "use --dp-size alone"),
        ("--attn-cp-size", view.attn_cp_size > 1 or view.enable_prefill_cp, "use --tp-size alone"),
        ("--dcp-size", view.dcp_size > 1, "use --tp-size alone"),
        ("--disaggregation-mode", view.disaggregation_mode != "null", "compute prompts and answers in one server"),
        ("--rl-on-policy-target", view.rl_on_policy_target is not None, "remove it"),
        ("--enable-layernorm-sp", view.enable_layernorm_sp, "remove it"),
        ("--enable-lora", bool(view.enable_lora or view.lora_paths), "merge the adapter into the weights"),
        ("--enable-pdmux", view.enable_pdmux, "remove it: its later layers are not computed one by one"),
        ("--enable-two-batch-overlap", view.enable_two_batch_overlap, "remove it"),
        (
            "--cuda-graph-backend-prefill",
            view.cuda_graph_backend_prefill not in (None, "disabled"),
            "remove it: its later layers see few of a prompt's tokens",
        ),
        ("--quantization", model_config.quantization is not None, "serve its weights in bfloat16 or float16"),
        ("--quantization-param-path", view.quantization_param_path is not None, "remove it: KV has no scales"),
    ):
        if is_set:
            raise ConfigError(f"{flag}: cannot be combined with {name}, a SwiftKV model; {remedy}")
    _check_early_exit(view, config)
    algorithm = view.speculative_algorithm
    if algorithm is not None and algorithm.upper() != "NGRAM":
        raise ConfigError(
            f"--speculative-algorithm: {algorithm} cannot be combined with {name}, a SwiftKV model, whose prompts have "
            "no hidden states for a draft model; use NGRAM, or remove it"
        )
    heads = config.num_key_value_heads
    if heads % view.tp_size:
        raise ConfigError(
            f"--tp-size: {view.tp_size} does not divide the {heads} KV heads of {name}, a SwiftKV model; use a divisor"
        )


def _check_early_exit(view: Any, config: Any) -> None:
    """Raises ConfigError for an early exit that the checkpoint has nothing for, or that something else rules out."""
    threshold, what = config.swiftkv_exit_threshold, "config.json: swiftkv_exit_threshold"
    if threshold is None:
        return
    if not isinstance(threshold, float) or not 0 < threshold < 1:
        raise ConfigError(f"{what} is {threshold!r}, which is no probability; name 0.95, as in the paper")
    if not config.swiftkv_exit_head:
        raise ConfigError(
            f"{what} is set, but the checkpoint has no output matrix for it: train one by `swift-tiers swiftkv distill "
            "--early-exit`, or unset it"
        )
    for flag, is_set in (
        ("--speculative-algorithm", view.speculative_algorithm is not None),
        ("--cuda-graph-backend-decode", view.cuda_graph_backend_decode not in (None, "disabled")),
    ):
        if is_set:
            raise ConfigError(
                f"{flag}: cannot be combined with an early exit (swiftkv_exit_threshold of {config.architectures[0]}), "
                "of whose tokens some skip the later layers; remove one of them"
            )


def check_backends(view: Any) -> None:
    """`view`: SGLang's arguments of a SwiftKV model, those about attention resolved. Raises ConfigError."""
    from sglang.srt.arg_groups.model_override_base import attention_backends_of

    for backend in set(attention_backends_of(view)) - {*BACKENDS}:
        raise ConfigError(
            f"--attention-backend: {backend} is not known to plan twice in one forward, as a SwiftKV model needs; "
            f"use one of {', '.join(BACKENDS)}"
        )
