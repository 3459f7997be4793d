"""Models of the simulation: their shapes, from their published configurations (`config.json`)."""

from __future__ import annotations

import msgspec

from swift_tiers.sglang_ext.models import LaterLayers


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder of 16-bit weights and a 16-bit KV cache."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    #: Weights that one token is multiplied with, the embedding not among them.
    active: float
    #: All weights.
    total: float
    experts: int = 1
    experts_per_token: int = 1
    #: Of a SwiftKV model: the layers that prompts skip.
    later: LaterLayers | None = None

    @property
    def stored_layers(self) -> int:
        """That have KV of their own."""
        return self.layers if self.later is None else self.later.stored

    @property
    def token_bytes(self) -> int:
        """KV of one token, all layers that have some."""
        return self.stored_layers * self.layer_bytes

    @property
    def layer_bytes(self) -> int:
        """KV of one token that a layer reads."""
        return 2 * self.kv_heads * self.head_dim * 2

    @property
    def activation_bytes(self) -> int:
        """What one layer hands to the next for one token: a boundary activation (CacheFlow, section 3.2)."""
        return 2 * self.hidden

    @property
    def weight_bytes(self) -> float:
        return 2 * self.total

    @property
    def pair_flops(self) -> float:
        """Of attention, for each pair of a token with one before it: a product for the score and one for the sum."""
        return 4.0 * self.layers * self.heads * self.head_dim


MODELS = {
    model.name: model
    for model in (
        Model(
            name="Qwen3-8B", layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, active=7.57e9, total=8.19e9
        ),
        Model(
            name="Qwen3-14B", layers=40, hidden=5120, heads=40, kv_heads=8, head_dim=128, active=13.99e9, total=14.77e9
        ),
        Model(
            name="Qwen3-32B", layers=64, hidden=5120, heads=64, kv_heads=8, head_dim=128, active=31.98e9, total=32.76e9
        ),
        Model(
            name="Qwen3-30B-A3B", layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128, active=3.04e9,
            total=30.53e9, experts=128, experts_per_token=8,
        ),
        Model(
            name="Llama-3.1-8B", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, active=7.50e9, total=8.03e9
        ),
        Model(
            name="LWM-7B", layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, active=6.61e9, total=6.74e9
        ),
        Model(
            name="Llama-3.1-70B", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, active=69.5e9,
            total=70.55e9,
        ),
    )
}  # fmt: skip
