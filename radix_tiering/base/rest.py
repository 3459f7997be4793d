"""How long something that goes wrong again and again is left alone."""

from __future__ import annotations


class Rest:
    """Twice as long each time, up to a bound; anew from the beginning once it has gone well. For one thread, or under a
    lock; times are the caller's, seconds."""

    def __init__(self, first: float, most: float) -> None:
        self._first, self._most = first, most
        #: How long the last one is, or was; 0: nothing has gone wrong since it went well.
        self.seconds = 0.0
        self._until = float("-inf")

    def failed(self, now: float) -> float:
        """It went wrong: it is left alone from now on. For how many seconds."""
        self.seconds = min(self._most, max(self._first, 2 * self.seconds))
        self._until = now + self.seconds
        return self.seconds

    def went_well(self) -> None:
        self.seconds = 0.0

    def is_over(self, now: float) -> bool:
        """Whether it may be tried."""
        return now >= self._until
