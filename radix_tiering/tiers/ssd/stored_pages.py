"""Many complete pages of a stripe set, in arrays: as a start finds them and as an end writes them down.

Single ones are `StoredPage`s, which a sequence of them gives when it is asked for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np

from ...base.page import KEY_BYTES, HeldPages, PageRecord
from .layout import RECORD_BYTES, RECORD_DTYPE, Placement, StoredPage

#: Where in a record the key begins, which that of the page before follows.
KEYS_OFFSET: int = RECORD_DTYPE.fields["key"][1]  # type: ignore[index]


class StoredPages(Sequence[StoredPage]):
    """Not changed once it is made. Any thread."""

    def __init__(
        self,
        records: np.ndarray,
        counts: np.ndarray,
        devices: np.ndarray,
        slots: np.ndarray,
        namespaces: Mapping[int, bytes],
    ) -> None:
        """`records`: RECORD_DTYPE [pages], of which nothing counts that differs from unit to unit; `counts`: int64
        [pages], their units; `devices`, `slots`: int64 [units], page by page; `namespaces`: their digests, by the
        numbers that records have for them."""
        self.records = records
        self.counts = counts
        self.ends = np.cumsum(counts)
        self.devices = devices
        self.slots = slots
        self.namespaces = namespaces

    @classmethod
    def of(cls, pages: Iterable[StoredPage]) -> StoredPages:
        """These, one by one."""
        listed = list(pages)
        numbers: dict[bytes, int] = {}
        records = np.zeros(len(listed), RECORD_DTYPE)
        for at, (record, generation, digest, placement) in enumerate(listed):
            number = numbers.setdefault(record.namespace, len(numbers) + 1)
            records[at] = (
                0, 0, 0, generation, record.length, number, record.depth, len(placement), 0,
                record.key, record.parent, digest,
            )  # fmt: skip
        places = np.array([place for page in listed for place in page.placement], np.int64).reshape(-1, 2)
        counts = np.array([len(page.placement) for page in listed], np.int64)
        return cls(records, counts, places[:, 0], places[:, 1], {number: digest for digest, number in numbers.items()})

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, at: int) -> StoredPage: ...

    @overload
    def __getitem__(self, at: slice) -> StoredPages: ...

    def __getitem__(self, at: int | slice) -> StoredPage | StoredPages:
        if isinstance(at, slice):
            return self.take(np.arange(*at.indices(len(self))))
        one = self.records[at]
        if at < 0:
            at += len(self)
        units = slice(int(self.ends[at] - self.counts[at]), int(self.ends[at]))
        placement: Placement = tuple(zip(self.devices[units].tolist(), self.slots[units].tolist(), strict=True))
        record = PageRecord(
            one["key"].tobytes(), one["parent"].tobytes(), self.namespaces[int(one["namespace_id"])],
            int(one["depth"]), int(one["length"]),
        )  # fmt: skip
        return StoredPage(record, int(one["generation"]), one["digest"].tobytes(), placement)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(StoredPage.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def take(self, which: np.ndarray) -> StoredPages:
        """Some of them: int64 or bool [pages]."""
        numbers = np.flatnonzero(which) if which.dtype == np.bool_ else which
        units = _runs(self.ends[numbers] - self.counts[numbers], self.counts[numbers])
        return StoredPages(
            self.records[numbers], self.counts[numbers], self.devices[units], self.slots[units], self.namespaces
        )

    def batches(self, pages: int) -> Iterator[StoredPages]:
        """So many at a time."""
        if 0 < len(self) <= pages:
            yield self
            return
        for start in range(0, len(self), pages):
            yield self[start : start + pages]

    def held(self, places: np.ndarray) -> list[HeldPages]:
        """As a page table is told of them; `places`: int64 [pages], one for each."""
        found = []
        numbers, lengths = self.records["namespace_id"], self.records["length"]
        raw = self.records.view(np.uint8).reshape(len(self), RECORD_BYTES)
        for number, namespace in self.namespaces.items():
            for length in _distinct(lengths[numbers == number]).tolist():
                alike = (numbers == number) & (lengths == length)
                which = slice(None) if alike.all() else np.flatnonzero(alike)  # where all are, nothing is picked
                keys = np.ascontiguousarray(raw[which, KEYS_OFFSET : KEYS_OFFSET + 2 * KEY_BYTES]).view(np.int64)
                depths = self.records["depth"][which].astype(np.int64)
                order = self.records["generation"][which].astype(np.int64)
                found.append(HeldPages(namespace, length, keys, depths, places[which], order))
        return found

    @property
    def page_of(self) -> np.ndarray:
        """The page that each unit is of: int64 [units]."""
        return np.repeat(np.arange(len(self)), self.counts)

    @property
    def unit_indexes(self) -> np.ndarray:
        """The number of each unit within its page: int64 [units]."""
        return np.arange(len(self.devices)) - np.repeat(self.ends - self.counts, self.counts)

    def unit_records(self) -> np.ndarray:
        """As the index of a device says it of each unit: RECORD_DTYPE [units]."""
        units = self.records.copy() if len(self.devices) == len(self) else self.records[self.page_of]
        units["slot"], units["unit_index"] = self.slots, self.unit_indexes
        return units


def record_words(records: np.ndarray) -> np.ndarray:
    """The same memory as 64-bit words, int64 [records, ...]: numpy moves records, RECORD_DTYPE, field by field, and as
    words several times as fast."""
    return records.view(np.int64).reshape(-1, RECORD_BYTES // 8)


def in_batches(pages: Iterable[StoredPage | StoredPages], most: int) -> Iterator[StoredPages]:
    """Pages, single ones or many, so many at a time at most."""
    if isinstance(pages, StoredPages):
        yield from pages.batches(most)
        return
    single: list[StoredPage] = []
    for one in pages:
        if isinstance(one, StoredPages):
            yield from one.batches(most)
            continue
        single.append(one)
        if len(single) == most:
            yield StoredPages.of(single)
            single = []
    if single:
        yield StoredPages.of(single)


def _distinct(values: np.ndarray) -> np.ndarray:
    """Each of them once, ascending. `np.unique` does it in a hash table, and keeps the interpreter meanwhile."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _runs(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers from each of `begins` on, so many: int64."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - counts), counts)
