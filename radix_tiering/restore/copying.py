"""What copying a page from host memory to the device takes now, by the copies that are counted."""

from __future__ import annotations

import math

from ..figures.counters import LinkCounters
from .live import Correction

#: Pages that have been copied before that is taken to say what copying one takes; so many more weigh as much as all
#: before them.
PAGES_TIMED = 256


class TimedLink(LinkCounters, counts=True):
    """The way from host memory to the device. Counted by one thread; any may ask what a page takes.

    The first copies say it by the quickest of them: nothing makes a copy quicker than copies are. Then each corrects
    what was believed before, within the bounds of a `Correction`: after one in which everything stood still a page is
    believed to take twice as long at most. What is not known exactly says nothing.
    """

    page_seconds: float = math.inf  # by the copies that were timed
    pages_timed: int = 0

    def count(self, pages: int, nbytes: int, seconds: float, *, exact: bool = True) -> None:
        super().count(pages, nbytes, seconds)
        if not exact or pages <= 0 or seconds <= 0:
            return
        if self.pages_timed < PAGES_TIMED:
            self.page_seconds = min(self.page_seconds, seconds / pages)
        else:
            # A few pages say little: what is the same for each copy is most of what theirs takes.
            correction = Correction(1 - 0.5 ** min(1.0, pages / PAGES_TIMED))
            correction.observe(self.page_seconds, seconds / pages)
            self.page_seconds *= correction.factor
        self.pages_timed += pages

    def copying(self) -> float | None:
        """What a page takes, seconds; None: too few have been copied."""
        return self.page_seconds if self.pages_timed >= PAGES_TIMED else None
