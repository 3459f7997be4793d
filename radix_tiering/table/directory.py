"""The summary of the directory: how many pages are known below the device, where, and how deep.

Kept with every change of the page table, so that reading it costs nothing however many pages there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..figures.counters import DirectorySnapshot
from .held_page import HOST, Page


class Directory:
    """Not thread-safe: used under the page table's lock, by which every page passes through here."""

    def __init__(self, tiers: int) -> None:
        """`tiers`: how many there are."""
        self._tiers = tiers
        #: As what a page is counted, in bits: its whole copies, by the tier's number, and whether it is pinned.
        self._pinned = 1 << tiers
        self.pages = 0
        self._first = 0
        self._at_depth: list[int] = []  # pages by depth, from 1; the last number is not 0
        self._counts = [0] * (2 * self._pinned)  # by what the pages are counted as

    def enter(self, page: Page) -> None:
        """`page` is in the table now. Its parent is."""
        self.pages += 1
        self._counts[0] += 1
        self._first += page.parent is None
        if page.depth > len(self._at_depth):
            self._at_depth.append(0)
        self._at_depth[page.depth - 1] += 1

    def leave(self, page: Page) -> None:
        """`page` is in the table no more, and nothing behind it is."""
        self._counts[page.counted_as] -= 1
        self.pages -= 1
        self._first -= page.parent is None
        self._at_depth[page.depth - 1] -= 1
        while self._at_depth and not self._at_depth[-1]:
            self._at_depth.pop()

    def changed(self, page: Page) -> None:
        """`page` has gained or lost a whole copy or its last pin; once it has left, nothing counts."""
        kind = self._count_as(page)
        if kind != page.counted_as and not page.dropped:
            self._counts[page.counted_as] -= 1
            self._counts[kind] += 1
            page.counted_as = kind

    def pinned(self, tier: int) -> int:
        """Pinned pages with a whole copy in this tier."""
        bits = self._pinned + (1 << tier)
        return sum(count for kind, count in enumerate(self._counts) if kind & bits == bits)

    def only(self, tier: int) -> int:
        """Pages with a whole copy in this tier alone."""
        kind = 1 << tier
        return self._counts[kind] + self._counts[self._pinned + kind]

    @property
    def pinned_elsewhere(self) -> int:
        """Pinned pages with a whole copy, but none in host memory."""
        host = 1 << HOST
        return sum(self._counts[self._pinned + kind] for kind in range(2, self._pinned) if not kind & host)

    def snapshot(self, own_pages: int) -> DirectorySnapshot:
        """`own_pages`: pages in the table that are of this server's namespace."""
        return self._summary(self.pages, self._counts, len(self._at_depth), self._first, own_pages)

    def check(self, pages: Iterable[Page]) -> None:
        """Assert that all of this is true of a table with these pages, by looking at every one."""
        held = list(pages)
        assert all(page.counted_as == self._count_as(page) for page in held)
        counts = [sum(page.counted_as == kind for page in held) for kind in range(len(self._counts))]
        assert counts == self._counts
        deepest = max((page.depth for page in held), default=0)
        first = sum(page.parent is None for page in held)
        assert self.snapshot(0) == self._summary(len(held), counts, deepest, first, 0)

    def _count_as(self, page: Page) -> int:
        # Spelt out: this runs several times for every page that moves.
        kind, bit = 0, 1
        for copy in page.copies:
            if copy is not None and copy.whole:
                kind += bit
            bit += bit
        return kind + bit if page.pins or page.keep or page.kept_children else kind

    def _summary(self, pages: int, counts: list[int], deepest: int, first: int, own_pages: int) -> DirectorySnapshot:
        return DirectorySnapshot(
            pages=pages,
            both_pages=sum(counts[kind] for kind in range(2 * self._pinned) if (kind % self._pinned).bit_count() > 1),
            deepest_pages=deepest,
            first_pages=first,
            foreign_pages=pages - own_pages,
        )
