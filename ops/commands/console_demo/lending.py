"""Leases between simulated servers: the product's state machines and its lender, with letters on a virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import HeldPages
from swift_tiers.radix_tiering.figures.counters import LinkCounters
from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout
from swift_tiers.radix_tiering.lending.donation.lender import Lender
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
from swift_tiers.radix_tiering.lending.leases import Borrower, Donor, Extent, LeaseKey, Party, RunState
from swift_tiers.radix_tiering.lending.leases.effects import DonorEffect, LeaseBegan, LeaseEnded, LeaseRecalled, Send
from swift_tiers.radix_tiering.tiers.peer.lent_memory import LeaseSlots, LentMemory, PeerPlace
from swift_tiers.radix_tiering.tiers.tier import Read, ReadOutcome, Write, Written

from ...base.devices.clock import Clock
from ...base.devices.lines import Line
from .tiers import DemoTiers

#: A letter's way, and how often the sides look at their clocks, seconds.
LETTER_SECONDS, TICK_SECONDS = 0.0002, 0.02
#: Over which a donor's own demand counts, seconds: shorter than in a server, so that there is something to see.
WINDOW_SECONDS = 30.0
#: The part of its pool that it lends at most.
MOST_LENT = 0.75
#: Planes of a donor's pool: K and V of each layer.
PLANES = 64


class Post:
    """Brings letters, and knows who lives."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.donors: dict[str, DonorSide] = {}
        self.borrowers: dict[str, BorrowerSide] = {}

    def send(self, letter: Send) -> None:
        self.clock.after(LETTER_SECONDS, partial(self._deliver, letter))

    def _deliver(self, sent: Send) -> None:
        if isinstance(sent.to, Party):
            borrower = self.borrowers.get(sent.to.name)
            if borrower is not None and borrower.machine.party == sent.to:
                borrower.do(borrower.machine.receive(sent.letter, self.clock.now))
        elif sent.to in self.donors:
            donor = self.donors[sent.to]
            donor.do(donor.machine.receive(sent.letter, self.clock.now))

    def died(self, donor: str) -> None:
        """Its process has ended; its borrowers notice."""
        party = self.donors.pop(donor).machine.party
        for borrower in self.borrowers.values():
            borrower.do(borrower.machine.gone(party, self.clock.now))

    def joined(self, donor: DonorSide) -> None:
        self.donors[donor.name] = donor
        for borrower in self.borrowers.values():
            if donor.name not in borrower.machine.donors:
                borrower.do(borrower.machine.connect(donor.name, self.clock.now))


