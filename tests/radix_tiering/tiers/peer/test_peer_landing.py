"""Pages that come from a donor's device straight to the borrower's own: verified there, and only there."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.lending.leases import Timing
from swift_tiers.radix_tiering.tiers.host.landing import Landing
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.deferred_accelerator import DeferredAccelerator
from support.fake_device import FakeDeviceMemory
from support.peer_donor import PAGE
from support.peer_tier import write_page
from support.redis import wait_for

LONG = Timing(term=30.0, recall_bound=5.0)
#: Not a multiple of a landing slot's alignment.
ODD = 3 * 1000


class Watched(DeferredAccelerator):
    """Says when a copy of pieces is waited for, and does it then."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed, locked=True)
        self.before_copy = lambda: None

    def run_until(self, reached) -> None:
        self.before_copy()
        super().run_until(reached)


def landing(page_bytes: int = PAGE, slots: int = 4) -> tuple[Landing, Watched]:
    accelerator = Watched()
    found = Landing(accelerator, page_bytes, (slots + 1) * (page_bytes + 4096))
    assert found.slots >= slots
    return found, accelerator


def borrower_on_device(room, memory: Landing, device: FakeDeviceMemory | None = None, **options):
    return room.borrower(
        page_bytes=memory.page_bytes, device=device or FakeDeviceMemory("GPU-b"), landing=memory, **options
    )


def in_slot(memory: Landing, slot: int) -> np.ndarray:
    return memory.memory[slot, : memory.page_bytes].numpy()


@pytest.mark.parametrize(("page_bytes", "planes"), [(PAGE, 1), (4 * PAGE, 4), (ODD, 3)])
def test_pages_land_as_they_were_stored(room, page_bytes: int, planes: int) -> None:
    donor = room.donor(page_bytes=page_bytes, planes=planes, pages=16, device=FakeDeviceMemory("GPU-a"))
    memory, _ = landing(page_bytes, slots=8)
    borrower = borrower_on_device(room, memory)
    borrower.borrow({"d": donor.address}, 16)
    places = [borrower.write(seed) for seed in range(16)]
    answers = {seed: borrower.land(places[seed]) for seed in (3, 0, 15, 7)}
    for seed, answer in answers.items():
        outcome, slot = answer.wait()
        assert outcome is ReadOutcome.OK
        assert (in_slot(memory, slot) == borrower.page(seed)).all()
        assert answer.thread == "swift-peer"
        memory.give_back(slot)
    assert memory.used_slots == 0
    links = borrower.tier.links
    assert (links["peer-device"].pages, links["d-device"].pages, links["peer-host"].pages) == (4, 4, 0)
    assert links["d-device"].bytes == 4 * page_bytes
    snapshot = borrower.tier.snapshot()
    assert (snapshot.reads, snapshot.faults) == ({"ok": 4}, 0)
    # Through host memory they come as well.
    assert borrower.read(places[5], 5) is ReadOutcome.OK


def test_where_it_cannot_land_nothing_is_asked(room) -> None:
    donor = room.donor(pages=16, device=FakeDeviceMemory("GPU-a"))
    memory, _ = landing(slots=1)
    borrower = borrower_on_device(room, memory)
    borrower.borrow({"d": donor.address}, 16)
    first, second = borrower.write(1), borrower.write(2)
    outcome, slot = borrower.land(first).wait()
    assert outcome is ReadOutcome.OK
    while memory.take() is not None:
        pass  # as if others had them
    assert borrower.land(second) is None, "no room"
    memory.give_back(slot)
    assert borrower.land(second) is not None
    nothing_there = borrower.reserve()
    assert borrower.land(nothing_there) is None, "nothing was stored there"


def test_a_donor_in_host_memory_cannot_be_reached_so(room) -> None:
    donor = room.donor(pages=16)
    memory, _ = landing()
    borrower = borrower_on_device(room, memory)
    borrower.borrow({"d": donor.address}, 16)
    place = borrower.write(1)
    assert borrower.land(place) is None
    assert borrower.read(place, 1) is ReadOutcome.OK
    assert memory.used_slots == 0


