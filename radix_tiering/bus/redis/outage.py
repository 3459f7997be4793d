"""Loss and return of the bus: each is told once, however many tries lie between them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...base.events import EventLog

logger = logging.getLogger(__name__)

#: Pauses between two tries, seconds.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0


class Outage:
    """Whether the bus can be written, and when to try again. One thread."""

    def __init__(self, events: EventLog, monotonic: Callable[[], float]) -> None:
        self.failures = 0  # tries that failed, in all
        self._events = events
        self._monotonic = monotonic
        self._since: float | None = None
        self._first: float | None = None  # when the first try failed that is not an outage yet
        self._tries = 0

    @property
    def lasts(self) -> bool:
        return self._since is not None

    def failed(self, error: Exception, patience: float = 0.0) -> float:
        """A try failed; the seconds to wait before the next one. `error` says what to do about it.

        For the first `patience` seconds that is no outage: somebody else is about to start Redis.
        """
        if self._since is None and patience:
            now = self._monotonic()
            self._first = now if self._first is None else self._first
            if now - self._first < patience:
                return SHORTEST_PAUSE
        self.failures += 1
        self._tries += 1
        if self._since is None:
            self._since = self._monotonic()
            logger.warning("swift-tiers: the bus is lost, serving goes on without it: %s", error)
            self._events.emit("bus.lost", reason=str(error))
        return float(min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(self._tries - 1, 10)))

    def succeeded(self) -> None:
        """The bus was written."""
        self._first = None
        if self._since is None:
            return
        seconds = round(self._monotonic() - self._since, 3)
        logger.info("swift-tiers: the bus is back after %.1f s and %d tries", seconds, self._tries)
        self._events.emit("bus.returned", seconds=seconds, failures=self._tries)
        self._since, self._tries = None, 0
