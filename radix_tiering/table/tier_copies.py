"""The copies that one tier has of the page table's pages: how many, where they are, and what is known of them.

The same for every tier. Tiers differ in what they say of themselves (`Keeper`): whether they are durable, how large a
page is there, who leaves first, and which part of them holds a place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..base.page import PageGeometry
from ..figures.counters import TierCounters
from .policy import EvictionPolicy

#: The number of host memory among the tiers of a page table: every page enters there, and every other tier is written
#: from there. The others follow in the order in which a page that several have is read.
HOST = 0
#: A part of a tier that goes away as a whole: a lease, a device.
Part = Hashable


class Copy:
    """The bytes of a page in one tier: whole, or on their way there.

    none -> begun -> whole -> none. `place` is the tier's own: a host slot, a slot of a lease, slots of devices.
    """

    __slots__ = ("digest", "flushes", "place", "whole")

    def __init__(self, place: Any, digest: bytes | None, flushes: int, *, whole: bool = False) -> None:
        self.place = place
        self.digest = digest  # checksum of the bytes; None: not known yet
        self.flushes = flushes  # `PageTable.flushes` when it was begun
        self.whole = whole


class CopyFacts(NamedTuple):
    """What is known of a copy that may just be given up."""

    place: Any
    flushes: int  # as of a `Copy`; 0 where it outlives a flush of memory


class Keeper(ABC):
    """What the page table must know of a tier. See `tiers.tier.Tier` for the rest."""

    #: What operators call it: in figures, on the bus, in commands.
    name: str
    #: Whether its copies survive a restart. They are then closed under prefixes by themselves: rule 2.
    durable = False
    #: Whether a page comes up from it about as soon as from host memory, and need not be in both.
    near = False
    #: Whether a copy in it is a hint, that the page is there; see `PageTable.hear`.
    hints = False
    #: Whether its places are numbers, from 0, and it knows the checksums: then a copy costs no object.
    numbered = False

    @property
    @abstractmethod
    def capacity_bytes(self) -> int:
        """What it can hold now."""

    def size_of(self, length: int) -> int:
        """Bytes that a page of `length` bytes takes there."""
        return length

    @property
    def saved_bytes(self) -> int:
        """That its copies do not take of these."""
        return 0

    def order(self, policy: EvictionPolicy) -> EvictionPolicy:
        """Who leaves it first, where the configuration says `policy`."""
        return policy

    def digest_at(self, place: Any) -> bytes | None:
        """The checksum of the page there; None: not known. Asked where it is `numbered`."""
        return None

    @abstractmethod
    def release(self, places: Sequence[Any]) -> None:
        """Give places of whole copies back. Called under the page table's lock."""

    def part_of(self, place: Any) -> Part | None:
        """The part that pages are looked up by when it goes; None: the tier itself says which they were."""
        return None

    def uses(self, place: Any, part: Part) -> bool:
        """Whether `place` lies on `part`, wholly or with some of its bytes."""
        return part is not None and self.part_of(place) == part


class HostSlots(Keeper):
    """Host memory, as the page table needs it: slots of one page each. The table itself says who leaves it first."""

    name = "host"
    near = True
    numbered = True
    slots: int
    limit_slots: int  # how many may be used
    geometry: PageGeometry

    @property
    @abstractmethod
    def used_slots(self) -> int:
        """How many are taken."""

    @abstractmethod
    def allocate(self) -> int | None:
        """A slot, its content undefined; None where all are taken, or as many as may be."""

    @abstractmethod
    def states(self, some: slice = slice(None)) -> np.ndarray:
        """What each of some slots is used for, as far as no page has it: uint8 [slots] of `SlotState`, a copy."""


class CopyCounts(Protocol):
    """What the rows of a page table say of the copies that each tier has; see `rows`."""

    def order(self, tier: int, *, by_uses: bool, reused: int, doubled: int) -> None: ...

    def whole_pages(self, tier: int) -> int: ...

    def whole_bytes(self, tier: int) -> int: ...

    def coming_bytes(self, tier: int) -> int: ...

    def used(self) -> np.ndarray: ...

    def begun(self, rows: np.ndarray, tier: int) -> np.ndarray: ...


