"""Events as lines, oldest first, and following them as they come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from .event_reading import Cursor, Gap, StreamEvent
from .figures import text
from .reader import BusReader

Item = StreamEvent | Gap


class EventTail:
    """The events of several servers, from the newest `limit` on, and then what has come since the last reading."""

    def __init__(self, only: str | None, limit: int) -> None:
        self._only = only
        self._limit = limit
        self._cursors: dict[str, Cursor] = {}
        self._started = False

    def read(self, reader: BusReader, servers: Iterable[str] | None = None) -> list[Item]:
        """What there is now and was not there before. Raises BusError: the next reading gives what this did not.

        `servers`: those on the bus, where that is known already. Where nothing has happened, this takes one round trip.
        """
        read: dict[str, Sequence[Item]] = {}
        cursors = dict(self._cursors)
        names = self._servers(reader, servers)
        newest = reader.newest_entries([name for name in names if name in cursors])
        for server in names:
            if server in cursors and newest[server] == cursors[server].entry:
                continue
            if server in cursors or self._started:
                read[server], cursors[server] = self._further(reader, server, cursors.get(server, Cursor()))
            else:
                read[server], cursors[server], _ = reader.newest_events(server, self._limit)
        items = merged(read.values())
        if not self._started:
            items = items[-self._limit :]
        self._cursors, self._started = cursors, True
        return items

    def _servers(self, reader: BusReader, known: Iterable[str] | None) -> list[str]:
        """Those that were heard of before stay: their events outlive them."""
        if self._only is not None:
            known = (self._only,)
        elif known is None:
            known = (one.server for one in reader.servers())
        return sorted({*known, *self._cursors})

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
