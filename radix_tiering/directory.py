"""The summary of the directory: how many pages are known below the device, where, and how deep.

Kept with every change of the page table, so that reading it costs nothing however many pages there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from swift_tiers.radix_tiering.counters import DirectorySnapshot
from swift_tiers.radix_tiering.held_page import HostState, Page

#: Whole copies of a page, as bits.
_HOST, _SSD = 1, 2


class Directory:
    """Not thread-safe: used under the page table's lock, by which every page passes through here."""

    def __init__(self) -> None:
        self.pages = 0
        self._first = 0
        self._at_depth: list[int] = []  # pages by depth, from 1; the last number is not 0
        self._by_copies = [0, 0, 0, 0]

    def enter(self, page: Page) -> None:
        """`page` is in the table now. Its parent is."""
        self.pages += 1
        self._by_copies[0] += 1
        self._first += page.parent is None
        if page.depth > len(self._at_depth):
            self._at_depth.append(0)
        self._at_depth[page.depth - 1] += 1

    def leave(self, page: Page) -> None:
        """`page` is in the table no more, and nothing behind it is."""
        self._recount(page, 0)
        self._by_copies[0] -= 1
        self.pages -= 1
        self._first -= page.parent is None
        self._at_depth[page.depth - 1] -= 1
        while self._at_depth and not self._at_depth[-1]:
            self._at_depth.pop()

    def copies_changed(self, page: Page) -> None:
        """`page` has gained or lost a whole copy; once it has left, nothing counts."""
        if not page.dropped:
            self._recount(page, _copies(page))

    def snapshot(self, own_pages: int) -> DirectorySnapshot:
        """`own_pages`: pages in the table that are of this server's namespace."""
        return _summary(self.pages, self._by_copies, len(self._at_depth), self._first, own_pages)

    def _recount(self, page: Page, copies: int) -> None:
        self._by_copies[page.counted_as] -= 1
        self._by_copies[copies] += 1
        page.counted_as = copies


def recount(pages: Iterable[Page], own_pages: int) -> DirectorySnapshot:
    """What `Directory.snapshot` must say of a table with these pages, by looking at all of them."""
    held = list(pages)
    by_copies = [sum(_copies(page) == copies for page in held) for copies in range(4)]
    deepest = max((page.depth for page in held), default=0)
    return _summary(len(held), by_copies, deepest, sum(page.parent is None for page in held), own_pages)


def _copies(page: Page) -> int:
    return _HOST * (page.host is HostState.RESIDENT) + _SSD * (page.stored is not None)


def _summary(pages: int, by_copies: list[int], deepest: int, first: int, own_pages: int) -> DirectorySnapshot:
    return DirectorySnapshot(
        pages=pages,
        host_only_pages=by_copies[_HOST],
        ssd_only_pages=by_copies[_SSD],
        both_pages=by_copies[_HOST + _SSD],
        deepest_pages=deepest,
        first_pages=first,
        foreign_pages=pages - own_pages,
    )
