"""A simulated machine room: donors and borrowers with bad clocks, on a bad network, over memory that knows its owner.

The state machines are the real ones. Everything else is played: true time, each process's clock with its own offset
and rate, letters that are lost, come twice, late and in any order, processes that stop, crash and start anew, reads and
stores that take time, and blocks of memory that remember whose bytes they hold. Whatever happens follows from the seed.

`Violation` is raised as soon as a borrower believes in a lease that its donor does not hold for it, a byte of another
owner is served, a donor's own byte is changed, a run is used before its fence, a lease does not end, a recall takes too
long, or both sides disagree once all is well again.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from swift_tiers.radix_tiering.lending.leases import Borrower, Donor, Letter, Party, RunState
from swift_tiers.radix_tiering.lending.leases.effects import Back, Ended, Reclaimed

from support.lease_faults import CHAOS_SECONDS, DRIFT, Fault, Shape, draw_faults, draw_shape
from support.lease_processes import BLOCK_BYTES, TIMING, Block, BorrowerProcess, DonorProcess, Process, Violation


class World:
    """One run of all this. `run` raises Violation; the rest is for looking at afterwards.

    `shape`, and `faults` or their `kinds`, are drawn from the seed where they are not given. `donor_type` and
    `borrower_type` let a test take a safety rule away.
    """

    def __init__(
        self,
        seed: int,
        *,
        shape: Shape | None = None,
        faults: Sequence[Fault] | None = None,
        kinds: Sequence[str] = (),
        donor_type: Callable[..., Donor] = Donor,
        borrower_type: Callable[..., Borrower] = Borrower,
    ) -> None:
        self.random = Random(seed)
        self.shape = shape or draw_shape(self.random)
        self.faults = draw_faults(self.random, self.shape, kinds) if faults is None else faults
        self.donor_type, self.borrower_type = donor_type, borrower_type
        self.now = 0.0
        self.healed = False
        self.ending = False
        self.counts: Counter[str] = Counter()
        self.memory: dict[tuple[str, int], list[Block]] = {}
        self._events: list[tuple[float, int, Process | None, int, Callable[[], None]]] = []
        self._number = 0
        self._trouble: dict[str, list[Fault]] = {kind: [] for kind in ("cut", "lossy", "slow", "twice")}
        self._recalled_at = math.inf
        self.donors = {f"d{n}": DonorProcess(self, f"d{n}") for n in range(self.shape.donors)}
        self.borrowers = {f"b{n}": BorrowerProcess(self, f"b{n}") for n in range(self.shape.borrowers)}
        self._processes: dict[str, Process] = {**self.donors, **self.borrowers}
        for process in self._processes.values():
            process.start()
        for fault in self.faults:
            self.at(fault.at, lambda fault=fault: self._begin(fault))  # type: ignore[misc]

    def at(self, time: float, action: Callable[[], None], process: Process | None = None) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, process, process.life if process else 0, action))

    def count(self, effect: object) -> None:
        cause = next((field for field in effect if isinstance(field, Back | Ended)), None)  # type: ignore[attr-defined]
        self.counts[type(effect).__name__ + (f" {cause.value}" if cause else "")] += 1

    # Running

    def run(self) -> World:
        """Chaos, then healing, then the end of all leases: by recall, or by a cut of every connection."""
        self._until(CHAOS_SECONDS)
        self._until(max(self.now, *(process.stopped_until for process in self._processes.values())))
        self.healed = True
        for faults in self._trouble.values():
            faults.clear()
        for process in self._processes.values():
            if not process.alive:
                process.start()
        for donor in self.donors.values():
            donor.do(donor.machine.set_limit(None, donor.now))
        # A session that was refused is sought again after the time of silence; then old leases end, and new ones begin.
        self._until(self.now + TIMING.silence + 2 * TIMING.term)
        self._compare()
        self._end()
        return self

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            time, number, process, life, action = heapq.heappop(self._events)
            if process is not None:
                if process.life != life:
                    continue
                if process.stopped_until > time:
                    heapq.heappush(self._events, (process.stopped_until, number, process, life, action))
                    continue
            self.now = max(self.now, time)
            action()
        self.now = end

    def check(self) -> None:
        """After each step of any machine. Between two, time can only end what a borrower believes."""
        for borrower in self.borrowers.values():
            if not borrower.alive:
                continue  # dead, or not started yet
            for key in borrower.machine.keys():  # noqa: SIM118 - a method, not a dictionary's
                donor = self.donors[key.donor]
                if not donor.alive or donor.machine.party.epoch != key.epoch:
                    continue  # memory without an owner
                if donor.machine.holds(borrower.machine.party, key.lease):
                    continue
                if borrower.machine.usable(key, borrower.now):
                    raise Violation(f"{borrower.name} believes in {key}, which {donor.name} does not hold for it")

    def _compare(self) -> None:
        """Both sides have the same table, and nobody wants what somebody has to give."""
        free = 0
        for donor in self.donors.values():
            free += donor.machine.bytes_in(RunState.FREE)
            parties = {borrower.machine.party: borrower for borrower in self.borrowers.values()}
            for party in donor.machine.borrowers:
                theirs = parties[party].machine.table(donor.name) if party in parties else {}
                if donor.machine.table(party) != theirs:
                    raise Violation(f"{donor.name} has lent {donor.machine.table(party)}; {party} believes {theirs}")
            for party, borrower in parties.items():
                if borrower.machine.table(donor.name) and party not in donor.machine.borrowers:
                    raise Violation(f"{party} holds leases of {donor.name}, which does not know it")
        for borrower in self.borrowers.values():
            short = borrower.wanted - borrower.machine.held_bytes
            if short >= BLOCK_BYTES and free:
                raise Violation(f"{borrower.name} wants {short} bytes more, and {free} are free")

    def _end(self) -> None:
        self.ending = True
        start = self.now
        if self.random.random() < 0.5:
            self._recalled_at = start
            for donor in self.donors.values():
                donor.do(donor.machine.withdraw(len(donor.blocks) * BLOCK_BYTES, donor.now))
            self._until(start + TIMING.term)
        else:
            self._trouble["cut"].append(Fault(start, "cut", "*", math.inf, 0))
            self._until(start + TIMING.donor_deadline(0, TIMING.term) / (1 - DRIFT) + 0.01)
        for donor in self.donors.values():
            lent = donor.machine.bytes_in(RunState.LENT, RunState.RECALLED)
            if lent:
                raise Violation(f"{donor.name}: {lent} bytes are lent for ever")
        for borrower in self.borrowers.values():
            if borrower.machine.held_bytes:
                raise Violation(f"{borrower.name} holds {borrower.machine.held_bytes} bytes for ever")

    def reclaimed(self, donor: DonorProcess, effect: Reclaimed) -> None:
        if self.now > self._recalled_at + TIMING.recall_bound and effect.back is Back.RETURNED:
            raise Violation(f"{donor.name}: a recall took {self.now - self._recalled_at:.3f} s")

    # The network

    def send(self, sender: str, to: str, letter: Letter) -> None:
        self.counts[type(letter.body).__name__] += 1
        if self._troubled("cut", sender, to) is not None:
            return
        loss = self._troubled("lossy", sender, to)
        if loss is not None and self.random.random() < loss:
            return
        copies = 1
        twice = self._troubled("twice", sender, to)
        if twice is not None and self.random.random() < twice:
            copies += 1
        slow = self._troubled("slow", sender, to)
        for _ in range(copies):
            delay = self.random.uniform(0.0001, 0.002)
            if (slow is not None and self.random.random() < slow) or (copies > 1 and self.random.random() < 0.5):
                delay += self.random.expovariate(1)
            # It is for the life that is there when it comes, which may be another one.
            self.at(self.now + delay, lambda: self._deliver(to, letter))

    def _deliver(self, to: str, letter: Letter) -> None:
        process = self._processes[to]
        if process.alive and self._troubled("cut", to) is None:
            process.after(0, lambda: process.do(process.machine.receive(letter, process.now)))

    def _troubled(self, kind: str, *processes: str) -> float | None:
        for fault in self._trouble[kind]:
            if fault.target in ("*", *processes) and self.now < fault.at + fault.length:
                return fault.amount
        return None

    # Faults

    def _begin(self, fault: Fault) -> None:
        self.counts[fault.kind] += 1
        process = self._processes.get(fault.target)
        if fault.kind in self._trouble:
            self._trouble[fault.kind].append(fault)
        elif process is not None and process.alive:
            getattr(self, f"_{fault.kind}")(process, fault)

    def _stop(self, process: Process, fault: Fault) -> None:
        process.stopped_until = max(process.stopped_until, self.now + fault.length)

    def _crash(self, process: Process, fault: Fault) -> None:
        party = process.machine.party
        process.crash()
        if not self.healed:
            self.at(self.now + fault.length / 4, lambda: None if process.alive else process.start())
        # On one machine the others notice; between machines they do not.
        if fault.amount < 0.5:
            others: Sequence[Any] = list((self.borrowers if party.name in self.donors else self.donors).values())
            for other in others:
                if other.alive:
                    other.after(self.random.random() * 0.1, lambda other=other: other.do(self._gone(other, party)))

    def _gone(self, other: Any, party: Party) -> list[Any]:
        if isinstance(other, DonorProcess):
            return list(other.machine.gone(party))
        return list(other.machine.gone(party, other.now))

    def _rate(self, process: Process, fault: Fault) -> None:
        process.clock.set_rate(self.now, 1 - DRIFT + 2 * DRIFT * fault.amount)

    def _withdraw(self, process: DonorProcess, fault: Fault) -> None:
        wanted = int(fault.amount * len(process.blocks) * BLOCK_BYTES) + 1
        process.after(0, lambda: process.do(process.machine.withdraw(wanted, process.now)))

    def _limit(self, process: DonorProcess, fault: Fault) -> None:
        limit = int(fault.amount * len(process.blocks)) * BLOCK_BYTES
        process.after(0, lambda: process.do(process.machine.set_limit(limit, process.now)))
        process.after(fault.length, lambda: process.do(process.machine.set_limit(None, process.now)))

    def _recall(self, process: DonorProcess, fault: Fault) -> None:
        leases = [lease for party in process.machine.borrowers for lease in process.machine.table(party)]
        some = [lease for lease in leases if self.random.random() < fault.amount]
        process.after(0, lambda: process.do(process.machine.recall(some, process.now)))

    def _want(self, process: BorrowerProcess, fault: Fault) -> None:
        process.after(0, lambda: process.want(int(fault.amount * 3 * self.shape.blocks)))

    def _drop(self, process: BorrowerProcess, fault: Fault) -> None:
        process.after(0, process.drop)

    def _leave(self, process: BorrowerProcess, fault: Fault) -> None:
        donor = list(self.donors)[int(fault.amount * len(self.donors))]
        process.after(0, lambda: process.leave(donor))
        process.after(max(0.0, min(fault.length, CHAOS_SECONDS - self.now)), lambda: process.join(donor))
