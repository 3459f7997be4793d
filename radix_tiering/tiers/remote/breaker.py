"""Whether an engine is asked at all: one that does not answer, or fails, costs a deadline or two, and then nothing."""

from __future__ import annotations

from enum import Enum
from typing import Literal

#: Deadlines missed, and errors, in a row that open it.
MISSES = 2
#: How long it stays open, seconds: doubled each time up to the most.
FIRST_REST, MOST_REST = 5.0, 60.0
#: Questions and reads. An engine may answer the ones and not the others: the ones say nothing of the others.
Asked = Literal["exists", "get"]


class BreakerState(Enum):
    CLOSED = "closed"  # all is asked
    OPEN = "open"  # nothing is
    TRYING = "trying"  # one question or read is under way, and decides


class Breaker:
    """CLOSED --(two misses of one kind)--> OPEN --(its time is up, a trial of that kind)--> TRYING
    TRYING --(answer)--> CLOSED
       |---(an answer that proves nothing)--> CLOSED, until the next miss of that kind
       '---(miss, or lost)--> OPEN, for twice the time

    Changed by one thread; any may ask `closed`.
    """

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.trial: Asked = "exists"  # of which kind the trial is, and the misses that opened it
        self._misses: dict[Asked, int] = {"exists": 0, "get": 0}
        self._rest = FIRST_REST
        self._until = 0.0

    @property
    def closed(self) -> bool:
        """Whether all may be asked."""
        return self.state is BreakerState.CLOSED

    @property
    def tries_at(self) -> float | None:
        """When the trial is to be asked, which decides; None: not now."""
        return self._until if self.state is BreakerState.OPEN else None

    def tries(self) -> None:
        """It is asked; `answered`, `proved_nothing`, `missed` or `lost` follows."""
        assert self.state is BreakerState.OPEN
        self.state = BreakerState.TRYING

    def answered(self, kind: Asked) -> bool:
        """Something of this kind has been answered in time, and well; whether that ends its being left alone."""
        was_open, self._misses[kind] = self._misses[kind] >= MISSES, 0
        if kind == self.trial:
            self.state, self._rest = BreakerState.CLOSED, FIRST_REST
        return was_open

    def proved_nothing(self, kind: Asked) -> None:
        """Something of this kind was answered in time, but not so that it is known to be well."""
        if self.state is BreakerState.TRYING and kind == self.trial:
            self.state = BreakerState.CLOSED

    def lost(self, now: float) -> None:
        """Who was asked is gone, and nothing that it was asked will be answered: another trial decides."""
        if self.state is BreakerState.TRYING:
            self.missed(self.trial, now)

    def missed(self, kind: Asked, now: float) -> bool:
        """Something was not answered in time, or with an error; whether nothing is asked from now on."""
        if self.state is BreakerState.OPEN or (self.state is BreakerState.TRYING and kind != self.trial):
            return False
        self._misses[kind] += 1
        if self._misses[kind] < MISSES:
            return False
        self.state, self.trial, self._until = BreakerState.OPEN, kind, now + self._rest
        self._rest = min(MOST_REST, 2 * self._rest)
        return True
