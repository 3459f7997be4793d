"""Which layers of a SwiftKV model take their keys and values from where, by its configuration. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.errors import ConfigError

#: The architectures that are served, by the `model_type` of their configurations.
ARCHITECTURES = {
    "llama_swiftkv": "LlamaSwiftKVForCausalLM",
    "qwen2_swiftkv": "Qwen2SwiftKVForCausalLM",
    "qwen3_swiftkv": "Qwen3SwiftKVForCausalLM",
}


class LaterLayers(NamedTuple):
    """The layers from `first` on: their keys and values are projected from the output of layer `first - 1`, and
    `group` neighbours of them share those of the first one (AcrossKV; 1: each has its own)."""

    layers: int  # of the model
    first: int
    group: int

    @classmethod
    def of(cls, config: Any) -> LaterLayers:
        """By the fields of a published configuration. Raises ConfigError where they make no sense."""
        layers = config.num_hidden_layers
        first, group = getattr(config, "num_key_value_layers", None), getattr(config, "key_value_group_size", None) or 1
        if not isinstance(first, int) or not 1 <= first < layers:
            raise ConfigError(
                f"config.json: num_key_value_layers is {first!r}; of {layers} layers, 1 to {layers - 1} can have keys "
                "and values of their own: mend the checkpoint"
            )
        if not isinstance(group, int) or group < 1:
            raise ConfigError(
                f"config.json: key_value_group_size is {group!r}, which is not a number of layers: mend the checkpoint"
            )
        return cls(layers, first, group)

    @property
    def leaders(self) -> range:
        """The later layers that keys and values are projected for."""
        return range(self.first, self.layers, self.group)

    @property
    def stored(self) -> int:
        """Layers of KV that a token has."""
        return self.first + len(self.leaders)

    def leader_of(self, layer: int) -> int:
        """Which of `leaders`, counted from 0, a later layer has its keys and values from."""
        return (layer - self.first) // self.group

    def stored_as(self, layer: int) -> int:
        """The layer of the KV pool that any layer of the model reads."""
        return layer if layer < self.first else self.first + self.leader_of(layer)


def is_swiftkv(config: Any) -> bool:
    """Whether a model's configuration names one of `ARCHITECTURES`."""
    return bool(set(getattr(config, "architectures", None) or ()) & set(ARCHITECTURES.values()))


def exits_early(config: Any) -> bool:
    """Whether a SwiftKV model's configuration asks for an early exit of answers' tokens."""
    return config.swiftkv_exit_threshold is not None
