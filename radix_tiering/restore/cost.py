"""What recomputing and loading cost: the model behind every restore plan (CacheFlow, section 3.1).

Recomputing `n` tokens after `s` that are there already: a fixed part (launches, weights read once), a part for each
token, and a part for each pair of a token with one before it, which is what attention adds:

    T_comp(s, s + n) = fixed + linear * n + quadratic * ((s + n)^2 - s^2)

A forward over few tokens takes no less than reading the weights does, which on an accelerator is as long as some
hundred tokens: `least`, where that is more.

Loading `b` bytes from one source: its latency, and b / bandwidth. Sources work side by side.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

#: Checked where a cost is read from a file; costs made here are right by construction.
Amount = Annotated[float, Meta(ge=0)]


class ComputeCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of recomputation on one device with one model. No term is negative."""

    fixed_seconds: Amount  # of one forward, whatever its length
    token_seconds: Amount
    pair_seconds: Amount  # of (end^2 - start^2)
    least_seconds: Amount = 0.0  # of one forward, however short it is; 0: not known to be more than what is fixed

    def seconds(self, start: int, end: int) -> float:
        """One forward over tokens `[start, end)`, all before them being there; 0 for none."""
        return self.in_forwards(start, end, 1)

    def in_forwards(self, start: int, end: int, forwards: int) -> float:
        """So many forwards over tokens `[start, end)`, one after the other; 0: they join another one, which is made
        longer by them."""
        return self.of(end - start, end**2 - start**2, forwards) if end > start else 0.0

    def of(self, tokens: int, pairs: int, forwards: int = 1) -> float:
        """Forwards over tokens of any prompts; `pairs`: the sum of (end^2 - start^2) over these."""
        computed = self.token_seconds * tokens + self.pair_seconds * pairs
        return max(self.fixed_seconds * forwards + computed, self.least_seconds * forwards)

    def scaled(self, factor: float) -> ComputeCost:
        """The same device, `factor` times as slow."""
        return ComputeCost(
            fixed_seconds=self.fixed_seconds * factor,
            token_seconds=self.token_seconds * factor,
            pair_seconds=self.pair_seconds * factor,
            least_seconds=self.least_seconds * factor,
        )


class SourceCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of loading from one source."""

    latency_seconds: Amount  # until the first byte
    bytes_per_second: Annotated[float, Meta(gt=0)]

    def seconds(self, nbytes: float) -> float:
        """0 for nothing."""
        return self.latency_seconds + nbytes / self.bytes_per_second if nbytes else 0.0

    def scaled(self, factor: float) -> SourceCost:
        """The same source, `factor` times as slow."""
        return SourceCost(
            latency_seconds=self.latency_seconds * factor, bytes_per_second=self.bytes_per_second / factor
        )

    def behind(self, seconds: float) -> SourceCost:
        """The same source, busy with others for so long before it begins."""
        return msgspec.structs.replace(self, latency_seconds=self.latency_seconds + seconds) if seconds else self


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one machine."""

    compute: ComputeCost
    sources: dict[str, SourceCost]  # those whose cost is known, by tier: "host", "ssd", "peer"

    @property
    def compute_at_worst(self) -> ComputeCost:
        """A model by itself leaves no doubt; `LiveCosts` does."""
        return self.compute

    @property
    def together(self) -> float:
        """Likewise: computing and loading do not slow each other down."""
        return 1.0
