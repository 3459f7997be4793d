"""The summary of the directory: how many pages are known below the device, where, and how deep.

Kept with every change of the page table, so that reading it costs nothing however many pages there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..figures.counters import DirectorySnapshot
from .held_page import HostState, Page

#: As what a page is counted, in bits: its whole copies, and whether it is pinned.
_HOST, _SSD, _PEER, _PINNED = 1, 2, 4, 8
_KINDS = 16


class Directory:
    """Not thread-safe: used under the page table's lock, by which every page passes through here."""

    def __init__(self) -> None:
        self.pages = 0
        self._first = 0
        self._at_depth: list[int] = []  # pages by depth, from 1; the last number is not 0
        self._counts = [0] * _KINDS  # by what the pages are counted as

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
        kind = _count_as(page)
        if kind != page.counted_as and not page.dropped:
            self._counts[page.counted_as] -= 1
            self._counts[kind] += 1
            page.counted_as = kind

    @property
    def pinned_on_ssd(self) -> int:
        """Pinned pages with a copy on ssd."""
        return _with(self._counts, _SSD + _PINNED)

    @property
    def pinned_at_peers(self) -> int:
        """Pinned pages with a copy in lent memory."""
        return _with(self._counts, _PEER + _PINNED)

    @property
    def pinned_elsewhere(self) -> int:
        """Pinned pages with a copy, but none in host memory."""
        return sum(self._counts[kind + _PINNED] for kind in (_SSD, _PEER, _SSD + _PEER))

    def snapshot(self, own_pages: int) -> DirectorySnapshot:
        """`own_pages`: pages in the table that are of this server's namespace."""
        return _summary(self.pages, self._counts, len(self._at_depth), self._first, own_pages)

    def check(self, pages: Iterable[Page]) -> None:
        """Assert that all of this is true of a table with these pages, by looking at every one."""
        held = list(pages)
        assert all(page.counted_as == _count_as(page) for page in held)
        counts = [sum(page.counted_as == kind for page in held) for kind in range(_KINDS)]
        assert counts == self._counts
        deepest = max((page.depth for page in held), default=0)
        first = sum(page.parent is None for page in held)
        assert self.snapshot(0) == _summary(len(held), counts, deepest, first, 0)


def _count_as(page: Page) -> int:
    # Spelt out: this runs several times for every page that moves.
    kind = _HOST if page.host is HostState.RESIDENT else 0
    if page.stored is not None:
        kind += _SSD
    if page.peer is not None:
        kind += _PEER
    return kind + _PINNED if page.pins or page.keep or page.kept_children else kind


def _with(counts: list[int], bits: int) -> int:
    return sum(count for kind, count in enumerate(counts) if kind & bits == bits)


def _summary(pages: int, counts: list[int], deepest: int, first: int, own_pages: int) -> DirectorySnapshot:
    alone = {kind: counts[kind] + counts[kind + _PINNED] for kind in (0, _HOST, _SSD, _PEER)}
    return DirectorySnapshot(
        pages=pages,
        host_only_pages=alone[_HOST],
        ssd_only_pages=alone[_SSD],
        peer_only_pages=alone[_PEER],
        both_pages=sum(counts) - sum(alone.values()),
        deepest_pages=deepest,
        first_pages=first,
        foreign_pages=pages - own_pages,
    )
