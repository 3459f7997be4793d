"""Leases between simulated servers: the product's lease services, lender and hand. The lent memory is a model.

What borrowers put there are blank pages, which nobody copies: a copy is the time that it takes, under a lease's ticket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial
from random import Random
from typing import Any

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import HeldPages, PageGeometry, PageRecord
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.figures.counters import LinkCounters
from swift_tiers.radix_tiering.lending.donation.extents import CutRun, PoolLayout
from swift_tiers.radix_tiering.lending.donation.lender import Lender
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
from swift_tiers.radix_tiering.lending.leases import Borrower, Donor, LeaseKey, LeaseService
from swift_tiers.radix_tiering.lending.leases.effects import (
    BorrowerEffect,
    DonorEffect,
    LeaseBegan,
    LeaseEnded,
    LeaseRecalled,
)
from swift_tiers.radix_tiering.lending.leases.hand import LeaseHand
from swift_tiers.radix_tiering.lending.leases.lease import Use
from swift_tiers.radix_tiering.table.tier_copies import Copy
from swift_tiers.radix_tiering.tiers.peer.lent_memory import LeaseSlots, LentMemory, PeerPlace
from swift_tiers.radix_tiering.tiers.peer.places import PlaceBook
from swift_tiers.radix_tiering.tiers.testing.network import Network
from swift_tiers.radix_tiering.tiers.tier import (
    LandDone,
    Read,
    ReadOutcome,
    TierListener,
    Write,
    Written,
    as_many_as_free,
)

from .device import SimulatedPool


class DonorSide:
    """A server that lends what its device does not need. `lender.tick` once in each round of its scheduler."""

    def __init__(
        self,
        name: str,
        network: Network,
        runner: Runner,
        pool: SimulatedPool,
        sizer: ElasticSizer,
        events: EventLog,
        demand: Callable[[], int],
    ) -> None:
        """`demand`: tokens that its requests need together, now."""
        geometry, self.address = pool.geometry, f"ipc:///simulated/{name}"
        effects: deque[DonorEffect] = deque()
        donor = Donor(name, geometry.page_bytes, Random(runner.random.random()))
        self.service = LeaseService(
            donor=donor, listen=self.address, on_donor=effects.append, runner=runner, wire=network.wire(name)
        )
        self.sizer = sizer
        self.recalls = 0  # how often its requests took memory back
        self._events = events
        planes = geometry.layers * geometry.planes
        plane = geometry.page_bytes // planes
        self.lender = Lender(
            pool,
            self.sizer,
            PoolLayout(tuple(number * pool.pages * plane for number in range(planes)), plane),
            self.service,
            effects,
            demand=demand,
            fence=lambda: lambda: True,
            copying=frozenset,
            taken_back=self._taken_back,
            sized=lambda sized: events.emit("lending.sized", **sized._asdict()),
        )

    def _taken_back(self, pages: int, seconds: float) -> None:
        self.recalls += 1
        self._events.emit("lending.taken_back", pages=pages, seconds=round(seconds, 4))


class LandingModel:
    """Landing memory without bytes."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = list(range(slots - 1, -1, -1))

    @property
    def used_slots(self) -> int:
        return self.slots - len(self._free)

    def take(self) -> int | None:
        """A slot; None if all are taken."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        self._free.append(slot)


class Urgency(IntEnum):
    """What "swift-peer" does first, as in `tiers/peer/worker`."""

    TOLD, SAVING, LISTING, READING, STORING = range(5)


class BorrowedMemory(LentMemory):
    """Places in memory that others lend, given out as a server does it; copied to and from by one thread, one page
    after the other."""

    def __init__(
        self,
        name: str,
        network: Network,
        runner: Runner,
        geometry: PageGeometry,
        bytes_per_second: float,
        *,
        landing: LandingModel | None = None,
        landing_bytes_per_second: float = 0.0,
    ) -> None:
        """`bytes_per_second`: between a donor and this server's host memory, and to its landing memory."""
        self.page_bytes = geometry.page_bytes
        self.landed = self.passed = 0  # pages that came up, to landing memory and to host memory
        self._speed, self._landing_speed = bytes_per_second, landing_bytes_per_second
        self._landing = landing
        self._runner = runner
        links = ["peer-host", "host-peer"] if landing is None else ["peer-host", "host-peer", "peer-device"]
        self._counters = {link: LinkCounters() for link in links}
        self._book = PlaceBook(runner)
        self._known: set[str] = set()  # donors
        self._leaving: set[LeaseKey] = set()  # leases of which it is not found out yet what is to be saved
        self._listener: TierListener
        self._wake = runner.condition()
        self._jobs: dict[Urgency, deque[Callable[[], object]]] = {urgency: deque() for urgency in Urgency}
        self._ending = False
        self.service = LeaseService(
            borrower=Borrower(name, self.page_bytes, Random(runner.random.random())),
            on_borrower=lambda effect: self._do(Urgency.TOLD, lambda: self._told(effect)),
            runner=runner,
            wire=network.wire(name),
        )
        runner.thread(self._run, "swift-peer").start()

    def neighbours(self, addresses: Mapping[str, str]) -> None:
        """Whoever lends now: lease name -> lease address."""
        for donor in sorted(addresses.keys() - self._known):
            self.service.connect(donor, addresses[donor])
        for donor in sorted(self._known - addresses.keys()):
            self.service.disconnect(donor)
        self._known = set(addresses)

    # ---- places ----

    @property
    def capacity_bytes(self) -> int:
        return self._book.occupancy().slots * self.page_bytes

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        return self._counters

    def lease_slots(self) -> list[LeaseSlots]:
        return self._book.slots()

    def reserve(self, lengths: Sequence[int]) -> list[PeerPlace]:
        return as_many_as_free(lambda length: self._book.reserve(), lengths)

    def release(self, places: Sequence[PeerPlace]) -> None:
        for place in places:
            self._book.release(place)

    def watch(self, listener: TierListener) -> None:
        self._listener = listener

    def want(self, nbytes: int) -> None:
        self._do(Urgency.TOLD, lambda: self.service.want(nbytes))  # who asks holds the page table's lock

    def give_up(self, part: Any) -> None:
        self._book.close(part)
        self._do(Urgency.TOLD, lambda: self.service.release(part))

    # ---- bytes ----

    def write(self, writes: Sequence[Write]) -> None:
        for one in writes:
            self._use(Urgency.STORING, one.place, partial(self._write, one, self._runner.monotonic()))

    def read(self, reads: Sequence[Read]) -> None:
        for one in reads:
            saving = one.saving or one.copy.place.key in self._leaving  # who reads one of these saves it by that
            urgency = Urgency.SAVING if saving else Urgency.READING
            self._use(urgency, one.copy.place, partial(self._read, one, self._runner.monotonic()))

    def land(self, record: PageRecord, copy: Copy, done: LandDone) -> bool:
        slot = self._landing.take() if self._landing is not None else None
        if slot is None:
            return False
        self._use(Urgency.READING, copy.place, partial(self._land, copy, slot, done, self._runner.monotonic()))
        return True

    def close(self, held: Iterable[HeldPages] | None = None, timeout: float | None = None) -> None:
        """Return all leases, and end."""
        self.service.close()
        with self._wake:
            self._ending = True
            self._wake.notify_all()

    def _use(self, urgency: Urgency, place: PeerPlace, copy: Callable[[], object]) -> None:
        """Nobody else gets this place before it has been copied to, or from."""
        begun = self._book.begin(place)

        def use() -> None:
            copy()
            if begun:
                self._book.end(place)

        self._do(urgency, use)

    # ---- "swift-peer" ----

    def _do(self, urgency: Urgency, job: Callable[[], object]) -> None:
        with self._wake:
            self._jobs[urgency].append(job)
            self._wake.notify_all()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], object] | None:
        with self._wake:
            while True:
                for jobs in self._jobs.values():
                    if jobs:
                        return jobs.popleft()
                if self._ending:
                    return None
                self._wake.wait()

    def _told(self, effect: BorrowerEffect) -> None:
        if isinstance(effect, LeaseBegan):
            self._book.open(effect.key, CutRun(effect.extents, self.page_bytes))
            self._listener.room()
        elif isinstance(effect, LeaseRecalled):
            self._book.close(effect.key)
            self._leaving.add(effect.key)
            self._list(effect.key, self._listener.leaving(effect.key, effect.until))
        elif isinstance(effect, LeaseEnded):
            self._book.forget(effect.key)
            self._listener.gone(effect.key, f"the lease was {effect.ended.value}")

    def _list(self, key: LeaseKey, steps: Iterator[None]) -> None:
        """Have it found out what is to be saved of a lease, a step whenever nothing else is to be saved."""

        def step() -> None:
            for _ in steps:
                self._list(key, steps)
                return
            self._leaving.discard(key)

        self._do(Urgency.LISTING, step)

    def _copied(self, key: LeaseKey, use: Use, link: str, asked: float, bytes_per_second: float) -> bool:
        """Whether the lease has lasted while a page was copied."""
        ticket = self.service.check_before(key, use)
        if ticket is None:
            return False
        self._runner.sleep(self.page_bytes / bytes_per_second)
        lasted = self.service.check_after(ticket)
        if lasted:
            self._counters[link].count(1, self.page_bytes, self._runner.monotonic() - asked)
        return lasted

    def _write(self, write: Write, asked: float) -> None:
        made = self._copied(write.place.key, Use.STORE, "host-peer", asked, self._speed)
        with self.answers:
            if not made:
                self.release([write.place])
            write.done(Written(write.place, write.digest or b"") if made else None, "" if made else "lease over")

    def _read(self, read: Read, asked: float) -> None:
        lasted = self._copied(read.copy.place.key, Use.DEMOTE, "peer-host", asked, self._speed)
        self.passed += lasted
        with self.answers:
            read.done(ReadOutcome.OK if lasted else ReadOutcome.CANCELLED)

    def _land(self, copy: Copy, slot: int, done: LandDone, asked: float) -> None:
        lasted = self._copied(copy.place.key, Use.DEMOTE, "peer-device", asked, self._landing_speed)
        self.landed += lasted
        if not lasted and self._landing is not None:
            self._landing.give_back(slot)
        with self.answers:
            done(ReadOutcome.OK if lasted else ReadOutcome.CANCELLED, slot if lasted else -1)


def hand_of(name: str, donor: DonorSide | None, memory: BorrowedMemory | None) -> LeaseHand | None:
    """An operator's hand on what a server lends or borrows."""
    if donor is None and memory is None:
        return None
    return LeaseHand(
        name,
        service=donor.service if donor is not None else None,
        address=donor.address if donor is not None else "",
        borrower=memory.service if memory is not None else None,
        lender=lambda: donor.lender if donor is not None else None,
    )
