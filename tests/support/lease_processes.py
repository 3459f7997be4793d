"""The processes of a simulated world: what a donor's and a borrower's server do with their state machines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swift_tiers.radix_tiering.lending.leases import Borrower, Donor, Extent, LeaseKey, Party, Timing, Use
from swift_tiers.radix_tiering.lending.leases.effects import (
    Back,
    DonorJoined,
    DonorLeft,
    LeaseBegan,
    LeaseEnded,
    LeaseRecalled,
    Reclaimed,
    Send,
)
from swift_tiers.radix_tiering.lending.leases.link import LinkState

from support.lease_faults import DRIFT

if TYPE_CHECKING:
    from support.lease_world import World

BLOCK_BYTES = 1024
TIMING = Timing(drift=DRIFT, margin=0.001, silence=2.0, heartbeat=1.0)


class Violation(AssertionError):
    """A promise of the protocol was broken."""


class Clock:
    """A process's monotonic clock."""

    def __init__(self, now: float, offset: float, rate: float) -> None:
        self._base, self._local, self._rate = now, offset, rate

    def local(self, now: float) -> float:
        return self._local + (now - self._base) * self._rate

    def true(self, local: float) -> float:
        return self._base + (local - self._local) / self._rate

    def set_rate(self, now: float, rate: float) -> None:
        self._base, self._local, self._rate = now, self.local(now), rate


class Block:
    """Memory; `content` stands for what was written there last."""

    def __init__(self) -> None:
        self.content: object = None


