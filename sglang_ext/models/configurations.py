"""The configurations of SwiftKV models for `transformers`, which reads a model's `config.json` in all of SGLang's
processes. At the top of a module, since SGLang hands them from one process to another.

The fields are those of the published checkpoints (Snowflake/Llama-3.1-SwiftKV-8B-Instruct, ArcticTraining), and two of
ours: `swiftkv_exit_head`, whether there is a second output matrix, and `swiftkv_exit_threshold`, how sure it has to be
for an early exit (`early_exit`; None: there is none).
"""

from __future__ import annotations

from transformers import AutoConfig, LlamaConfig, Qwen2Config, Qwen3Config


class LlamaSwiftKVConfig(LlamaConfig):
    """A Llama of which `num_key_value_layers` layers have keys and values of their own."""

    model_type = "llama_swiftkv"

    swiftkv: bool = True
    num_key_value_layers: int | None = None
    key_value_group_size: int | None = 1
    swiftkv_exit_head: bool = False
    swiftkv_exit_threshold: float | None = None


class Qwen2SwiftKVConfig(Qwen2Config):
    """As `LlamaSwiftKVConfig`, for Qwen 2 and 2.5."""

    model_type = "qwen2_swiftkv"

    swiftkv: bool = True
    num_key_value_layers: int | None = None
    key_value_group_size: int | None = 1
    swiftkv_exit_head: bool = False
    swiftkv_exit_threshold: float | None = None


class Qwen3SwiftKVConfig(Qwen3Config):
    """As `LlamaSwiftKVConfig`, for Qwen 3."""

    model_type = "qwen3_swiftkv"

    swiftkv: bool = True
    num_key_value_layers: int | None = None
    key_value_group_size: int | None = 1
    swiftkv_exit_head: bool = False
    swiftkv_exit_threshold: float | None = None


def register() -> None:
    """Make them known to `AutoConfig`. May be called again."""
    for config in (LlamaSwiftKVConfig, Qwen2SwiftKVConfig, Qwen3SwiftKVConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
