"""A page that the tiers hold: where its copies are, and its place among the pages before and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from ..base.errors import NotHeldError
from ..base.page import ROOT_KEY, PageRecord
from ..base.slot_map import SlotState
from ..tiers.peer_memory import PeerPlace
from ..tiers.ssd import StoredPage


class HostState(Enum):
    """Life of a page's copy in host memory."""

    NONE = auto()
    FILLING = auto()
    RESIDENT = auto()


class PeerCopy(NamedTuple):
    """A copy in memory that another server lends: where the bytes are, and how to tell that they are the page's."""

    place: PeerPlace
    digest: bytes
    flushes: int = 0  # `PageTable.flushes` when it was begun


class Page:
    """One page of one namespace, wherever its copies are. Changed only by `PageTable`."""

    __slots__ = (
        "children",
        "counted_as",
        "depth",
        "device_digest",
        "digest",
        "dropped",
        "found_at",
        "held",
        "held_children",
        "host",
        "keep",
        "kept_children",
        "key",
        "landing",
        "last_use",
        "length",
        "namespace",
        "parent",
        "peer",
        "pins",
        "reach",
        "recovered",
        "sharing",
        "slot",
        "stored",
        "stored_children",
        "uses",
        "writing",
    )

    def __init__(self, record: PageRecord, parent: Page | None) -> None:
        self.key = record.key
        self.namespace = record.namespace
        # What a record says might be wrong; where the page hangs in the table is not.
        self.depth: int = parent.depth + 1 if parent is not None else 1
        self.length = record.length
        self.parent = parent  # None: the first page of a sequence
        self.children: dict[Page, None] = {}  # in the order they came in, which no address decides
        self.stored_children = 0  # children with a copy on ssd
        self.host = HostState.NONE
        self.slot = -1  # host slot while FILLING or RESIDENT
        self.digest: bytes | None = None  # checksum of the host copy; None: not known yet
        self.device_digest: bytes | None = None  # of its bytes, as landing memory computes it; None: not known
        self.stored: StoredPage | None = None
        self.writing = False
        self.peer: PeerCopy | None = None  # the copy in memory that another server lends
        self.sharing = False  # such a copy is being made
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
        self.dropped = False  # no longer in the table; its slot goes with the last pin
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

    @property
    def complete(self) -> bool:
        """Whether there is a whole copy somewhere: what is only on its way in does not exist for anybody."""
        return self.host is HostState.RESIDENT or self.stored is not None or self.peer is not None

    @property
    def shared(self) -> bool:
        """Whether memory that another server lends has a copy."""
        return self.peer is not None

    @property
    def saved(self) -> bool:
        """Whether a copy is left when the one in host memory goes."""
        return self.stored is not None or self.peer is not None


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
        places = (page.slot if page.host is HostState.RESIDENT else page.landing for page in pages)
        return cls(np.fromiter(places, dtype=np.int64, count=len(pages)))

    @classmethod
    def none(cls) -> Places:
        """Of no page."""
        return cls(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.numbers)


def host_slot_state(page: Page) -> SlotState:
    """What its host slot, which it has, is used for."""
    if page.host is HostState.FILLING:
        return SlotState.LOADING
    return SlotState.PINNED if page.pins or page.keep or page.kept_children else SlotState.CACHED
