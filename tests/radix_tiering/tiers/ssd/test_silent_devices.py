"""Devices that swallow requests and say nothing: nobody waits for them for ever, and the others go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.tiers.ssd import StoredPage, StripeSet
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Operation
from swift_tiers.radix_tiering.tiers.ssd.blockio import CONTROL_TAG, aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.device_state import Service
from swift_tiers.radix_tiering.tiers.ssd.layout import TABLE_BYTES, TABLE_OFFSETS
from swift_tiers.radix_tiering.tiers.ssd.namespaces import MAX_NAMESPACES
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.engine import Clock
from support.silent import STALL, SilentArray, wait_for


class Silent:
    """A stripe set on an array with silent devices, and time in the test's hands."""

    def __init__(self, rig, devices: int = 3, slots: int = 16, **options: object) -> None:
        self.rig = rig
        self.clock = Clock()
        self.started = self.clock.now
        self.array = SilentArray(rig.memory(devices, slots))
        self.out: list[tuple[int, str]] = []
        self.stripes: StripeSet = rig.open(
            self.array,
            stall_seconds=STALL,
            runner=ThreadRunner(self.clock),
            **options,
            on_device_out=lambda device, reason: self.out.append((device, reason)),
        )
        self.stripes.register_namespace(rig.NAMESPACE, "one")

    def waits(self, function: Callable[[], object]) -> Callable[[], None]:
        """Run something that waits for a silent device; the result lets the patience with it run out."""
        before = len(self.array.swallowed)
        ended: list[object] = []
        thread = threading.Thread(target=lambda: ended.append(function()), daemon=True)
        thread.start()

        def run_out() -> None:
            wait_for(lambda: len(self.array.swallowed) > before and self.only_silent_are_waited_for())
            time.sleep(0.02)
            assert not ended, "it did not wait"
            self.stall(lambda: ended)

        return run_out

    def only_silent_are_waited_for(self) -> bool:
        """What well devices were asked is done: when time passes now, none of them is taken for a silent one."""
        behind = set(self.stripes._table_writer._flows)
        return behind <= self.array.silent and not self.array.inner.in_flight

    def stall(self, until: Callable[[], object]) -> None:
        """Let more time pass than a device may take, as often as it takes."""
        self.clock.now += STALL + 2
        wait_for(until)

    def pass_slowly(self, until: Callable[[], object]) -> None:
        """Let time pass, a moment whenever somebody looks."""

        def look() -> object:
            self.clock.now += 0.01
            return until()

        wait_for(look)

    @property
    def waited(self) -> float:
        """Seconds that have passed, by the test's clock."""
        return self.clock.now - self.started

    def read(self, page: StoredPage, outcomes: list[ReadOutcome]) -> np.ndarray:
        into = aligned_buffer(-(-page.record.length // 4096) * 4096)
        self.stripes.read(page, into, outcomes.append)
        return into

    def table_of(self, device: int) -> bytes:
        """Both copies of the namespace table of one device."""
        return self.array.inner.images[device][TABLE_OFFSETS[0] :][: 2 * TABLE_BYTES].tobytes()

    def services(self) -> list[Service]:
        return [state.service for state in self.stripes.status().devices]

    def held(self) -> list[int]:
        return [0 if state.slots is None else state.slots.held for state in self.stripes._devices]


@pytest.fixture
def silent(rig):
    made: list[Silent] = []

    def make(**options: object) -> Silent:
        made.append(Silent(rig, **options))
        return made[-1]

    yield make
    for one in made:
        one.array.sync_answers.set()
        one.array.answer()


# What waits for the devices.


@pytest.mark.parametrize("operation", [None, Operation.WRITE])
def test_registering_ends_although_two_devices_do_not_answer(silent, operation: Operation | None) -> None:
    one = silent()
    one.array.silence(0, operation)
    one.array.silence(2, operation)
    one.waits(lambda: one.stripes.register_namespace(one.rig.OTHER, "two"))()
    wait_for(lambda: len(one.out) == 2)
    assert one.services() == [Service.OUT, Service.IN, Service.OUT]
    assert all("ETIMEDOUT" in reason for _, reason in one.out)
    assert one.waited < 2 * STALL, "they were waited for one after the other"
    page = one.rig.put(one.stripes, 1, namespace=one.rig.OTHER)
    assert one.rig.holds(one.stripes, page, 1)


def test_late_answers_to_the_slow_paths_are_dropped(silent) -> None:
    one = silent()
    one.array.silence(1)
    one.waits(lambda: one.stripes.flush_namespace(one.rig.NAMESPACE))()
    wait_for(lambda: one.out)
    assert [request.tag >= CONTROL_TAG for request in one.array.swallowed] == [True]
    patience = one.stripes._io.patience
    assert len(patience.abandoned) == 1, "nobody keeps the buffer alive"
    one.array.answer()
    for number in range(4):
        assert one.rig.holds(one.stripes, one.rig.put(one.stripes, number), number)
    assert one.stripes.flush_namespace(one.rig.NAMESPACE)
    one.clock.now += 2
    wait_for(lambda: not patience.abandoned and not one.array.in_flight)
    assert one.stripes.status().callback_errors == 0


def test_a_sync_that_never_returns(silent) -> None:
    one = silent()
    one.array.sync_hangs.add(1)
    ended: list[object] = []
    threading.Thread(
        target=lambda: ended.append(one.stripes.register_namespace(one.rig.OTHER, "two")), daemon=True
    ).start()
    wait_for(lambda: set(one.stripes._table_writer._flows) == {1})  # the others have synced
    wait_for(lambda: any(thread.name == "ssd-sync" for thread in threading.enumerate()))
    time.sleep(0.02)
    assert not ended
    one.stall(lambda: ended)
    wait_for(lambda: one.out)
    assert one.services() == [Service.IN, Service.OUT, Service.IN]


class Flush:
    """A flush under way, and what it returned."""

    def __init__(self, one: Silent) -> None:
        self.results: list[bool] = []
        self._thread = threading.Thread(
            target=lambda: self.results.append(one.stripes.flush_namespace(one.rig.NAMESPACE)), daemon=True
        )
        self._thread.start()


def test_a_flush_does_not_wait_for_one_silent_device_once_others_have_it(silent) -> None:
    one = silent()
    pages = [one.rig.put(one.stripes, number) for number in range(3)]
    one.array.silence(1)
    flush = Flush(one)
    wait_for(lambda: one.array.swallowed and not one.array.inner.in_flight)
    time.sleep(0.02)
    assert not flush.results, "for a moment a slow device is waited for"
    assert one.rig.read(one.stripes, pages[0])[0] is ReadOutcome.FLUSHED, "it takes effect at once"
    one.pass_slowly(lambda: flush.results)
    assert flush.results == [True]
    assert one.services() == [Service.IN] * 3
    # A crash now; device 1 has the old table, and counts no more than the others.
    images = one.array.inner.images
    crashed = one.rig.open(MemoryArray.from_images(images))
    assert crashed.recovered == []
    # Another flush is not held up by the one that still waits for device 1.
    new = one.rig.put(one.stripes, 7, length=8192)
    again = Flush(one)
    one.pass_slowly(lambda: again.results)
    assert again.results == [True]
    assert one.rig.read(one.stripes, new)[0] is ReadOutcome.FLUSHED
    assert one.waited < STALL
    one.array.answer()
    wait_for(lambda: not one.array.in_flight and len({one.table_of(device) for device in range(3)}) == 1)
    assert one.services() == [Service.IN] * 3


def test_a_flush_waits_as_long_as_nothing_has_it(silent) -> None:
    one = silent()
    for device in range(3):
        one.array.silence(device)
    flush = Flush(one)
    wait_for(lambda: len(one.array.swallowed) == 3)
    one.clock.now += STALL / 2
    time.sleep(0.05)
    assert not flush.results
    one.array.answer()
    wait_for(lambda: flush.results)
    assert flush.results == [True]
    for device in range(3):
        one.array.silence(device)
    lost = Flush(one)
    wait_for(lambda: len(one.array.swallowed) == 3)
    one.stall(lambda: lost.results)
    assert lost.results == [False]
    assert one.services() == [Service.OUT] * 3


def test_registering_need_not_be_waited_for(silent) -> None:
    one = silent()
    for device in range(3):
        one.array.silence(device)
    answers: list[bool] = []
    one.stripes.register_namespace(one.rig.OTHER, "two", answers.append)
    one.stripes.register_namespace(one.rig.OTHER, "two", answers.append)
    wait_for(lambda: len(one.array.swallowed) == 3)
    assert not answers
    one.array.answer()
    wait_for(lambda: answers == [True, True])
    one.stripes.register_namespace(one.rig.OTHER, "two", answers.append)
    wait_for(lambda: answers == [True] * 3)
    assert [entry.digest for entry in one.stripes.namespaces] == [one.rig.NAMESPACE, one.rig.OTHER]


def test_transfers_go_on_while_a_sync_hangs(silent) -> None:
    one = silent(devices=2)
    page = one.rig.put(one.stripes, 1)
    one.array.sync_hangs.add(0)
    answers: list[bool] = []
    one.stripes.register_namespace(one.rig.OTHER, "two", answers.append)
    wait_for(lambda: any(thread.name == "ssd-sync" for thread in threading.enumerate()))
    assert one.rig.holds(one.stripes, page, 1)
    assert not answers
    one.array.sync_answers.set()
    wait_for(lambda: answers == [True])


def test_transfers_go_on_while_registering_waits(silent) -> None:
    one = silent(devices=2)
    pages = [one.rig.put(one.stripes, number, length=8192) for number in range(2)]
    alone = next(page for page in pages if not page.uses(0))
    one.array.silence(0)
    run_out = one.waits(lambda: one.stripes.register_namespace(one.rig.OTHER, "two"))
    wait_for(lambda: one.array.swallowed)
    assert one.rig.holds(one.stripes, alone, alone.record.key[0])
    run_out()


# Transfers.


def test_writes_on_a_silent_device_end_and_others_go_on(silent) -> None:
    one = silent(max_writes=2, slots=32)
    one.array.silence(0)
    results: list[tuple[StoredPage | None, str]] = []
    for number in range(6):
        placement = one.stripes.reserve(20_000)
        record = one.rig.record(number, 20_000)
        one.stripes.write(record, placement, aligned_buffer(20480), lambda *result: results.append(result))
    wait_for(lambda: len(one.array.swallowed) == 2 and not one.array.inner.in_flight)
    assert not results
    one.stall(lambda: len(results) == 6)
    assert {stored for stored, _ in results} == {None}
    assert "no answer" in results[0][1]
    assert one.stripes.free_units == 64, "slots on healthy devices are not free again"
    assert one.held()[1:] == [0, 0]
    page = one.rig.put(one.stripes, 9)
    assert one.rig.holds(one.stripes, page, 9)
    one.array.answer()
    wait_for(lambda: not one.array.in_flight and one.held() == [0, 0, 0])
    assert one.rig.holds(one.stripes, page, 9)
    wait_for(lambda: one.stripes.status().queued == 0)
    assert one.stripes._io._writes_active == 0
    assert len(results) == 6, "called back twice"


def test_slots_of_an_ended_write_wait_for_their_own_units(silent) -> None:
    """Device 0 goes out; device 1 still writes its unit, whose slot nobody else may have until then."""
    one = silent(devices=2, slots=4)
    one.array.silence(0)
    one.array.silence(1)
    placement = one.stripes.reserve(16384)
    results: list[tuple[StoredPage | None, str]] = []
    one.stripes.write(
        one.rig.record(1, 16384), placement, aligned_buffer(16384), lambda *result: results.append(result)
    )
    wait_for(lambda: len(one.array.swallowed) == 2)
    one.stripes._io.call(lambda: one.stripes._io.take_out(0, "no answer for a test"))
    wait_for(lambda: results)
    assert results[0][0] is None
    assert one.held() == [1, 1]
    assert one.stripes.free_units == 3, "the slot that device 1 still writes was given away"
    one.array.answer()
    wait_for(lambda: one.held() == [0, 0])
    assert one.stripes.free_units == 4
    assert len(results) == 1


def test_a_silent_read_waits_for_its_units_and_harms_nobody(silent) -> None:
    one = silent()
    page, alone = one.rig.put(one.stripes, 0), one.rig.put(one.stripes, 1, length=8192)
    ((used, _),) = alone.placement
    one.array.silence((used + 1) % 3)
    outcomes: list[ReadOutcome] = []
    one.read(page, outcomes)
    wait_for(lambda: one.array.swallowed and not one.array.inner.in_flight)
    one.stall(lambda: one.out)
    assert one.rig.holds(one.stripes, alone, 1)
    later = one.rig.put(one.stripes, 2)
    assert one.rig.holds(one.stripes, later, 2)
    wait_for(lambda: one.stripes.status().queued == 1)
    assert not outcomes, "the kernel may still write into the buffer"
    assert one.stripes.reading == 0, "writes give way to a read that may never end"
    one.array.answer()
    wait_for(lambda: outcomes)
    wait_for(lambda: one.stripes.status().queued == 0)  # one that was called back is counted a moment longer


# Closing.


def test_closing_gives_up_on_a_silent_device(silent) -> None:
    one = silent()
    page, alone = one.rig.put(one.stripes, 0), one.rig.put(one.stripes, 1, length=8192)
    ((used, _),) = alone.placement
    quiet = (used + 1) % 3
    one.array.silence(quiet)
    outcomes: list[ReadOutcome] = []
    results: list[tuple[StoredPage | None, str]] = []
    one.read(page, outcomes)
    wait_for(lambda: one.array.swallowed and not one.array.inner.in_flight)
    placement = one.stripes.reserve(20_000)
    one.stripes.write(
        one.rig.record(2, 20_000), placement, aligned_buffer(20480), lambda *result: results.append(result)
    )
    wait_for(lambda: len(one.array.swallowed) == 2 and not one.array.inner.in_flight)
    ended: list[object] = []
    threading.Thread(target=lambda: ended.append(one.stripes.close([alone, page])), daemon=True).start()
    time.sleep(0.05)
    assert not ended
    one.stall(lambda: ended)
    assert outcomes == [ReadOutcome.DEVICE_GONE]
    assert [stored for stored, _ in results] == [None]
    assert not any(thread.name.startswith("ssd-") for thread in threading.enumerate())
    one.array.answer()
    while one.array.in_flight:
        one.array.reap(1)
    again = one.rig.open(one.array.inner)
    assert again.scanned == (quiet,)
    assert alone.record in {found.record for found in again.recovered}


def test_closing_when_devices_fall_silent_for_the_checkpoint(silent) -> None:
    one = silent()
    page = one.rig.put(one.stripes, 0, length=8192)
    one.array.silence(1)
    one.array.silence(2)
    one.waits(lambda: one.stripes.close([page]))()
    assert one.waited < 2 * STALL
    assert one.stripes.not_indexed == {1, 2}
    one.array.answer()
    while one.array.in_flight:
        one.array.reap(1)
    assert one.rig.open(one.array.inner).scanned == (1, 2)


def test_the_timeout_of_closing(silent) -> None:
    one = silent(depth=1)
    page = one.rig.put(one.stripes, 0)
    one.array.silence(1)
    outcomes: list[ReadOutcome] = []
    for _ in range(3):
        one.read(page, outcomes)
    wait_for(lambda: one.array.swallowed and not one.array.inner.in_flight)
    ended: list[object] = []
    threading.Thread(target=lambda: ended.append(one.stripes.close([page], timeout=5.0)), daemon=True).start()
    time.sleep(0.05)
    assert not ended
    wait_for(lambda: one.stripes._io.patience.deadline is not None)  # its time has begun
    one.clock.now += 5.5
    wait_for(lambda: ended)
    assert len(outcomes) == 3
    assert set(outcomes) <= {ReadOutcome.DEVICE_GONE, ReadOutcome.CANCELLED}
    assert one.stripes.status().queued == 0


# Namespaces that come and go.


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_retired_namespaces_make_room(rig) -> None:
    stripes = rig.open(rig.memory(2, 16))
    stripes.register_namespace(rig.NAMESPACE, "one")
    kept = rig.put(stripes, 1)
    stripes.register_namespace(digest(0), "retired first")
    lost = rig.put(stripes, 2, namespace=digest(0))
    identifiers = set()
    for number in range(1, MAX_NAMESPACES + 20):
        stripes.retire_namespace(digest(number - 1))
        identifiers.add(stripes.register_namespace(digest(number), f"weights {number}"))
        if number == MAX_NAMESPACES - 2:
            assert rig.holds(stripes, lost, 2), "a retired namespace is replaced only when there is no room"
    assert len(identifiers) == MAX_NAMESPACES + 19, "an id was used twice"
    assert len(stripes.namespaces) == MAX_NAMESPACES
    assert rig.holds(stripes, kept, 1)
    assert rig.read(stripes, lost)[0] is ReadOutcome.FLUSHED
    stripes.retire_namespace(digest(MAX_NAMESPACES + 18))
    stripes.register_namespace(digest(0), "back again")
    assert rig.read(stripes, lost)[0] is ReadOutcome.FLUSHED, "its pages belong to the entry that was replaced"
    fresh = rig.put(stripes, 3, namespace=digest(0))
    stripes.close(None)
    again = rig.open(stripes._io.array)
    assert {page.record for page in again.recovered} == {kept.record, fresh.record}


def test_a_retired_namespace_that_is_registered_again_is_in_use(rig) -> None:
    stripes = rig.open(rig.memory(1, 4))
    for number in range(MAX_NAMESPACES):
        stripes.register_namespace(digest(number), "")
    with pytest.raises(ConfigError, match="already serves"):
        stripes.register_namespace(digest(MAX_NAMESPACES), "one too many")
    stripes.retire_namespace(digest(5))
    stripes.retire_namespace(digest(7))
    stripes.retire_namespace(digest(MAX_NAMESPACES + 5))  # unknown: nothing to do
    assert stripes.register_namespace(digest(5), "") == 6
    stripes.register_namespace(digest(MAX_NAMESPACES), "takes the place of 7")
    names = {entry.digest for entry in stripes.namespaces}
    assert digest(5) in names
    assert digest(7) not in names
    with pytest.raises(ConfigError, match="already serves"):
        stripes.register_namespace(digest(7), "no room")


def test_retiring_waits_for_no_device(silent) -> None:
    one = silent()
    one.array.silence(0)
    run_out = one.waits(lambda: one.stripes.register_namespace(one.rig.OTHER, "two"))
    wait_for(lambda: one.array.swallowed)
    one.stripes.retire_namespace(one.rig.NAMESPACE)
    run_out()


def test_devices_that_are_quiet_for_long_are_looked_at_less_and_less_often(silent) -> None:
    """What answers a hundred times a second is not to be asked two thousand times."""
    one = silent(devices=1)
    pages = [one.rig.put(one.stripes, number) for number in range(2)]
    waits: list[float] = []
    reap = one.array.reap

    def noted(at_least: int, timeout: float | None = None):
        if at_least and timeout is not None and len(waits) < 20:
            waits.append(timeout)
            one.clock.now += timeout
        return reap(at_least, 0.001)

    one.array.silence(0, Operation.READ)
    one.array.reap = noted
    outcomes: list[ReadOutcome] = []
    buffers = [one.read(pages[0], outcomes)]
    wait_for(lambda: len(waits) == 20)  # no more are noted
    assert waits[:2] == [pytest.approx(0.0005), pytest.approx(0.0005)]
    assert waits == sorted(waits)
    assert max(waits) == 0.005
    del waits[:]
    one.array.answer()
    wait_for(lambda: outcomes)
    one.array.silence(0, Operation.READ)
    del waits[:]
    buffers.append(one.read(pages[1], outcomes))
    wait_for(lambda: waits)
    assert waits[0] == pytest.approx(0.0005), "what was given something new is asked soon again"
    one.array.answer()
    wait_for(lambda: len(outcomes) == len(buffers))
    assert outcomes == [ReadOutcome.OK] * 2


@pytest.mark.parametrize("together", [100, 1])
def test_a_process_that_stood_still_loses_no_device(silent, monkeypatch, together: int) -> None:
    """As one that was paused: time has passed, and what the devices have answered meanwhile is there a moment later,
    or arrives one after the other."""
    one = silent()
    pages = [one.rig.put(one.stripes, number) for number in range(9)]
    for device in range(3):
        one.array.silence(device, Operation.READ)
    outcomes: list[ReadOutcome] = []
    for page in pages:
        one.read(page, outcomes)
    wait_for(lambda: len(one.array.swallowed) == sum(len(page.placement) for page in pages))
    sleep = ThreadRunner.sleep

    def go_on(self: ThreadRunner, seconds: float) -> None:
        one.array.answer_some(together)
        sleep(self, seconds)

    monkeypatch.setattr(ThreadRunner, "sleep", go_on)
    one.clock.now += STALL + 2
    wait_for(lambda: len(outcomes) == len(pages))
    assert outcomes == [ReadOutcome.OK] * len(pages)
    assert one.services() == [Service.IN] * 3
    assert not one.out
