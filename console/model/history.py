"""What counters and gauges said during the last minutes, for rates and sparklines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView
from swift_tiers.radix_tiering.bus.contract.views import (
    DeviceView,
    LinkView,
    RankedView,
    RankView,
    Snapshot,
    TierView,
    TreeView,
)
from swift_tiers.radix_tiering.bus.hear.period import COMPARED, Period

#: What a rank has counted lately is of the last so many seconds, as far as they are remembered; of less than this it is
#: not worth a share.
LATELY_SECONDS, LEAST_SECONDS = 300.0, 20.0
#: Looks that are remembered of each key: two minutes at two a second.
LOOKS = 240

#: What is remembered of each kind of key.
FIELDS: dict[type[RankedView], tuple[str, ...]] = {
    RankView: (
        "running_requests", "waiting_requests", "write_queue_pages", "restores_started", "lent_bytes",
        "borrowed_bytes", "lendable_bytes", *(name for name in COMPARED if name != "restores_started"),
    ),
    TierView: ("hits", "misses", "bytes_read", "bytes_written", "evictions", "used_bytes", "pages"),
    DeviceView: ("reads", "writes", "bytes_read", "bytes_written", "in_flight", "recent_p99_seconds", "used_bytes"),
    LinkView: ("transfers", "pages", "bytes", "seconds"),
    GpuView: (
        "nvlink_sent_bytes", "nvlink_received_bytes", "pcie_sent_bytes_per_second", "pcie_received_bytes_per_second",
    ),
    TreeView: ("reused_tokens", "prompt_tokens", "evicted_tokens", "cached_tokens"),
}  # fmt: skip

Identity = tuple[type[RankedView], str, str, object]


class _Ring:
    """The last looks at one key, oldest first; a row each: the time, then its fields. NaN: not said."""

    def __init__(self, fields: int) -> None:
        self._rows = np.full((LOOKS, fields + 1), np.nan)
        self._count = 0
        self._ordered: np.ndarray | None = None  # many ask between two looks

    def add(self, row: list[float]) -> None:
        """A look that says nothing newer is not one. An earlier one begins anew: its server's clock was set back."""
        if self._count:
            last = self._rows[(self._count - 1) % LOOKS, 0]
            if row[0] == last:
                return
            if row[0] < last:
                self._count = 0
        self._rows[self._count % LOOKS] = row
        self._count += 1
        self._ordered = None

    def rows(self) -> np.ndarray:
        if self._count <= LOOKS:
            return self._rows[: self._count]
        if self._ordered is None:
            at = self._count % LOOKS
            self._ordered = np.concatenate((self._rows[at:], self._rows[:at]))
        return self._ordered


