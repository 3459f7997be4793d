"""How many pages a donor keeps (SwiftCache, section 3.5, Algorithm 1), and when it changes that.

`scale_up` and `scale_down` are the paper's functions. `ElasticSizer` is who calls them: it watches the demand of its
own server, keeps to bounds, and does not follow every wave.

Demand is in tokens, all that must fit at one time: the paper takes the longest single request; a server that runs
several at once has to hold them together, so here it is what running and waiting requests need.
"""

from __future__ import annotations

from typing import NamedTuple

from swift_tiers.radix_tiering.donation.elastic_unit import ElasticUnit
from swift_tiers.radix_tiering.donation.window import WindowMaximum

#: Seconds over which the largest demand counts (the paper's t).
WINDOW_SECONDS = 60.0


class Resize(NamedTuple):
    """Pages that change hands: so many of the donor's size, which are so many of the borrower's."""

    donor_pages: int
    borrower_pages: int


NOTHING = Resize(0, 0)


def pages_for(tokens: int, page_tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // page_tokens)


def scale_up(pages: int, page_tokens: int, unit: ElasticUnit, tokens: int) -> Resize:
    """What a donor that has `pages` takes back to hold `tokens` (Algorithm 1, lines 10-19): enough, in whole units."""
    missing = pages_for(tokens, page_tokens) - pages
    if missing <= 0:
        return NOTHING
    units = -(-missing // unit.donor_pages)
    return Resize(units * unit.donor_pages, units * unit.borrower_pages)


def scale_down(pages: int, page_tokens: int, unit: ElasticUnit, longest_tokens: int) -> Resize:
    """What a donor that has `pages` can give when the last seconds took `longest_tokens` (lines 21-31): whole units."""
    spare = pages - pages_for(longest_tokens, page_tokens)
    if spare <= 0:
        return NOTHING
    units = spare // unit.donor_pages
    return Resize(units * unit.donor_pages, units * unit.borrower_pages)


class ElasticSizer:
    """Decides how many pages a donor lends. Pure: it is told the time and what is needed, and says what to change.

    *Bounds.* It never lends more than `most_lent` pages, and lends less than `least_lent` only while its own requests
    need the memory.
    *Hysteresis.* It takes back at once, and gives only what has been spare for a whole window and is worth it: at least
    `step_units` elastic units. `reserve` of what the window needed stays on top, so that an ordinary wave takes nothing
    back. What was taken back is not given again before a window has passed.

    Not thread-safe; used on the scheduler's thread.
    """

    def __init__(
        self,
        total_pages: int,
        page_tokens: int,
        unit: ElasticUnit,
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
        if reserve < 0 or step_units < 1:
            raise ValueError("reserve must not be negative, step_units at least 1")
        self.total_pages = total_pages
        self.page_tokens = page_tokens
        self.unit = unit
        self.least_lent = least_lent
        self.most_lent = most_lent
        self.lent = 0  # pages, whole units
        self._reserve = reserve
        self._step = step_units * unit.donor_pages
        self._demand = WindowMaximum(window_seconds)
        self._taken_back_at: float | None = None

    @property
    def own_pages(self) -> int:
        """What the donor has for itself."""
        return self.total_pages - self.lent

    def demand(self, tokens: int, now: float) -> Resize:
        """So many tokens must fit now: what to take back for them. The caller takes it back, then says so.

        At most what is lent; a demand beyond the whole pool is the scheduler's to refuse.
        """
        self._demand.observe(tokens, now)
        need = scale_up(self.own_pages, self.page_tokens, self.unit, tokens)
        return self._at_most(need, self.lent)

    def spare(self, now: float) -> Resize:
        """What can be lent in addition, looked at from time to time. The caller lends it, then says so."""
        if self._taken_back_at is not None and now - self._taken_back_at < self._demand.seconds:
            return NOTHING
        kept_tokens = int(self._demand.maximum(now) * (1 + self._reserve))
        room = scale_down(self.own_pages, self.page_tokens, self.unit, kept_tokens)
        change = self._at_most(room, self.most_lent - self.lent)
        wanted = self.unit.donor_pages if self.lent < self.least_lent else self._step
        return change if change.donor_pages >= wanted else NOTHING

    def gave(self, pages: int) -> None:
        """So many pages, in whole units, are lent now in addition. Raises ValueError if that cannot be."""
        self._check(pages, self.most_lent - self.lent)
        self.lent += pages

    def took_back(self, pages: int, now: float) -> None:
        """So many pages, in whole units, are the donor's again. Raises ValueError if that cannot be."""
        self._check(pages, self.lent)
        self.lent -= pages
        self._taken_back_at = now

    def _at_most(self, change: Resize, pages: int) -> Resize:
        units = min(change.donor_pages, max(0, pages)) // self.unit.donor_pages
        return Resize(units * self.unit.donor_pages, units * self.unit.borrower_pages)

    def _check(self, pages: int, limit: int) -> None:
        if pages < 0 or pages > limit or pages % self.unit.donor_pages:
            raise ValueError(f"{pages} pages are not 0 to {limit} in units of {self.unit.donor_pages}")
