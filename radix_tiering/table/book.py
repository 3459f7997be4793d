"""What pages of a page table are read from: the rows, and what the tiers know of their copies."""

from __future__ import annotations

from collections.abc import Sequence

from .rows import PageRows
from .tier_copies import TierCopies


class Book:
    """Changed by the page table alone, under its lock."""

    def __init__(self, rows: PageRows, of: Sequence[TierCopies]) -> None:
        """`of`: what each tier has, by its number."""
        self.rows = rows
        self.of = of
        #: The namespaces that pages are found in, by the row of their root, and the other way round.
        self.digests: dict[int, bytes] = {}
        self.roots: dict[bytes, int] = {}
        #: Places in landing memory, by the row of the page that lies there.
        self.landed: dict[int, int] = {}

    def __hash__(self) -> int:
        """The same in every process, as that of pages is to be: what is in a set has an order then."""
        return 0
