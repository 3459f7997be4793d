"""What each forward took, by when SGLang launched it and when it looked at its result.

With the overlap schedule the next batch is launched before the result of the one ahead of it is looked at. On an
accelerator that costs nothing: a launch returns at once, and the wait for a result ends when its forward does. On the
CPU a launch *is* the forward, so that a result is looked at only when the next forward has ended as well. To count that
forward for the first of both would make chunks look dear, and what follows them free.
"""

from __future__ import annotations

from typing import NamedTuple


class Took(NamedTuple):
    """One forward."""

    seconds: float
    ended: float
    alone: bool  # it waited for nothing, and computed all of its tokens


class ForwardTimes:
    """For the scheduler's thread. Times are of `time.monotonic`, seconds, as SGLang's `launch_ts`."""

    def __init__(self, *, blocking: bool) -> None:
        """`blocking`: a launch returns when its forward has ended, as on the CPU."""
        self._blocking = blocking
        self._round = 0.0
        self._spoilt: list[float] = []  # rounds whose forwards are not alone, and have not been looked at
        self._ended = 0.0

    def round_began(self, now: float) -> None:
        """A scheduling round begins; what the one before it has launched is launched."""
        self._round = now

    def not_alone(self) -> None:
        """What this round launches waits for pages that are being copied, or for another reason does not take what
        computing its tokens takes."""
        self._spoilt.append(self._round)

    def result(self, launched: float | None, now: float) -> Took | None:
        """SGLang looks at the result of a batch that was launched at `launched`; None if that is not known. Batches
        come in the order in which they were launched, one a round."""
        previous, self._ended = self._ended, now
        if launched is None:
            return None
        alone = all(launched < began for began in self._spoilt)
        self._spoilt = [began for began in self._spoilt if launched < began]
        if self._blocking and launched < self._round:
            self._ended = min(now, self._round)
        # On an accelerator it begins when the one ahead of it has ended.
        return Took(self._ended - max(launched, previous), self._ended, alone)
