"""The largest value of the last seconds, kept incrementally."""

from __future__ import annotations

from collections import deque


class WindowMaximum:
    """The largest value observed within the last `seconds`; amortised O(1) for each observation and each look.

    Kept are only values that can still become the largest: each is followed by smaller ones. Not thread-safe. Times
    are seconds of one clock and never go back.
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(f"a window lasts longer than {seconds} s")
        self.seconds = seconds
        self._candidates: deque[tuple[float, int]] = deque()

    def observe(self, value: int, now: float) -> None:
        while self._candidates and self._candidates[-1][1] <= value:
            self._candidates.pop()
        self._candidates.append((now, value))

    def maximum(self, now: float) -> int:
        """0 where nothing was observed within the window. A value leaves it exactly `seconds` after its observation."""
        while self._candidates and self._candidates[0][0] <= now - self.seconds:
            self._candidates.popleft()
        return self._candidates[0][1] if self._candidates else 0
