"""Where pages lie on the devices: a place for each, which is a number, and behind it an array, no object of Python's.

A place is a run of 32-bit words in one array, and its number is where the run begins: how many units it has and whether
somebody has it; the generation of the write and the digest of the page, zeros before there is one; the slot of each
unit; the devices, four to a word; and, where pages land, the digest by which one is verified then. So a page of nine
units takes 76 bytes, or 92. A run that is free again waits for a page of as many units.
"""

from __future__ import annotations

from array import array as packed

from ...base.page import PageRecord
from ...base.runner import Runner
from .layout import DIGEST_BYTES, Placement, StoredPage

#: Devices that a place can tell apart: one byte each.
MOST_DEVICES = 256
#: The first word of a run: the number of its units, and this, unless it is free.
_TAKEN = 1 << 31
#: Where in a run the generation, the digest and the slots begin.
_GENERATION, _DIGEST, _SLOTS = 1, 3, 3 + DIGEST_BYTES // 4
_LOW = (1 << 32) - 1


class StripePlaces:
    """Thread-safe. What a place holds is changed by whoever has it; numbers of places that are free mean nothing, and
    raise ValueError where they can be told."""

    def __init__(self, runner: Runner) -> None:
        self._lock = runner.lock()  # guards the free runs, and the end of the array
        self.taken = 0  # places that are not free
        self._words = packed("I")
        self._free: dict[int, list[int]] = {}  # runs, by their units
        self._landing = 0  # words for the digest by which a page lands, at the end of a run

    def reserve(self, placement: Placement) -> int:
        """A place of these slots, for a page that is to be written."""
        return self._enter(0, bytes(DIGEST_BYTES), placement)

    def found(self, generation: int, digest: bytes, placement: Placement) -> int:
        """A place of a page that the devices had already."""
        return self._enter(generation, digest, placement)

    def hold(self, place: int, generation: int, digest: bytes) -> None:
        """Its page is written."""
        self._units(place)
        self._describe(place, generation, digest)

    def keep_landing_digests(self) -> None:
        """Have room for them from now on. Before the first place."""
        assert not self._words, "places are there already"
        self._landing = DIGEST_BYTES // 4

    def learn(self, place: int, digest: bytes | None) -> None:
        """By this the page at `place` is verified when it has landed; None: that is not known, or no longer."""
        begin = self._end(place, self._units(place)) - self._landing
        self._words[begin : begin + self._landing] = packed("I", digest or bytes(DIGEST_BYTES))

    def landing_digest(self, place: int) -> bytes | None:
        """What was learnt of the page there; None: nothing."""
        end = self._end(place, self._units(place))
        found = self._words[end - self._landing : end].tobytes()
        return found if any(found) else None

    def digest(self, place: int) -> bytes | None:
        """The checksum of the page there; None: it is not written yet, or nobody has the place."""
        found = self._words[place + _DIGEST : place + _SLOTS].tobytes()
        return found if self._words[place] > _TAKEN and any(found) else None

    def free(self, place: int) -> Placement:
        """Nobody has it any more; the slots that it was of."""
        with self._lock:
            placement = self.placement(place)
            self._words[place] = len(placement)
            self.taken -= 1
            self._free.setdefault(len(placement), []).append(place)
        return placement

    def placement(self, place: int) -> Placement:
        """Where its units lie."""
        units = self._units(place)
        slots = self._words[place + _SLOTS : place + _SLOTS + units]
        return tuple(zip(self._devices(place, units), slots, strict=True))

    def generation(self, place: int) -> int:
        """Of the write that made its page; 0 before."""
        self._units(place)
        return self._words[place + _GENERATION] | self._words[place + _GENERATION + 1] << 32

    def stored(self, place: int, record: PageRecord) -> StoredPage:
        """The page that it holds, of which `record` is told by whoever knows."""
        digest = self._words[place + _DIGEST : place + _SLOTS].tobytes()
        return StoredPage(record, self.generation(place), digest, self.placement(place))

    def uses(self, place: int, device: int) -> bool:
        """Whether a unit of it lies on `device`. False for a place that is free."""
        head = self._words[place]
        return head > _TAKEN and device in self._devices(place, head - _TAKEN)

    def _units(self, place: int) -> int:
        head = self._words[place] if 0 <= place < len(self._words) else 0
        if head <= _TAKEN:
            raise ValueError(f"place {place} is not reserved: was its page released before?")
        return head - _TAKEN

    def _devices(self, place: int, units: int) -> bytes:
        begin = place + _SLOTS + units
        return self._words[begin : begin + _words(units)].tobytes()[:units]

    def _enter(self, generation: int, digest: bytes, placement: Placement) -> int:
        units = len(placement)
        devices = bytes([device for device, _ in placement])
        where = packed("I", [slot for _, slot in placement])
        where.frombytes(devices.ljust(4 * _words(units), b"\0"))
        with self._lock:
            self.taken += 1
            runs = self._free.get(units)
            if runs:
                place = runs.pop()
            else:
                place = len(self._words)
                self._words.frombytes(bytes(4 * (_SLOTS + len(where) + self._landing)))
        self._words[place + _SLOTS : place + _SLOTS + len(where)] = where
        self._describe(place, generation, digest)
        self._words[place] = _TAKEN + units
        if self._landing:
            self.learn(place, None)
        return place

    def _end(self, place: int, units: int) -> int:
        """Where its run ends."""
        return place + _SLOTS + units + _words(units) + self._landing

    def _describe(self, place: int, generation: int, digest: bytes) -> None:
        words = self._words
        words[place + _GENERATION] = generation & _LOW
        words[place + _GENERATION + 1] = generation >> 32
        words[place + _DIGEST : place + _SLOTS] = packed("I", digest)


def _words(units: int) -> int:
    """Words that the devices of so many units take."""
    return -(-units // 4)
