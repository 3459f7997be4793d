"""Devices that went out of service and answer again: taken back with nothing on them, by themselves or by an operator,
and never before all that they were asked has been answered and nobody has a page on them."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from threading import Thread

from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.tiers.ssd import Operation, Service, StoredPage, StripeSet
from swift_tiers.radix_tiering.tiers.ssd.blockio import aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.device_state import FIRST_REST
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.engine import Clock
from support.faulty_array import Fail, Fault, FaultyArray
from support.silent import STALL, SilentArray, wait_for

IN, OUT = Service.IN, Service.OUT


class Returning:
    """A stripe set of two devices of 16 slots, one of which is in trouble, and time in the test's hands."""

    def __init__(self, rig, wrap: Callable[[MemoryArray], FaultyArray | SilentArray]) -> None:
        self.rig = rig
        self.clock = Clock()
        self.memory = rig.memory(2, 16)
        self.array = wrap(self.memory)
        self.out: list[int] = []
        self.back: list[int] = []
        self.stripes: StripeSet = rig.open(
            self.array,
            stall_seconds=STALL,
            runner=ThreadRunner(self.clock),
            on_device_out=lambda device, reason: self.out.append(device),
        )
        self.stripes.on_device_back = self.back.append
        self.stripes.register_namespace(rig.NAMESPACE, "one")
        self.pages: list[StoredPage] = []
        self._number = 0

    def write(self) -> StoredPage | None:
        self._number += 1
        stored, _ = self.rig.write(
            self.stripes, self.rig.record(self._number, 20_000), self.rig.content(self._number, 0, 20_000)
        )
        if stored is not None:
            self.pages.append(stored)
        return stored

    def holds(self) -> bool:
        return all(self.rig.holds(self.stripes, page, page.record.key[0]) for page in self.pages)

    def service(self, device: int = 0) -> Service:
        return self.stripes.status().devices[device].service

    def let_go(self) -> None:
        """As whoever has pages there does."""
        for page in [page for page in self.pages if page.uses(0)]:
            self.stripes.release(page.placement)
            self.pages.remove(page)
        self.stripes.let_go(0)

    def passes(self, seconds: float) -> None:
        """The devices are looked at once more after that time."""
        self.clock.now += seconds
        self.stripes._io._notify()
        wait_for(lambda: self.stripes._io._next_check > self.clock.now)
        self.stripes._io.call(lambda: None)

    def comes_to(self, condition: Callable[[], bool]) -> None:
        """It does, while the devices are looked at again and again."""
        wait_for(lambda: condition() or self.passes(1.1))


def failing(rig, *faults: Fault) -> Returning:
    one = Returning(rig, FaultyArray)
    one.write()
    for fault in faults:
        one.array.add(fault)
    return one


def broken(rig) -> Returning:
    """Writes to the first device failed, and it went out of service."""
    one = failing(rig, Fault(Fail(errno.EIO), device=0, operation=Operation.WRITE))
    while one.service() is IN:
        one.write()
    wait_for(lambda: one.out == [0])
    return one


def test_a_device_that_failed_is_taken_back_when_it_is_well(rig) -> None:
    one = broken(rig)
    one.let_go()
    one.array.clear()
    one.passes(FIRST_REST - 1)
    assert one.service() is OUT
    one.passes(2)
    one.comes_to(lambda: one.service() is IN)
    assert one.back == [0]
    status = one.stripes.status().devices[0]
    assert (status.reason, status.used_units) == ("", 0)
    free = one.stripes.free_units
    stored = one.write()
    assert stored is not None
    assert stored.uses(0)
    assert one.stripes.free_units == free - len(stored.placement)
    assert one.holds()


def test_it_is_asked_more_and_more_rarely_until_it_has_been_well_for_as_long(rig) -> None:
    one = broken(rig)
    one.let_go()
    for rest in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        one.passes(rest - 3)
        assert one.service() is OUT
        struck = one.array.struck[0]
        one.passes(4)
        one.comes_to(lambda struck=struck: one.array.struck[0] > struck)  # its table could not be written
        assert one.service() is OUT
    one.array.clear()
    one.passes(3605)
    one.comes_to(lambda: one.service() is IN)
    one.passes(3605)
    one.array.add(Fault(Fail(errno.EIO), device=0, operation=Operation.WRITE))
    while one.service() is IN:
        one.write()
    one.let_go()
    one.array.clear()
    one.passes(FIRST_REST + 1)
    one.comes_to(lambda: one.service() is IN)


