"""What a prefix comes back in: pages of it, or layers of all of it (CacheFlow, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from swift_tiers.radix_tiering.restore.batch import Forward
from swift_tiers.radix_tiering.restore.planner import Planner

from ....base.devices.curve import Computes
from .setup import Setup


class Grain(Protocol):
    """The units of one flight."""

    planned: bool  # whether the planner is asked
    unit_bytes: float

    @property
    def planned_seconds(self) -> Callable[[int, int], float] | None:
        """What computing units `[a, b)` is expected to take."""
        ...

    @property
    def planned_forward(self) -> Forward | None:
        """What one forward is expected to take, where that is another cost."""
        ...

    def unit_seconds(self, source: str) -> float | None:
        """What loading one is expected to take."""
        ...

    def latency_seconds(self, source: str) -> float:
        """How long until the first begins to come."""
        ...

    def sources(self, pages: Sequence[str | None]) -> Sequence[str | None]:
        """Where each unit lies, by where the pages do."""
        ...

    def chunk(self, tokens: int) -> int:
        """Units of a forward over so many tokens."""
        ...

    def tokens(self, units: int) -> int:
        """Tokens that computing so many units saved from being loaded."""
        ...

    def seconds(self, first: int, end: int, new_before: int, new: int) -> float:
        """What a forward takes that computes units `[first, end)`, and `new` tokens behind the prefix, of which
        `new_before` are there already."""
        ...


class PageGrain:
    """Token-wise: pages from the front."""

    planned = True

    def __init__(
        self, start: int, new: int, setup: Setup, device: Computes, planner: Planner, most: Callable[[], int]
    ) -> None:
        """`new`: tokens behind the prefix; `most`: pages that one forward computes now."""
        self._start = start
        self._page_tokens = setup.page_tokens
        self._device = device
        self._planner = planner
        self.unit_bytes = float(setup.page_bytes)
        self.planned_seconds = planner.compute_seconds(start // setup.page_tokens, most)
        self.planned_forward = planner.forward(start // setup.page_tokens, new)

    def unit_seconds(self, source: str) -> float | None:
        return self._planner.page_seconds(source)

    def latency_seconds(self, source: str) -> float:
        return self._planner.latency_seconds(source)

    def sources(self, pages: Sequence[str | None]) -> Sequence[str | None]:
        return pages

    def chunk(self, tokens: int) -> int:
        return max(1, tokens // self._page_tokens)

    def tokens(self, units: int) -> int:
        return units * self._page_tokens

    def seconds(self, first: int, end: int, new_before: int, new: int) -> float:
        start = self._start + first * self._page_tokens + new_before
        return self._device.seconds(start, self._start + end * self._page_tokens + new_before + new)


class LayerGrain:
    """Layer-wise: layers from the bottom, new tokens along with them."""

    planned = False
    planned_forward = None

    def __init__(self, start: int, prefix: int, new: int, setup: Setup, device: Computes) -> None:
        self._start, self._end, self._new = start, start + prefix, new
        self._layers = setup.layers
        self._costs = setup.costs
        self._device = device
        self._computed = 0
        self.unit_bytes = prefix * setup.token_bytes / setup.layers

    def planned_seconds(self, first: int, end: int) -> float:
        whole = self._costs.compute.seconds(self._start, self._end + self._new)
        return whole * max(0, end - first) / self._layers

    def unit_seconds(self, source: str) -> float | None:
        return self.unit_bytes / self._costs.sources[source].bytes_per_second

    def latency_seconds(self, source: str) -> float:
        return self._costs.sources[source].latency_seconds

    def sources(self, pages: Sequence[str | None]) -> Sequence[str | None]:
        return [pages[0]] * self._layers

    def chunk(self, tokens: int) -> int:
        return 1

    def tokens(self, units: int) -> int:
        return round((self._end - self._start) * units / self._layers)

    def seconds(self, first: int, end: int, new_before: int, new: int) -> float:
        """One forward, in parts: layers `[0, cutover)` go over everything, those above over the new tokens alone."""
        self._computed += end - first
        seconds = self._device.seconds(self._start, self._end + self._new) * (end - first) / self._layers
        if new:
            rest = self._layers - self._computed
            seconds += self._device.seconds(self._end, self._end + self._new) * rest / self._layers
        return seconds
