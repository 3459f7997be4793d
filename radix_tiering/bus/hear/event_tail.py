"""Events as lines, oldest first, and following them as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import msgspec

from ...base.runner import THREADS
from ..contract.schema import SERVER_TTL
from .event_reading import BEGINNING, Cursor, Gap, StreamEvent
from .figures import text
from .reader import BusReader

Item = StreamEvent | Gap


class EventTail:
    """The events of several servers, from the newest `limit` on, and then what has come since the last reading."""

    def __init__(self, only: str | None, limit: int, *, monotonic: Callable[[], float] = THREADS.monotonic) -> None:
        self._only = only
        self._limit = limit
        self._monotonic = monotonic
        self._cursors: dict[str, Cursor] = {}
        self._gone: dict[str, float] = {}  # servers of whom nothing is on the bus: since when
        self._started = False

    def read(self, reader: BusReader, servers: Iterable[str] | None = None) -> list[Item]:
        """What there is now and was not there before. Raises BusError: the next reading gives what this did not.

        `servers`: those on the bus, where that is known already. Where nothing has happened, this takes one round trip.
        """
        read: dict[str, Sequence[Item]] = {}
        cursors, now = dict(self._cursors), self._monotonic()
        listed = self._listed(reader, servers)
        # Those that were heard of before stay: their events outlive them.
        names = sorted({*listed, *cursors})
        newest = reader.newest_entries([name for name in names if name in cursors])
        gone = {
            name: self._gone.get(name, now)
            for name, entry in newest.items()
            if entry == BEGINNING and name not in listed
        }
        for server in names:
            # Not sooner: one that is back on a Redis that has lost its data is read on where it was.
            if now - gone.get(server, now) >= SERVER_TTL:
                del cursors[server], gone[server]
                continue
            if server in cursors and newest[server] == cursors[server].entry:
                continue
            if server in cursors or self._started:
                read[server], cursors[server] = self._further(reader, server, cursors.get(server, Cursor()))
            else:
                read[server], cursors[server], _ = reader.newest_events(server, self._limit)
        items = merged(read.values())
        if not self._started:
            items = items[-self._limit :]
        self._cursors, self._gone, self._started = cursors, gone, True
        return items

    def _listed(self, reader: BusReader, known: Iterable[str] | None) -> set[str]:
        if self._only is not None:
            return {self._only}
        return set(known) if known is not None else {one.server for one in reader.servers()}

    @staticmethod
    def _further(reader: BusReader, server: str, cursor: Cursor) -> tuple[list[Item], Cursor]:
        items: list[Item] = []
        while True:
            some, cursor, more = reader.events(server, cursor)
            items += some
            if not more:
                return items, cursor


def merged(read: Iterable[Sequence[Item]]) -> list[Item]:
    """By time. A gap stays before the event that follows it."""
    timed: list[tuple[float, list[Item]]] = []
    for items in read:
        waiting: list[Item] = []
        for item in items:
            waiting.append(item)
            if isinstance(item, StreamEvent):
                timed.append((item.happened, waiting))
                waiting = []
    timed.sort(key=lambda pair: pair[0])
    return [item for _, items in timed for item in items]


def line(item: Item) -> str:
    """`2026-11-20 12:03:04.123  alpha dp0-tp0  #12  device.out  device=/ssd1 pages=12`, by local time."""
    place = f"{text(item.server)} {text(item.rank)}"
    if isinstance(item, Gap):
        return f"LOST  {place}  {gap_words(item)}"
    fields = " ".join(f"{text(str(name))}={_value(value)}" for name, value in item.fields.items())
    try:
        when = datetime.fromtimestamp(item.happened).isoformat(" ", "milliseconds")
    except (OverflowError, OSError, ValueError):
        when = "at an unknown time"  # somebody's clock is far out
    return f"{when}  {place}  #{item.sequence}  {text(item.kind)}  {fields}".rstrip()


def gap_words(gap: Gap) -> str:
    """Which events are missing, and why that may be."""
    which = f"up to {gap.last}" if gap.first is None else f"{gap.first} to {gap.last} ({gap.count})"
    return f"events {which}: dropped by the server, trimmed too early, or gone with a Redis"


def as_json(item: Item) -> str:
    return json.dumps(msgspec.to_builtins(item))


def _value(value: object) -> str:
    return text(value if isinstance(value, str) else json.dumps(value))
