"""Which copy of a page is read, where a donor has one and ssd another.

Mostly the donor's, but not while that donor lets its memory be read so slowly that ssd is sooner done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ..table.held_page import Page
from ..tiers.peer_memory import PeerMemory
from .promotion import Source


class NearestCopy:
    """For the pages of one restore, one after the other: what it has chosen for them counts for the next. So a donor
    with a pace and ssd are both kept busy, each with as many pages as it can bring meanwhile.

    Decided by what the donor allows just now, not by what reads took: a donor that has become idle is asked again at
    once. Used under the page table's lock.
    """

    def __init__(self, peer: PeerMemory | None, ssd_seconds: Callable[[], float | None], ssd_under_way: int) -> None:
        """`ssd_seconds()`: of one page, None where that is not known; `ssd_under_way`: pages that ssd is to bring
        first."""
        self._peer = peer
        self._ssd_seconds = ssd_seconds
        self._on_ssd = ssd_under_way
        self._of_donors: Counter[str] = Counter()

    def choose(self, page: Page) -> Source:
        """For a page with a copy at a donor, on ssd, or both."""
        source = self._sooner(page)
        if source is Source.SSD:
            self._on_ssd += 1
        elif page.peer is not None:
            self._of_donors[page.peer.place.key.donor] += 1
        return source

    def _sooner(self, page: Page) -> Source:
        if page.peer is None or self._peer is None:
            return Source.SSD
        each = self._ssd_seconds()
        if page.stored is None or each is None:
            return Source.PEER
        donor = page.peer.place.key.donor
        paced = self._peer.paced_seconds(donor, self._of_donors[donor] + 1)
        return Source.SSD if paced > (self._on_ssd + 1) * each else Source.PEER
