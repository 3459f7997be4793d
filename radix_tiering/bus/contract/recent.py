"""What histograms of latency counted during the last minute: a device that gets sick after a week is seen at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from ...figures.counters import NO_LATENCY, LatencySnapshot

#: How far back it reaches, seconds, and how far apart what is remembered of that lies.
WINDOW, APART = 60.0, 2.0


class _Mark(NamedTuple):
    """What a histogram had counted at one time."""

    time: float
    counted: LatencySnapshot


class RecentLatencies:
    """Of several histograms, by name. One thread.

    Ask for each of them at every publishing. Where publishings are further apart than the window is long, what was
    counted since the one before is told.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._marks: dict[str, deque[_Mark]] = {}

    def of(self, name: str, counted: LatencySnapshot) -> LatencySnapshot:
        """What it has counted within the window; `counted`: since its start."""
        now = self._monotonic()
        marks = self._marks.get(name)
        if marks is None or not counted.contains(marks[-1].counted):
            # Met for the first time, or begun anew: whatever it has counted is recent, if we have not looked for long.
            new = marks is not None or now - self._began <= WINDOW
            marks = self._marks[name] = deque([_Mark(now, NO_LATENCY if new else counted), _Mark(now, counted)])
        while len(marks) > 1 and now - marks[0].time > WINDOW:
            marks.popleft()
        recent = counted.since(marks[0].counted)
        if now - marks[-1].time >= APART:
            marks.append(_Mark(now, counted))
        return recent

    def only(self, names: Collection[str]) -> None:
        """Forget those of other names: donors come and go."""
        for gone in self._marks.keys() - set(names):
            del self._marks[gone]


def quantiles(recent: LatencySnapshot) -> dict[str, float | None]:
    """As the bus names them."""
    return {"recent_p50_seconds": recent.quantile(0.50), "recent_p99_seconds": recent.quantile(0.99)}


# ---- how fast bytes go over each link just now ----


class LinkRates:
    """One thread."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._before: dict[str, tuple[float, int]] = {}

    def of(self, link: str, nbytes: int) -> int | None:
        """Bytes per second since it was asked for this link before; None the first time. `nbytes` only grows."""
        now = self._monotonic()
        before = self._before.get(link)
        self._before[link] = now, nbytes
        if before is None or now <= before[0]:
            return None
        return round(max(0, nbytes - before[1]) / (now - before[0]))

    def only(self, links: Collection[str]) -> None:
        """Forget other links: donors come and go."""
        for gone in self._before.keys() - set(links):
            del self._before[gone]
