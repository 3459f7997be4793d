"""What readers of the bus ask of SGLang's scheduler, done on its thread in short steps, and not often."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

#: What one step may take, seconds; one piece of work more at most.
STEP_SECONDS = 0.002
#: After a step the thread is left alone for so many times as long as the step took, and at least so long, seconds.
REST_TIMES, REST_SECONDS = 30, 0.02
#: Errands that wait at a time.
MOST_ERRANDS = 128


class Errand:
    """Something to be done. `work` is done piece by piece; it says what has come out of it by itself."""

    def __init__(self, work: Callable[[], Iterator[None]]) -> None:
        """`work()` runs on the scheduler's thread, and may be interrupted for any time at every `yield`."""
        self.work = work
        self.ended = False
        self.failed = False
        self.dropped = False  # nobody waits for it any more; set by who submitted it


class Errands:
    """`submit` for any thread, `tick` for the scheduler's."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of the scheduler's thread
        self.turn = 0.0  # seconds from one turn of its loop to the next, the last time
        self._ticked = time.monotonic()
        self._waiting: deque[Errand] = deque()
        self._under_way: tuple[Errand, Iterator[None]] | None = None
        self._next = 0.0

    def submit(self, errand: Errand) -> bool:
        """Have it done soon; False if too many wait."""
        if len(self._waiting) >= MOST_ERRANDS:
            return False
        self._waiting.append(errand)
        return True

    def tick(self) -> None:
        """Once in each turn of the scheduler's loop: at most one step. Raises nothing."""
        started = time.monotonic()
        self.turn, self._ticked = started - self._ticked, started
        if not self._waiting and self._under_way is None:
            return
        if started < self._next:
            return
        self._step(started + STEP_SECONDS)
        spent = time.monotonic() - started
        self.seconds += spent
        self._next = started + spent + max(REST_SECONDS, REST_TIMES * spent)

    def _step(self, limit: float) -> None:
        while time.monotonic() < limit:
            if self._under_way is None:
                if not self._waiting:
                    return
                errand = self._waiting.popleft()
                if errand.dropped:
                    continue
                self._under_way = errand, errand.work()
            errand, work = self._under_way
            try:
                if not errand.dropped:
                    next(work)
                    continue
            except StopIteration:
                pass
            except Exception:
                logger.exception("swift-tiers: a question from the bus cannot be answered")
                errand.failed = True
            errand.ended = True
            self._under_way = None
