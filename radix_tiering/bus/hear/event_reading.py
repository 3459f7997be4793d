"""Reading a server's event stream so that nothing is lost unnoticed.

Each life of a rank numbers its events from 1. What is missing between two numbers was dropped by the server, trimmed
from the stream before it was read, or went with a Redis that lost its data: whichever it was, the reader is told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...figures.forms import read_object
from ..contract.round_trips import Question, RoundTrips
from ..contract.schema import entry_parts, is_used_up
from ..contract.view import seconds_since

#: An entry before all others.
BEGINNING = "0-0"

#: A number of an event.
_COUNT = re.compile(r"\d{1,18}", re.ASCII)

#: How far two measurements of the same clock's offset may be apart, seconds.
OFFSET_SECONDS = 1.0

#: Lives of a rank whose last events are remembered.
MOST_LIVES = 4

Entry = tuple[str, Mapping[str, str]]


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """One line of the stream."""

    server: str
    rank: str
    entry: str  # its id in the stream
    life: str = ""  # of its rank; empty if the entry does not say
    sequence: int  # per life of its rank, from 1; 0 if the entry does not say
    time: float | None  # seconds since 1970 by the server's clock
    happened: float  # by Redis' clock; where its server's clock does not tell, when it was written
    age_seconds: float | None  # None where that cannot be told
    kind: str
    fields: dict[str, Any]


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag="gap"):
    """Events of one rank that are not there: numbers `first` to `last`. `first` None: from an unknown one on."""

    server: str
    rank: str
    first: int | None
    last: int

    @property
    def count(self) -> int | None:
        return None if self.first is None else self.last - self.first + 1


class LastEvent(NamedTuple):
    """The newest event of a rank's life that was read; its times by both clocks."""

    life: str
    sequence: int
    time: float
    happened: float


class Cursor(msgspec.Struct, frozen=True):
    """How far one server's events have been read. To be handed on to the next reading, not to be looked into."""

    entry: str = BEGINNING
    seen: dict[str, tuple[LastEvent, ...]] = {}  # by rank: of its last lives, the newest at the end
    whole: bool = True  # whether it was read from the beginning: then a rank that was not seen has said nothing yet
    offset: float | None = None  # the server's clock minus Redis' clock, as it was said last


class EventsRead(NamedTuple):
    """What one reading gave, oldest first, and where the next one goes on. `more`: there was more to read."""

    items: tuple[StreamEvent | Gap, ...]
    cursor: Cursor
    more: bool


def read_events(bus: RoundTrips, server: str, after: Cursor, count: int) -> EventsRead:
    """At most `count` entries after the cursor, oldest first. Raises BusError. One round trip; two on a new stream."""
    key = bus.keys.of("events", server=server)
    if is_used_up(after.entry):  # nothing can follow it until its server begins the stream anew
        if newest_entries(bus, [server])[server] == after.entry:
            return EventsRead((), after, False)
        after = msgspec.structs.replace(after, entry=BEGINNING)
    answers, now = bus.ask(
        {
            "entries": lambda pipeline: pipeline.xrange(key, min=f"({after.entry}", count=count),
            # After the entries, so that nothing can be trimmed between the two unnoticed.
            "first": lambda pipeline: pipeline.xrange(key, count=1),
            "last": lambda pipeline: pipeline.xrevrange(key, count=1),
            "offset": _offset_question(bus, server),
        }
    )
    entries, last = answers["entries"], answers["last"]
    if after.entry != BEGINNING and (not last or entry_parts(last[0][0]) < entry_parts(after.entry)):
        # The stream that was read is gone with its Redis; what is there now has been begun after it.
        return read_events(bus, server, msgspec.structs.replace(after, entry=BEGINNING), count)
    trimmed = bool(answers["first"]) and entry_parts(answers["first"][0][0]) > entry_parts(after.entry)
    offset = _number(answers["offset"] or "")
    start = msgspec.structs.replace(after, offset=after.offset if offset is None else offset)
    return _read(server, entries, start, now, trimmed=trimmed, more=len(entries) == count)


def newest_events(bus: RoundTrips, server: str, count: int) -> EventsRead:
    """The newest `count` entries, oldest first; what came before them is not missed. Raises BusError."""
    key = bus.keys.of("events", server=server)
    answers, now = bus.ask(
        {
            "entries": lambda pipeline: pipeline.xrevrange(key, count=count),
            "offset": _offset_question(bus, server),
        }
    )
    entries = answers["entries"][::-1]
    start = Cursor(whole=len(entries) < count, offset=_number(answers["offset"] or ""))
    return _read(server, entries, start, now, from_newest=True)


