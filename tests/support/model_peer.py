"""Lent memory without another server: leases begin, are recalled and end when the test says so."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import numpy as np

from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.base.runner import THREADS, Runner
from swift_tiers.radix_tiering.figures.counters import LinkCounters
from swift_tiers.radix_tiering.lending.leases import LeaseKey
from swift_tiers.radix_tiering.tiers.peer_memory import LeaseSlots, PeerPlace, PeerWatcher
from swift_tiers.radix_tiering.tiers.ssd import ReadOutcome


class ModelPeer:
    """A `PeerMemory` with a thread of its own, as the real one has; `hold` stops it, so that calls pile up."""

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
        self.fingerprint = fingerprint
        self.links = {"peer-host": LinkCounters(), "host-peer": LinkCounters()}
        self.wanted = 0
        self.times_wanted = 0
        self.returned: list[LeaseKey] = []
        self.stored: dict[PeerPlace, np.ndarray] = {}
        self.landed = np.full((landing_slots, page_bytes), 0xAA, np.uint8)
        self.landings = 0
        self.damaged: set[PeerPlace] = set()
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
        self._numbers = itertools.count(1)
        self._closed = False
        self._watcher: PeerWatcher | None = None
        self._thread = runner.thread(self._run, "swift-peer")
        self._thread.start()

    # ---- what the test does ----

    def lend(self, slots: int, donor: str = "donor") -> LeaseKey:
        with self._lock:
            key = LeaseKey(donor, 1, next(self._numbers))
            self._free[key] = list(range(slots))
            self._sizes[key] = slots
            self._put(lambda: self._watcher.lease_began())
        return key

    def recall(self, key: LeaseKey, *, in_time: bool = True) -> None:
        """The lease is to be returned; if not `in_time`, it is over before anything could be saved."""

        def job() -> None:
            self._watcher.lease_recalled(key, 0.0)
            if not in_time:
                self.end(key)

        with self._lock:
            if key not in self._sizes or key in self._over:
                return
            self._recalled.add(key)
            self._free.pop(key, None)
            self._put(job, first=True)

    def end(self, key: LeaseKey) -> None:
        """The lease is over, at once."""
        with self._lock:
            self._finish(key)

    def damage(self, place: PeerPlace) -> None:
        self.stored[place][3] ^= 1
        self.damaged.add(place)

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
        with self._lock:
            self._put(done.set)
        assert done.wait(timeout), "the lent memory does not answer"

    # ---- what the stack does ----

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

    def watch(self, watcher: PeerWatcher) -> None:
        self._watcher = watcher

    def reserve(self) -> PeerPlace | None:
        with self._lock:
            for key, free in self._free.items():
                if free:
                    place = PeerPlace(key, free.pop())
                    self._taken.add(place)
                    return place
            return None

    def release(self, place: PeerPlace) -> None:
        with self._lock:
            if self._busy.get(place):
                self._unreleased.add(place)
            else:
                self._give_back(place)

    def write(self, place: PeerPlace, data: np.ndarray, done: Callable[[bool, str], None], *, digest: bytes) -> None:
        def job() -> None:
            with self._lock:
                lives = place.key not in self._over
                if lives:
                    self.stored[place] = data.copy()
                    self.damaged.discard(place)
                self._no_longer(place)
            self.links["host-peer"].count(1, self.page_bytes, 0.0)
            done(lives, "" if lives else "lease ended")

        self._ask(place, job)

    def read(
        self,
        place: PeerPlace,
        into: np.ndarray,
        digest: bytes,
        done: Callable[[ReadOutcome], None],
        *,
        demote: bool = False,
    ) -> None:
        def job() -> None:
            with self._lock:
                allowed = place.key not in self._over and (demote or place.key not in self._recalled)
                if allowed:
                    into[:] = self.stored[place]
                self._no_longer(place)
            if not allowed:
                into[:] = 0xEE
                done(ReadOutcome.CANCELLED)
            else:
                intact = self.fingerprint(into) == digest
                done(ReadOutcome.OK if intact else ReadOutcome.CHECKSUM)

        self._ask(place, job, first=demote)

    def land(self, place: PeerPlace, done: Callable[[ReadOutcome, int], None]) -> bool:
        with self._lock:
            if not self._landing_free:
                return False
            slot = self._landing_free.pop()

        def job() -> None:
            with self._lock:
                allowed = place.key not in self._over and place.key not in self._recalled
                intact = allowed and place not in self.damaged
                self.landed[slot] = self.stored[place] if allowed else 0xEE
                self._no_longer(place)
            if not intact:
                self.give_back(slot)
                done(ReadOutcome.CHECKSUM if allowed else ReadOutcome.CANCELLED, -1)
            else:
                self.landings += 1
                done(ReadOutcome.OK, slot)

        try:
            self._ask(place, job)
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

    def paced_seconds(self, donor: str, pages: int) -> float:
        return (pages - 1) * self.seconds_each

    def want(self, wanted_bytes: int) -> None:
        self.wanted = wanted_bytes
        self.times_wanted += 1

    def give_up(self, key: LeaseKey) -> None:
        with self._lock:
            assert key not in self.returned, "returned twice"
            self.returned.append(key)
            self._finish(key)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._held = False
            self._jobs.append(None)
            self._lock.notify_all()
        self._thread.join()

    # ---- inside; the lock is held ----

    def _finish(self, key: LeaseKey) -> None:
        if key in self._over or key not in self._sizes:
            return
        self._over.add(key)
        self._free.pop(key, None)
        for place in [place for place in self.stored if place.key == key]:
            self.stored[place] = np.full(self.page_bytes, 0xDD, np.uint8)  # another owner's by now
        if not self._closed:
            self._put(lambda: self._watcher.lease_ended(key), first=True)

    def _ask(self, place: PeerPlace, job: Callable[[], None], *, first: bool = False) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
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