def test_without_landing_memory_pages_come_through_host_memory(room) -> None:
    donor = room.donor(pages=16, device=FakeDeviceMemory("GPU-a"))
    borrower = room.borrower(device=FakeDeviceMemory("GPU-b"))
    borrower.borrow({"d": donor.address}, 16)
    place = borrower.write(1)
    assert borrower.land(place) is None
    assert borrower.read(place, 1) is ReadOutcome.OK


def test_one_flipped_bit_is_noticed_on_the_device(room) -> None:
    donor = room.donor(pages=16, device=FakeDeviceMemory("GPU-a"))
    memory, _ = landing()
    borrower = borrower_on_device(room, memory)
    borrower.borrow({"d": donor.address}, 16)
    places = [borrower.write(seed) for seed in range(16)]
    at = int(np.flatnonzero((donor.memory.reshape(-1, PAGE) == borrower.page(5)).all(axis=1))[0])
    donor.memory[at * PAGE + 1234] ^= 0x10
    assert borrower.land(places[5]).wait() == (ReadOutcome.CHECKSUM, -1)
    assert memory.used_slots == 0
    outcome, _ = borrower.land(places[6]).wait()
    assert outcome is ReadOutcome.OK


def test_what_was_damaged_before_it_was_stored_never_lands(room) -> None:
    """Its checksum is of the page; its bytes are not."""
    donor = room.donor(pages=16, device=FakeDeviceMemory("GPU-a"))
    memory, _ = landing()
    borrower = borrower_on_device(room, memory)
    borrower.borrow({"d": donor.address}, 16)
    place, page = borrower.reserve(), borrower.page(1)
    digest = page_digest(page)
    page[7] ^= 1
    told = threading.Event()
    write_page(borrower.tier, place, page, lambda ok, why: told.set(), digest)
    assert told.wait(60)
    assert borrower.land(place) is None
    assert borrower.read(place, 1) is ReadOutcome.CHECKSUM


def test_bytes_that_came_under_a_lease_that_ended_are_not_looked_at(room) -> None:
    """The donor takes its memory back, and writes to it, while it is being copied."""
    donor = room.donor(pages=16, device=FakeDeviceMemory("GPU-a"), timing=Timing(term=60.0, recall_bound=0.02))
    memory, accelerator = landing()
    borrower = borrower_on_device(room, memory)
    borrower.borrow({"d": donor.address}, 16)
    place = borrower.write(1)
    taken: list[int] = []

    def take_back() -> None:
        accelerator.before_copy = lambda: None
        donor.recall(16 * PAGE)
        wait_for(lambda: donor.lent_bytes == 0, "the donor to have its memory again")
        taken.append(donor.lent_bytes)
        donor.memory[:] = 0x77

    accelerator.before_copy = take_back
    outcome, slot = borrower.land(place).wait()
    assert taken == [0]
    assert (outcome, slot) == (ReadOutcome.CANCELLED, -1)
    assert memory.used_slots == 0


def test_jobs_that_wait_are_refused_when_their_lease_is_recalled(room) -> None:
    donor = room.donor(pages=16, device=FakeDeviceMemory("GPU-a"), timing=LONG)
    memory, accelerator = landing(slots=12)
    borrower = borrower_on_device(room, memory, timing=LONG)
    borrower.on_recall = borrower.tier.give_up
    borrower.borrow({"d": donor.address}, 16)
    places = [borrower.write(seed) for seed in range(12)]
    reached, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        accelerator.before_copy = lambda: None
        reached.set()
        assert go_on.wait(60)

    accelerator.before_copy = stop
    first = borrower.land(places[0])
    assert reached.wait(60)
    rest = [borrower.land(place) for place in places[1:]]
    donor.recall(16 * PAGE)
    go_on.set()
    assert first.wait()[0] in (ReadOutcome.OK, ReadOutcome.CANCELLED)
    assert {answer.wait()[0] for answer in rest} <= {ReadOutcome.OK, ReadOutcome.CANCELLED}
    wait_for(lambda: len(borrower.keys("ended")) == 2, "both leases to be returned")
    held = sum(answer.calls[0][1] >= 0 for answer in (first, *rest))
    assert memory.used_slots == held, "a slot was given back twice, or not at all"


