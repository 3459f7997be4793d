"""What a link or a device lets through in a time."""

from __future__ import annotations

#: Requests that are served at once after a rest before the rate shows.
BURST_REQUESTS = 2


class TokenBucket:
    """Lets `bytes_per_second` through, with room for two requests. For one thread, but for the rate.

    Kept as the time at which all bytes taken so far will have passed: one number, no refill to round.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._passed_at = float("-inf")

    def take(self, length: int, now: float) -> float:
        """When `length` bytes that are asked for at `now` have passed; not before `now`. Seconds."""
        seconds = length / self.bytes_per_second
        self._passed_at = max(self._passed_at, now - BURST_REQUESTS * seconds) + seconds
        return max(now, self._passed_at)
