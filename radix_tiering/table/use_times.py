"""When logical times of use were, about: the page table counts uses, and this remembers a clock beside the count."""

from __future__ import annotations

from bisect import bisect_left

#: Pairs that are kept; of the older half every other one goes when there are more.
MOST_PAIRS = 4096


class UseTimes:
    """Under the page table's lock. `note` is called from time to time; a use was between two calls."""

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._times: list[float] = []

    def note(self, tick: int, now: float) -> None:
        """All uses so far were at logical times up to `tick`. `now`: monotonic seconds."""
        if self._ticks and self._ticks[-1] == tick:
            return
        if len(self._ticks) >= MOST_PAIRS:
            half = MOST_PAIRS // 2
            for pairs in (self._ticks, self._times):
                del pairs[1:half:2]
        self._ticks.append(tick)
        self._times.append(now)

    def seconds_since(self, tick: int, now: float) -> float | None:
        """How long ago the use at `tick` was, at least; None where that is not known. It was after the call of `note`
        before, or after the start."""
        place = bisect_left(self._ticks, tick)
        if tick <= 0:
            return None
        return max(0.0, now - self._times[place]) if place < len(self._ticks) else 0.0