def test_what_waited_to_land_from_a_recalled_lease_is_answered_when_it_closes(room) -> None:
    """It waits until all that is to be saved of the lease has been asked for, which closing may come before."""
    donor = room.donor(pages=8, bandwidth=1.0, device=FakeDeviceMemory("GPU-a"), timing=LONG)
    memory, _ = landing()
    borrower = borrower_on_device(room, memory, timing=LONG)
    borrower.borrow({"d": donor.address}, 8)
    place, worker = borrower.write(1), borrower.tier._worker
    waits = borrower.land(place)
    wait_for(lambda: len(worker.neighbours["d"].landings))
    closing, saved = threading.Thread(target=borrower.close), []

    def save(key):
        saved.append(borrower.begin_read(place, page_digest(borrower.page(1)), saving=True)[0])
        closing.start()
        wait_for(lambda: worker._closing)
        yield

    borrower.on_recall = save
    donor.recall(8 * PAGE)
    assert waits.wait() == (ReadOutcome.CANCELLED, -1)
    closing.join(60)
    assert [answer.wait() for answer in saved] == [ReadOutcome.OK]
    assert memory.used_slots == 0


def test_a_device_that_fails_costs_the_pages_and_no_more(room) -> None:
    donor = room.donor(pages=16, device=FakeDeviceMemory("GPU-a"))
    memory, accelerator = landing()
    borrower = borrower_on_device(room, memory)
    borrower.borrow({"d": donor.address}, 16)
    places = [borrower.write(seed) for seed in range(3)]

    def fail() -> None:
        accelerator.before_copy = lambda: None
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    accelerator.before_copy = fail
    assert borrower.land(places[0]).wait() == (ReadOutcome.IO_ERROR, -1)
    assert memory.used_slots == 0
    assert borrower.tier.snapshot().faults == 1
    assert borrower.read(places[0], 0) is ReadOutcome.OK
    assert borrower.land(places[1]).wait()[0] is ReadOutcome.OK


def test_a_donor_that_goes_leaves_nothing_mapped(room) -> None:
    donor = room.donor(pages=16, device=FakeDeviceMemory("GPU-a"))
    memory, device = landing()[0], FakeDeviceMemory("GPU-b")
    borrower = borrower_on_device(room, memory, device)
    borrower.borrow({"d": donor.address}, 16)
    place = borrower.write(1)
    outcome, slot = borrower.land(place).wait()
    assert outcome is ReadOutcome.OK
    donor.close()
    room.opened.remove(donor)
    wait_for(lambda: not device.mapped, "the donor's memory to be unmapped")
    assert (in_slot(memory, slot) == borrower.page(1)).all(), "what has landed is our own"
    assert borrower.land(place) is None


def test_there_must_be_room_for_a_page() -> None:
    with pytest.raises(ValueError, match="hold no page"):
        Landing(DeferredAccelerator(0, locked=True), PAGE, PAGE)


def test_the_digest_of_host_memory_is_that_of_what_lands() -> None:
    memory, _ = landing(ODD)
    page = np.random.default_rng(5).integers(0, 256, ODD, np.uint8)
    slot = memory.take()
    pieces = np.array([(0, 0, 1000), (1000, 1000, 1), (1001, 1001, ODD - 1001)], np.int64)
    memory.fetch(torch.from_numpy(page.copy()), [pieces], [slot])
    assert memory.digests([slot]) == [memory.digest(page)]
    assert memory.digest(page ^ 1) != memory.digest(page)
