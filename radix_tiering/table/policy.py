"""Policies: which pages leave first, and which are worth an SSD's write."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ..base.config import PolicyConfig


class PageUse(Protocol):
    """What a policy may look at."""

    @property
    def depth(self) -> int:
        """Position in its sequence, in pages, from 1."""
        ...

    @property
    def last_use(self) -> int:
        """Logical time of the last request that used it; equal for all pages of one request."""
        ...

    @property
    def uses(self) -> int:
        """Requests that used it, the one that wrote it included."""
        ...

    @property
    def doublings(self) -> int:
        """How often a sequence of one page doubles, and once more, up to the longest that it was used in: the bits of
        the number of its pages."""
        ...


class EvictionPolicy(NamedTuple):
    """Who leaves first: the longest unused page, and among equals the one with the longest prefix.

    The tie-break matters: all pages of a request have the same time of last use, and the end of a sequence is worth
    the least, since fewer requests share it and nothing behind it depends on it.

    A policy is a few numbers, by which the page table's kernels rank pages. A page's rank rises with use, and never
    falls: the order of leaving is kept that way. In host memory, what a tier has that is as near leaves before all
    else.
    """

    name: str
    #: The number of uses counts before all that.
    by_uses: bool = False
    #: A page counts as if it had been used later than it was, by so many requests: if it was used again at all; and
    #: for each doubling of the sequence it belongs to, since recomputing a long one costs more than in proportion.
    reused: int = 0
    doubled: int = 0

    @property
    def by_time(self) -> bool:
        """Whether a page leaves for every one that was used later, whatever else is known of them."""
        return not self.reused and not self.doubled

    def gives_way(self, victim: PageUse, newcomer: PageUse) -> bool:
        """Whether `victim`, which leaves first, leaves for `newcomer`. Not one that is as recent: a sequence longer
        than the tier must not evict its own beginning."""
        return self._time(victim) < self._time(newcomer)

    def _time(self, page: PageUse) -> tuple[int, int]:
        worth = self.doubled * page.doublings + (self.reused if page.uses > 1 else 0)
        return page.last_use + worth, -page.depth if self.doubled else 0


LEAST_RECENTLY_USED = EvictionPolicy("lru")
LEAST_FREQUENTLY_USED = EvictionPolicy("lfu", by_uses=True)
#: Which pages are worth a place in another server's memory: hot ones, of long prefixes, lately used. The sum, unlike an
#: order of the three, lets every page grow old.
BY_WORTH = EvictionPolicy("peer", reused=64, doubled=8)


class AdmissionPolicy(Protocol):
    """Decides which pages are written to the SSD tier."""

    name: str

    def admits(self, page: PageUse) -> bool:
        """True if `page`, and with it the whole prefix before it, is worth writing now."""


class AdmitAlways:
    name = "always"

    def admits(self, page: PageUse) -> bool:
        return True


class AdmitOnReuse:
    """Pages that at least `uses` requests have used: one-off prompts never wear the devices."""

    name = "reuse"

    def __init__(self, uses: int) -> None:
        self.uses = uses

    def admits(self, page: PageUse) -> bool:
        return page.uses >= self.uses


class AdmitLongPrefixes:
    """Pages behind at least `pages` pages of prefix, themselves included: short ones are recomputed soon enough."""

    name = "size"

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def admits(self, page: PageUse) -> bool:
        return page.depth >= self.pages


def eviction_policy(config: PolicyConfig) -> EvictionPolicy:
    return LEAST_FREQUENTLY_USED if config.eviction == "lfu" else LEAST_RECENTLY_USED


def admission_policy(config: PolicyConfig, tokens_per_page: int) -> AdmissionPolicy:
    if config.ssd_admission == "reuse":
        return AdmitOnReuse(config.admission_uses)
    if config.ssd_admission == "size":
        return AdmitLongPrefixes(-(-config.admission_tokens // tokens_per_page))
    return AdmitAlways()