class DonorSide:
    """A server that lends what its device does not need (`Lending` of its `Lender`)."""

    def __init__(
        self, name: str, post: Post, tiers: DemoTiers, events: EventLog, random: Random, demand: Callable[[], int]
    ) -> None:
        self.name = name
        self._post = post
        geometry, pool = tiers.geometry, tiers.pool
        self.machine = Donor(name, geometry.page_bytes, random)
        self.effects: deque[DonorEffect] = deque()
        self.sizer = ElasticSizer(
            pool.pages, geometry.tokens, most_lent=int(MOST_LENT * pool.pages), window_seconds=WINDOW_SECONDS
        )
        plane = geometry.page_bytes // PLANES
        layout = PoolLayout(tuple(number * pool.pages * plane for number in range(PLANES)), plane)
        self.lender = Lender(
            pool,
            self.sizer,
            layout,
            self,
            self.effects,
            demand=demand,
            fence=lambda: lambda: True,
            wait_for_copy=lambda: None,
            taken_back=lambda pages, seconds: events.emit("lending.taken_back", pages=pages, seconds=round(seconds, 4)),
            sized=lambda sized: events.emit("lending.sized", **sized._asdict()),
        )
        self.alive = True
        post.joined(self)
        self._tick()

    def _tick(self) -> None:
        if not self.alive:
            return
        now = self._post.clock.now
        if self.machine.wake <= now:
            self.do(self.machine.tick(now))
        self.lender.tick(now)
        self._post.clock.after(TICK_SECONDS, self._tick)

    def do(self, outputs: Iterable[Send | DonorEffect]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                self._post.send(output)
            else:
                self.effects.append(output)

    # ---- what its lender wants of it, and an operator ----

    def stock(self, run: int, extents: Collection[Extent]) -> None:
        self.do(self.machine.stock(run, extents))

    def fenced(self, run: int) -> None:
        self.do(self.machine.fenced(run))
        self.do(self.machine.tick(self._post.clock.now))  # offers

    def withdraw(self, wanted_bytes: int) -> None:
        self.do(self.machine.withdraw(wanted_bytes, self._post.clock.now))

    def withdraw_unused(self) -> None:
        self.do(self.machine.withdraw_unused())

    def set_limit(self, limit_bytes: int | None) -> None:
        self.do(self.machine.set_limit(limit_bytes, self._post.clock.now))

    def wanted_bytes(self, run_bytes: int) -> int:
        return self.machine.wanted_bytes(run_bytes)

    def bytes_in(self, *states: RunState) -> int:
        return self.machine.bytes_in(*states)

    def recall(self, leases: Collection[int] | None, borrower: str) -> int:
        """Those that are lent; how many."""
        chosen = [
            view.lease
            for view in self.machine.leases(self._post.clock.now)
            if view.state == RunState.LENT.value
            and (leases is None or view.lease in leases)
            and borrower in ("", view.borrower.name)
        ]
        self.do(self.machine.recall(chosen, self._post.clock.now))
        self.lender.rest()
        return len(chosen)


class _Slots(NamedTuple):
    """Of one lease."""

    free: list[int]
    slots: int
    held: set[int]


class DemoLentMemory(LentMemory):
    """Places in memory that others lend, at the speed of a link."""

    def __init__(self, clock: Clock, page_bytes: int, bytes_per_second: float) -> None:
        self._clock = clock
        self.page_bytes = page_bytes
        self._lines = {way: Line(clock, bytes_per_second, latency_seconds=20e-6) for way in ("peer-host", "host-peer")}
        self._counters = {way: LinkCounters() for way in self._lines}
        self._leases: dict[LeaseKey, _Slots] = {}
        self.side: BorrowerSide | None = None
        self.wanted = 0
        self.bytes_per_second = bytes_per_second

    @property
    def capacity_bytes(self) -> int:
        return sum(lease.slots for lease in self._leases.values()) * self.page_bytes

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        return self._counters

    def lease_slots(self) -> list[LeaseSlots]:
        return [LeaseSlots(key, lease.slots, sorted(lease.held), []) for key, lease in self._leases.items()]

    def began(self, key: LeaseKey, nbytes: int) -> None:
        slots = nbytes // self.page_bytes
        self._leases[key] = _Slots(list(range(slots - 1, -1, -1)), slots, set())

    def ended(self, key: LeaseKey) -> None:
        self._leases.pop(key, None)

    def reserve(self, lengths: Sequence[int]) -> list[PeerPlace]:
        places: list[PeerPlace] = []
        for key, lease in self._leases.items():
            while lease.free and len(places) < len(lengths) and self.side is not None and self.side.usable(key):
                places.append(PeerPlace(key, lease.free.pop()))
                lease.held.add(places[-1].slot)
        return places

    def release(self, places: Sequence[PeerPlace]) -> None:
        for key, slot in places:
            lease = self._leases.get(key)
            if lease is not None and slot in lease.held:
                lease.held.discard(slot)
                lease.free.append(slot)

    def write(self, writes: Sequence[Write]) -> None:
        """The bytes are not looked at."""
        for one in writes:
            self._copy("host-peer", partial(self._written, one))

    def _written(self, write: Write) -> None:
        lasts = write.place.key in self._leases
        with self.answers:
            write.done(Written(write.place, write.digest or b"") if lasts else None, "" if lasts else "lease ended")

    def read(self, reads: Sequence[Read]) -> None:
        """The bytes stay as they are."""
        for one in reads:
            self._copy("peer-host", partial(self._came, one))

    def _came(self, read: Read) -> None:
        lasts = read.copy.place.key in self._leases
        with self.answers:
            read.done(ReadOutcome.OK if lasts else ReadOutcome.CANCELLED)

    def send(self, nbytes: float, done: Callable[[], None]) -> None:
        """Load a page of this length for a restore."""
        self._copy("peer-host", done)

    def _copy(self, way: str, done: Callable[[], None]) -> None:
        began = self._clock.now

        def came() -> None:
            self._counters[way].count(1, self.page_bytes, self._clock.now - began)
            done()

        self._lines[way].send(self.page_bytes, came)

    def want(self, nbytes: int) -> None:
        self.wanted = nbytes
        if self.side is not None:
            self.side.later(lambda side: side.machine.want(nbytes, self._clock.now))

    def give_up(self, part: Any) -> None:
        if self.side is not None:
            self.side.later(lambda side: side.machine.release(part, self._clock.now))

    def close(self, held: Iterable[HeldPages] | None = None, timeout: float | None = None) -> None:
        self._leases.clear()


class BorrowerSide:
    """A server that puts copies of its pages into memory of others."""

    def __init__(self, name: str, post: Post, tiers: DemoTiers, memory: DemoLentMemory, random: Random) -> None:
        self.name = name
        self._post = post
        self._tiers = tiers
        self._memory = memory
        self.machine = Borrower(name, tiers.geometry.page_bytes, random)
        memory.side = self
        post.borrowers[name] = self
        for donor in post.donors:
            self.do(self.machine.connect(donor, post.clock.now))
        self.do(self.machine.want(memory.wanted, post.clock.now))
        self._tick()

    def usable(self, key: LeaseKey) -> bool:
        return key.lease in self.machine.table(key.donor)

    def later(self, act: Callable[[BorrowerSide], Iterable[object]]) -> None:
        """Not from within the page table's lock, which who asks for it may hold."""
        self._post.clock.after(0.0, lambda: self.do(act(self)))

    def _tick(self) -> None:
        now = self._post.clock.now
        if self.machine.wake <= now:
            self.do(self.machine.tick(now))
        self._post.clock.after(TICK_SECONDS, self._tick)

    def do(self, outputs: Iterable[object]) -> None:
        parts = self._tiers.parts[self._memory.name]
        for output in outputs:
            if isinstance(output, Send):
                self._post.send(output)
            elif isinstance(output, LeaseBegan):
                self._memory.began(output.key, sum(extent.length for extent in output.extents))
                self._post.clock.after(0.0, parts.room)
            elif isinstance(output, LeaseRecalled):
                parts.leaving(output.key, output.until)
            elif isinstance(output, LeaseEnded):
                self._memory.ended(output.key)
                parts.gone(output.key, "the lease ended")
