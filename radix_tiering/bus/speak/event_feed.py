"""The way of a rank's events into its server's stream: in order, and none is missing without a gap in the numbers."""

from __future__ import annotations

from typing import Any

from ...base.events import EventLog
from ..contract.records import event_record
from ..contract.schema import entry_parts, is_used_up
from ..redis.batch import RedisBatch, Reply

#: Events in one go.
MOST_EVENTS = 256


class EventFeed:
    """One thread. Before each round of `send`, `check` whether the stream still is the one that has what was sent."""

    def __init__(self, log: EventLog, key: str, rank: str, life: str, length: int) -> None:
        """`life`: by which a reader tells this log's numbers from those of another process of the rank; `length`:
        entries that the stream is capped at, about."""
        self.lost = 0  # events that the log dropped before they could be sent
        self._log = log
        self._key = key
        self._rank = rank
        self._life = life
        self._length = length
        self._sent = 0  # all events up to this one are in the stream, or lost
        self._newest = 0  # the highest that `_sent` ever was
        self._anchor: str | None = None  # the stream's entry of event `_sent`
        self._used_up = False  # the stream takes no more

    @property
    def waiting(self) -> bool:
        return self._log.emitted > self._sent

    def check(self, batch: RedisBatch) -> None:
        """Ask whether what was sent is still there. If it is not, everything that the log has is sent once more."""
        found: list[Any] = []
        newest: list[Any] = []
        if self._anchor is not None:
            batch.add("XRANGE", self._key, self._anchor, self._anchor, reply=found.extend)
        batch.add("XREVRANGE", self._key, "+", "-", "COUNT", 1, reply=newest.extend)
        batch.add("XLEN", self._key, reply=lambda length: self._checked(bool(found), length, newest))

    def send(self, batch: RedisBatch) -> None:
        """Queue the oldest events that wait, at most `MOST_EVENTS`."""
        if self._used_up:
            batch.add("UNLINK", self._key)
            self._sent, self._anchor, self._used_up = 0, None, False
        events = self._log.since(self._sent, MOST_EVENTS)
        for event in events:
            entry = event_record(event, self._rank, self._life)
            words = (word for pair in entry.items() for word in pair)
            cap = ("MAXLEN", "~", self._length)
            batch.add(
                "XADD", self._key, *cap, "*", *words, reply=self._confirmation(event.sequence, events[0].sequence)
            )

    def _confirmation(self, sequence: int, first: int) -> Reply:
        def confirm(entry: str) -> None:
            if sequence == first:
                # Where a stream begins anew, what the log has dropped by now was in the former one.
                self.lost += max(0, first - 1 - self._newest)
            elif sequence != self._sent + 1:
                return  # one before it was refused: they come again together
            self._sent, self._anchor = sequence, entry
            self._newest = max(self._newest, sequence)

        return confirm

    def _checked(self, found: bool, length: int, newest: list[Any]) -> None:
        self._used_up = bool(newest) and is_used_up(newest[0][0])
        if found or self._anchor is None:
            return
        # A stream that has reached its cap loses its oldest entries without having vanished. One that ends before what
        # was sent is an older copy of it, as after a failover.
        if length < self._length or not newest or entry_parts(newest[0][0]) < entry_parts(self._anchor):
            self._sent, self._anchor = 0, None
