"""A clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Virtual time, in seconds. What is due at the same time happens in the order in which it was asked for, so that a
    simulation without random numbers always goes the same way."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Raises ValueError for a time that has passed."""
        if when < self.now:
            raise ValueError(f"{when} s lies before {self.now} s")
        heapq.heappush(self._due, (when, next(self._numbers), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def run(self, until: float = float("inf")) -> None:
        """Let everything happen that is due up to `until`, and what follows from it."""
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()

    @property
    def idle(self) -> bool:
        """Nothing is due any more."""
        return not self._due
