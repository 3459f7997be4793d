"""What is said again and again: once in a while, with how often it came."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable

from .runner import THREADS

#: The same is said again after this, seconds.
AGAIN_SECONDS = 60.0
#: So many different news are remembered: with one more all are forgotten, and said again.
MOST_NEWS = 1024


class Repeats:
    """Tells news from what was said lately. Any thread; what two say at once may be said twice."""

    def __init__(self, clock: Callable[[], float] = THREADS.monotonic) -> None:
        self._clock = clock
        self._said: dict[Hashable, tuple[float, int]] = {}  # when it was said, and how often it came since

    def since(self, news: Hashable) -> int | None:
        """How often it came since it was said last; None: that was less than `AGAIN_SECONDS` ago, and it is counted."""
        now = self._clock()
        said_at, since = self._said.get(news, (now - AGAIN_SECONDS, 0))
        if now - said_at < AGAIN_SECONDS:
            self._said[news] = said_at, since + 1
            return None
        if len(self._said) >= MOST_NEWS:
            self._said.clear()
        self._said[news] = now, 0
        return since


class FaultLogger:
    """Logs errors of ours where one may come in every round."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._repeats = Repeats()

    def exception(self, text: str, *facts: object) -> None:
        """Log the exception that is being handled, unless the same was logged lately."""
        since = self._repeats.since((text, repr(sys.exc_info()[1])))
        if since is not None:
            self._logger.exception(text + more(since), *facts)


def more(since: int) -> str:
    """What is added to a line."""
    return f" ({since} more since the last line)" if since else ""
