"""A page that the tiers hold: its copies, and its place among the pages before and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.errors import NotHeldError
from ..base.page import ROOT_KEY, PageRecord
from ..base.slot_map import SlotState

#: The number of host memory among the tiers of a page table: every page enters there, and every other tier is written
#: from there. The others follow in the order in which a page that several have is read.
HOST = 0


class Copy:
    """The bytes of a page in one tier: whole, or on their way there.

    none -> begun -> whole -> none. `place` is the tier's own: a host slot, a slot of a lease, slots of devices.
    """

    __slots__ = ("digest", "flushes", "landing_digest", "place", "whole")

    def __init__(self, place: Any, digest: bytes | None, flushes: int, *, whole: bool = False) -> None:
        self.place = place
        self.digest = digest  # checksum of the bytes; None: not known yet
        self.flushes = flushes  # `PageTable.flushes` when it was begun
        self.whole = whole
        self.landing_digest: bytes | None = None  # of the bytes, as landing memory computes it; None: not learnt


class Page:
    """One page of one namespace, wherever its copies are. Changed only by `PageTable`."""

    __slots__ = (
        "behind",
        "children",
        "copies",
        "counted_as",
        "depth",
        "dropped",
        "found_at",
        "held",
        "held_children",
        "keep",
        "kept_children",
        "key",
        "landing",
        "last_use",
        "length",
        "namespace",
        "parent",
        "pins",
        "reach",
        "recovered",
        "uses",
    )

    def __init__(self, record: PageRecord, parent: Page | None, tiers: int) -> None:
        """`tiers`: of the table that it is entered into."""
        self.key = record.key
        self.namespace = record.namespace
        # What a record says might be wrong; where the page hangs in the table is not.
        self.depth: int = parent.depth + 1 if parent is not None else 1
        self.length = record.length
        self.parent = parent  # None: the first page of a sequence
        self.children: dict[Page, None] = {}  # in the order they came in, which no address decides
        self.copies: list[Copy | None] = [None] * tiers  # by the tier's number
        self.behind: list[int] | None = None  # children with a whole copy in each durable tier; None: never any
        self.reach = self.depth  # pages of the longest sequence that it was used in, as far as known
        self.recovered = False  # from the devices, at the start
        self.landing = -1  # place in landing memory, see `PageTable.land`; -1: none
        self.pins = 0  # requests that are about to read it, and writes from it
        self.keep = False  # an operator pinned it; see `OperatorPins`
        self.kept_children = 0  # children that are kept
        self.held = False  # it, or a page behind it, is in host memory or pinned; see `PageTable._note_held`
        self.held_children = 0  # children that are held
        self.last_use = 0
        self.uses = 0
        self.found_at = 0  # see `Leaving.hides`
        self.dropped = False  # no longer in the table; its host slot goes with the last pin
        self.counted_as = 0  # see `Directory`

    @property
    def record(self) -> PageRecord:
        parent = self.parent.key if self.parent is not None else ROOT_KEY
        return PageRecord(self.key, parent, self.namespace, self.depth, self.length)

    @property
    def kept(self) -> bool:
        """Whether an operator pinned it or a page behind it."""
        return self.keep or self.kept_children > 0

    @property
    def pinned(self) -> bool:
        """Whether it may not be evicted, for a request's sake or an operator's."""
        return self.pins > 0 or self.keep or self.kept_children > 0

    def whole_in(self, tier: int) -> bool:
        """Whether this tier has a whole copy."""
        copy = self.copies[tier]
        return copy is not None and copy.whole

    def has_behind(self, tier: int) -> bool:
        """Whether a page that follows it has a whole copy in this tier."""
        return self.behind is not None and self.behind[tier] > 0

    @property
    def resident(self) -> bool:
        """Whether it is in host memory."""
        copy = self.copies[HOST]
        return copy is not None and copy.whole

    @property
    def in_host(self) -> bool:
        """Whether it has a slot of host memory: it is there, or on its way."""
        return self.copies[HOST] is not None

    @property
    def slot(self) -> int:
        """Its slot of host memory. Raises NotHeldError where it has none."""
        copy = self.copies[HOST]
        if copy is None:
            raise NotHeldError(f"page {self.key.hex()} has no slot of host memory")
        place: int = copy.place
        return place

    @property
    def digest(self) -> bytes | None:
        """The checksum of what is in host memory; None where that is not known."""
        copy = self.copies[HOST]
        return None if copy is None else copy.digest

    def learn_digest(self, digest: bytes) -> None:
        """The checksum of what is in host memory has been computed."""
        copy = self.copies[HOST]
        if copy is not None:
            copy.digest = digest

    @property
    def complete(self) -> bool:
        """Whether there is a whole copy somewhere: what is only on its way in does not exist for anybody."""
        return any(copy is not None and copy.whole for copy in self.copies)

    @property
    def saved(self) -> bool:
        """Whether a copy is left when the one in host memory goes."""
        return self.elsewhere(HOST)

    def elsewhere(self, tier: int) -> bool:
        """Whether another tier than this one has a whole copy."""
        return any(copy is not None and copy.whole and other != tier for other, copy in enumerate(self.copies))


class Places:
    """Where pages lie that are to be copied to the device: slots of host memory, or, numbered from where those end, of
    landing memory. There is none for a page that is held in neither."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: np.ndarray) -> None:
        """`numbers`: int64 [pages]. Raises NotHeldError if one of them is no place."""
        if len(numbers) and numbers.min() < 0:
            raise NotHeldError(
                f"{int((numbers < 0).sum())} of {len(numbers)} pages are neither in host memory nor landed"
            )
        self.numbers = numbers

    @classmethod
    def of_pages(cls, pages: Sequence[Page]) -> Places:
        """Those of pages that are pinned. Raises NotHeldError if one of them is held in neither."""
        places = (copy.place if (copy := page.copies[HOST]) and copy.whole else page.landing for page in pages)
        return cls(np.fromiter(places, dtype=np.int64, count=len(pages)))

    @classmethod
    def none(cls) -> Places:
        """Of no page."""
        return cls(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.numbers)


def host_slot_state(page: Page) -> SlotState:
    """What its host slot, which it has, is used for."""
    if not page.resident:
        return SlotState.LOADING
    return SlotState.PINNED if page.pins or page.keep or page.kept_children else SlotState.CACHED
