"""What all views of keys on the bus have."""

from __future__ import annotations

from ...figures.declare import Figures, fact, gauge

#: How long things took within the last minute. A percentile since the start would hide today's fault for days.
P50 = gauge("the median of what one of these took; to within a factor of two; empty if none")
P99 = gauge("the 99th percentile, likewise; 8.4 for all above")

#: How far ahead of now what is of now may seem, seconds: clocks are compared by asking.
AHEAD_SECONDS = 1.0


class View(Figures):
    """What one key said when it was read."""

    server: str
    time: float | None = fact("when this was true")  # seconds since 1970 by the writer's clock
    age_seconds: float | None = None  # how old it is, by Redis' clock; None where that cannot be told


class RankedView(View):
    """What one rank of a server said."""

    rank: str


def seconds_since(then: float, now: float) -> float | None:
    """How long ago that was, both by one clock; None where it is yet to come: that clock was set back since."""
    return max(0.0, now - then) if then <= now + AHEAD_SECONDS else None


def lease_name(server: str, rank: str) -> str:
    """What leases call a rank: `web-1.dp0-tp0`."""
    return f"{server}.{rank}"
