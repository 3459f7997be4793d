"""Whether an engine is asked at all: one that does not answer, or fails, costs a deadline or two, and then nothing."""

from __future__ import annotations

from enum import Enum

#: Deadlines missed, and errors, in a row that open it.
MISSES = 2
#: How long it stays open, seconds: doubled each time up to the most.
FIRST_REST, MOST_REST = 5.0, 60.0


class BreakerState(Enum):
    CLOSED = "closed"  # all is asked
    OPEN = "open"  # nothing is
    TRYING = "trying"  # one question is under way, and decides


class Breaker:
    """CLOSED --(two misses)--> OPEN --(its time is up, a question)--> TRYING --(answer)--> CLOSED
                                  ^---------(miss, or lost, twice the time)---'

    Changed by one thread; any may ask `closed`.
    """

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self._misses = 0
        self._rest = FIRST_REST
        self._until = 0.0

    @property
    def closed(self) -> bool:
        """Whether all may be asked."""
        return self.state is BreakerState.CLOSED

    @property
    def tries_at(self) -> float | None:
        """When one question is to be asked, which decides; None: not now."""
        return self._until if self.state is BreakerState.OPEN else None

    def tries(self) -> None:
        """It is asked; `answered`, `missed` or `lost` follows."""
        assert self.state is BreakerState.OPEN
        self.state = BreakerState.TRYING

    def answered(self) -> bool:
        """Something has been answered in time, and well; whether it is asked again since."""
        was, self.state = self.state, BreakerState.CLOSED
        self._misses, self._rest = 0, FIRST_REST
        return was is not BreakerState.CLOSED

    def lost(self, now: float) -> None:
        """Who was asked is gone, and nothing that it was asked will be answered: another question decides."""
        if self.state is BreakerState.TRYING:
            self.missed(now)

    def missed(self, now: float) -> bool:
        """Something was not answered in time, or with an error; whether nothing is asked from now on."""
        self._misses += 1
        if self.state is BreakerState.OPEN or (self.state is BreakerState.CLOSED and self._misses < MISSES):
            return False
        self.state, self._until = BreakerState.OPEN, now + self._rest
        self._rest = min(MOST_REST, 2 * self._rest)
        return True
