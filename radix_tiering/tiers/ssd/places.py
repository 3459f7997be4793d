"""Where pages lie on the devices: a place for each, which is a number, and behind it an array, no object of Python's.

A place is a run of 32-bit words in one array, and its number is where the run begins: how many units it has room for,
whether somebody has it, and the device of the first unit; the generation of the write and the digest of the page, zeros
before there is one; the slot of each unit, _NONE for the last ones of a page that is coded in fewer; the devices of the
others, four to a word; and, where pages land, the digest by which one is verified then. So a page of one unit takes 32
bytes and one of nine 72, or 16 more. A run that is free again waits for a page of as many units.
"""

from __future__ import annotations

from array import array as packed

import numpy as np

from ...base.page import PageRecord
from ...base.runner import Runner
from .layout import DIGEST_BYTES, Count, Placement, StoredPage, unit_count
from .stored_pages import StoredPages

#: Devices that a place can tell apart: one byte each.
MOST_DEVICES = 256
#: Units that there are numbers for, of whatever pages: the page table keeps the number of a place in 31 bits, and a
#: page takes fourteen words at most for each of its units: one of two that is coded in one.
MOST_UNITS = (1 << 31) // 14
#: The first word of a run, unless it is free: this, the device of the first unit, and behind it the number of units,
#: which alone is there where it is free.
_TAKEN, _FIRST_AT = 1 << 31, 23
_COUNT = (1 << _FIRST_AT) - 1
#: Where in a run the generation, the digest and the slots begin.
_GENERATION, _DIGEST, _SLOTS = 1, 3, 3 + DIGEST_BYTES // 4
_LOW = (1 << 32) - 1
#: No slot: these have 31 bits.
_NONE = (1 << 32) - 1
#: Pages that places are found for in one go.
_FOUND_TOGETHER = 16_384
#: Neither a generation nor a digest.
_NOTHING = (0,) * (_SLOTS - _GENERATION)


