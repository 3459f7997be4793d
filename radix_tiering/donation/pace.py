"""How fast bytes may move."""

from __future__ import annotations

import math

#: Seconds whose bytes somebody who has rested may move at once.
BURST_SECONDS = 0.01


class Pace:
    """Keeps moves to a rate: a token bucket with room for `BURST_SECONDS`.

    A move may begin when all before it have passed at the rate, however large it is itself. The bucket is kept as that
    time: one number, no refill to round. Not thread-safe; `now` is of one monotonic clock, in seconds.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        """None: as fast as it goes. Raises ValueError for a rate that is not positive."""
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise ValueError(f"a rate is above zero, not {bytes_per_second}")
        self.bytes_per_second = bytes_per_second
        self._passed_at = -math.inf

    def wait(self, now: float) -> float:
        """Seconds until the next move may begin; 0: now."""
        return max(0.0, self._passed_at - now)

    def take(self, nbytes: int, now: float) -> None:
        """So many bytes are moved now, whether or not that was their time."""
        if self.bytes_per_second is not None:
            self._passed_at = max(self._passed_at, now - BURST_SECONDS) + nbytes / self.bytes_per_second
