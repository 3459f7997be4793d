"""Faults in what the publisher calls: they end there, and are told once until they are over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ...base.events import EventLog
from ...figures.telemetry import NotYet

logger = logging.getLogger(__name__)


class Faults:
    """One thread. What an error says goes to the log alone: it may hold anything."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._failing: set[str] = set()

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Whatever fails within goes no further, but `NotYet`, which is no fault. `place` names it."""
        try:
            yield
        except NotYet:
            raise
        except Exception as error:
            if place not in self._failing:
                self._failing.add(place)
                logger.exception("swift-tiers: the bus goes on without %s", place)
                self._events.emit("bus.fault", where=place, error=type(error).__name__)
        else:
            self._failing.discard(place)