def test_three_reads_in_a_row_that_fail_are_counted_anew(rig) -> None:
    one = failing(rig, Fault(Fail(errno.EIO), device=0, operation=Operation.READ))
    page = one.pages[0]
    while one.service() is IN:
        one.rig.read(one.stripes, page)
    one.let_go()
    one.array.clear()
    assert one.stripes.readmit(0) == ""
    one.array.add(Fault(Fail(errno.EIO), device=0, operation=Operation.READ, times=1))
    stored = one.write()
    assert stored is not None
    one.rig.read(one.stripes, stored)
    assert one.service() is IN, "one error is not three"
    assert one.holds()


def test_a_device_is_not_taken_back_while_somebody_has_pages_there(rig) -> None:
    one = broken(rig)
    one.array.clear()
    one.passes(10 * FIRST_REST)
    assert "still being given up" in one.stripes.readmit(0)
    assert one.service() is OUT
    one.let_go()
    assert one.stripes.readmit(0) == ""
    assert one.service() is IN


def test_what_a_silent_device_was_asked_is_answered_first(rig) -> None:
    """What it was given to write it may write at any time until it answers: a page that lay there, or its table."""
    one = Returning(rig, SilentArray)
    one.write()
    one.array.silence(0)
    writing: list[object] = []
    placement = one.stripes.reserve(20_000)
    assert placement is not None
    data = rig.content(9, 0, 20_480)
    buffer = aligned_buffer(20_480)
    buffer[:] = data
    one.stripes.write(rig.record(9, 20_000), placement, buffer, lambda stored, reason: writing.append(reason))
    wait_for(lambda: one.array.swallowed)
    one.clock.now += STALL + 2
    wait_for(lambda: one.service() is OUT and writing)
    one.let_go()
    one.array.hear()
    one.passes(10 * FIRST_REST)
    assert one.service() is OUT
    assert one.stripes.readmit(0) == "it has not answered what it was asked before"
    one.array.answer()
    one.passes(FIRST_REST + 1)
    one.comes_to(lambda: one.service() is IN)
    for _ in range(8):
        assert one.write() is not None
    assert one.holds()


def test_a_device_that_says_nothing_is_asked_once(rig) -> None:
    one = Returning(rig, SilentArray)
    one.array.silence(0, Operation.WRITE)
    writing: list[str] = []
    stored = one.write
    Thread(target=lambda: writing.append(str(stored() is None)), daemon=True).start()
    wait_for(lambda: one.array.swallowed)
    one.clock.now += STALL + 2
    wait_for(lambda: one.service() is OUT and writing)
    one.array.answer()
    one.array.silence(0)
    one.let_go()
    one.passes(2)
    for _ in range(20):
        one.passes(3700)
    assert len(one.array.swallowed) == 1
    assert one.service() is OUT
    assert one.stripes.readmit(0) == "it has not answered what it was asked before"
    one.array.answer()
    one.comes_to(lambda: one.service() is IN)
    assert one.write() is not None
    assert one.holds()


def test_a_device_that_has_gone_stays_out(rig) -> None:
    one = failing(rig)
    one.array.remove_device(0)
    one.comes_to(lambda: one.service() is OUT)
    one.array.return_device(0)
    one.let_go()
    one.passes(7200)
    time.sleep(0.02)
    assert one.service() is OUT
    assert one.stripes.readmit(0) == "it has gone for good"


def test_what_was_flushed_while_a_device_was_out_stays_so(rig) -> None:
    """Its table is the newest there is once it is back: its own pages are not found by it after a crash."""
    one = failing(rig)
    flushed = one.pages[0]
    one.array.add(Fault(Fail(errno.EIO), device=0, operation=Operation.WRITE))
    while one.service() is IN:
        one.write()
    assert one.stripes.flush_namespace(rig.NAMESPACE)
    one.let_go()
    one.array.clear()
    assert one.stripes.readmit(0) == ""
    after = one.write()
    assert after is not None
    one.stripes.close(None)
    alone = MemoryArray.from_images([image.copy() for image in one.memory.images], seed=1)
    found = {page.generation for page in rig.open(alone).recovered}
    assert after.generation in found
    assert flushed.generation not in found
    only = MemoryArray.from_images([one.memory.images[0].copy()], seed=2)
    assert not {page.generation for page in rig.open(only).recovered} & {flushed.generation}