class TierCopies:
    """Of a tier whose places are numbers, and which knows the checksums. Used under the page table's lock.

    What a row says of where a copy is, is a number always: its `code`.
    """

    def __init__(self, number: int, keeper: Keeper, rows: CopyCounts, order: EvictionPolicy) -> None:
        """`order`: who leaves first."""
        self.number = number
        self.keeper = keeper
        self.counters = TierCounters()
        self.name = keeper.name
        self.durable = keeper.durable
        self.limit: int | None = None  # bytes that all of them may take, if an operator has said so
        self._rows = rows
        self.order = order

    # ---- how many ----

    @property
    def order(self) -> EvictionPolicy:
        """Who leaves first."""
        return self._order

    @order.setter
    def order(self, order: EvictionPolicy) -> None:
        """Pages get their new places at once, which takes as long as there are pages that may leave."""
        self._order = order
        self._rows.order(self.number, by_uses=order.by_uses, reused=order.reused, doubled=order.doubled)

    @property
    def pages(self) -> int:
        """With a whole copy."""
        return self._rows.whole_pages(self.number)

    @property
    def used_bytes(self) -> int:
        """That these take."""
        # A tier that was just opened may have more than was entered here yet.
        return max(0, self._rows.whole_bytes(self.number) - self.keeper.saved_bytes)

    @property
    def coming_bytes(self) -> int:
        """That copies on their way take."""
        return self._rows.coming_bytes(self.number)

    def may_take(self, nbytes: int) -> bool:
        """Whether its limit, if it has one, has room for so many bytes more."""
        return self.limit is None or self.used_bytes + self.coming_bytes + nbytes <= self.limit

    # ---- where ----

    def code(self, row: int, place: Any, digest: bytes | None, flushes: int) -> int:
        """The page in `row` has, or is to have, a copy at `place`: the number by which its row says so."""
        code: int = place
        return code

    def copy_at(self, code: int, whole: bool) -> Copy:
        """What is there, or on its way."""
        return Copy(code, self.keeper.digest_at(code), 0, whole=whole)

    def digest(self, code: int) -> bytes | None:
        """The checksum of what is there; None: not known."""
        return self.keeper.digest_at(code)

    def place_at(self, code: int) -> Any:
        """Where that is, as the tier has it."""
        return code

    def facts_at(self, code: int) -> CopyFacts | None:
        """What whoever looks without the lock sees there; None: nothing any more."""
        return None if code < 0 else CopyFacts(self.place_at(code), 0)

    def forget(self, row: int, code: int) -> None:
        """The page in `row` has nothing there any more."""

    def learn_digest(self, code: int, digest: bytes) -> None:
        """The checksum of what is there has been computed."""

    # ---- which ----

    def under(self, part: Part) -> np.ndarray:
        """The rows of the pages that may have a copy on this part, whole or not: int64. Any thread."""
        return self.listed()

    def listed(self) -> np.ndarray:
        """The rows of the pages that it has, or is to have: int64, parents first. Any thread."""
        rows = self._rows.used()
        return rows[self._rows.begun(rows, self.number)]


class HostCopies(TierCopies):
    """Of host memory, by slot."""

    def __init__(self, keeper: HostSlots, rows: CopyCounts, order: EvictionPolicy) -> None:
        super().__init__(HOST, keeper, rows, order)
        self._digests: list[bytes | None] = [None] * keeper.slots
        self._flushes = np.zeros(keeper.slots, np.int64)
        self.owners = np.full(keeper.slots, -1, np.int64)  # rows; -1: no page has it

    def code(self, row: int, place: Any, digest: bytes | None, flushes: int) -> int:
        slot: int = place
        self._digests[slot], self._flushes[slot], self.owners[slot] = digest, flushes, row
        return slot

    def begun(self, rows: np.ndarray, slots: np.ndarray, flushes: int) -> None:
        """Pages in these rows have, or are to have, copies in these slots. int64 [pages] both."""
        self._flushes[slots], self.owners[slots] = flushes, rows

    def copy_at(self, code: int, whole: bool) -> Copy:
        return Copy(code, self._digests[code], int(self._flushes[code]), whole=whole)

    def digest(self, code: int) -> bytes | None:
        return self._digests[code]

    def facts_at(self, code: int) -> CopyFacts | None:
        return None if code < 0 else CopyFacts(code, int(self._flushes[code]))

    def forget(self, row: int, code: int) -> None:
        self._digests[code], self.owners[code] = None, -1

    def learn_digest(self, code: int, digest: bytes) -> None:
        self._digests[code] = digest

    def listed(self) -> np.ndarray:
        owners = self.owners
        return owners[owners >= 0]


class BookedCopies(TierCopies):
    """Of another tier: its places are whatever it likes, and pages are looked up by its parts."""

    def __init__(self, number: int, keeper: Keeper, rows: CopyCounts, order: EvictionPolicy) -> None:
        super().__init__(number, keeper, rows, order)
        self._copies: list[Copy | None] = []
        self._free: list[int] = []  # of these
        self._parts: dict[Part | None, dict[int, None]] = {}  # rows

    def code(self, row: int, place: Any, digest: bytes | None, flushes: int) -> int:
        code = self._free.pop() if self._free else len(self._copies)
        if code == len(self._copies):
            self._copies.append(None)
        self._copies[code] = Copy(place, digest, flushes)
        self._parts.setdefault(self.keeper.part_of(place), {})[row] = None
        return code

    def _at(self, code: int) -> Copy:
        copy = self._copies[code]
        assert copy is not None
        return copy

    def copy_at(self, code: int, whole: bool) -> Copy:
        copy = self._at(code)
        copy.whole = whole
        return copy

    def digest(self, code: int) -> bytes | None:
        return self._at(code).digest

    def place_at(self, code: int) -> Any:
        return self._at(code).place

    def facts_at(self, code: int) -> CopyFacts | None:
        copy = None if code < 0 else self._copies[code]
        return None if copy is None else CopyFacts(copy.place, copy.flushes)

    def forget(self, row: int, code: int) -> None:
        copy, self._copies[code] = self._copies[code], None
        assert copy is not None
        part = self.keeper.part_of(copy.place)
        rows = self._parts[part]
        del rows[row]
        if not rows:
            del self._parts[part]
        self._free.append(code)

    def learn_digest(self, code: int, digest: bytes) -> None:
        self._at(code).digest = digest

    def under(self, part: Part) -> np.ndarray:
        return np.fromiter(list(self._parts.get(part, ())), np.int64)

    def listed(self) -> np.ndarray:
        return np.fromiter([row for rows in list(self._parts.values()) for row in list(rows)], np.int64)
