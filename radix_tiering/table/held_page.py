"""A page that the tiers hold: its copies, and its place among the pages before and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import NotHeldError
from ..base.page import ROOT_KEY, PageRecord
from . import kernels
from .kernels import BEGUN, BITS, DEPTH, DROPPED, FLAGS, GENERATION, KEEP, KEPT, PARENT, PINS, SPACE, TIERS, WHOLE
from .rows import PageRows, leading, rows_of
from .tier_copies import HOST, Copy, TierCopies

_COPY = BEGUN | WHOLE


class Book:
    """What pages are read from: the rows, and what the tiers know of their copies. Changed by the page table alone,
    under its lock."""

    def __init__(self, rows: PageRows, of: Sequence[TierCopies]) -> None:
        """`of`: what each tier has, by its number."""
        self.rows = rows
        self.of = of
        #: The namespaces that pages are found in, by the row of their root, and the other way round.
        self.digests: dict[int, bytes] = {}
        self.roots: dict[bytes, int] = {}
        #: Places in landing memory, by the row of the page that lies there.
        self.landed: dict[int, int] = {}


class Page(msgspec.Struct, frozen=True, gc=False):
    """One page of one namespace, wherever its copies are: where the book has it. Changed only by `PageTable`.

    It says of itself what is true now. Of one that has left the table, and that nobody had pinned, nothing is: it has
    no copy, no pin and no parent, and its key raises NotHeldError.

    The garbage collector does not look at it, since requests have a hundred thousand of them: it is in no cycle, as
    nothing that it leads to leads back.
    """

    book: Book
    row: int
    generation: int  # of the row: another one's is another page

    def __hash__(self) -> int:
        """The same in every process: what is in a set has an order then."""
        return hash((self.row, self.generation))

    # ---- what it is ----

    def _word(self, which: int) -> int:
        word = self.book.rows.word
        return word[self.row, which] if word[self.row, GENERATION] == self.generation else 0

    @property
    def key(self) -> bytes:
        longs = self.book.rows.longs
        if self.gone:
            raise NotHeldError("the page has left the table")
        return longs[self.row, :4].tobytes()

    @property
    def gone(self) -> bool:
        """Whether it has left the table, and the last pin is gone as well."""
        return self.book.rows.word[self.row, GENERATION] != self.generation

    @property
    def namespace(self) -> bytes:
        """Its digest; empty once it has left."""
        return self.book.digests.get(self._word(SPACE), b"")

    @property
    def depth(self) -> int:
        """Its position in its sequence, in pages, from 1."""
        return self._word(DEPTH)

    @property
    def length(self) -> int:
        """Bytes of it."""
        return self.book.rows.word[self._word(SPACE), kernels.ROOT_LENGTH]

    @property
    def parent(self) -> Page | None:
        """The page before it; None: the first one of a sequence, or it has left."""
        row = self._word(PARENT)
        word = self.book.rows.word
        if self.gone or row < 0 or not word[row, DEPTH]:
            return None
        return Page(self.book, row, word[row, GENERATION])

    def follows(self, page: Page) -> bool:
        """Whether `page` is the one before it. Both are in the table."""
        return self._word(PARENT) == page.row

    @property
    def children(self) -> list[Page]:
        """The pages that follow it, in the order in which they came in. For simulations and tests."""
        found, word = [], self.book.rows.word
        row = -1 if self.gone else word[self.row, kernels.CHILD]
        while row >= 0:
            found.append(Page(self.book, row, word[row, GENERATION]))
            row = word[row, kernels.NEXT]
        return found[::-1]

    @property
    def followers(self) -> int:
        """How many pages follow it."""
        found: int = 0 if self.gone else kernels.count_children(*self.book.rows.state, self.row)
        return found

    @property
    def record(self) -> PageRecord:
        """As tiers are told of it. Raises NotHeldError once it has left, and while it is only pinned yet."""
        rows, row = self.book.rows, self.row
        word, longs = rows.word, rows.longs
        depth, before, space = word[row, DEPTH], word[row, PARENT], word[row, SPACE]
        if before < 0 or self.gone:
            raise NotHeldError("the page has left the table")
        parent = longs[before, :4].tobytes() if depth > 1 else ROOT_KEY
        length = word[space, kernels.ROOT_LENGTH]
        return PageRecord(longs[row, :4].tobytes(), parent, self.book.digests[space], depth, length)

    # ---- how it is used ----

    @property
    def last_use(self) -> int:
        """Logical time of the last request that used it; equal for all pages of one request."""
        return self.book.rows.long[self.row, kernels.LAST]

    @property
    def uses(self) -> int:
        """Requests that used it, the one that wrote it included."""
        return self._word(kernels.USE) >> kernels.USES_AT

    @property
    def doublings(self) -> int:
        """Bits of the number of pages of the longest sequence that it was used in, as far as known."""
        return self._word(kernels.USE) & kernels.DOUBLINGS

    @property
    def recovered(self) -> bool:
        """Whether it comes from the devices, at the start."""
        return self._word(FLAGS) & kernels.RECOVERED != 0

    @property
    def pins(self) -> int:
        """Requests that are about to read it, and writes from it."""
        return self._word(PINS)

    @property
    def keep(self) -> bool:
        """Whether an operator pinned it; see `OperatorPins`."""
        return self._word(FLAGS) & KEEP != 0

    @property
    def kept(self) -> bool:
        """Whether an operator pinned it or a page behind it."""
        return self._word(KEPT) > 0 or self.keep

    @property
    def pinned(self) -> bool:
        """Whether it may not be evicted, for a request's sake or an operator's."""
        return self._word(PINS) > 0 or self.kept

    @property
    def dropped(self) -> bool:
        """Whether it is in the table no longer; its host slot goes with the last pin."""
        word = self.book.rows.word
        return word[self.row, GENERATION] != self.generation or word[self.row, FLAGS] & DROPPED != 0

    # ---- where it is ----

    def copy_in(self, tier: int) -> Copy | None:
        """Its copy in this tier, whole or on its way; None: none."""
        bits = self._word(TIERS) >> (BITS * tier) & _COPY
        if not bits:
            return None
        return self.book.of[tier].copy_at(self.book.rows.word[self.row, kernels.PLACES + tier], bits & WHOLE != 0)

    def place_in(self, tier: int) -> Any:
        """Where its copy in this tier is, as the tier has it. There is one, whole or on its way."""
        return self.book.of[tier].place_at(self.book.rows.word[self.row, kernels.PLACES + tier])

    def begun_in(self, tier: int) -> bool:
        """Whether this tier has a copy, whole or on its way."""
        return self._word(TIERS) >> (BITS * tier) & _COPY != 0

    def whole_in(self, tier: int) -> bool:
        """Whether this tier has a whole copy."""
        return self._word(TIERS) >> (BITS * tier) & WHOLE != 0

    @property
    def resident(self) -> bool:
        """Whether it is in host memory."""
        return self._word(TIERS) & WHOLE != 0

    @property
    def in_host(self) -> bool:
        """Whether it has a slot of host memory: it is there, or on its way."""
        return self._word(TIERS) & _COPY != 0

    @property
    def slot(self) -> int:
        """Its slot of host memory. Raises NotHeldError where it has none."""
        word, row = self.book.rows.word, self.row
        if word[row, GENERATION] != self.generation or not word[row, TIERS] & _COPY:
            raise NotHeldError(f"page in row {row} has no slot of host memory")
        return word[row, kernels.PLACES]

    @property
    def digest(self) -> bytes | None:
        """The checksum of what is in host memory; None where that is not known."""
        return self.book.of[HOST].digest(self.slot) if self.in_host else None

    def learn_digest(self, digest: bytes) -> None:
        """The checksum of what is in host memory has been computed."""
        if self.in_host:
            self.book.of[HOST].learn_digest(self.slot, digest)

    @property
    def landing(self) -> int:
        """Its place in landing memory, see `PageTable.land`; -1: none."""
        return self.book.landed.get(self.row, -1) if self._word(FLAGS) & kernels.LANDED else -1

    @property
    def complete(self) -> bool:
        """Whether there is a whole copy somewhere: what is only on its way in does not exist for anybody."""
        return self._word(TIERS) & kernels.ANY_WHOLE != 0

    @property
    def saved(self) -> bool:
        """Whether a copy is left when the one in host memory goes."""
        return self.elsewhere(HOST)

    def elsewhere(self, tier: int) -> bool:
        """Whether another tier than this one has a whole copy."""
        return self._word(TIERS) & kernels.ANY_WHOLE & ~(WHOLE << BITS * tier) != 0


class PagesNow(NamedTuple):
    """What many pages say of themselves at one moment: arrays over the pages, in their order."""

    rows: np.ndarray  # int64
    here: np.ndarray  # bool: not gone
    words: np.ndarray  # int32 [pages, words of a row]: of others where they are gone

    @classmethod
    def of(cls, pages: Sequence[Page]) -> PagesNow:
        """Of one page or more."""
        rows = rows_of(pages)
        words = pages[0].book.rows.words[rows]
        generations = np.fromiter([page.generation for page in pages], np.int64, len(pages))
        return cls(rows, words[:, GENERATION] == generations, words)

    def dropped(self) -> np.ndarray:
        """Which are in the table no longer."""
        return ~self.here | (self.words[:, FLAGS] & DROPPED != 0)


def held_run(pages: Sequence[Page]) -> int:
    """How many of these pages, from the first on, are in the table."""
    return leading(~PagesNow.of(pages).dropped()) if pages else 0


def host_slots(pages: Sequence[Page]) -> list[int]:
    """`slot` of many. Raises NotHeldError where one of them has none."""
    if not pages:
        return []
    now = PagesNow.of(pages)
    if not (now.here & (now.words[:, TIERS] & _COPY != 0)).all():
        raise NotHeldError("not all pages have a slot of host memory")
    slots: list[int] = now.words[:, kernels.PLACES].tolist()
    return slots


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
        if not pages:
            return cls.none()
        now = PagesNow.of(pages)
        resident = now.here & (now.words[:, TIERS] & WHOLE != 0)
        numbers = np.where(resident, now.words[:, kernels.PLACES], -1).astype(np.int64)
        landed = pages[0].book.landed
        for at in np.flatnonzero(now.here & (now.words[:, FLAGS] & kernels.LANDED != 0)).tolist():
            numbers[at] = landed.get(pages[at].row, numbers[at])
        return cls(numbers)

    @classmethod
    def none(cls) -> Places:
        """Of no page."""
        return cls(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.numbers)
