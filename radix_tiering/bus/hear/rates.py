"""How fast counters grow between two looks."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract.views import DeviceView, LinkView, RankedView, Snapshot, TierView

Counting = DeviceView | LinkView | TierView


class Rates:
    """Per second, from a former snapshot to the present one. Without a former one, and of what has begun anew: None."""

    def __init__(self, before: Snapshot | None) -> None:
        self._before = {} if before is None else {_identity(view): view for view in _views(before)}

    def of(self, view: Counting, *counters: str) -> float | None:
        """The growth of these counters together, per second of the server's clock."""
        before = self._before.get(_identity(view))
        if before is None or before.time is None or view.time is None or view.time <= before.time:
            return None
        grown = 0
        for counter in counters:
            new, old = getattr(view, counter), getattr(before, counter)
            if new is None or old is None or new < old:
                return None
            grown += new - old
        return grown / (view.time - before.time)


def _identity(view: RankedView) -> tuple[object, ...]:
    which = next(getattr(view, name) for name in ("tier", "number", "link") if hasattr(view, name))
    return type(view), view.server, view.rank, which


def _views(snapshot: Snapshot) -> Iterator[Counting]:
    for state in snapshot.servers:
        for rank in state.ranks:
            yield from rank.tiers
            yield from rank.devices
            yield from rank.links
