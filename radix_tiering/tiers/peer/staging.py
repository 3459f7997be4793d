"""A little memory of this process that donors may read: pages wait there to be stored."""

from __future__ import annotations

import numpy as np

from ...lending.donation.arena import SharedArena

#: Memory for pages on their way, if they are not too large or too small for it: bytes, and pages.
STAGING_BYTES = 32 * 2**20
_FEWEST_PAGES, _MOST_PAGES = 4, 64


class Staging:
    """Slots of one page. One thread."""

    def __init__(self, page_bytes: int) -> None:
        """Raises ArenaError where the machine has not got the memory."""
        self.slots = min(max(STAGING_BYTES // page_bytes, _FEWEST_PAGES), _MOST_PAGES)
        self.arena = SharedArena(self.slots * page_bytes, "swift-tiers-staging")
        self._page_bytes = page_bytes
        self._free = list(range(self.slots))

    @property
    def room(self) -> int:
        """Slots that are free."""
        return len(self._free)

    def put(self, page: np.ndarray) -> int:
        """Copy a page, uint8 [page_bytes], to a free slot; where it lies, in bytes from the arena's start."""
        at = self._free[-1] * self._page_bytes
        np.copyto(self.arena.array[at : at + self._page_bytes], page)
        self._free.pop()
        return at

    def give_back(self, at: int) -> None:
        """The page that was put there may be overwritten.

        So may one that a donor has not answered for: should it read another page's bytes by then, it stores them under
        a lease that is over, or in an arena that is not used any more.
        """
        self._free.append(at // self._page_bytes)

    def close(self) -> None:
        """Idempotent."""
        self.arena.close()
