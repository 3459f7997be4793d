"""Redis' clock, as it can be told here without asking. All servers of a bus agree on it, whatever their own say."""

from __future__ import annotations

from collections.abc import Callable


class RedisClock:
    """Told by one thread, read by any."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` in seconds, so that a step of this machine's clock makes no difference here."""
        self._monotonic = monotonic
        self._offset: float | None = None  # monotonic clock minus Redis' clock

    def told(self, before: float, after: float, redis: float) -> None:
        """Redis said `redis`, seconds since 1970, at some moment between `before` and `after` of the monotonic clock.

        What was believed so far stays if it can be true: it comes from a quicker answer. Else as little as possible is
        changed.
        """
        lowest, highest = before - redis, after - redis
        if self._offset is None:
            self._offset = (lowest + highest) / 2
        else:
            self._offset = min(max(self._offset, lowest), highest)

    def now(self) -> float | None:
        """Seconds since 1970 by Redis' clock; None if it was never heard of."""
        return None if self._offset is None else self._monotonic() - self._offset
