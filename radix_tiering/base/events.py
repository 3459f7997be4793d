"""Events: what happened in the tiers, one line each, numbered without gaps. They never carry KV bytes or text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from .runner import THREADS, Runner


class Event(msgspec.Struct, frozen=True):
    """One line of the event stream."""

    sequence: int  # from 1, without gaps: a reader that sees a gap knows what it missed
    time: float  # seconds since the epoch
    kind: str  # "page.corrupt", "device.out", "restore.expired", ...
    fields: dict[str, Any]


class EventLog:
    """The newest events, capped. Any thread may emit and read."""

    def __init__(
        self,
        clock: Callable[[], float],
        capacity: int = 4096,
        runner: Runner = THREADS,
        hear: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """`hear` is called with each event by whoever emits it, often with locks held: it must be short, and not
        raise."""
        self._clock = clock
        self._hear = hear
        self._events: deque[Event] = deque(maxlen=capacity)
        self._lock = runner.lock()
        self._sequence = 0

    def emit(self, kind: str, **fields: Any) -> None:
        with self._lock:
            self._sequence += 1
            event = Event(self._sequence, self._clock(), kind, fields)
            self._events.append(event)
        self._hear(event)

    def since(self, sequence: int = 0, most: int | None = None) -> list[Event]:
        """Events after `sequence` that are still kept, the oldest first; not more than the oldest `most` of them."""
        with self._lock:
            # The numbers have no gaps: where to begin needs no search, which would keep those who emit waiting.
            start = max(0, len(self._events) - (self._sequence - sequence))
            stop = len(self._events) if most is None else start + most
            return list(islice(self._events, start, stop))

    @property
    def emitted(self) -> int:
        return self._sequence
