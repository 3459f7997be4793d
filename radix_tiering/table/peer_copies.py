"""Copies of pages in memory that other servers lend: which, under which lease, and which of them leave first.

The part of the page table that belongs to the peer tier; see there for the rules. States of such a copy:
none -> sharing -> shared -> none. It ends when its page leaves, when a better page needs its place, or when its lease
is recalled or has ended; a page that has no other copy then leaves with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..figures.counters import TierCounters
from ..lending.leases import LeaseKey
from ..tiers.peer_memory import PeerPlace
from .eviction import EvictionQueue
from .held_page import HostState, Page, PeerCopy
from .policy import PeerOrder

if TYPE_CHECKING:
    from .page_table import PageTable


class PeerCopies:
    """Used under the page table's lock."""

    def __init__(self, table: PageTable, counters: TierCounters, release: Callable[[PeerPlace], None]) -> None:
        """`release` gives a place back."""
        self._table = table
        self._counters = counters
        self._release = release
        self._queue = EvictionQueue(PeerOrder(), self._may_leave)
        self._by_lease: dict[LeaseKey, dict[Page, int]] = {}  # the slot of each
        self.pages = 0

    def begin_sharing(self, page: Page) -> None:
        """A copy of `page` is being made; pinned until `end_sharing`."""
        page.sharing = True
        self._table.pin(page)

    def end_sharing(self, page: Page, copy: PeerCopy, *, made: bool) -> bool:
        """The copy is there, or not. Takes back `begin_sharing`'s pin. False if it is not kept; its place is free."""
        page.sharing = False
        kept = made and not page.dropped
        if kept:
            page.peer = copy
            self.pages += 1
            self._by_lease.setdefault(copy.place.key, {})[page] = copy.place.slot
            self._table.copies_changed(page)
            self._counters.bytes_written += page.length
        else:
            self._release(copy.place)
        self._table.unpin(page)
        return kept

    def end(self, page: Page) -> None:
        """Give up the copy of `page`, which leaves with its descendants if there is no other."""
        if page.peer is None:
            return
        self.forget(page)
        if page.host is HostState.NONE and page.stored is None:
            self._table.drop(page)
        elif not page.dropped:
            self._table.copies_changed(page)

    def forget(self, page: Page) -> None:
        """Give up the copy of a page that is leaving the table."""
        if page.peer is None:
            return
        key = page.peer.place.key
        self._release(page.peer.place)
        page.peer = None
        self.pages -= 1
        pages = self._by_lease[key]
        del pages[page]
        if not pages:
            del self._by_lease[key]
        self._queue.remove(page)

    def under(self, key: LeaseKey) -> list[Page]:
        """The pages with a copy under a lease."""
        return list(self._by_lease.get(key, ()))

    def all_pages(self) -> list[Page]:
        """The pages with a copy under any lease. Any thread."""
        return [page for pages in list(self._by_lease.values()) for page in list(pages)]

    def slots(self) -> dict[LeaseKey, list[int]]:
        """The slots that hold a page, of each lease with any."""
        return {key: list(pages.values()) for key, pages in self._by_lease.items()}

    def make_room_for(self, page: Page) -> bool:
        """Give up the copy that is worth least, if it is worth less than one of `page` would be."""
        victim = self._queue.peek()
        if victim is None or self._queue.policy.rank(victim) >= self._queue.policy.rank(page):
            return False
        self._counters.evictions += 1
        self._queue.remove(victim)
        self.end(victim)
        return True

    def reconsider(self, page: Page) -> None:
        """Put `page` at its place in the queue."""
        if page.peer is None:
            return
        if self._may_leave(page):
            self._queue.push(page)
        else:
            self._queue.remove(page)

    def pause(self, page: Page) -> None:
        """`page` may not leave for now."""
        if page.peer is not None:
            self._queue.remove(page)

    @staticmethod
    def _may_leave(page: Page) -> bool:
        if page.pins or page.peer is None or page.keep or page.kept_children or page.dropped:
            return False
        return page.stored is not None or page.host is HostState.RESIDENT or not page.children

    def check(self) -> None:
        """Assert that the book is right, by looking at every page."""
        shared = {page for page in self._table.all_pages() if page.peer is not None}
        booked = [(key, page) for key, pages in self._by_lease.items() for page in pages]
        assert len(booked) == len(shared) == self.pages
        for key, page in booked:
            assert page in shared
            assert page.peer is not None
            assert page.peer.place == (key, self._by_lease[key][page])
        places = [page.peer.place for page in shared if page.peer is not None]
        assert len(set(places)) == len(places), "two pages in one lent place"