class StripePlaces:
    """Thread-safe. What a place holds is changed by whoever has it; numbers of places that are free mean nothing, and
    raise ValueError where they can be told."""

    def __init__(self, runner: Runner) -> None:
        self._lock = runner.lock()  # guards the free runs, and the end of the array
        self.taken = 0  # places that are not free
        self.spared = 0  # units that pages do not take of those that their places have room for
        self._words = packed("I")
        self._free: dict[int, list[int]] = {}  # runs, by their units
        self._landing = 0  # words for the digest by which a page lands, at the end of a run

    def reserve(self, placement: Placement) -> int:
        """A place of these slots, for a page that is to be written."""
        units = len(placement)
        first, *others = [device for device, _ in placement]
        run = packed("I", [_TAKEN | first << _FIRST_AT | units, *_NOTHING, *[slot for _, slot in placement]])
        run.frombytes(bytes(others).ljust(4 * _words(units), b"\0"))
        if self._landing:
            run.frombytes(bytes(4 * self._landing))
        with self._lock:
            self.taken += 1
            runs = self._free.get(units)
            place = runs.pop() if runs else len(self._words)
            self._words[place : place + len(run)] = run
        return place

    def found(self, pages: StoredPages, unit_bytes: int) -> np.ndarray:
        """Places of pages that the devices had already: int64 [pages]. Others have the interpreter in between."""
        some = [self._found(batch, unit_bytes) for batch in pages.batches(_FOUND_TOGETHER)]
        return np.concatenate(some) if some else np.zeros(0, np.int64)

    def _found(self, pages: StoredPages, unit_bytes: int) -> np.ndarray:
        # As for pages that are not coded, which may come there later.
        room = unit_count(pages.records["length"].astype(np.int64), unit_bytes)
        sizes = _SLOTS + room + _words(room) + self._landing
        ends = np.cumsum(sizes)
        begins = ends - sizes
        words = np.zeros(int(ends[-1]), np.uint32)
        first = pages.unit_indexes == 0
        words[begins] = np.uint32(_TAKEN) | room.astype(np.uint32)
        words[begins[pages.page_of[first]]] |= pages.devices[first].astype(np.uint32) << np.uint32(_FIRST_AT)
        words[begins + _GENERATION] = pages.records["generation"] & np.uint64(_LOW)
        words[begins + _GENERATION + 1] = pages.records["generation"] >> np.uint64(32)
        digests = np.ascontiguousarray(pages.records["digest"]).view(np.uint32).reshape(-1, DIGEST_BYTES // 4)
        words[begins[:, None] + np.arange(_DIGEST, _SLOTS)] = digests
        spared = room - pages.counts
        if spared.any():
            unused = np.repeat(begins + _SLOTS + room - np.cumsum(spared), spared) + np.arange(spared.sum())
            words[unused] = _NONE
        slots = begins[pages.page_of] + _SLOTS + pages.unit_indexes
        words[slots] = pages.slots
        at = 4 * (begins + _SLOTS + room)[pages.page_of] + pages.unit_indexes - 1
        words.view(np.uint8)[at[~first]] = pages.devices[~first]
        with self._lock:
            base = len(self._words)
            self._words.frombytes(words.tobytes())
            self.taken += len(pages)
            self.spared += int(spared.sum())
        return base + begins

    def stored_many(self, records: np.ndarray, places: np.ndarray, namespace: bytes) -> StoredPages:
        """What these places hold, those that are free left out: `records`, RECORD_DTYPE [places], of pages of one
        namespace, are told what only a place knows. `places`: int64."""
        known = places >= 0  # of those that have left since they were listed
        if not known.all():
            places, records = places[known], records[known]
        with self._lock:
            words = np.frombuffer(self._words, np.uint32)
            # One look at each run's beginning, which is somewhere in a lot of memory.
            heads = words[places[:, None] + np.arange(_SLOTS)]
            taken = heads[:, 0] > _TAKEN
            if not taken.all():
                places, records, heads = places[taken], records[taken], heads[taken]
            room = (heads[:, 0] & np.uint32(_COUNT)).astype(np.int64)
            low, high = heads[:, _GENERATION].astype(np.uint64), heads[:, _GENERATION + 1].astype(np.uint64)
            digests = heads[:, _DIGEST:]
            page_of = np.repeat(np.arange(len(places)), room)
            indexes = np.arange(len(page_of)) - np.repeat(np.cumsum(room) - room, room)
            slots = words[places[page_of] + _SLOTS + indexes].astype(np.int64)
            counts = room
            if self.spared and (used := slots != _NONE).sum() < len(slots):
                page_of, indexes, slots = page_of[used], indexes[used], slots[used]
                counts = np.bincount(page_of, minlength=len(places))
            at = 4 * (places + _SLOTS + room)[page_of] + indexes - 1
            first = heads[page_of, 0] >> np.uint32(_FIRST_AT) & np.uint32(MOST_DEVICES - 1)
            devices = np.where(indexes == 0, first, words.view(np.uint8)[at]).astype(np.int64)
            del words  # as long as there is a view of it, the array cannot grow
        records["generation"], records["unit_count"], records["namespace_id"] = low | high << np.uint64(32), counts, 1
        records["digest"] = np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}").ravel()
        return StoredPages(records, counts, devices, slots, {1: namespace})

    def hold(self, place: int, generation: int, digest: bytes, units: int) -> None:
        """Its page is written, in the first `units` of its slots; the others are not its any more."""
        room = self._room(place)
        self._words[place + _GENERATION : place + _SLOTS] = packed("I", generation.to_bytes(8, "little") + digest)
        if units < room:
            begin, end = place + _SLOTS + units, place + _SLOTS + room
            with self._lock:
                self.spared += sum(slot != _NONE for slot in self._words[begin:end])
                self._words[begin:end] = packed("I", [_NONE] * (room - units))

    def keep_landing_digests(self) -> None:
        """Have room for them from now on. Before the first place."""
        assert not self._words, "places are there already"
        self._landing = DIGEST_BYTES // 4

    def learn(self, place: int, digest: bytes | None) -> None:
        """By this the page at `place` is verified when it has landed; None: that is not known, or no longer."""
        begin = self._end(place, self._room(place)) - self._landing
        self._words[begin : begin + self._landing] = packed("I", digest or bytes(DIGEST_BYTES))

    def landing_digest(self, place: int) -> bytes | None:
        """What was learnt of the page there; None: nothing."""
        end = self._end(place, self._room(place))
        found = self._words[end - self._landing : end].tobytes()
        return found if any(found) else None

    def digest(self, place: int) -> bytes | None:
        """The checksum of the page there; None: it is not written yet, or nobody has the place."""
        found = self._words[place + _DIGEST : place + _SLOTS].tobytes()
        return found if self._words[place] > _TAKEN and any(found) else None

    def free(self, place: int) -> Placement:
        """Nobody has it any more; the slots that it was of."""
        with self._lock:
            placement, room = self.placement(place), self._room(place)
            self._words[place] = room
            self.taken -= 1
            self.spared -= room - len(placement)
            self._free.setdefault(room, []).append(place)
        return placement

    def placement(self, place: int) -> Placement:
        """Where its units lie."""
        return _placement(self._run(place))

    def is_coded(self, place: int) -> bool:
        """Whether its page takes fewer units than it has."""
        return self._words[place + _SLOTS + self._room(place) - 1] == _NONE

    def generation(self, place: int) -> int:
        """Of the write that made its page; 0 before."""
        return _generation(self._run(place))

    def stored(self, place: int, record: PageRecord) -> StoredPage:
        """The page that it holds, of which `record` is told by whoever knows."""
        run = self._run(place)
        return StoredPage(record, _generation(run), run[_DIGEST:_SLOTS].tobytes(), _placement(run))

    def uses(self, place: int, device: int) -> bool:
        """Whether a unit of it lies on `device`. False for a place that is free."""
        head = self._words[place]  # looked at once: it may be freed meanwhile
        return head > _TAKEN and device in _devices(self._words[place : self._end(place, head & _COUNT)])

    def _room(self, place: int) -> int:
        """Units that it has room for."""
        head = self._words[place] if 0 <= place < len(self._words) else 0
        if head <= _TAKEN:
            raise ValueError(f"place {place} is not reserved: was its page released before?")
        return head & _COUNT

    def _run(self, place: int) -> packed[int]:
        """Its words, a copy."""
        return self._words[place : self._end(place, self._room(place))]

    def _end(self, place: int, room: int) -> int:
        """Where its run ends."""
        return place + _SLOTS + room + _words(room) + self._landing


def _placement(run: packed[int]) -> Placement:
    units = _used(run)
    return tuple(zip(_devices(run), run[_SLOTS : _SLOTS + units], strict=True))


def _used(run: packed[int]) -> int:
    """Units that its page takes, or may take."""
    units = run[0] & _COUNT
    while run[_SLOTS + units - 1] == _NONE:
        units -= 1
    return units


def _devices(run: packed[int]) -> bytes:
    others = run[_SLOTS + (run[0] & _COUNT) :].tobytes()
    return bytes([run[0] >> _FIRST_AT & MOST_DEVICES - 1]) + others[: _used(run) - 1]


def _generation(run: packed[int]) -> int:
    return run[_GENERATION] | run[_GENERATION + 1] << 32


def _words(units: Count) -> Count:
    """Words that the devices of so many units take, but for the first one's."""
    return (units + 2) // 4