class Process:
    """What donors and borrowers have in common: they live, stop, die and live again."""

    machine: Any

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.random
        self.life = 0
        self.alive = False
        self.stopped_until = 0.0
        self._tick_at = math.inf

    @property
    def now(self) -> float:
        """Of its clock."""
        return self.clock.local(self.world.now)

    def start(self) -> None:
        rate = self.random.choice((1 - DRIFT, 1 + DRIFT, 1, 1 + self.random.uniform(-DRIFT, DRIFT)))
        self.clock = Clock(self.world.now, self.random.uniform(0, 1e5), rate)
        self.alive = True
        self.life += 1
        self._tick_at = math.inf
        self.begin()

    def crash(self) -> None:
        self.alive = False
        self.life += 1

    def begin(self) -> None:
        raise NotImplementedError

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Something this life of the process does later; later still if it is stopped then."""
        self.world.at(self.world.now + delay, action, self)

    def do(self, outputs: list[Any]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                to = output.to.name if isinstance(output.to, Party) else output.to
                self.world.send(self.name, to, output.letter)
            else:
                self.carry_out(output)
        self.world.check()
        self.schedule_tick()

    def schedule_tick(self) -> None:
        wake = self.machine.wake
        if wake < math.inf:
            due = max(self.world.now, self.clock.true(max(wake, self.now)))
            # A thread wakes a little late, sometimes much.
            due += self.random.random() * (0.0005 if self.world.healed or self.random.random() < 0.95 else 0.3)
            if due < self._tick_at:
                self._tick_at = due
                self.world.at(due, lambda: self.tick(due), self)

    def tick(self, due: float) -> None:
        if due == self._tick_at:
            self._tick_at = math.inf
            self.do(self.machine.tick(self.now))

    def carry_out(self, effect: object) -> None:
        raise NotImplementedError


class DonorProcess(Process):
    machine: Donor

    def begin(self) -> None:
        world = self.world
        self.machine = world.donor_type(self.name, self.random.choice((256, 512)), self.random, timing=TIMING)
        self.blocks = [Block() for _ in range(world.shape.blocks)]
        world.memory[self.name, self.machine.party.epoch] = self.blocks
        self._block_of: dict[int, int] = {}
        self._runs = 0
        self._keep = 0
        for number in range(world.shape.blocks):
            self.take(number)

    def take(self, number: int) -> None:
        """The donor uses a block itself, and lends it after a while."""
        mine = (self.machine.party, self.random.random())
        self.blocks[number].content = mine
        self.after(self.random.expovariate(5), lambda: self.lend(number, mine))

    def lend(self, number: int, mine: object) -> None:
        self.still(number, mine)
        if self.world.ending:
            return
        self._runs += 1
        run = self._runs
        self._block_of[run] = number
        extents = [Extent(0, number * BLOCK_BYTES, BLOCK_BYTES // 2), Extent(1, number * BLOCK_BYTES, BLOCK_BYTES // 2)]
        # A forward that began before may use it a while longer.
        self.after(self.random.expovariate(30), lambda: self.forward_ends(run, number, mine))
        self.do(self.machine.stock(run, extents))

    def forward_ends(self, run: int, number: int, mine: object) -> None:
        if self._block_of.get(run) == number:
            self.still(number, mine)
            self.do(self.machine.fenced(run))

    def still(self, number: int, mine: object) -> None:
        if self.blocks[number].content != mine:
            raise Violation(f"{self.name}: its own bytes of block {number} became {self.blocks[number].content}")

    def carry_out(self, effect: object) -> None:
        self.world.count(effect)
        if isinstance(effect, Reclaimed):
            number = self._block_of.pop(effect.run)
            if effect.back is Back.EXPIRED and self.world.shape.revocable:
                self.blocks[number] = Block()
            if effect.back is not Back.UNUSED:
                self.world.reclaimed(self, effect)
            self.take(number)

    def store_for(self, borrower: Party, lease: int, content: object) -> bool:
        """Copy a page into lent memory for its borrower, if that still holds the lease."""
        if not self.machine.holds(borrower, lease):
            return False
        block = self.blocks[self.machine.table(borrower)[lease][0].offset // BLOCK_BYTES]
        block.content = content
        return True


class BorrowerProcess(Process):
    machine: Borrower

    def begin(self) -> None:
        page_bytes = self.random.choice((256, 512, 1024))
        self.machine = self.world.borrower_type(self.name, page_bytes, self.random, timing=TIMING)
        self._mapped: dict[LeaseKey, Block] = {}
        self._stored: dict[LeaseKey, object] = {}
        for donor in self.world.donors:
            self.do(self.machine.connect(donor, self.now))
        self.want(self.random.randint(0, 2 * self.world.shape.blocks))
        self.after(0.05, self.read)

    def want(self, blocks: int) -> None:
        self.wanted = blocks * BLOCK_BYTES
        self.do(self.machine.want(self.wanted, self.now))

    def drop(self) -> None:
        """Give one lease back."""
        if self._mapped:
            self.do(self.machine.release(self.random.choice(list(self._mapped)), self.now))

    def leave(self, donor: str) -> None:
        """Have nothing more to do with a donor."""
        self.do(self.machine.disconnect(donor, self.now))

    def join(self, donor: str) -> None:
        """Borrow from it again, as soon as everything of before is returned."""
        state = self.machine.donors.get(donor)
        if state is None:
            self.do(self.machine.connect(donor, self.now))
        elif state is LinkState.LEAVING:
            self.after(0.05, lambda: self.join(donor))

    def carry_out(self, effect: object) -> None:
        self.world.count(effect)
        match effect:
            case LeaseBegan(key, extents):
                if self.machine.donors[key.donor] is LinkState.LEAVING:
                    raise Violation(f"{self.name}: {key} begins, and its donor was left")
                memory = self.world.memory[key.donor, key.epoch]
                self._mapped[key] = memory[extents[0].offset // BLOCK_BYTES]
                self.after(self.random.expovariate(100), lambda: self.store(key))
            case LeaseRecalled(key, _):
                if key not in self._mapped:
                    raise Violation(f"{self.name}: {key} is recalled after its end")
                what = self.random.random()
                if what < 0.4:
                    self.after(self.random.random() * 0.01, lambda: self.release(key))
                elif what < 0.8:
                    self.use(key, Use.DEMOTE)
                    self.after(self.random.random() * 0.03, lambda: self.release(key))
            case LeaseEnded(key, _):
                if self._mapped.pop(key, None) is None:
                    raise Violation(f"{self.name}: {key} ended twice")
                self._stored.pop(key, None)
            case DonorLeft(donor, epoch):
                left = [key for key in self._mapped if key.donor == donor and key.epoch == epoch]
                if left:
                    raise Violation(f"{self.name}: {donor} left before {left} ended")
            case DonorJoined(donor, epoch, _):
                assert (donor, epoch) in self.world.memory

    def release(self, key: LeaseKey) -> None:
        self.do(self.machine.release(key, self.now))

    def store(self, key: LeaseKey) -> None:
        """Put the borrower's bytes into the lent block: by its own hand, or by the donor's."""
        block = self._mapped.get(key)
        direct = self.world.shape.revocable
        ticket = self.machine.check_before(key, self.now, Use.STORE if direct else Use.READ)
        if block is None or ticket is None:
            return
        content = (self.machine.party, key)

        def end(done: bool) -> None:
            valid = self.machine.check_after(ticket, self.now)
            if done and valid and key in self._mapped:
                self._stored[key] = content
            self.schedule_tick()

        if direct:
            block.content = "half written"

            def complete() -> None:
                block.content = content
                end(True)

            self.after(self.duration(), complete)
            return
        donor = self.world.donors[key.donor]
        party, life = self.machine.party, self.life

        def pull() -> None:
            done = donor.machine.party.epoch == key.epoch and donor.store_for(party, key.lease, content)
            if self.life == life:
                self.after(0.001, lambda: end(done))

        donor.after(self.random.expovariate(200), pull)

    def read(self) -> None:
        """Read something now and then."""
        self.after(self.random.uniform(0.02, 0.3), self.read)
        if self._stored:
            self.use(self.random.choice(list(self._stored)), Use.READ)

    def use(self, key: LeaseKey, use: Use) -> None:
        """Read a block, which takes a while; serve what was read if the lease allows it."""
        block, content = self._mapped[key], self._stored.get(key)
        ticket = self.machine.check_before(key, self.now, use)
        if ticket is None:
            return
        seen: list[object] = []
        steps = self.random.randint(1, 3)

        def step() -> None:
            seen.append(block.content)
            if len(seen) < steps:
                self.after(self.duration(), step)
                return
            valid = self.machine.check_after(ticket, self.now)
            self.world.counts["served" if valid else "thrown away"] += 1
            if valid and content is not None and any(what != content for what in seen):
                raise Violation(f"{self.name}: served {seen} for {content}")
            self.schedule_tick()

        self.after(self.duration(), step)

    def duration(self) -> float:
        """Of a copy: mostly short, sometimes longer than a lease."""
        if self.world.healed:
            return 0.001
        return self.random.expovariate(200) if self.random.random() < 0.8 else self.random.expovariate(2)
