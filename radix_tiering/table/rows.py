"""The memory of a page table: one row a page, a hash table over the keys, a heap for each tier; all in arrays.

So a page costs no object of Python's, and the garbage collector never looks at one. What the words of a row mean, and
everything that changes them, is in `kernels`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import kernels
from .kernels import (
    ANY_WHOLE,
    BEGUN,
    BEHIND,
    BITS,
    BLOCK,
    BY_USES,
    COMING_BYTES,
    DEPTH,
    DOUBLED,
    DROPPED,
    ENTERED,
    ENTERED_BITS,
    FLAGS,
    FREE,
    FREE_ROWS,
    GENERATION,
    HEAP,
    HIGH,
    LAST,
    META_WORDS,
    MOST_TIERS,
    NEAR,
    NOTE_ROOM,
    NOTES,
    PARENT,
    PLACES,
    QUEUED,
    REUSED,
    SPACE,
    TIER_BLOCK,
    TIER_COUNT,
    TIERS,
    TIMES,
    USED,
    WHOLE,
    WHOLE_BYTES,
    WHOLE_PAGES,
)
from .tier_copies import HOST

#: Rows of the smallest table.
LEAST_ROWS = 256
#: Entries of a heap beyond half as many again as there are rows: those of before a sweep.
HEAP_ROOM = 128
#: Of the buckets of the hash table so many are used at most.
LOAD = 0.8
_KEY = struct.Struct("<4q")


class PageRows:
    """Not thread-safe: used under the page table's lock, but for what says otherwise.

    All arrays have their full size from the start on, of which the machine gives only what is touched; they grow where
    more pages come than was foreseen, which copies them.
    """

    def __init__(self, tiers: Sequence[tuple[bool, bool]], pages: int) -> None:
        """`tiers`: of each whether it is durable, and whether it is near; see `Keeper`. `pages`: how many there will
        be, about."""
        if len(tiers) > MOST_TIERS:
            raise ValueError(f"a page table of {len(tiers)} tiers; it can tell {MOST_TIERS} apart")
        self.tiers = len(tiers)
        self.meta = np.zeros(META_WORDS, np.int64)
        self.meta[FREE] = -1
        self.meta[TIER_COUNT] = len(tiers)
        self._width = PLACES + len(tiers)
        for tier, (durable, near) in enumerate(tiers):
            self.meta[NEAR] |= (near and tier != HOST) << tier
            if durable:
                self.meta[TIER_BLOCK + BLOCK * tier + BEHIND] = self._width
                self._width += 1
        self.notes = np.zeros((NOTE_ROOM, 3), np.int64)
        self.longs = np.zeros((0, 1), np.int64)
        self.heaps = np.zeros((len(tiers), 0, 3), np.int64)
        self._allocate(max(LEAST_ROWS, pages))

    def _allocate(self, count: int) -> None:
        """Room for so many rows; what there is comes along."""
        longs = np.zeros((count, -(-self._width // 2)), np.int64)
        heaps = np.empty((self.tiers, count + count // 2 + HEAP_ROOM, 3), np.int64)
        table = np.zeros(int(count / LOAD) + 1, np.int64)
        high = int(self.meta[HIGH])
        if high:
            longs[:high] = self.longs[:high]
            for tier in range(self.tiers):
                entries = int(self.meta[TIER_BLOCK + BLOCK * tier + HEAP])
                heaps[tier, :entries] = self.heaps[tier, :entries]
        self.longs, self.heaps, self.table = longs, heaps, table
        self.words = longs.view(np.int32)
        #: What kernels are called with. Whoever calls without the lock takes all of one moment.
        self.state = (self.words, longs, table, heaps, self.meta, self.notes)
        if high:
            kernels.rehash(*self.state, high)
        #: The same memory, for single words: faster than arrays.
        self.word = memoryview(self.words)  # type: ignore[arg-type]
        self.long = memoryview(longs)  # type: ignore[arg-type]
        self.count = memoryview(self.meta)  # type: ignore[arg-type]

    def make_room(self, rows: int) -> None:
        """There are so many rows at least that are free."""
        free = len(self.words) - self.count[HIGH] + self.count[FREE_ROWS]
        if free < rows:
            self._allocate(max(2 * len(self.words), self.count[HIGH] + rows))

    def make_handles(self, rows: np.ndarray) -> list[tuple[int, int]]:
        """Rows, int64, with their generations of now."""
        return list(zip(rows.tolist(), self.words[rows, GENERATION].tolist(), strict=True))

    # ---- what a tier has ----

    def order(self, tier: int, *, by_uses: bool, reused: int, doubled: int) -> None:
        """Pages leave it in this order from now on; see `policy`. Takes as long as there are pages that may."""
        block = TIER_BLOCK + BLOCK * tier
        self.count[block + BY_USES], self.count[block + REUSED], self.count[block + DOUBLED] = by_uses, reused, doubled
        kernels.reorder(*self.state, tier)

    def whole_pages(self, tier: int) -> int:
        return self.count[TIER_BLOCK + BLOCK * tier + WHOLE_PAGES]

    def whole_bytes(self, tier: int) -> int:
        return self.count[TIER_BLOCK + BLOCK * tier + WHOLE_BYTES]

    def coming_bytes(self, tier: int) -> int:
        return self.count[TIER_BLOCK + BLOCK * tier + COMING_BYTES]

    def begun(self, rows: np.ndarray, tier: int) -> np.ndarray:
        """Which of these have a copy there, whole or on its way: bool [rows]."""
        found: np.ndarray = self.words[rows, TIERS] >> (BITS * tier) & (BEGUN | WHOLE) != 0
        return found

    def whole(self, rows: np.ndarray, tier: int) -> np.ndarray:
        """Which of these have a whole copy there: bool [rows]."""
        found: np.ndarray = self.words[rows, TIERS] >> (BITS * tier) & WHOLE != 0
        return found

    def elsewhere(self, rows: np.ndarray, tier: int) -> np.ndarray:
        """Which of these have a whole copy in another tier: bool [rows]."""
        found: np.ndarray = self.words[rows, TIERS] & ANY_WHOLE & ~(WHOLE << BITS * tier) != 0
        return found

    # How a million pages are put in an order: to sort them as objects keeps the interpreter for most of a second.

    def hottest_first(self, rows: np.ndarray) -> np.ndarray:
        """Where in `rows` those are that were used last, and so on, of one use parents first: int64 [rows]."""
        return np.lexsort((self.words[rows, DEPTH], -self.longs[rows, LAST]))

    def parents_first(self, rows: np.ndarray) -> np.ndarray:
        """The same in an order in which each comes before those that follow it."""
        return np.argsort(self.words[rows, DEPTH], kind="stable")

    def read_notes(self) -> list[tuple[int, int, int]]:
        """What kernels have noted since the last time: what, which, whose."""
        count = self.count[NOTES]
        self.count[NOTES] = 0
        return [tuple(note) for note in self.notes[:count].tolist()]  # type: ignore[misc]

    def behind(self, rows: np.ndarray, tier: int) -> np.ndarray:
        """How many children of each of these have a whole copy in a durable tier: int32 [rows]."""
        found: np.ndarray = self.words[rows, self.count[TIER_BLOCK + BLOCK * tier + BEHIND]]
        return found

    def heap(self, tier: int) -> tuple[np.ndarray, np.ndarray]:
        """The heap of those that may leave it, or might have once: ranks, int64 [entries, 2], and whose entries they
        are by now, rows, int64 [entries]; -1: nobody's."""
        heap = self.heaps[tier, : self.count[TIER_BLOCK + BLOCK * tier + HEAP]]
        rows = heap[:, 2] & 0xFFFFFFFF
        words = self.words[rows].astype(np.int64)
        time = words[:, FLAGS] >> ENTERED + ENTERED_BITS * tier & 3
        last = (words[:, GENERATION] & TIMES) << 34 | time << 32 | rows
        queued = words[:, TIERS] >> BITS * tier & QUEUED != 0
        return heap[:, :2], np.where(queued & (heap[:, 2] == last), rows, -1)

    # ---- namespaces, and all pages ----

    def new_root(self, length: int, sizes: Sequence[int]) -> int:
        """The row that the first pages of a namespace are to follow; `sizes`: bytes that a page of it takes, by tier.
        There is room for it."""
        root: int = kernels.new_root(*self.state, length)
        for tier, size in enumerate(sizes):
            self.word[root, PLACES + tier] = size
        return root

    def used(self, space: int = -1, *, parents_first: bool = True) -> np.ndarray:
        """The rows of the pages there are, those that are hidden included: int64, parents before their children, or as
        they lie in memory; of one namespace, by its root, or of all. Takes as long as there are rows. Any thread."""
        words, high = self.words, self.count[HIGH]
        rows = np.flatnonzero((words[:high, FLAGS] & (USED | DROPPED) == USED) & (words[:high, DEPTH] > 0))
        spaces = words[rows, SPACE]
        rows = rows[spaces == space if space >= 0 else words[spaces, FLAGS] & DROPPED == 0]
        return rows[self.parents_first(rows)] if parents_first else rows

    def chains(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of these pages, int64: the key of each, and behind it that of the one before it, zeros for none: int64
        [rows, 8]; and their depths: int64."""
        depths = self.words[rows, DEPTH].astype(np.int64)
        before = self.longs[self.words[rows, PARENT], :4] * (depths > 1)[:, None]
        return np.concatenate([self.longs[rows, :4], before], axis=1), depths

    def keys_beginning(self, space: int, begin: bytes) -> list[bytes]:
        """The keys of one namespace that begin so. As `used`."""
        rows = self.used(space)
        longs = self.longs  # afterwards: of at least as many rows
        keys = longs[:, :4].view(np.uint8)[:, : len(begin)]
        found = rows[(keys[rows] == np.frombuffer(begin, np.uint8)).all(axis=1)]
        return [longs[row, :4].tobytes() for row in found]


def as_key(key: bytes) -> tuple[int, int, int, int]:
    """A key as kernels take it."""
    words: tuple[int, int, int, int] = _KEY.unpack(key)
    return words


def as_keys(keys: Sequence[bytes]) -> np.ndarray:
    """Keys as kernels take many: int64 [keys, 4]."""
    return np.frombuffer(bytearray().join(keys), np.int64).reshape(-1, 4)


def split(handle: int) -> tuple[int, int]:
    """A row and its generation, of the number that kernels give."""
    return handle & 0xFFFFFFFF, handle >> 32


def rows_of(pages: Sequence[Any]) -> np.ndarray:
    """The rows of pages: int64 [pages]."""
    return np.fromiter([page.row for page in pages], np.int64, len(pages))  # a list is read sooner than a generator


def leading(there: np.ndarray) -> int:
    """How many of these, from the first on, are True: bool [n]."""
    return len(there) if there.all() else int(np.argmin(there))
