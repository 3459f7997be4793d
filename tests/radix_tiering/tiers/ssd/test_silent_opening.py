"""Devices that do not answer when a stripe set is made, opened or checked: the others serve, and nothing is lost."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.errors import FormatError
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.tiers.ssd import Service, StripeSet
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Request
from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience
from swift_tiers.radix_tiering.tiers.ssd.fsck import Severity, check, repair
from swift_tiers.radix_tiering.tiers.ssd.layout import first_slot_offset
from swift_tiers.radix_tiering.tiers.ssd.members import Standing
from swift_tiers.radix_tiering.tiers.ssd.opening import create_set
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.engine import Clock, make_stack
from support.faulty_array import Delay, Fault, FaultyArray
from support.silent import STALL, SilentArray, wait_for

SLOTS = 12
#: Longer than any test.
NEVER = Delay(1e9)


def ticking() -> Callable[[], float]:
    """A clock on which a second passes whenever somebody looks."""
    return itertools.count().__next__


def filled(rig, *, clean: bool = True, devices: int = 3) -> MemoryArray:
    """Pages 0 to 5 of one unit each, and 6 to 8 of a unit on every device."""
    array = rig.memory(devices, SLOTS)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=8192) for number in range(6)]
    pages += [rig.put(stripes, number, length=8192 * devices) for number in range(6, 9)]
    stripes.close(pages if clean else None)
    return array


class Opening:
    """A stripe set being opened by a thread of its own, with time in the test's hands."""

    def __init__(self, rig, array: SilentArray, **options: object) -> None:
        self.clock = Clock()
        self.started = self.clock.now
        self.result: list[StripeSet | BaseException] = []
        self._array = array

        def work() -> None:
            try:
                self.result.append(rig.open(array, stall_seconds=STALL, runner=ThreadRunner(self.clock), **options))
            except FormatError as error:
                self.result.append(error)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def stall(self) -> StripeSet:
        """Lose patience with the silent devices once; what came of the opening."""
        wait_for(lambda: self._array.swallowed and not self._array.inner.in_flight)
        assert not self.result, "it did not wait"
        self.clock.now += STALL + 1
        wait_for(lambda: self.result)
        self._thread.join()
        if isinstance(self.result[0], BaseException):
            raise self.result[0]
        return self.result[0]


@pytest.mark.parametrize("clean", [True, False])
def test_the_others_serve_without_a_silent_device(rig, clean: bool) -> None:
    array = filled(rig, clean=clean)
    before = array.images[1].copy()
    silent = SilentArray(array)
    silent.silence(1)
    stripes = Opening(rig, silent).stall()
    device = stripes.status().devices[1]
    assert (device.service, device.reason) == (Service.OUT, "no answer for 100 seconds")
    assert stripes.missing == 1
    assert {page.record.key[0] for page in stripes.recovered} == {0, 2, 3, 5}
    assert all(rig.holds(stripes, page, page.record.key[0]) for page in stripes.recovered)
    page = rig.put(stripes, 20, length=16384)
    assert rig.holds(stripes, page, 20)
    silent.answer()
    stripes.close([*stripes.recovered, page])
    assert (array.images[1] == before).all(), "a device that was left out was written to"
    whole = rig.open(array)
    assert whole.missing == 0
    assert {0, 1, 2, 3, 4, 5, 20} <= {page.record.key[0] for page in whole.recovered}
    assert all(rig.holds(whole, page, page.record.key[0]) for page in whole.recovered)


def test_many_silent_devices_cost_no_more_time_than_one(rig) -> None:
    silent = SilentArray(filled(rig, devices=5))
    for device in (0, 1, 3):
        silent.silence(device)
    opening = Opening(rig, silent)
    stripes = opening.stall()
    assert opening.clock.now < opening.started + 2 * STALL
    assert [state.service is Service.IN for state in stripes.status().devices] == [False, False, True, False, True]
    silent.answer()


def test_where_nothing_answers_nothing_is_opened(rig) -> None:
    silent = SilentArray(filled(rig))
    for device in range(3):
        silent.silence(device)
    with pytest.raises(FormatError, match=r"device 0 not answering.*check the devices that do not answer"):
        Opening(rig, silent).stall()


def test_a_new_stripe_set_is_not_made_without_a_silent_device(rig) -> None:
    """It might be the one that holds the pages."""
    array = MemoryArray([rig.device_bytes(SLOTS)] * 3)
    silent = SilentArray(array)
    silent.silence(2)
    with pytest.raises(FormatError, match="device 2 not answering"):
        Opening(rig, silent, create=rig.UNIT).stall()
    with pytest.raises(FormatError, match=r"device 2 does not answer \(no answer for 100 seconds\)"):
        create_set(silent, rig.UNIT, Patience(STALL, ThreadRunner(ticking())), rig.SET_ID)
    assert not any(image.any() for image in array.images), "something was written"
    silent.answer()
    stripes = rig.open(silent, create=rig.UNIT)
    assert stripes.missing == 0
    assert stripes.capacity_units == 3 * SLOTS


def test_a_sync_that_does_not_return(rig) -> None:
    silent = SilentArray(filled(rig))
    silent.sync_hangs.add(0)
    stripes = rig.open(silent, stall_seconds=STALL, runner=ThreadRunner(ticking()))
    assert [state.service for state in stripes.status().devices] == [Service.OUT, Service.IN, Service.IN]
    assert stripes.status().devices[0].reason == "no answer for 100 seconds"
    silent.sync_answers.set()


