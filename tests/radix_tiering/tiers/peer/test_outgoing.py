"""Pages that go from the borrower's device to a donor's in one copy: rows, and what is stored from them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.lending.donation.arena import ArenaError
from swift_tiers.radix_tiering.lending.leases import Timing
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.radix_tiering.tiers.peer.outgoing import LINGER_SECONDS, OutgoingMemory
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.deferred_accelerator import DeferredAccelerator
from support.engine import SetClock
from support.examples import examples
from support.fake_device import FakeDeviceMemory
from support.peer_donor import PAGE
from support.redis import wait_for


class Rows(RuleBasedStateMachine):
    """The model: what each row is for. A row that two have, or that is written while it is held, is another page."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = SetClock()
        self.device = FakeDeviceMemory("GPU-b")
        self.outgoing = OutgoingMemory(self.device, PAGE, 3 * 4096 + 100, self.runner)
        self.outgoing.wanted = True
        self.filling: list[int] = []
        self.waiting: dict[bytes, tuple[int, float]] = {}
        self.held: dict[int, bytes] = {}
        self.closed = False

    @property
    def free(self) -> set[int]:
        taken = {*self.filling, *self.held, *(row for row, _ in self.waiting.values())}
        return set(range(self.outgoing.rows)) - taken

    @rule(most=st.integers(0, 4))
    def take(self, most: int) -> None:
        now, free = self.runner.clock(), self.free
        late = [digest for digest, (_, since) in self.waiting.items() if since <= now - LINGER_SECONDS]
        rows = self.outgoing.take(most)
        expected = 0 if self.closed or not self.outgoing.wanted else min(most, len(free) + len(late))
        assert len(rows) == expected
        assert len(set(rows)) == len(rows)
        replaced = {self.waiting[digest][0]: digest for digest in late}
        for row in rows:
            assert row in free or row in replaced, "somebody has it"
            self.outgoing.memory[row] = 0xAA
        if expected > len(free):
            # The oldest first, and no more than are needed.
            for digest in late[: expected - len(free)]:
                del self.waiting[digest]
        self.filling += rows

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), content=st.integers(0, 5))
    def enter(self, data: st.DataObject, content: int) -> None:
        row = data.draw(st.sampled_from(self.filling))
        page, now = np.full(PAGE, content, np.uint8), self.runner.clock()
        digest = page_digest(page)
        self.outgoing.memory[row, :PAGE] = torch.from_numpy(page)
        self.filling.remove(row)
        self.outgoing.enter([row], [digest])
        if digest not in self.waiting and not self.closed:
            self.waiting[digest] = row, now

    @precondition(lambda self: self.filling)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.filling))
        self.filling.remove(row)
        self.outgoing.give_back([row])

    @rule(content=st.integers(0, 5))
    def hold(self, content: int) -> None:
        digest = page_digest(np.full(PAGE, content, np.uint8))
        row = self.outgoing.hold(digest)
        expected, _ = self.waiting.pop(digest, (None, 0.0))
        assert row == expected
        if row is not None:
            self.held[row] = digest

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[row]
        self.outgoing.give_back([row])

    @rule(seconds=st.sampled_from([0.1, 0.6, LINGER_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.runner.clock.now += seconds

    @rule(wanted=st.booleans())
    def want(self, wanted: bool) -> None:
        self.outgoing.wanted = wanted

    @rule(really=st.sampled_from([False] * 9 + [True]))
    def close(self, really: bool) -> None:
        if really:
            self.outgoing.close()
            self.closed = True
            self.waiting.clear()

    @invariant()
    def what_is_held_is_what_it_was(self) -> None:
        late = self.runner.clock() - LINGER_SECONDS
        makes_room = sum(since <= late for _, since in self.waiting.values())
        assert self.outgoing.used_rows == self.outgoing.rows - len(self.free) - makes_room
        assert self.outgoing.open_rows == (0 if self.closed else self.outgoing.rows)
        in_use = bool(self.filling or self.held)
        assert bool(self.device.mapped) == (not self.closed or in_use), "unmapped too early, or never"
        for row, digest in self.held.items():
            place = self.outgoing.place(row)
            page = self.outgoing.arena.memory[place : place + PAGE].numpy()
            assert page_digest(page.copy()) == digest

    def teardown(self) -> None:
        self.outgoing.give_back([*self.filling, *self.held])
        self.outgoing.close()
        assert not self.device.mapped


TestRows = Rows.TestCase
TestRows.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_there_must_be_room_for_a_page_and_memory_that_can_be_shared() -> None:
    device = FakeDeviceMemory("GPU-b")
    with pytest.raises(ValueError, match="hold no page"):
        OutgoingMemory(device, PAGE, PAGE - 1)
    device.faults["export"] = "cuMemCreate: out of memory; make the KV pool smaller"
    with pytest.raises(ArenaError, match="out of memory"):
        OutgoingMemory(device, PAGE, PAGE)


class Devices:
    """A borrower on one device, and a donor on another."""

    def __init__(self, room, *, rows: int = 8, reaches: set[str] | None = None, **options) -> None:
        self.accelerator = DeferredAccelerator(3, locked=True)
        self.theirs, self.ours = FakeDeviceMemory("GPU-a", reaches), FakeDeviceMemory("GPU-b")
        self.donor = room.donor(pages=16, planes=2, device=self.theirs, timing=options.pop("timing", None))
        self.landing = Landing(self.accelerator, PAGE, 17 * PAGE)
        self.outgoing = OutgoingMemory(self.ours, PAGE, rows * PAGE)
        self.borrower = room.borrower(device=self.ours, landing=self.landing, outgoing=self.outgoing, **options)
        self.borrower.borrow({"d": self.donor.address}, 16)
        if reaches is None:
            wait_for(lambda: self.outgoing.wanted, "the donor to map it")

    def set_aside(self, *seeds: int) -> None:
        """As a pool does with what has been computed."""
        for seed, row in zip(seeds, self.outgoing.take(len(seeds)), strict=False):
            page = self.borrower.page(seed)
            self.outgoing.memory[row, :PAGE] = torch.from_numpy(page)
            self.outgoing.enter([row], [page_digest(page)])

    def hang(self) -> tuple[threading.Event, threading.Event]:
        """From now on copies to the donor's device have begun, and go on when the test says so."""
        begun, go_on = threading.Event(), threading.Event()

        def wait(what: str) -> None:
            begun.set()
            assert go_on.wait(60)

        self.theirs.on_copy = wait
        return begun, go_on

    def landed(self, place, seed: int) -> bool:
        answer = self.borrower.land(place)
        assert answer is not None, "its digest is not known"
        outcome, slot = answer.wait()
        assert outcome is ReadOutcome.OK
        same = (self.landing.memory[slot, :PAGE].numpy() == self.borrower.page(seed)).all()
        self.landing.give_back(slot)
        return bool(same)


def test_what_is_set_aside_is_stored_without_the_host_and_read_either_way(room) -> None:
    it = Devices(room)
    it.set_aside(*range(5))
    assert it.borrower.tier.details() == {"outgoing_pages": 8, "outgoing_used_pages": 5}
    uploads = it.accelerator.engine_calls
    places = {seed: it.borrower.write(seed) for seed in range(8)}
    links = it.borrower.tier.links
    assert (links["device-peer"].pages, links["host-peer"].pages) == (5, 3)
    assert (links["device-d"].pages, links["host-d"].pages) == (5, 3)
    assert it.accelerator.engine_calls - uploads == 3, "digests of what is on the device take no trip there"
    assert it.theirs.calls["write"] == 3
    for seed, place in places.items():
        assert it.borrower.read(place, seed) is ReadOutcome.OK
        assert it.landed(place, seed)
    assert it.outgoing.used_rows == 0
    snapshot = it.borrower.tier.snapshot()
    assert (snapshot.outgoing_bytes, snapshot.faults) == (8 * PAGE, 0)


def test_nothing_is_set_aside_for_a_donor_that_does_not_reach_it(room) -> None:
    it = Devices(room, reaches=set())
    place = it.borrower.write(1)
    assert not it.outgoing.wanted
    it.set_aside(2)
    assert it.outgoing.used_rows == 0
    assert it.borrower.read(place, 1) is ReadOutcome.OK
    assert it.borrower.tier.links["host-peer"].pages == 1


def test_nothing_is_set_aside_once_the_donor_has_gone(room) -> None:
    it = Devices(room)
    it.set_aside(1)
    it.donor.close()
    room.opened.remove(it.donor)
    wait_for(lambda: not it.outgoing.wanted, "the donor to be missed")
    assert it.outgoing.take(8) == []
    assert not it.theirs.mapped, "the donor has left it mapped"


def test_a_row_is_held_until_the_donor_has_answered(room) -> None:
    """Whoever computes more meanwhile must not write to it."""
    it = Devices(room, rows=1)
    begun, go_on = it.hang()
    it.set_aside(1)
    place = it.borrower.reserve()
    answer = it.borrower.begin_write(place, it.borrower.page(1))
    assert begun.wait(60)
    clock = it.outgoing._clock
    it.outgoing._clock = lambda: clock() + 10 * LINGER_SECONDS
    assert it.outgoing.take(1) == []
    go_on.set()
    assert answer.wait() == (True, "")
    assert it.borrower.read(place, 1) is ReadOutcome.OK
    rows = it.outgoing.take(1)
    assert len(rows) == 1
    it.outgoing.give_back(rows)


def test_a_lease_that_ends_in_the_middle_of_a_copy_gives_the_row_back(room) -> None:
    it = Devices(room, timing=Timing(term=300.0, recall_bound=0.05))
    begun, go_on = it.hang()
    it.set_aside(1)
    answer = it.borrower.begin_write(it.borrower.reserve(), it.borrower.page(1))
    assert begun.wait(60)
    it.donor.recall(16 * PAGE)
    wait_for(lambda: it.donor.lent_bytes == 0, "the donor to have its memory again")
    go_on.set()
    made, reason = answer.wait()
    assert (made, reason) == (False, "lease ended")
    wait_for(lambda: it.outgoing.used_rows == 0, "the row to be given back")
    assert it.borrower.tier.links["device-peer"].pages == 0


def test_a_device_that_computes_no_digests_has_the_page_come_through_host_memory(room) -> None:
    it = Devices(room)
    it.set_aside(1)

    def fail(memory: object, rows: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    it.landing.digests_in = fail  # type: ignore[method-assign, assignment]
    place = it.borrower.write(1)
    assert it.borrower.land(place) is None
    assert it.borrower.read(place, 1) is ReadOutcome.OK
    assert it.borrower.tier.snapshot().faults == 1
    assert it.outgoing.used_rows == 0


def test_a_page_that_is_another_than_its_checksum_says_is_found_when_it_is_read_to_host_memory(room) -> None:
    """Nobody compares it before: what is set aside is what host memory gets, of pages that nobody writes to."""
    it = Devices(room)
    (row,) = it.outgoing.take(1)
    it.outgoing.memory[row, :PAGE] = torch.from_numpy(it.borrower.page(2))
    it.outgoing.enter([row], [page_digest(it.borrower.page(1))])
    place = it.borrower.write(1)
    assert it.borrower.read(place, 1) is ReadOutcome.CHECKSUM
