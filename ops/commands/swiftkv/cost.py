"""What a prompt costs in floating-point operations, and a token in bytes of KV: formulas of a model's shape.

As the paper counts (Table 1): a multiplication and an addition are two operations, embedding and output matrix count
as one product each for every token, attention is causal, so that a token reads half the prompt on average, and norms,
rotary embeddings and softmax count nothing. The few tokens of a prompt that go through all layers count nothing either.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from swift_tiers.sglang_ext.models.later_layers import LaterLayers

from ...base.errors import USAGE, CommandError

#: In what a configuration has that the formulas do not know.
_UNKNOWN = (
    "kv_lora_rank", "num_experts", "num_local_experts", "n_routed_experts", "mamba_d_state", "linear_num_key_heads",
    "encoder_layers",
)  # fmt: skip
#: Without these, nothing can be reckoned.
_NEEDED = ("num_attention_heads", "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class DecoderShape(NamedTuple):
    """Of a dense decoder with gated MLPs, as Llama, Mistral and Qwen 2 to 3."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    value_bytes: int  # of a value of KV

    @classmethod
    def of(cls, config: dict[str, Any]) -> DecoderShape:
        """By `config.json`. Raises CommandError for a kind that the formulas do not describe."""
        if strange := [name for name in _UNKNOWN if config.get(name)]:
            raise CommandError(
                f"swiftkv cost: the model has {strange[0]}, which the formulas do not know; they are for dense "
                "decoders as Llama and Qwen 2 to 3 are",
                USAGE,
            )
        if wrong := [name for name in _NEEDED if not _is_a_number(config.get(name))]:
            raise CommandError(
                f"swiftkv cost: {wrong[0]} is {config.get(wrong[0])!r} in config.json, and the formulas need a number; "
                "name a dense decoder as Llama and Qwen 2 to 3 are",
                USAGE,
            )
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocabulary=config["vocab_size"],
            value_bytes=_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch."), 2),
        )


def _is_a_number(value: Any) -> bool:
    return isinstance(value, int) and value > 0


class PrefillCost(NamedTuple):
    """Floating-point operations for each token of a prompt, by what they are for, on average over its tokens."""

    vocabulary: float
    keys_values: float
    queries_outputs: float
    mlp: float
    attention: float

    @property
    def total(self) -> float:
        return sum(self)

    @classmethod
    def of(cls, shape: DecoderShape, tokens: int, later: LaterLayers | None = None) -> PrefillCost:
        """Of a prompt of `tokens`; `later`: the layers that it skips."""
        computed, stored = (shape.layers, shape.layers) if later is None else (later.first, later.stored)
        query = shape.heads * shape.head_dim
        return cls(
            vocabulary=2 * 2 * shape.hidden * shape.vocabulary,
            keys_values=2 * 2 * shape.hidden * shape.kv_heads * shape.head_dim * stored,
            queries_outputs=2 * 2 * shape.hidden * query * computed,
            mlp=2 * 3 * shape.hidden * shape.intermediate * computed,
            attention=2 * 2 * query * (tokens / 2) * computed,
        )


def kv_bytes(shape: DecoderShape, later: LaterLayers | None = None) -> int:
    """Of a token."""
    stored = shape.layers if later is None else later.stored
    return 2 * shape.kv_heads * shape.head_dim * shape.value_bytes * stored


def skipping(shape: DecoderShape, share: float, across: int = 1) -> LaterLayers:
    """The later layers that are `share` of all, to the nearest whole one."""
    later = int(shape.layers * share + 0.5)
    return LaterLayers(shape.layers, shape.layers - later, across)