def test_others_serve_and_flush_while_a_device_that_comes_back_stands_still(rig) -> None:
    """It answers what it is asked, and its sync does not return; then what is written to it is not answered."""
    one = Returning(rig, SilentArray)
    one.write()
    assert one.pages[0].uses(0)
    other = rig.put(one.stripes, 200, length=8192)
    one.stripes._io.call(lambda: one.stripes._io.take_out(0, "for the test"))
    one.let_go()
    readmitted: list[str] = []
    for stands_still in ("sync", "write"):
        if stands_still == "sync":
            one.array.sync_hangs.add(0)
        else:
            one.array.silence(0, Operation.WRITE)
        thread = Thread(target=lambda: readmitted.append(one.stripes.readmit(0)), daemon=True)
        thread.start()
        wait_for(lambda: one.stripes._table_writer._syncs or one.array.swallowed)
        assert rig.holds(one.stripes, other, 200)
        one.clock.now += 2
        assert one.stripes.flush_namespace(rig.OTHER)
        one.stripes.register_namespace(b"namespace-four..", "four")
        assert not readmitted, "it waits for that device"
        one.clock.now += STALL + 2
        wait_for(lambda: readmitted)
        assert readmitted.pop().startswith("no answer")
        assert one.stripes.readmit(0) == "it has not answered what it was asked before"
        one.array.sync_hangs.clear()
        one.array.sync_answers.set()
        one.array.answer()
        wait_for(lambda: not one.stripes._io.call(lambda: one.stripes._io.owes(0)) or one.passes(1.1))
    assert one.stripes.readmit(0) == ""


def test_a_drained_device_does_not_come_back_by_itself(rig) -> None:
    one = broken(rig)
    one.stripes.drain(0)
    one.let_go()
    one.array.clear()
    one.passes(7200)
    one.passes(2)
    assert one.service() is OUT
    assert one.stripes.readmit(0) == ""
    assert one.service() is IN


def test_a_device_that_goes_while_it_is_out_stays_out(rig) -> None:
    one = broken(rig)
    one.let_go()
    one.array.clear()
    one.array.present = lambda device: device != 0  # type: ignore[method-assign]  # its file has been deleted
    one.passes(61)
    one.comes_to(lambda: bool(one.stripes._devices[0].kept_out))
    assert one.service() is OUT
    one.array.present = one.memory.present  # type: ignore[method-assign]
    assert one.stripes.readmit(0) == "it has gone for good"
    assert not one.back


def test_a_device_that_was_somebody_elses_meanwhile_is_not_touched(rig) -> None:
    """Its bytes are others, or it was opened and closed by another server, or is a copy of an earlier day."""
    for change in ("other bytes", "closed by another", "an old copy"):
        one = broken(rig)
        one.let_go()
        one.array.clear()
        image = one.memory.images[0]
        if change == "other bytes":
            image[:] = 0x5A
        elif change == "closed by another":
            alone = MemoryArray.from_images([image.copy()], seed=3)
            for _ in range(2):
                rig.open(alone).close(())
            image[:] = alone.images[0]
        else:
            image[:] = rig.memory(2, 16).images[0]
        before = image.copy()
        assert one.stripes.readmit(0) == "what it holds is not what it was left with"
        assert (image == before).all(), change
        assert one.stripes.readmit(0) == "it has gone for good"


def test_it_is_asked_again_whatever_is_raised(rig, monkeypatch) -> None:
    one = broken(rig)
    one.let_go()
    one.array.clear()

    def fails(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(one.stripes._table_writer, "come_back", fails)
        one.passes(61)
        one.comes_to(lambda: one.stripes._devices[0]._out.seconds > FIRST_REST)
    one.passes(130)
    one.comes_to(lambda: one.service() is IN)


def test_one_that_fails_again_and_again_is_asked_more_rarely_however_long_it_served(rig) -> None:
    one = failing(rig)
    rests = []
    for _ in range(8):
        one.array.add(Fault(Fail(errno.EIO), device=0, operation=Operation.WRITE))
        while one.service() is IN:
            one.write()
        one.let_go()
        one.array.clear()
        rests.append(one.stripes._devices[0]._out.seconds)
        one.passes(rests[-1] + 1)
        one.comes_to(lambda: one.service() is IN)
        one.passes(100 + rests[-1] / 2)
    assert rests == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_one_that_is_drained_or_has_no_room_takes_pages_again(rig) -> None:
    one = failing(rig)
    one.stripes.drain(0)
    assert one.service() is Service.DRAINING
    page = one.pages[0]
    assert page.uses(0)
    assert one.stripes.readmit(0) == ""
    assert one.service() is IN
    stored = one.write()
    assert stored is not None
    assert stored.uses(0)
    assert one.holds(), "what it had is there still"
    assert not one.back, "it was never out"


def test_a_device_that_was_not_there_at_the_start_cannot_be_taken_back(rig) -> None:
    array = FaultyArray(rig.memory(2, 8))
    array.add(Fault(Fail(errno.EIO), device=1))
    stripes = rig.open(array)
    array.clear()
    assert stripes.readmit(1) == "it was not in service since the server was started"
    assert stripes.status().devices[1].service is OUT