class FallsSilent(SilentArray):
    """Device 1 answers so many requests, and then no more."""

    def __init__(self, inner: MemoryArray, answers: int) -> None:
        super().__init__(inner)
        self.answers = answers

    def submit(self, requests) -> None:
        for request in requests:
            self._submit_one(request)

    def _submit_one(self, request: Request) -> None:
        if request.device == 1:
            if not self.answers:
                self.silence(1)
            self.answers -= 1
        super().submit([request])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("answers", range(0, 24))
def test_a_device_may_fall_silent_at_any_request_of_an_opening(rig, clean: bool, answers: int) -> None:
    array = filled(rig, clean=clean)
    silent = FallsSilent(array, answers)
    stripes = rig.open(silent, stall_seconds=STALL, runner=ThreadRunner(ticking()))
    silent.answers = 10**9
    left_out = stripes.status().devices[1].service is Service.OUT
    assert left_out == bool(silent.swallowed)
    keys = {page.record.key[0] for page in stripes.recovered}
    assert keys == ({0, 2, 3, 5} if left_out else set(range(9)))
    if left_out:
        assert stripes.status().devices[1].reason == "no answer for 100 seconds"
    assert all(rig.holds(stripes, page, page.record.key[0]) for page in stripes.recovered)
    stripes.close(None)
    # What it was asked reaches the device late: nothing of it may do harm.
    silent.answer()
    while silent.in_flight:
        silent.reap(1)
    again = rig.open(array)
    assert again.missing == 0
    assert {page.record.key[0] for page in again.recovered} == set(range(9))
    assert all(rig.holds(again, page, page.record.key[0]) for page in again.recovered)


def test_a_server_starts_without_a_silent_device_and_says_so(rig) -> None:
    silent = SilentArray(filled(rig))
    silent.silence(1)
    ssd = SsdTier(silent, ["a", "b", "c"], rig.UNIT, stall_seconds=STALL, runner=ThreadRunner(ticking()))
    stack = make_stack(ssd=ssd)
    events = {event.kind: event.fields for event in stack.events.since()}
    assert events["device.left_out"] == {"device": "b", "reason": "no answer for 100 seconds"}
    assert [device.in_service for device in stack.snapshot().devices] == [True, False, True]
    silent.answer()


def test_a_failed_start_does_not_wait_for_silent_devices(rig) -> None:
    silent = SilentArray(filled(rig))
    for device in range(3):
        silent.silence(device)
    closed = threading.Event()
    silent.close = lambda: closed.wait(20)  # type: ignore[method-assign]
    starting: list[object] = []

    def start() -> None:
        with pytest.raises(FormatError):
            SsdTier(silent, ["a", "b", "c"], rig.UNIT, stall_seconds=STALL, runner=ThreadRunner(ticking()))
        starting.append("failed")

    threading.Thread(target=start, daemon=True).start()
    wait_for(lambda: starting)
    assert not closed.is_set(), "closing had ended by itself"
    closed.set()


# Checking and repairing.


def patience() -> Patience:
    return Patience(STALL, ThreadRunner(ticking()))


def test_checking_says_which_device_does_not_answer_and_repair_destroys_nothing(rig) -> None:
    array = filled(rig, clean=False)
    before = array.images[1].copy()
    faulty = FaultyArray(array)
    faulty.add(Fault(NEVER, device=1))
    waiting = patience()
    report = check(faulty, patience=waiting)
    assert [device.standing for device in report.devices] == [Standing.MEMBER, Standing.SILENT, Standing.MEMBER]
    assert report.missing == 1
    assert not report.sound
    (problem,) = [problem for problem in report.problems if problem.device == 1]
    assert (problem.severity, problem.what) == (Severity.ERROR, "not answering: no answer for 100 seconds")
    assert "check again" in problem.remedy
    assert report.wipe == (), "the units of pages that are whole once the device answers"
    result = repair(faulty, report, waiting)
    assert result.failed == ("device 1 is not answering: no answer for 100 seconds",)
    assert len(result.done) == 2
    assert (array.images[1] == before).all()
    assert {page.record.key[0] for page in rig.open(array).recovered} == set(range(9))


@pytest.mark.parametrize("clean", [True, False])
def test_a_device_that_falls_silent_half_way_is_not_taken_for_a_damaged_one(rig, clean: bool) -> None:
    """Its slots from the fifth on are never read: at first neither superblock nor tables tell."""
    array = filled(rig, clean=clean)
    faulty = FaultyArray(array)
    faulty.add(Fault(NEVER, device=1, start=first_slot_offset(SLOTS) + 4 * (4096 + 8192)))
    report = check(faulty, patience=patience())
    assert report.devices[1].standing is Standing.SILENT
    assert report.corrupt == 0
    assert report.wipe == ()
    assert {page.record.key[0] for page in report.pages} == {0, 2, 3, 5}


def test_a_device_that_falls_silent_under_its_payloads_is_not_damaged_either(rig) -> None:
    array = filled(rig)
    faulty = FaultyArray(array)
    payload = first_slot_offset(SLOTS) + 4096
    faulty.add(Fault(NEVER, device=1, start=payload, stop=payload + 8192))
    assert check(faulty, verify_payload=False, patience=patience()).sound
    report = check(faulty, patience=patience())
    assert report.devices[1].standing is Standing.SILENT
    assert report.corrupt == 0


def test_a_device_that_falls_silent_during_a_repair_is_named(rig) -> None:
    array = filled(rig, clean=False)
    silent = SilentArray(array)
    waiting = patience()
    report = check(silent, patience=waiting)
    silent.sync_hangs.add(2)
    result = repair(silent, report, waiting)
    assert result.failed == ("device 2: no answer for 100 seconds",)
    assert len(result.done) == 2
    silent.sync_answers.set()
    assert {page.record.key[0] for page in rig.open(array).recovered} == set(range(9))
    assert not np.array_equal(array.images[0], array.images[2])
