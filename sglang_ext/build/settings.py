"""Which of SGLang's settings, arguments and variables of the environment, change the KV of the same tokens and files.

Kernels that add up in another order than others do not count, as long as nobody asks for answers that are the same to
the last bit; what rounds to fewer bits, or leaves something out, does. Each argument of SGLang's is in one of these
tables, in one of `identity`'s, or in the test's table of those that change no KV.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .weights import setting_digest

#: Arguments that change what is computed.
ARGUMENTS = (
    # How weights are read, and in how many bits they and what passes between them are kept.
    "load_format", "quantization", "kv_cache_dtype", "model_impl", "model_loader_extra_config", "modelopt_quant",
    "quantize_and_serve", "custom_weight_loader", "enable_tf32_matmul", "enable_quant_communications",
    "prefill_kv_cache_dequant_dtype", "triton_attention_reduce_in_fp32", "disable_shared_experts_fusion",
    "enforce_shared_experts_fusion", "flashinfer_mxfp4_moe_precision", "enable_w4a4_mxfp4_megamoe",
    "deepep_dispatcher_output_dtype", "flashinfer_a2a_dispatch_type", "ep_dispatch_algorithm", "is_embedding",
    # Adapters.
    "experts_shared_outer_loras", "lora_use_virtual_experts",
    # Pictures.
    "enable_precise_embedding_interpolation", "language_only", "encoder_urls",
    # States, windows and indexes.
    "enable_mamba_cache_stochastic_rounding", "mamba_cache_philox_rounds", "enable_encoder_swa_bounded_replay",
    "enable_decoder_swa_bounded_replay", "enable_deepseek_v4_fp4_indexer", "qsa_indexer_dtype", "dsa_topk_backend",
    # For those who look for errors.
    "debug_tensor_dump_input_file",
)  # fmt: skip
#: Arguments by which kernels are chosen that round what passes between quantised weights, each in its own way.
OF_QUANTIZED = (
    "moe_runner_backend", "moe_a2a_backend", "deepep_mode", "fp8_gemm_runner_backend", "fp4_gemm_runner_backend",
)  # fmt: skip
#: Arguments with which answers are to be the same to the last bit.
REPRODUCIBLE = ("enable_deterministic_inference", "rl_on_policy_target")
#: Kernels by which KV is written that is not written, or read, as others do.
OTHER_ATTENTION = frozenset({"minicpm_flashattn", "minicpm_flashinfer", "llada2_cfg_flashinfer"})

#: How the names of variables begin by which SGLang is told what to do.
_VARIABLES = ("SGLANG_", "SGL_", "FLASHINFER_NVFP4", "DEEP_NORMAL_MODE_", "USE_TRITON_", "USE_ROCM_", "NVIDIA_TF32_")
#: A variable with one of these words in its name changes no KV: it says where things lie, who is who, how long to wait,
#: and what to write down. Any other that is set counts, of later releases too.
_HARMLESS = frozenset((
    "API", "AFFINITY", "BUFFER", "CI", "COREDUMP", "CRASH", "DIR", "DISAGG", "DISAGGREGATION", "DUMPER", "ENDPOINT",
    "EXA", "FILE", "GRAMMAR", "GRPC", "HEALTH", "HICACHE", "HOSTNAME", "HTTP", "ID", "INTERVAL", "IP", "IPC",
    "KILLPG", "LOG", "LOGGING", "METRICS", "MOONCAKE", "NCCL", "NODE", "NUMA", "NVTX", "OLLAMA", "OTLP", "PLATFORM",
    "PLUGINS", "PORT", "PROFILE", "PROFILER", "PYSPY", "QUEUE", "RANK", "RAY", "REQ", "REQUEST", "RETRACT", "ROOT",
    "RUST", "SCHEDULER", "SHUTDOWN", "SNAPSHOT", "SOCKET", "SOCKETS", "TEMPLATE", "TEST", "THREADS", "TIMEOUT",
    "TOKENIZER", "TOOL", "TRACE", "UVICORN", "WARMUP", "WATCHDOG", "WORKERS", "WORKSPACE", "ZMQ",
))  # fmt: skip
#: Of settings that are files the content counts.
_LONGEST_FILE = 1 << 20


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of an environment that may change KV, by name: the value, or a digest of the file that it names."""
    return {
        name: _content(value)
        for name, value in sorted(environment.items())
        if name.startswith(_VARIABLES) and not _HARMLESS & set(name.split("_")) and not name.endswith("DP_SIZE")
    }


def _content(value: str) -> str:
    try:
        if os.path.isfile(value) and os.path.getsize(value) <= _LONGEST_FILE:
            return setting_digest(value) or value
    except OSError:
        pass  # it has left meanwhile
    return value


def settings(view: Any, *, is_quantized: bool) -> dict[str, Any]:
    """The arguments that count, by name. `view`: SGLang's, resolved."""
    names = [*ARGUMENTS, *REPRODUCIBLE, *(OF_QUANTIZED if is_quantized else ())]
    return {name: getattr(view, name, None) for name in names}


def attention_counts(view: Any, backends: str) -> bool:
    """Whether KV is another one by which kernels it is computed."""
    if any(getattr(view, name, None) for name in REPRODUCIBLE):
        return True
    return bool(OTHER_ATTENTION & set(backends.split(", ")))