def newest_entries(bus: RoundTrips, servers: Iterable[str]) -> dict[str, str]:
    """Of each of these servers, the id of the newest entry, or `BEGINNING`. Raises BusError. One round trip."""
    keys = {server: bus.keys.of("events", server=server) for server in servers}
    if not keys:
        return {}
    answers, _ = bus.ask({server: _newest_question(key) for server, key in keys.items()})
    return {server: entries[0][0] if entries else BEGINNING for server, entries in answers.items()}


def _newest_question(key: str) -> Question:
    return lambda pipeline: pipeline.xrevrange(key, count=1)


def _offset_question(bus: RoundTrips, server: str) -> Question:
    key = bus.keys.of("info", server=server)
    return lambda pipeline: pipeline.hget(key, "clock_offset_seconds")


def _read(
    server: str,
    entries: Sequence[Entry],
    start: Cursor,
    now: float,
    *,
    trimmed: bool = False,
    from_newest: bool = False,
    more: bool = False,
) -> EventsRead:
    events = [read_event(server, entry, now, start.offset) for entry in entries]
    items, seen = with_gaps(server, events, start, trimmed=trimmed, from_newest=from_newest)
    cursor = Cursor(entries[-1][0] if entries else start.entry, seen, start.whole, start.offset)
    return EventsRead(tuple(items), cursor, more)


def entry_seconds(entry: str) -> float:
    """When the entry was written, by Redis' clock."""
    return entry_parts(entry)[0] / 1000


def read_event(server: str, entry: Entry, now: float, offset: float | None) -> StreamEvent:
    """An event from its entry. `now`: by Redis' clock; `offset`: the server's clock minus Redis'; None if not known."""
    identifier, said = entry
    time = _number(said.get("time", ""))
    happened = entry_seconds(identifier)
    if time is not None and offset is not None and time - offset <= happened + OFFSET_SECONDS:
        # Else it would have happened after it was written: its server's clock was set since, and the offset is today's.
        happened = time - offset
    sequence = said.get("sequence", "")
    return StreamEvent(
        server=server,
        rank=said.get("rank", ""),
        entry=identifier,
        life=said.get("life", ""),
        sequence=int(sequence) if _COUNT.fullmatch(sequence) else 0,
        time=time,
        happened=happened,
        age_seconds=seconds_since(happened, now),
        kind=said.get("kind", ""),
        fields=read_object(said.get("fields", "")),
    )


def with_gaps(
    server: str, events: Iterable[StreamEvent], cursor: Cursor, *, trimmed: bool, from_newest: bool = False
) -> tuple[list[StreamEvent | Gap], dict[str, tuple[LastEvent, ...]]]:
    """The events less those that were read already, with what is missing between them; and what was seen by then.

    `trimmed`: entries behind the cursor have left the stream. `from_newest`: reading begins here, so that what came
    before is not missed.
    """
    items: list[StreamEvent | Gap] = []
    seen = dict(cursor.seen)
    for event in events:
        if event.sequence:
            # One that ends and the next one may write by turns.
            lives = seen.get(event.rank, ())
            last = next((one for one in lives if one.life == event.life), None)
            if last is not None and _is_repeated(event, last):
                continue
            # Of a life that was not seen the first number is known where another one was.
            known = cursor.whole or bool(lives)
            gap = _gap_before(server, event, last, known=known, trimmed=trimmed, begins=from_newest)
            if gap is not None:
                items.append(gap)
            newest = LastEvent(event.life, event.sequence, event.time or 0.0, event.happened)
            seen[event.rank] = (*(one for one in lives if one is not last), newest)[-MOST_LIVES:]
        items.append(event)
    return items, seen


def _is_repeated(event: StreamEvent, last: LastEvent) -> bool:
    """Whether it was written twice: a writer that got no answer writes again. A server that has begun anew repeats
    numbers too, in another life; of one that tells none, what happened later by at least one of the clocks is new.
    `last`: of the same life."""
    if event.sequence > last.sequence:
        return False
    if event.life:
        return True
    return (event.time or 0.0) <= last.time and event.happened <= last.happened + OFFSET_SECONDS


def _gap_before(
    server: str, event: StreamEvent, last: LastEvent | None, *, known: bool, trimmed: bool, begins: bool
) -> Gap | None:
    before = event.sequence - 1
    if last is None:
        if begins or not before or not (known or trimmed):
            return None
        return Gap(server=server, rank=event.rank, first=1 if known else None, last=before)
    # Of a server that tells no life, a number that is not above the last one: it has begun anew.
    first = last.sequence + 1 if event.sequence > last.sequence else 1
    return Gap(server=server, rank=event.rank, first=first, last=before) if first <= before else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
