"""Events: what happened in the tiers, one line each, numbered without gaps. They never carry KV bytes or text."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One line of the event stream."""

    sequence: int  # from 1, without gaps: a reader that sees a gap knows what it missed
    time: float  # seconds since the epoch
    kind: str  # "page.corrupt", "device.out", "restore.expired", ...
    fields: dict[str, Any]


class EventLog:
    """The newest events, capped. Any thread may emit and read."""

    def __init__(self, clock: Callable[[], float], capacity: int = 4096) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._sequence = 0

    def emit(self, kind: str, **fields: Any) -> None:
        with self._lock:
            self._sequence += 1
            self._events.append(Event(self._sequence, self._clock(), kind, fields))

    def since(self, sequence: int = 0) -> list[Event]:
        """Events after `sequence` that are still kept, oldest first."""
        with self._lock:
            return [event for event in self._events if event.sequence > sequence]

    @property
    def emitted(self) -> int:
        return self._sequence
