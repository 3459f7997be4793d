"""How fast bytes may move, and how much time that may take."""

from __future__ import annotations

import math

#: Seconds whose bytes somebody who has rested may move at once.
BURST_SECONDS = 0.01
#: The longest that one move keeps the next waiting for the share of time, seconds: whoever waits for an answer must
#: not take a slow neighbour for a dead one.
REST_SECONDS = 1.0


class MovePace:
    """Keeps moves to a rate, and what they cost to a share of the time; either may be unlimited.

    The rate is a token bucket with room for `BURST_SECONDS`: a move may begin when all before it have passed at the
    rate, however large it is itself. The bucket is kept as that time: one number, no refill to round. After a move that
    cost s seconds the share has the next one wait until s is that share of the time since it began.

    Not thread-safe; `now` is of one monotonic clock, in seconds.
    """

    def __init__(self, bytes_per_second: float | None, share: float | None = None) -> None:
        """None: as fast as it goes. Raises ValueError for a rate that is not positive."""
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise ValueError(f"a rate is above zero, not {bytes_per_second}")
        self.bytes_per_second = bytes_per_second
        self._share = share
        self._passed_at = self._rested_at = -math.inf
        self._cost = 0.0  # of the last move, seconds

    @property
    def share(self) -> float | None:
        """The part of the time that moves may cost, above 0 to 1; None: all of it."""
        return self._share

    @share.setter
    def share(self, share: float | None) -> None:
        if share is None:
            self._rested_at = -math.inf
        self._share = share

    def wait(self, now: float) -> float:
        """Seconds until the next move may begin; 0: now."""
        return max(0.0, self._passed_at - now, self._rested_at - now)

    def seconds(self, moves: int, nbytes: int, now: float) -> float:
        """Until the last of so many moves of `nbytes` each may begin, if each costs what the last one did."""
        rate = 0.0 if self.bytes_per_second is None else nbytes / self.bytes_per_second
        rest = 0.0 if self._share is None else min(self._cost / self._share, self._cost + REST_SECONDS)
        return self.wait(now) + (moves - 1) * max(rate, rest)

    def take(self, nbytes: int, now: float) -> None:
        """So many bytes are moved now, whether or not that was their time."""
        if self.bytes_per_second is not None:
            self._passed_at = max(self._passed_at, now - BURST_SECONDS) + nbytes / self.bytes_per_second

    def spent(self, seconds: float, now: float, moves: int = 1) -> None:
        """A move that cost so much has ended, or so many at once."""
        self._cost = seconds / moves
        if self._share is not None:
            self._rested_at = now + min(seconds / self._share - seconds, REST_SECONDS)
