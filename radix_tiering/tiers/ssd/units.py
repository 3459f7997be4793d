"""Stripe units under way, pages that are written or read, and what devices count: rows of arrays, changed by kernels.

The I/O thread alone changes them. With the stripe set's lock it also begins units, takes pages in and grows the arrays,
so that others may look with that lock. Verifying only looks, and on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from ...base import checksum
from ...base.page import BLOCK_BYTES
from ...figures.counters import LATENCY_BOUNDS, DeviceCounters, LatencyHistogram
from . import kernels as k
from .arrays.checking import address_of
from .arrays.devices import Operation, Request, RequestArrays
from .blockio import aligned_buffer
from .layout import DIGEST_BYTES, Geometry
from .transfers import PageWrite, Transfer

_BOUNDS = np.array(LATENCY_BOUNDS)
#: Of a place as kernels read it: a device and a slot.
_PLACE_BYTES = 8


class Completed(NamedTuple):
    """What a batch of completions comes to. Each int64, but `late`."""

    ending: np.ndarray  # pages that have ended with it, by row
    unverified: np.ndarray  # units to verify, by row
    faulty: np.ndarray  # which completions are errors: nobody knows of them yet
    late: list[tuple[int, int]]  # places of pages that had ended before


class Units:
    """Everything in arrays that a stripe set's transfers need."""

    def __init__(self, unit_bytes: int, depth: int) -> None:
        """`depth`: units under way on a device at a time."""
        self.unit_bytes = unit_bytes
        self._depth = depth
        self.pages: list[Transfer | None] = [None] * 64  # by row
        self._free_pages = list(range(63, -1, -1))
        self._lingering: list[Transfer] = []  # that have ended, and whose units have not all left
        self._transfers = np.zeros((64, k.TRANSFER_WORDS), np.int64)
        #: The same memory, for single words: faster than the array.
        self._word = memoryview(self._transfers)  # type: ignore[arg-type]
        self._identities = np.zeros((64, k.IDENTITY_BYTES), np.uint8)
        self._devices = np.zeros((0, k.DEVICE_WORDS), np.int64)
        self._allowed = np.zeros(0)  # writes in flight, of each device
        self._queues = np.zeros((0, 2, 256), np.int64)
        self._latency = np.zeros((0, len(_BOUNDS) + 1), np.int64)
        self._latency_sum = np.zeros(0)
        self._units = np.zeros((0, k.UNIT_WORDS), np.int64)
        self._since = np.zeros(0)  # when submitted; infinity: not under way
        self._headers = np.zeros((0, BLOCK_BYTES), np.uint8)
        self._free = np.zeros(0, np.int64)
        self._meta = np.zeros(k.META_WORDS, np.int64)
        self._found = np.zeros((5, 0), np.int64)

    # ---- devices ----

    def add_device(self, number: int, geometry: Geometry | None) -> None:
        """One more device, the last. `number`: in the stripe set. Requests that are under way keep their headers, so
        that this may come at any time."""
        words = np.zeros((1, k.DEVICE_WORDS), np.int64)
        if geometry is not None:
            words[0, [k.NUMBER, k.FIRST, k.STRIDE]] = number, geometry.first_slot, geometry.slot_bytes
        self._devices = np.concatenate([self._devices, words])
        self._allowed = np.append(self._allowed, float(self._depth))
        self._queues = np.concatenate([self._queues, np.zeros((1, 2, self._queues.shape[2]), np.int64)])
        self._latency = np.concatenate([self._latency, np.zeros((1, len(_BOUNDS) + 1), np.int64)])
        self._latency_sum = np.append(self._latency_sum, 0.0)
        if self._meta[k.ALL_FLYING] or int(self._meta[k.FREE_ROWS]) != len(self._units):
            return  # their headers must not move; the rows there are will do
        # Twice what may be under way: what was read keeps its row until it is verified.
        rows = 2 * self._depth * len(self._devices)
        self._units = np.zeros((rows, k.UNIT_WORDS), np.int64)
        self._since = np.full(rows, np.inf)
        self._headers = aligned_buffer(rows * BLOCK_BYTES).reshape(rows, BLOCK_BYTES)
        self._free = np.arange(rows - 1, -1, -1)
        self._meta[k.FREE_ROWS] = rows
        self._found = np.zeros((5, rows), np.int64)

    def counters(self, device: int) -> DeviceCounters:
        """What is counted of a device, a copy."""
        words = self._devices[device].tolist()
        latency = LatencyHistogram()
        latency.counts, latency.sum_seconds = self._latency[device].tolist(), float(self._latency_sum[device])
        return DeviceCounters(
            bytes_read=words[k.BYTES_READ],
            bytes_written=words[k.BYTES_WRITTEN],
            reads=words[k.READS],
            writes=words[k.WRITES],
            read_errors=words[k.READ_ERRORS],
            write_errors=words[k.WRITE_ERRORS],
            corrupt_units=words[k.CORRUPT],
            latency=latency,
        )

    def count_error(self, device: int, writing: bool, *, in_a_row: bool = True) -> int:
        """One request has failed; how many reads of this device have in a row. `in_a_row`: this one counts for that."""
        words = self._devices[device]
        if writing:
            words[k.WRITES] += 1
            words[k.WRITE_ERRORS] += 1
        else:
            words[k.READS] += 1
            words[k.READ_ERRORS] += 1
            words[k.ERRORS_IN_A_ROW] += in_a_row
        return int(words[k.ERRORS_IN_A_ROW])

    def went_well(self, device: int) -> None:
        """Errors of before do not count for what comes."""
        self._devices[device, k.ERRORS_IN_A_ROW] = 0

    def count_corrupt(self, device: int) -> None:
        self._devices[device, k.CORRUPT] += 1

    def number_of(self, device: int) -> int:
        """Of a device, in the stripe set."""
        return int(self._devices[device, k.NUMBER])

    def waiting(self, device: int) -> bool:
        """Whether units of a device wait for their turn."""
        words = self._devices[device].tolist()
        return words[k.HEAD] < words[k.TAIL] or words[k.HEAD + 1] < words[k.TAIL + 1]

    @property
    def any_waiting(self) -> bool:
        devices = self._devices
        return bool((devices[:, k.HEAD : k.HEAD + 2] < devices[:, k.TAIL : k.TAIL + 2]).any())

    @property
    def all_flying(self) -> int:
        """Units under way, on all devices."""
        return int(self._meta[k.ALL_FLYING])

    def in_flight(self, device: int) -> int:
        return int(self._devices[device, k.IN_FLIGHT])

    def _on(self, device: int) -> np.ndarray:
        """Rows of the units that are under way on a device."""
        return np.flatnonzero((self._units[:, k.DEVICE] == device) & (self._since != np.inf))

    def late(self, device: int, before: float) -> int:
        """How many of them were submitted before then."""
        return int(np.count_nonzero(self._since[self._on(device)] < before))

    def newest(self, device: int) -> float:
        """When the newest of them was; minus infinity where there is none any more."""
        return float(self._since[self._on(device)].max(initial=-np.inf))

    def forget_queues(self, device: int) -> list[Transfer]:
        """Begin nothing more of what waits for a device; whose units these were."""
        left: dict[int, None] = {}
        words, room = self._devices[device], self._queues.shape[2]
        for kind in range(2):
            for at in range(words[k.HEAD + kind], words[k.TAIL + kind]):
                row = int(self._queues[device, kind, at % room]) >> k.QUEUE_SHIFT
                self._transfers[row, k.WAITING] -= 1
                left[row] = None
            words[k.HEAD + kind] = words[k.TAIL + kind]
        return self._at(left)

    def pages_on(self, device: int) -> list[Transfer]:
        """Pages with a unit under way on a device."""
        return self._at(dict.fromkeys(self._units[self._on(device), k.TRANSFER].tolist()))

    # ---- pages ----

    @property
    def all_pages(self) -> list[Transfer]:
        """All that have entered and not ended."""
        return [page for page in self.pages if page is not None and not page.finished]

    def _at(self, rows: Sequence[int] | dict[int, None]) -> list[Transfer]:
        found = [self.pages[row] for row in rows]
        return [page for page in found if page is not None]

    def enter(self, pages: Sequence[Transfer]) -> None:
        """Give pages a row each, until they have ended and their units are back."""
        while len(self._free_pages) < len(pages):
            self._grow()
        units = np.array([len(page.placement) for page in pages])
        ends = np.cumsum(units)
        # Parts of these are held by the pages: kernels are given addresses.
        numbers = chain.from_iterable(chain.from_iterable(page.placement for page in pages))
        places = np.fromiter(numbers, np.int32, 2 * int(ends[-1]))
        digests = np.zeros((int(ends[-1]), DIGEST_BYTES), np.uint8)
        words = np.zeros((len(pages), k.TRANSFER_WORDS), np.int64)
        words[:, k.DATA] = [address_of(page.data) for page in pages]
        words[:, k.BYTES] = [page.length for page in pages]
        words[:, k.WRITING] = [page.writing for page in pages]
        words[:, k.CODED] = [page.coded for page in pages]
        words[:, k.UNITS] = words[:, k.TODO] = units
        words[:, k.DIGESTS] = address_of(digests) + DIGEST_BYTES * (ends - units)
        words[:, k.PLACES] = address_of(places) + _PLACE_BYTES * (ends - units)
        identities = np.frombuffer(b"".join([page.identity for page in pages]), np.uint8).reshape(len(pages), -1)
        # Nothing from here on asks for memory, so that no row is lost.
        rows = [self._free_pages.pop() for _ in pages]
        self._transfers[rows], self._identities[rows] = words, identities
        for page, row in zip(pages, rows, strict=True):
            page.row, page.memory = row, (places, digests)
            self.pages[row] = page

    def _grow(self) -> None:
        rows = len(self.pages)
        self._transfers = np.concatenate([self._transfers, np.zeros_like(self._transfers)])
        self._word = memoryview(self._transfers)  # type: ignore[arg-type]
        self._identities = np.concatenate([self._identities, np.zeros_like(self._identities)])
        self.pages += [None] * rows
        self._free_pages += range(2 * rows - 1, rows - 1, -1)

    def digest(self, writes: Sequence[PageWrite]) -> None:
        """Compute the checksums of pages that have entered."""
        rows = np.array([write.row for write in writes])
        k.digest_pages(self._transfers, self._identities, rows, self.unit_bytes, checksum.FUNCTION)
        for write in writes:
            write.digest = self._identities[write.row, k.PAGE_DIGEST_AT :].tobytes()

    def queue(self, pages: Sequence[Transfer]) -> None:
        """Have units of pages that have entered begun when their devices have room."""
        rows = np.array([page.row for page in pages])
        while not k.queue(self._transfers, self._devices, self._queues, rows):
            self._grow_queues()

    def _grow_queues(self) -> None:
        devices, kinds, room = self._queues.shape
        old, self._queues = self._queues, np.zeros((devices, kinds, 2 * room), np.int64)
        for device in range(devices):
            for kind in range(kinds):
                words = self._devices[device]
                at = np.arange(words[k.HEAD + kind], words[k.TAIL + kind])
                self._queues[device, kind, at % (2 * room)] = old[device, kind, at % room]

    def started(self, page: Transfer) -> bool:
        """Whether a unit of it has been submitted."""
        return page.row >= 0 and bool(self._word[page.row, k.STARTED])

    def flying(self, page: Transfer) -> int:
        """How many of its units have been submitted, and are not back and verified."""
        return self._word[page.row, k.FLYING] if page.row >= 0 else 0

    def places_away(self, page: Transfer) -> set[int]:
        """Which of its units are under way."""
        flying = (self._units[:, k.TRANSFER] == page.row) & (self._since != np.inf)
        return set(self._units[flying, k.INDEX].tolist())

    def fail(self, page: Transfer) -> None:
        """Begin no unit of it any more."""
        if page.row >= 0 and not page.finished:
            self._word[page.row, k.OVER] = k.FAILED

    def leave(self, page: Transfer) -> None:
        """It has ended; its row is free once its units are back."""
        if page.row >= 0:
            self._word[page.row, k.OVER] = k.ENDED
            if not self._left(page):
                self._lingering.append(page)

    def _left(self, page: Transfer) -> bool:
        word, row = self._word, page.row
        if word[row, k.FLYING] or word[row, k.WAITING]:
            return False
        self.pages[page.row] = None
        self._free_pages.append(page.row)
        page.row = -1
        return True

    # ---- units ----

    def fill(self, now: float) -> RequestArrays | None:
        """Begin as many units as their devices have room for, reads before writes; None: nothing is to be begun."""
        if self._lingering:
            self._lingering = [page for page in self._lingering if not self._left(page)]
        begun = self._found[0]
        count = k.fill(
            self._units, self._since, self._headers, self._transfers, self._identities, self._devices, self._allowed,
            self._queues, self._free, self._meta, begun, now, self.unit_bytes, self._depth, checksum.FUNCTION,
        )  # fmt: skip
        return self._requests(begun[:count].copy()) if count else None

    def _requests(self, rows: np.ndarray) -> RequestArrays:
        units = self._units[rows]
        addresses, lengths = np.empty((len(rows), 2), np.int64), np.empty((len(rows), 2), np.int64)
        addresses[:, 0], addresses[:, 1] = address_of(self._headers) + rows * BLOCK_BYTES, units[:, k.ADDRESS]
        lengths[:, 0], lengths[:, 1] = BLOCK_BYTES, units[:, k.NBYTES]
        return RequestArrays(
            rows,
            self._transfers[units[:, k.TRANSFER], k.WRITING],
            np.ascontiguousarray(units[:, k.DEVICE]),
            np.ascontiguousarray(units[:, k.OFFSET]),
            addresses,
            lengths,
            partial(self._single, units),
        )

    def _single(self, units: np.ndarray, at: int, tag: int) -> Request:
        """One request of a batch that is under way, for arrays that take them one by one, and where one goes on. As
        long as it is, its page is here; so whoever has the batch has the buffers."""
        unit = units[at]
        page = self.pages[unit[k.TRANSFER]]
        assert page is not None, "a page stays as long as a unit of it does"
        start = int(unit[k.INDEX]) * self.unit_bytes
        return Request(
            tag,
            Operation.WRITE if page.writing else Operation.READ,
            int(unit[k.DEVICE]),
            int(unit[k.OFFSET]),
            (self._headers[tag], page.data[start : start + self.unit_bytes]),
        )

    def complete(self, tags: np.ndarray, errors: np.ndarray, now: float) -> Completed:
        """Account for completions: int64 each."""
        found, meta = self._found, self._meta
        k.complete(
            self._units, self._since, self._transfers, self._devices, self._allowed, self._latency, self._latency_sum,
            self._free, meta, tags, errors, _BOUNDS, now, self._depth, found,
        )  # fmt: skip
        ending, unverified, faulty, late = meta[k.ENDING : k.LATE + 1].tolist()
        places = list(zip(found[3, :late].tolist(), found[4, :late].tolist(), strict=True)) if late else []
        return Completed(found[0, :ending].copy(), found[1, :unverified].copy(), found[2, :faulty].copy(), places)

    def verify(self, rows: np.ndarray) -> np.ndarray | None:
        """How each of these units was verified: int64, as in `kernels`; None: all are RIGHT. Any thread."""
        outcomes = np.zeros(len(rows), np.int64)
        wrong = k.verify(
            self._units, self._headers, self._transfers, self._identities, self._devices, rows, outcomes,
            self.unit_bytes, checksum.FUNCTION,
        )  # fmt: skip
        return outcomes if wrong else None

    def back(self, rows: np.ndarray) -> list[Transfer]:
        """These units are done with; the pages that have ended with them."""
        ending = np.zeros(len(rows), np.int64)
        count = k.back(self._units, self._transfers, self._free, self._meta, rows, ending)
        return self._at(ending[:count].tolist())

    def ended(self, rows: np.ndarray) -> list[Transfer]:
        """Pages, by row."""
        return self._at(rows.tolist())

    def unit(self, row: int) -> tuple[Transfer, int, int]:
        """Of a unit: its page, which one it is, and its device."""
        words = self._units[row].tolist()
        page = self.pages[words[k.TRANSFER]]
        assert page is not None, "a page stays as long as a unit of it does"
        return page, words[k.INDEX], words[k.DEVICE]

    def landed(self, row: int) -> None:
        """A unit that has failed is not under way any more."""
        self._since[row] = np.inf

    def header(self, row: int) -> bytes:
        """What was read as the header of a unit."""
        return self._headers[row].tobytes()
