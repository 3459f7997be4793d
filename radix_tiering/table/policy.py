"""Policies: which pages leave first, and which are worth an SSD's write. One small class each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..base.config import PolicyConfig


class PageUse(Protocol):
    """What a policy may look at."""

    depth: int  # position in its sequence, in pages, from 1
    last_use: int  # logical time of the last request that used it; equal for all pages of one request
    uses: int  # requests that used it, the one that wrote it included
    reach: int  # pages of the longest sequence that it was used in

    def whole_in(self, tier: int) -> bool:
        """Whether the tier of this number has a whole copy."""
        ...


class EvictionPolicy(Protocol):
    """Orders pages for eviction."""

    name: str

    def rank(self, page: PageUse) -> tuple[int, ...]:
        """The page of the lowest rank leaves first. Must not change unless the page is used, or where it is changes."""
        ...

    def gives_way(self, victim: PageUse, newcomer: PageUse) -> bool:
        """Whether `victim`, which leaves first, leaves for `newcomer`."""
        ...


class LeastRecentlyUsed:
    """The longest unused page first; among equals the one with the longest prefix.

    The tie-break matters: all pages of a request have the same time of last use, and the end of a sequence is worth
    the least, since fewer requests share it and nothing behind it depends on it.
    """

    name = "lru"

    def rank(self, page: PageUse) -> tuple[int, ...]:
        return (page.last_use, -page.depth)

    def gives_way(self, victim: PageUse, newcomer: PageUse) -> bool:
        """Not one that is as recent: a sequence longer than the tier must not evict its own beginning."""
        return victim.last_use < newcomer.last_use


class LeastFrequentlyUsed(LeastRecentlyUsed):
    """The least often used page first, then as `LeastRecentlyUsed`."""

    name = "lfu"

    def rank(self, page: PageUse) -> tuple[int, ...]:
        return (page.uses, page.last_use, -page.depth)


class HostOrder:
    """Host memory's: what a tier has that is as near leaves first; then as the `inner` policy says."""

    def __init__(self, inner: EvictionPolicy, near: Sequence[int]) -> None:
        """`near`: numbers of tiers; see `Keeper.near`."""
        self._inner = inner
        self._near = near
        self.name = inner.name

    def rank(self, page: PageUse) -> tuple[int, ...]:
        return (not any(page.whole_in(tier) for tier in self._near), *self._inner.rank(page))

    def gives_way(self, victim: PageUse, newcomer: PageUse) -> bool:
        return self._inner.gives_way(victim, newcomer)


class PeerOrder:
    """Which pages are worth a place in another server's memory: hot ones, of long prefixes, lately used.

    A page counts as if it had been used later than it was: by so many requests if it was used again at all, and by
    some for each doubling of the sequence it belongs to, since recomputing a long one costs more than in proportion.
    The sum, unlike an order of the three, lets every page grow old.
    """

    name = "peer"
    #: In requests.
    REUSED, DOUBLED = 64, 8

    def rank(self, page: PageUse) -> tuple[int, ...]:
        worth = self.DOUBLED * page.reach.bit_length() + (self.REUSED if page.uses > 1 else 0)
        return (page.last_use + worth, -page.depth)

    def gives_way(self, victim: PageUse, newcomer: PageUse) -> bool:
        return self.rank(victim) < self.rank(newcomer)


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
    return LeastFrequentlyUsed() if config.eviction == "lfu" else LeastRecentlyUsed()


def admission_policy(config: PolicyConfig, tokens_per_page: int) -> AdmissionPolicy:
    if config.ssd_admission == "reuse":
        return AdmitOnReuse(config.admission_uses)
    if config.ssd_admission == "size":
        return AdmitLongPrefixes(-(-config.admission_tokens // tokens_per_page))
    return AdmitAlways()
