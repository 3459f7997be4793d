"""Which slots of lent memory are taken, by whom they are used, and which one is taken next."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import NamedTuple

from ...base.runner import THREADS, Runner
from ...lending.donation.extents import CutRun
from ...lending.leases import LeaseKey
from .lent_memory import LeaseSlots, PeerPlace

#: What a donor has taken back, it may want again for so long, seconds.
UNSTEADY_SECONDS = 300.0


class Occupancy(NamedTuple):
    """Slots of one donor, or of all."""

    leases: int
    slots: int
    used: int


class _Lease:
    """A lease and its slots: each is free, held, or held no more but still in use."""

    def __init__(self, key: LeaseKey, run: CutRun) -> None:
        self.key = key
        self.run = run
        self.open = True  # for new pages
        self.free = list(range(run.slots - 1, -1, -1))
        self.held: dict[int, int] = {}  # slot -> reads and writes of it, queued or under way
        self.left: set[int] = set()  # of those held: given back, but in use
        self.notes: dict[int, bytes] = {}  # slot -> what was noted of the page there

    @property
    def used(self) -> int:
        return self.run.slots - len(self.free)


class _Lows:
    """How little a donor lent when it had taken memory back: what lies beyond that may go as it went before."""

    def __init__(self) -> None:
        self._lows: deque[tuple[float, int]] = deque()  # when, and slots, which grow

    def note(self, now: float, slots: int) -> None:
        while self._lows and self._lows[-1][1] >= slots:
            self._lows.pop()
        self._lows.append((now, slots))

    def least(self, now: float) -> float:
        """Slots; all that it lends, if it has taken nothing back lately."""
        while self._lows and self._lows[0][0] < now - UNSTEADY_SECONDS:
            self._lows.popleft()
        return self._lows[0][1] if self._lows else math.inf


class _Donor:
    """The leases of one donor. Sums are of those that are open for new pages."""

    def __init__(self) -> None:
        self.leases: dict[LeaseKey, _Lease] = {}
        self.open = 0
        self.slots = 0
        self.used = 0
        self.with_room: list[LeaseKey] = []  # the oldest one first

    def share(self, steady: float) -> tuple[bool, float]:
        """Whether more is in use than it lends steadily, which are so many slots; how much of them, or of all that it
        lends."""
        beyond = self.used >= min(steady, self.slots)
        return beyond, self.used / (self.slots if beyond else min(steady, self.slots))


class PlaceBook:
    """All places of the active and recalled leases. Thread-safe; every method is short, and what is asked for each page
    takes no longer because there are more leases: the scheduler waits for it.

    A slot is never given to a new page while a read or write of it is queued or under way.
    """

    def __init__(self, runner: Runner = THREADS) -> None:
        self._lock = runner.lock()
        self._clock = runner.monotonic
        self._donors: dict[str, _Donor] = {}
        self._lows: dict[str, _Lows] = {}  # by donor, those of which we have no lease among them

    # Leases

    def open(self, key: LeaseKey, run: CutRun) -> None:
        """A lease has begun. Raises ValueError for one that is known."""
        with self._lock:
            donor = self._donors.setdefault(key.donor, _Donor())
            if key in donor.leases:
                raise ValueError(f"{key} has begun before")
            donor.leases[key] = _Lease(key, run)
            donor.open += 1
            donor.slots += run.slots
            insort(donor.with_room, key)
            now = self._clock()
            self._lows = {name: lows for name, lows in self._lows.items() if lows.least(now) < math.inf}

    def close(self, key: LeaseKey) -> bool:
        """Nothing new goes to this lease, which its donor has taken back. False if it was closed, or is not known."""
        with self._lock:
            lease = self._lease(key)
            return lease is not None and self._taken_back(lease)

    def forget(self, key: LeaseKey) -> bool:
        """The lease is over, and all its places with it. False if it is not known."""
        with self._lock:
            lease = self._lease(key)
            if lease is None:
                return False
            self._taken_back(lease)
            donor = self._donors[key.donor]
            del donor.leases[key]
            if not donor.leases:
                del self._donors[key.donor]
            return True

    def close_idle(self, excess_slots: int) -> list[LeaseKey]:
        """Close leases in which no place is taken, the newest first, that have at most so many slots together."""
        closed = []
        with self._lock:
            idle = [lease for donor in self._donors.values() for lease in donor.leases.values() if not lease.used]
            for lease in reversed(idle):
                if lease.open and lease.run.slots <= excess_slots:
                    excess_slots -= lease.run.slots
                    self._close(lease)
                    closed.append(lease.key)
        return closed

    def run(self, key: LeaseKey) -> CutRun | None:
        """The lease's bytes; None if it is not known."""
        with self._lock:
            lease = self._lease(key)
            return None if lease is None else lease.run

    def occupancy(self, donor: str | None = None) -> Occupancy:
        """Of the leases that are open for new pages, one donor's or all."""
        with self._lock:
            found = [one for name, one in self._donors.items() if donor in (None, name)]
            leases = sum(one.open for one in found)
            return Occupancy(leases, sum(one.slots for one in found), sum(one.used for one in found))

    def has_leases(self, donor: str) -> bool:
        """Whether any lease of the donor is not over yet."""
        with self._lock:
            return donor in self._donors

    def slots(self) -> list[LeaseSlots]:
        """What is used of each lease that is not over."""
        with self._lock:
            return [
                LeaseSlots(lease.key, lease.run.slots, list(lease.held), list(lease.left))
                for donor in self._donors.values()
                for lease in donor.leases.values()
            ]

    # Places

    def reserve(self) -> PeerPlace | None:
        """A free slot, or None.

        Of the donor with the smallest share in use, so that none has to serve all reads: of what it has not taken back
        lately, as long as any donor has room in that. There of its oldest lease: a donor takes its youngest ones back
        first.
        """
        with self._lock:
            now = self._clock()
            shares = [
                (donor.share(self._lows[name].least(now) if name in self._lows else math.inf), name)
                for name, donor in self._donors.items()
                if donor.with_room
            ]
            if not shares:
                return None
            donor = self._donors[min(shares)[1]]
            lease = donor.leases[donor.with_room[0]]
            slot = lease.free.pop()
            lease.held[slot] = 0
            donor.used += 1
            if not lease.free:
                del donor.with_room[0]
            return PeerPlace(lease.key, slot)

    def release(self, place: PeerPlace) -> None:
        """Give a place back. Raises ValueError for one that is not held; those of leases that are over are ignored."""
        with self._lock:
            lease = self._lease(place.key)
            if lease is None:
                return
            if place.slot not in lease.held or place.slot in lease.left:
                raise ValueError(f"{place} is given back, and not held")
            lease.left.add(place.slot)
            self._settle(lease, place.slot)

    def begin(self, place: PeerPlace) -> bool:
        """A read or write of a place is asked for. False if its lease is over.

        Raises ValueError for a place that is not held.
        """
        with self._lock:
            lease = self._lease(place.key)
            if lease is None:
                return False
            if place.slot not in lease.held or place.slot in lease.left:
                raise ValueError(f"{place} is used, and not held")
            lease.held[place.slot] += 1
            return True

    def note(self, place: PeerPlace, digest: bytes) -> None:
        """Remember the digest of a page that was put there, until the place is free again."""
        with self._lock:
            lease = self._lease(place.key)
            if lease is not None and place.slot in lease.held:
                lease.notes[place.slot] = digest

    def noted(self, place: PeerPlace) -> bytes | None:
        """What was noted; None if nothing was."""
        with self._lock:
            lease = self._lease(place.key)
            return None if lease is None else lease.notes.get(place.slot)

    def end(self, place: PeerPlace) -> None:
        """The read or write has ended: once for each `begin` that was True."""
        with self._lock:
            lease = self._lease(place.key)
            if lease is not None:
                lease.held[place.slot] -= 1
                self._settle(lease, place.slot)

    # Inside; the lock is held

    def _lease(self, key: LeaseKey) -> _Lease | None:
        donor = self._donors.get(key.donor)
        return None if donor is None else donor.leases.get(key)

    def _close(self, lease: _Lease) -> bool:
        if not lease.open:
            return False
        lease.open = False
        donor = self._donors[lease.key.donor]
        donor.open -= 1
        donor.slots -= lease.run.slots
        donor.used -= lease.used
        if lease.free:
            del donor.with_room[bisect_left(donor.with_room, lease.key)]
        return True

    def _taken_back(self, lease: _Lease) -> bool:
        if not self._close(lease):
            return False
        donor = lease.key.donor
        self._lows.setdefault(donor, _Lows()).note(self._clock(), self._donors[donor].slots)
        return True

    def _settle(self, lease: _Lease, slot: int) -> None:
        """Free a slot that was given back and is used no more."""
        if lease.held[slot] or slot not in lease.left:
            return
        del lease.held[slot]
        lease.notes.pop(slot, None)
        lease.left.discard(slot)
        lease.free.append(slot)
        if lease.open:
            donor = self._donors[lease.key.donor]
            donor.used -= 1
            if len(lease.free) == 1:
                insort(donor.with_room, lease.key)
