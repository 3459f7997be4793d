"""Lent memory without another server: leases begin, are recalled and end when the test says so."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from swift_tiers.radix_tiering.base.page import HeldPages, PageRecord, page_digest
from swift_tiers.radix_tiering.base.runner import THREADS, Runner
from swift_tiers.radix_tiering.figures.counters import LinkCounters
from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.table.tier_copies import Copy
from swift_tiers.radix_tiering.tiers.peer.lent_memory import LeaseSlots, LentMemory, PeerPlace
from swift_tiers.radix_tiering.tiers.tier import LandDone, Read, ReadOutcome, TierListener, Write, Written


class ModelPeer(LentMemory):
    """Lent memory with a thread of its own, as the real one has; `hold` stops it, so that calls pile up."""

    def __init__(
        self,
        page_bytes: int,
        fingerprint: Callable[[np.ndarray], bytes] = page_digest,
        *,
        landing_slots: int = 0,
        runner: Runner = THREADS,
    ) -> None:
        """`landing_slots`: pages that can come up to a device of this server's own."""
        self.page_bytes = page_bytes
        self.checksum = fingerprint
        self._links = {"peer-host": LinkCounters(), "host-peer": LinkCounters()}
        self.wanted = 0
        self.limit: int | None = None  # `peer.borrow_limit`
        self.times_wanted = 0
        self.returned: list[LeaseKey] = []
        self.stored: dict[PeerPlace, np.ndarray] = {}
        self.landed = np.full((landing_slots, page_bytes), 0xAA, np.uint8)
        self.landings = 0
        self.seconds_each = 0.0  # the pace that every donor says it sets
        self._landing_free = list(range(landing_slots))
        self._runner = runner
        self._lock = runner.condition()
        self._free: dict[LeaseKey, list[int]] = {}  # active leases
        self._sizes: dict[LeaseKey, int] = {}
        self._recalled: set[LeaseKey] = set()
        self._over: set[LeaseKey] = set()
        self._busy: dict[PeerPlace, int] = {}
        self._taken: set[PeerPlace] = set()
        self._unreleased: set[PeerPlace] = set()  # released while they were busy
        self._jobs: deque[Callable[[], None] | None] = deque()
        self._held = False
        self._listing = 0  # recalled leases, of which it is not found out yet what is to be saved
        self._numbers = itertools.count(1)
        self._closed = False
        self._listener: TierListener  # from `watch` on, which comes before there is a lease
        self._thread = runner.thread(self._run, "swift-peer")
        self._thread.start()

    # ---- what the test does ----

    def lend(self, slots: int, donor: str = "donor") -> LeaseKey:
        with self._lock:
            key = LeaseKey(donor, 1, next(self._numbers))
            self._free[key] = list(range(slots))
            self._sizes[key] = slots
            self._put(lambda: self._listener.room())
        return key

    def recall(self, key: LeaseKey, *, in_time: bool = True) -> None:
        """The lease is to be returned; if not `in_time`, it is over before all that is to be saved is found."""

        def job() -> None:
            steps = self._listener.leaving(key, 0.0)
            if not in_time:
                next(steps, None)
                self.end(key)
            self._list(steps)

        with self._lock:
            if key not in self._sizes or key in self._over:
                return
            self._recalled.add(key)
            self._free.pop(key, None)
            self._listing += 1
            self._put(job, first=True)

    def end(self, key: LeaseKey) -> None:
        """The lease is over, at once."""
        with self._lock:
            self._finish(key)

    def damage(self, place: PeerPlace) -> None:
        self.stored[place][3] ^= 1

    def hold(self, held: bool) -> None:
        with self._lock:
            self._held = held
            self._lock.notify_all()

    def busy(self, place: PeerPlace) -> bool:
        """Whether it is asked to read or write there, and has not answered."""
        with self._lock:
            return bool(self._busy.get(place))

    def settle(self, timeout: float = 20) -> None:
        """Wait until everything asked for has been done."""
        done = self._runner.flag()

        def job() -> None:
            with self._lock:
                if self._listing:
                    self._put(job)
                else:
                    done.set()

        with self._lock:
            self._put(job)
        assert done.wait(timeout), "the lent memory does not answer"

    # ---- what the stack does ----

    @property
    def limit_bytes(self) -> int | None:
        return self.limit

    @property
    def capacity_bytes(self) -> int:
        with self._lock:
            return sum(self._sizes[key] for key in self._free) * self.page_bytes

    def lease_slots(self) -> list[LeaseSlots]:
        with self._lock:
            return [
                LeaseSlots(
                    key,
                    size,
                    sorted(place.slot for place in self._taken if place.key == key),
                    [place.slot for place in self._unreleased if place.key == key],
                )
                for key, size in self._sizes.items()
                if key not in self._over
            ]

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        return self._links

    def watch(self, listener: TierListener) -> None:
        self._listener = listener

    def reserve(self, lengths: Sequence[int]) -> list[PeerPlace]:
        with self._lock:
            places: list[PeerPlace] = []
            for key, free in self._free.items():
                while free and len(places) < len(lengths):
                    places.append(PeerPlace(key, free.pop()))
            self._taken.update(places)
            return places

    def release(self, places: Sequence[PeerPlace]) -> None:
        with self._lock:
            for place in places:
                if self._busy.get(place):
                    self._unreleased.add(place)
                else:
                    self._give_back(place)

    def write(self, writes: Sequence[Write]) -> None:
        self._ask([(write.place, partial(self._write, write)) for write in writes])

    def _write(self, write: Write) -> None:
        place = write.place
        with self._lock:
            lives = place.key not in self._over
            if lives:
                self.stored[place] = write.data[: self.page_bytes].copy()
            self._no_longer(place)
            if not lives:
                self._give_back(place)
        self._links["host-peer"].count(1, self.page_bytes, 0.0)
        with self.answers:
            write.done(Written(place, write.digest or b"") if lives else None, "" if lives else "lease ended")

    def read(self, reads: Sequence[Read]) -> None:
        for read in reads:
            self._ask([(read.copy.place, partial(self._read, read))], first=read.saving)

    def _read(self, read: Read) -> None:
        place, into = read.copy.place, read.into[: self.page_bytes]
        with self._lock:
            allowed = place.key not in self._over and (read.saving or place.key not in self._recalled)
            if allowed:
                into[:] = self.stored[place]
            self._no_longer(place)
        outcome = ReadOutcome.CANCELLED
        if allowed:
            outcome = ReadOutcome.OK if self.checksum(into) == read.copy.digest else ReadOutcome.CHECKSUM
        else:
            into[:] = 0xEE
        with self.answers:
            read.done(outcome)

    def land(self, record: PageRecord, copy: Copy, done: LandDone) -> bool:
        place = copy.place
        with self._lock:
            if not self._landing_free:
                return False
            slot = self._landing_free.pop()

        def job() -> None:
            with self._lock:
                allowed = place.key not in self._over and place.key not in self._recalled
                intact = allowed and self.checksum(self.stored[place]) == copy.digest
                self.landed[slot] = self.stored[place] if allowed else 0xEE
                self._no_longer(place)
            if intact:
                self.landings += 1
            else:
                self.give_back(slot)
            with self.answers:
                if intact:
                    done(ReadOutcome.OK, slot)
                else:
                    done(ReadOutcome.CHECKSUM if allowed else ReadOutcome.CANCELLED, -1)

        try:
            self._ask([(place, job)])
        except RuntimeError:
            self.give_back(slot)
            raise
        return True

    def give_back(self, slot: int) -> None:
        with self._lock:
            assert slot not in self._landing_free, "a landing slot was given back twice"
            self.landed[slot] = 0xAA
            self._landing_free.append(slot)

    @property
    def slots(self) -> int:
        return len(self.landed)

    @property
    def used_slots(self) -> int:
        with self._lock:
            return len(self.landed) - len(self._landing_free)

    def paced_seconds(self, lane: Hashable, pages: int) -> float:
        return (pages - 1) * self.seconds_each

    def want(self, nbytes: int) -> None:
        self.wanted = nbytes
        self.times_wanted += 1

    def give_up(self, part: Any) -> None:
        with self._lock:
            assert part not in self.returned, "returned twice"
            self.returned.append(part)
            self._finish(part)

    def close(self, held: Iterable[HeldPages] | None = None, timeout: float | None = None) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._held = False
            self._jobs.append(None)
            self._lock.notify_all()
        self._thread.join()

    def _list(self, steps: Iterator[None]) -> None:
        """Have it found out what is to be saved of a lease, a step after the other, with other work in between."""
        for _ in steps:
            with self._lock:
                self._put(lambda: self._list(steps))
            return
        with self._lock:
            self._listing -= 1

    # ---- inside; the lock is held ----

    def _finish(self, key: LeaseKey) -> None:
        if key in self._over or key not in self._sizes:
            return
        self._over.add(key)
        self._free.pop(key, None)
        for place in [place for place in self.stored if place.key == key]:
            self.stored[place] = np.full(self.page_bytes, 0xDD, np.uint8)  # another owner's by now
        if not self._closed:
            self._put(lambda: self._listener.gone(key, "the lease ended"), first=True)

    def _ask(self, asked: Sequence[tuple[PeerPlace, Callable[[], None]]], *, first: bool = False) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            for place, job in asked:
                self._busy[place] = self._busy.get(place, 0) + 1
                self._put(job, first=first)

    def _no_longer(self, place: PeerPlace) -> None:
        self._busy[place] -= 1
        if not self._busy[place] and place in self._unreleased:
            self._unreleased.discard(place)
            self._give_back(place)

    def _give_back(self, place: PeerPlace) -> None:
        self._taken.discard(place)
        if place.key in self._free:
            assert place.slot not in self._free[place.key], "a place was given back twice"
            self._free[place.key].append(place.slot)

    def _put(self, job: Callable[[], None], *, first: bool = False) -> None:
        if first:
            self._jobs.appendleft(job)
        else:
            self._jobs.append(job)
        self._lock.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._jobs and not self._held)
                job = self._jobs.popleft()
            if job is None:
                return
            job()
