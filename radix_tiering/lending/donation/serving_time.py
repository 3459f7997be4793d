"""The time by which what a server has needed, and used, grows old."""

from __future__ import annotations

from collections.abc import Callable

#: What lies between two looks counts for no longer, seconds: twice what lies between two rounds of a scheduler that has
#: nothing to do (SGLang's `--sleep-on-idle`).
MOST_BETWEEN = 2.0


class ServingTime:
    """Seconds of a clock from now on, without those in which the process stands still.

    That nothing was needed while a container was frozen, or its machine slept, says nothing of what is needed
    afterwards. So a gap between two looks counts for `MOST_BETWEEN` seconds at most, and there is a look in each round
    of the scheduler, whether or not it has anything to do. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen, self._now = clock(), 0.0

    def look(self) -> float:
        """The time now; it never goes back."""
        seen = self._clock()
        self._now += min(seen - self._seen, MOST_BETWEEN)
        self._seen = seen
        return self._now