class History:
    """One thread at a time. Times are by the clock of the server that spoke: rates need no other."""

    def __init__(self) -> None:
        self._rings: dict[Identity, _Ring] = {}

    def observe(self, snapshot: Snapshot) -> None:
        """Remember one look; what is no longer on the bus is forgotten."""
        seen = set()
        for view in _views(snapshot):
            if view.time is None:
                continue
            fields, identity = FIELDS[type(view)], _identity(view)
            seen.add(identity)
            ring = self._rings.get(identity)
            if ring is None:
                ring = self._rings[identity] = _Ring(len(fields))
            ring.add([view.time, *(_number(getattr(view, field)) for field in fields)])
        for gone in self._rings.keys() - seen:
            del self._rings[gone]

    def rate(self, view: RankedView, *counters: str, seconds: float = 0.0) -> float | None:
        """How fast these counters grew together, per second: since the look before, or over the last `seconds`.

        None where there is nothing to compare with, or the server was started anew since.
        """
        rows, columns = self._rows(view, counters)
        if rows is None or len(rows) < 2:
            return None
        last = rows[-1]
        early = rows[:-1]
        if seconds:
            wide = early[early[:, 0] >= last[0] - seconds]
            first = wide[0] if len(wide) else early[-1]
        else:
            first = early[-1]
        grown = float((last[columns] - first[columns]).sum())
        return grown / float(last[0] - first[0]) if np.isfinite(grown) and grown >= 0 else None

    def times(self, view: RankedView, seconds: float) -> list[float]:
        """When the last looks were, as far as they are within `seconds` of the last one; by the writer's clock."""
        rows, _ = self._rows(view, ())
        return [] if rows is None or not len(rows) else rows[rows[:, 0] >= rows[-1, 0] - seconds, 0].tolist()

    def rate_between(self, view: RankedView, counter: str, first: float, last: float) -> float | None:
        """How fast a counter grew between two times by the writer's clock, per second; between two looks, it is taken
        to have grown evenly. None where less than half of that time was seen, or the server was started anew in it."""
        rows, columns = self._rows(view, (counter,))
        if rows is None:
            return None
        rows = rows[np.isfinite(rows[:, columns[0]])]
        if len(rows) < 2:
            return None
        times, values = rows[:, 0], rows[:, columns[0]]
        begin, end = max(first, times[0]), min(last, times[-1])
        if end <= begin or end - begin < (last - first) / 2:
            return None
        within = (times > begin) & (times < end)
        low, high = np.interp([begin, end], times, values)
        course = np.diff([low, *values[within], high])
        return float(high - low) / (end - begin) if (course >= 0).all() else None

    def rates(self, view: RankedView, *counters: str, length: int = LOOKS) -> list[float | None]:
        """The same between each two of the last looks, oldest first: at most `length`."""
        rows, columns = self._rows(view, counters)
        if rows is None or len(rows) < 2:
            return []
        rows = rows[-length - 1 :]
        grown = np.diff(rows[:, columns], axis=0).sum(axis=1) / np.diff(rows[:, 0])
        return [float(value) if np.isfinite(value) and value >= 0 else None for value in grown]

    def growths(self, view: RankedView, counter: str, seconds: float) -> tuple[float, float]:
        """How much a counter grew during the last `seconds`, and in all the time before. 0 where that is not known."""
        rows, columns = self._rows(view, (counter,))
        if rows is None or len(rows) < 2:
            return 0.0, 0.0
        grown, times = np.diff(rows[:, columns[0]]), rows[1:, 0]
        grown = np.where(np.isfinite(grown) & (grown > 0), grown, 0.0)
        late = times > rows[-1, 0] - seconds
        return float(grown[late].sum()), float(grown[~late].sum())

    def lately(self, rank: RankView) -> Period | None:
        """What the rank has counted during the last minutes; None where too little of them was seen."""
        rows, columns = self._rows(rank, COMPARED)
        if rows is None or len(rows) < 2:
            return None
        rows = rows[rows[:, 0] >= rows[-1, 0] - LATELY_SECONDS]
        span = float(rows[-1, 0] - rows[0, 0])
        if span < LEAST_SECONDS:
            return None
        grown = np.diff(rows[:, columns], axis=0)
        # A counter that is less than before is of a rank that was started anew.
        summed = np.where(np.isfinite(grown) & (grown > 0), grown, 0.0).sum(axis=0)
        return Period(dict(zip(COMPARED, map(int, summed), strict=True)), span)

    def values(self, view: RankedView, gauge: str, length: int = LOOKS) -> list[float | None]:
        """What a gauge said in the last looks, oldest first."""
        rows, columns = self._rows(view, (gauge,))
        if rows is None:
            return []
        return [float(value) if np.isfinite(value) else None for value in rows[-length:, columns[0]]]

    def span(self, view: RankedView) -> float:
        """From the first to the last look that is remembered, seconds."""
        rows, _ = self._rows(view, ())
        return 0.0 if rows is None or len(rows) < 2 else float(rows[-1, 0] - rows[0, 0])

    def _rows(self, view: RankedView, names: tuple[str, ...]) -> tuple[np.ndarray | None, list[int]]:
        ring = self._rings.get(_identity(view))
        fields = FIELDS[type(view)]
        return (None if ring is None else ring.rows()), [1 + fields.index(name) for name in names]


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _identity(view: RankedView) -> Identity:
    which = next((getattr(view, name) for name in ("tier", "number", "link") if hasattr(view, name)), None)
    return type(view), view.server, view.rank, which


def _views(snapshot: Snapshot) -> Iterator[RankedView]:
    for state in snapshot.servers:
        for rank in state.ranks:
            if rank.rank is not None:
                yield rank.rank
            if rank.tree is not None:
                yield rank.tree
            if rank.gpu is not None:
                yield rank.gpu
            yield from rank.tiers
            yield from rank.devices
            yield from rank.links
