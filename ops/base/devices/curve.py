"""How long a GPU computes: counted operations over what it can do, and the cost model fitted to that.

The simulated device follows the roofline of `Curve`; the planner, as in a real server, knows only the cost that
`fit_compute` makes of some timed forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from swift_tiers.radix_tiering.restore.cost import ComputeCost
from swift_tiers.radix_tiering.restore.fitting import SHORTEST_FORWARD, ComputeSample, fit_compute

from .hardware import USAGE, Gpu, Usage
from .models import Model

#: Tokens of the longest forward: SGLang's own choice of `--chunked-prefill-size` for large GPUs.
FORWARD_TOKENS = 8192


class Computes(Protocol):
    """A device."""

    def seconds(self, start: int, end: int) -> float:
        """One forward over tokens `[start, end)`, all before them being there."""
        ...


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One model on `gpus` of a kind side by side (tensor parallel); what they say to each other is in `Usage`."""

    model: Model
    gpu: Gpu
    gpus: int = 1
    #: Part of the model's layers that is here: 1, or less where it is cut into stages.
    share: float = 1.0
    usage: Usage = USAGE

    def seconds(self, start: int, end: int) -> float:
        """One forward over tokens `[start, end)`, all before them being there; 0 for none.

        Matrices take what is longer, their products or reading their weights; attention likewise its products or
        reading the KV. Both follow each other within a layer, so they add up.
        """
        if end <= start:
            return 0.0
        tokens, model, usage = end - start, self.model, self.usage
        computed = 1.0 if model.later is None else model.later.first / model.layers
        pairs = (end**2 - start**2) / 2
        matrices = computed * max(2.0 * model.active * tokens / self._products, self._weights(tokens) / self._bandwidth)
        attention = computed * max(
            model.pair_flops * pairs / (self.gpus * self.gpu.flops * usage.attention),
            model.layers * model.layer_bytes * end / self._bandwidth,
        )
        return usage.launch_seconds + self.share * (matrices + attention + self._later(tokens, end))

    def decode_seconds(self, requests: int, context: int) -> float:
        """One forward of a token for each of so many requests that have `context` tokens each: it waits for memory,
        weights and KV, or for products if requests are many."""
        model = self.model
        matrices = max(2.0 * model.active * requests / self._products, self._weights(requests) / self._bandwidth)
        attention = requests * model.layers * model.layer_bytes * context / self._bandwidth
        return self.usage.launch_seconds + self.share * (matrices + attention)

    def _later(self, tokens: int, end: int) -> float:
        """What a SwiftKV model's later layers add to a forward of a prompt: their keys and values for all tokens, and
        the layers themselves for the last one, which reads their weights and the KV of all tokens before it."""
        model, later = self.model, self.model.later
        if later is None:
            return 0.0
        projection = len(later.leaders) * model.hidden * 2 * model.kv_heads * model.head_dim
        projected = max(2.0 * projection * tokens / self._products, 2.0 * projection / self._bandwidth)
        skipped = 1 - later.first / model.layers
        last = skipped * (self._weights(1) + model.layers * model.layer_bytes * end) / self._bandwidth
        return projected + last

    @property
    def _products(self) -> float:
        """Operations of matrix products in a second."""
        return self.gpus * self.gpu.flops * self.usage.matrices

    @property
    def _bandwidth(self) -> float:
        return self.gpus * self.gpu.memory_bytes_per_second * self.usage.memory

    def _weights(self, tokens: int) -> float:
        """Bytes of weights that a forward over so many tokens reads: of experts those that any token was sent to, were
        all as likely as each other."""
        model = self.model
        if model.experts == 1:
            return 2 * model.active
        each_token = model.experts_per_token / model.experts
        of_experts = (model.total - model.active) / (1 - each_token)
        touched = 1 - (1 - each_token) ** tokens
        return 2 * (model.total - of_experts * (1 - touched))

    def fitted(self, chunk_tokens: int, longest: int) -> ComputeCost:
        """What a profile of this device would say: forwards of a chunk, of parts of it, and as long as they get, after
        prefixes up to `longest`."""
        return fit_compute(self._samples(chunk_tokens, longest))

    def _samples(self, chunk_tokens: int, longest: int) -> Sequence[ComputeSample]:
        spans = [
            (start, tokens)
            for tokens in sorted({chunk_tokens // 4, chunk_tokens // 2, chunk_tokens, FORWARD_TOKENS})
            for start in (0, longest // 8, longest // 4, longest // 2, longest)
        ]
        spans.append((0, SHORTEST_FORWARD // 2))
        return [ComputeSample(start, start + tokens, self.seconds(start, start + tokens)) for start, tokens in spans]


class Linear(msgspec.Struct, frozen=True):
    """A device whose cost is exactly what the planner believes: for bounds, where nothing but scheduling may lose."""

    cost: ComputeCost

    def seconds(self, start: int, end: int) -> float:
        return self.cost.seconds(start, end)

    def fitted(self, chunk_tokens: int, longest: int) -> ComputeCost:
        return self.cost
