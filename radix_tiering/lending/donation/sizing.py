"""How many pages a donor keeps (SwiftCache, section 3.5, Algorithm 1), and when it changes that.

`missing_pages` and `spare_pages` are the paper's scale-up and scale-down, for all borrowers together. `ElasticSizer`
calls them: it watches the demand of its own server, keeps to bounds, and does not follow every wave.

Demand is in tokens, all that must fit at one time: the paper takes the longest single request; a server that runs
several at once has to hold them together, so here it is what running and waiting requests need. The paper counts
requests alone, so that a worker gives its cached prefixes away; here what is kept of them counts, too.
"""

from __future__ import annotations

from collections import deque

# ---- the largest value of the last seconds, kept incrementally ----


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


#: Seconds over which the largest demand counts (the paper's t).
WINDOW_SECONDS = 60.0


def pages_for(tokens: int, page_tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // page_tokens)


def missing_pages(pages: int, page_tokens: int, unit_pages: int, tokens: int) -> int:
    """Pages that a donor which has `pages` lacks to hold `tokens`, in whole units of `unit_pages`, rounded up
    (Algorithm 1, lines 10-19)."""
    missing = max(0, pages_for(tokens, page_tokens) - pages)
    return -(-missing // unit_pages) * unit_pages


def spare_pages(pages: int, page_tokens: int, unit_pages: int, tokens: int) -> int:
    """Pages that a donor which has `pages` does not need to hold `tokens`, in whole units of `unit_pages` (lines
    21-31)."""
    return max(0, pages - pages_for(tokens, page_tokens)) // unit_pages * unit_pages


class ElasticSizer:
    """Decides how many pages a donor lends. Pure: it is told the time and what is needed, and says what to change.

    *Bounds.* It never lends more than `most_lent` pages. Up to `least_lent` it lends whatever requests do not need
    right now, cached prefixes or not; beyond, what requests have not needed for a whole window, and what is not kept.
    *Hysteresis.* It takes back at once, and gives only what is worth it: at least `step_units` units. `reserve` of what
    the window needed stays on top, so that an ordinary wave takes nothing back. After something was taken back nothing
    is given before a window has passed.

    `unit_pages`, the smallest amount that changes hands, may be set at any time: it depends on who borrows.

    Not thread-safe; used on the scheduler's thread.
    """

    def __init__(
        self,
        total_pages: int,
        page_tokens: int,
        unit_pages: int = 1,
        *,
        least_lent: int = 0,
        most_lent: int | None = None,
        window_seconds: float = WINDOW_SECONDS,
        reserve: float = 0.1,
        step_units: int = 1,
    ) -> None:
        """`total_pages`: of the donor's whole pool. Raises ValueError for bounds that contradict each other."""
        most_lent = total_pages if most_lent is None else most_lent
        if not 0 <= least_lent <= most_lent <= total_pages:
            raise ValueError(f"0 <= {least_lent} <= {most_lent} <= {total_pages} pages does not hold")
        if reserve < 0 or step_units < 1 or unit_pages < 1:
            raise ValueError("reserve must not be negative, step_units and unit_pages at least 1")
        self.total_pages = total_pages
        self.page_tokens = page_tokens
        self.unit_pages = unit_pages
        self.least_lent = least_lent
        self.most_lent = most_lent
        self.lent = 0  # pages
        self._reserve = reserve
        self._step_units = step_units
        self._needed = self._kept = 0  # tokens, as last told
        self._window = WindowMaximum(window_seconds)
        self._taken_back_at: float | None = None

    @property
    def window_seconds(self) -> float:
        """Over which the largest demand counts."""
        return self._window.seconds

    def peak_tokens(self, now: float) -> int:
        """The largest demand of the window."""
        return self._window.maximum(now)

    @property
    def own_pages(self) -> int:
        """What the donor has for itself."""
        return self.total_pages - self.lent

    @property
    def promised_pages(self) -> int:
        """That may still be lent of what is kept: up to `least_lent`."""
        return max(0, min(self.least_lent, self.most_lent) - self.lent)

    def demand(self, tokens: int, now: float, kept: int = 0) -> int:
        """So many tokens must fit now, and beside them cached prefixes of `kept` tokens, which no request uses: pages
        to take back for them, in whole units, at most all that are lent.

        The caller takes them back, and says so when they are there. Asked again before that, the answer is the same.
        """
        self._needed, self._kept = tokens, kept
        self._window.observe(tokens, now)
        with_kept = min(tokens + kept, (self.total_pages - min(self.least_lent, self.most_lent)) * self.page_tokens)
        wanted = max(tokens, with_kept)
        pages = min(self.lent, missing_pages(self.own_pages, self.page_tokens, self.unit_pages, wanted))
        if pages:
            self._taken_back_at = now
        return pages

    def spare(self, now: float) -> int:
        """Pages that can be lent in addition, in whole units, looked at from time to time. The caller says what of them
        it lends."""
        if self._taken_back_at is not None and now - self._taken_back_at < self._window.seconds:
            return 0
        unit, own = self.unit_pages, self.own_pages
        needed = self._window.maximum(now)
        if self._kept:  # What a request of the window has left behind is among it, so the larger of both counts.
            needed = max(needed, self._needed + self._kept)
        own_tokens = int(needed * (1 + self._reserve))
        idle = min(spare_pages(own, self.page_tokens, unit, own_tokens), self.most_lent - self.lent)
        if self.promised_pages:
            promised = min(spare_pages(own, self.page_tokens, unit, self._needed), self.promised_pages)
            return max(idle, promised) // unit * unit
        idle = max(0, idle) // unit * unit
        return idle if idle >= self._step_units * unit else 0

    def gave(self, pages: int) -> None:
        """So many pages, in whole units, are lent now in addition. Raises ValueError if that cannot be."""
        if pages % self.unit_pages or not 0 <= pages <= self.most_lent - self.lent:
            limit = max(0, self.most_lent - self.lent)
            raise ValueError(f"{pages} pages are not 0 to {limit} in units of {self.unit_pages}")
        self.lent += pages

    def came_back(self, pages: int) -> None:
        """So many pages are the donor's again, for whatever reason. Raises ValueError if they were not lent."""
        if not 0 <= pages <= self.lent:
            raise ValueError(f"{pages} pages came back, {self.lent} were lent")
        self.lent -= pages

    def rest(self, now: float) -> None:
        """Give nothing before a window has passed, as after a demand: somebody else has wanted memory back."""
        self._taken_back_at = now
