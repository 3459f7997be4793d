"""The stripe set as its users meet it."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.errors import ConfigError, FormatError
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.tiers.ssd import Operation, ReadRequest, Service, StoredPage, StripeSet, io_thread
from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience, aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.layout import SUPERBLOCK_OFFSETS, Geometry
from swift_tiers.radix_tiering.tiers.ssd.opening import create_set
from swift_tiers.radix_tiering.tiers.ssd.slots import SlotAllocator, SlotMap
from swift_tiers.radix_tiering.tiers.ssd.units import Units
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import NOT_NOW, ReadOutcome

from support.faulty_array import Delay, Fail, Fault, FaultyArray, Gone
from support.silent import wait_for


def allocator(*slots: int) -> SlotAllocator:
    return SlotAllocator([SlotMap(count) for count in slots])


# Placement.


@pytest.mark.parametrize("units", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("devices", [1, 2, 4, 5])
def test_units_go_round_and_the_start_rotates(units: int, devices: int) -> None:
    slots = allocator(*[1000] * devices)
    starts, load = Counter(), Counter()
    for _ in range(devices * 20):
        placement = slots.take(units)
        assert placement is not None
        order = [device for device, _ in placement]
        assert order == [(order[0] + step) % devices for step in range(units)]
        starts[order[0]] += 1
        load.update(order)
    assert max(load.values()) - min(load[device] for device in range(devices)) <= 1
    assert len(starts) > 1 or devices == 1, "every page begins on the same device"


def test_pages_in_a_row_continue_each_other() -> None:
    slots = allocator(8, 8, 8, 8)
    assert [[device for device, _ in slots.take(3) or ()] for _ in range(3)] == [[0, 1, 2], [3, 0, 1], [2, 3, 0]]


def test_full_devices_are_passed_over_and_capacity_is_exact() -> None:
    slots = allocator(2, 6, 3)
    assert (slots.capacity_units, slots.free_units) == (11, 11)
    taken = [slots.take(3) for _ in range(3)]
    assert slots.free_units == 2
    assert slots.take(3) is None
    assert slots.free_units == 2, "a refused reservation took something"
    last = slots.take(2)
    assert last is not None
    assert slots.free_units == 0
    places = [place for placement in [*taken, last] for place in placement or ()]
    assert len(set(places)) == 11
    for placement in [*taken, last]:
        slots.give_back(placement or ())
    assert slots.free_units == 11
    with pytest.raises(ValueError, match="not reserved"):
        slots.give_back(last)


def test_a_slot_in_use_is_not_given_away() -> None:
    slots = allocator(1)
    placement = slots.take(1)
    assert placement is not None
    slots.hold(placement)
    slots.hold(placement)
    slots.give_back(placement)
    slots.unhold(placement)
    assert slots.take(1) is None
    slots.unhold(placement)
    assert slots.take(1) == placement


# Writing, reading, space.


@pytest.mark.parametrize("verifiers", [0, 2])
def test_pages_of_many_lengths_come_back(rig, verifiers: int) -> None:
    stripes = rig.open(rig.memory(3, 40), verifiers=verifiers)
    stripes.register_namespace(rig.NAMESPACE, "one")
    lengths = [1, 4095, 4096, 4097, 8191, 8192, 8193, 40_000]
    pages = [rig.put(stripes, number, length=length) for number, length in enumerate(lengths)]
    assert [len(page.placement) for page in pages] == [1, 1, 1, 1, 1, 1, 2, 5]
    assert all(rig.holds(stripes, page, number) for number, page in enumerate(pages))
    assert len({page.generation for page in pages}) == len(pages)
    status = stripes.status()
    assert status.capacity_units == 120
    assert status.free_units == 120 - 13 == stripes.free_units
    assert sum(device.counted.bytes_read for device in status.devices) == sum(lengths)
    assert sum(device.counted.bytes_written for device in status.devices) == sum(lengths)
    assert sum(sum(device.counted.latency.counts) for device in status.devices) == 26
    assert all(device.counted.latency.sum_seconds > 0 for device in status.devices)
    assert [device.in_flight for device in status.devices] == [0, 0, 0]


def test_no_room_is_none_and_release_makes_room(rig) -> None:
    stripes = rig.open(rig.memory(2, 3))
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number) for number in range(2)]
    assert stripes.reserve(1) is None
    stripes.release(pages[0].placement)
    with pytest.raises(ValueError, match="released before"):
        stripes.release(pages[0].placement)
    again = rig.put(stripes, 2)
    assert rig.holds(stripes, again, 2)
    assert rig.holds(stripes, pages[1], 1)
    assert rig.read(stripes, pages[0])[0].corrupt, "its slots hold another page now"


@pytest.mark.parametrize("verifiers", [0, 3])
def test_many_threads(rig, verifiers: int) -> None:
    stripes = rig.open(rig.memory(4, 64, seed=3), depth=4, max_writes=2, verifiers=verifiers)
    stripes.register_namespace(rig.NAMESPACE, "one")
    wrong: list[str] = []

    def work(worker: int) -> None:
        for turn in range(15):
            number = worker * 100 + turn
            page = rig.put(stripes, number, length=1000 + 900 * turn)
            if not rig.holds(stripes, page, number):
                wrong.append(f"page {number}")
            if turn % 3:
                stripes.release(page.placement)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    kept = sum(stripes.units(1000 + 900 * turn) for turn in range(15) if not turn % 3) * 4
    assert stripes.free_units == 256 - kept


def test_requests_that_cannot_be_meant_are_refused_whole(rig) -> None:
    stripes = rig.open(rig.memory())
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)
    good = aligned_buffer(20480)

    def never(*_: object) -> None:
        raise AssertionError

    crooked = aligned_buffer(24576)[1:]
    for into in (good[:16384], crooked, good.view(np.int8), aligned_buffer(40960)[::2]):
        with pytest.raises(ValueError, match="into"):
            stripes.read(page, into, never)
    with pytest.raises(ValueError, match="earlier session"):
        stripes.read(page._replace(placement=((0, 1), (9, 1), (0, 2))), good, never)
    placement = stripes.reserve(20_000)
    with pytest.raises(ValueError, match="not registered"):
        stripes.write(rig.record(2, 20_000, rig.OTHER), placement, good, never)
    with pytest.raises(ValueError, match="slots for a page"):
        stripes.write(rig.record(2, 10_000), placement, good, never)
    with pytest.raises(ValueError, match="not reserved"):
        stripes.write(rig.record(2, 20_000), ((0, 7), (1, 7), (2, 7)), good, never)
    stripes.release(placement)
    assert stripes.free_units == 21


def test_a_callback_that_raises_harms_nobody(rig, caplog) -> None:
    stripes = rig.open(rig.memory())
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)

    def done(outcome: ReadOutcome) -> None:
        raise RuntimeError("my own fault")

    stripes.read(page, aligned_buffer(20480), done)
    assert rig.holds(stripes, page, 1)
    wait_for(lambda: stripes.status().callback_errors == 1)
    assert "my own fault" in caplog.text


def test_waiting_inside_a_callback_is_refused(rig) -> None:
    stripes = rig.open(rig.memory())
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)
    errors: list[str] = []
    ended = threading.Event()

    def done(outcome: ReadOutcome) -> None:
        for wait in (lambda: stripes.close(None), lambda: stripes.flush_namespace(rig.NAMESPACE)):
            try:
                wait()
            except RuntimeError as error:
                errors.append(str(error))
        ended.set()

    stripes.read(page, aligned_buffer(20480), done)
    assert ended.wait(10)
    assert len(errors) == 2


class Gate(MemoryArray):
    """Completes nothing while it is shut, and remembers what was submitted."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(sizes)
        self.shut = False
        self.log: list[tuple[Operation, int]] = []
        self.most = 0

    def submit(self, requests) -> None:
        super().submit(requests)
        self.log += [(request.operation, request.device) for request in requests]
        for device in range(len(self.images)):
            self.most = max(self.most, sum(request.device == device for request in self._requests))

    def reap(self, at_least, timeout=None):
        if self.shut:
            threading.Event().wait(min(timeout or 0.001, 0.001))
            return []
        return super().reap(at_least, timeout)


def gated(rig, slots: int = 32, **options: int) -> tuple[Gate, StripeSet]:
    array = Gate([rig.device_bytes(slots)] * 2)
    stripes = rig.open(array, create=rig.UNIT, **options)
    stripes.register_namespace(rig.NAMESPACE, "one")
    return array, stripes


def test_reads_go_before_writes_depth_and_writes_are_bounded(rig) -> None:
    array, stripes = gated(rig, depth=3, max_writes=2)
    page = rig.put(stripes, 0, length=8192)
    array.log.clear()
    array.most = 0
    array.shut = True
    ended = threading.Semaphore(0)
    data = aligned_buffer(8192)
    # The first fill both devices; behind them wait writes, then reads.
    for _ in range(3):
        stripes.read(page, aligned_buffer(8192), lambda outcome: ended.release())
    wait_for(lambda: len(array.log) == 3)
    for number in range(1, 7):
        placement = stripes.reserve(8192)
        stripes.write(rig.record(number, 8192), placement, data, lambda stored, reason: ended.release())
    wait_for(lambda: sum(operation == Operation.WRITE for operation, _ in array.log) >= 1)
    for _ in range(3):
        stripes.read(page, aligned_buffer(8192), lambda outcome: ended.release())
    threading.Event().wait(0.05)
    assert sum(operation == Operation.WRITE for operation, _ in array.log) <= 2, "too many writes under way"
    waiting = len(array.log)
    array.shut = False
    for _ in range(12):
        assert ended.acquire(timeout=10)
    device = page.placement[0][0]
    order = [operation for operation, on in array.log[waiting:] if on == device]
    assert order[:3] == [Operation.READ] * 3, "a write overtook a read that was waiting"
    assert array.most <= 3, "depth was exceeded"


@pytest.mark.parametrize("how_a_read_ends", ["none", "still", "read", "refused"])
def test_many_writes_are_begun_together_while_nobody_reads(rig, monkeypatch, how_a_read_ends: str) -> None:
    """Hashing them delays reads; a round for each of them costs as much as they do."""
    monkeypatch.setattr(io_thread, "HASHED_TOGETHER", 8192)
    monkeypatch.setattr(io_thread, "HASHED_ALONE", 4 * 8192)
    array, stripes = gated(rig, depth=2)
    page = rig.put(stripes, 0, length=8192)
    others: list[ReadOutcome] = []
    if how_a_read_ends == "still":
        array.shut = True  # some are under way then
        for _ in range(3):
            stripes.read(page, aligned_buffer(8192), others.append)
        wait_for(lambda: array.in_flight == 2)
    elif how_a_read_ends == "read":
        assert rig.holds(stripes, page, 0)
    elif how_a_read_ends == "refused":
        with pytest.raises(ValueError, match="needs 8192"):
            stripes.read(page, aligned_buffer(4096), others.append)
    together: list[int] = []
    digest = Units.digest
    monkeypatch.setattr(Units, "digest", lambda units, writes: together.append(len(writes)) or digest(units, writes))
    begins, ended = threading.Event(), threading.Semaphore(0)
    stripes._io.post(lambda: begins.wait(60))  # so that all of them are there at once
    data = aligned_buffer(8192)
    for number in range(1, 9):
        placement = stripes.reserve(8192)
        stripes.write(rig.record(number, 8192), placement, data, lambda stored, reason: ended.release())
    begins.set()
    wait_for(lambda: sum(together) == 8)
    array.shut = False
    for _ in range(8):
        assert ended.acquire(timeout=10)
    assert together == ([1] * 8 if how_a_read_ends == "still" else [4, 4])


def test_a_released_slot_waits_for_its_readers(rig) -> None:
    array, stripes = gated(rig, slots=1)
    page = rig.put(stripes, 0, length=16384)
    array.shut = True
    outcomes: list[ReadOutcome] = []
    into = aligned_buffer(16384)
    stripes.read(page, into, outcomes.append)
    stripes.release(page.placement)
    assert stripes.free_units == 0
    assert stripes.reserve(1) is None
    array.shut = False
    wait_for(lambda: outcomes)
    assert outcomes == [ReadOutcome.OK]
    assert (into == rig.content(0, 0, 16384)).all()
    assert stripes.free_units == 2


def test_a_pool_verifies_as_the_thread_itself_does(rig) -> None:
    array = rig.memory(3, 40)
    stripes = rig.open(array, verifiers=2)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=40_000) for number in range(6)]
    geometry = stripes._devices[0].geometry
    for number, unit in ((1, 0), (1, 3), (4, 2)):
        device, slot = pages[number].placement[unit]
        array.images[device][geometry.slot_offset(slot) + BLOCK_BYTES + 5] ^= 1
    for _ in range(5):
        outcomes = [outcome for outcome, _ in rig.read_all(stripes, pages)]
        assert [outcome.ok for outcome in outcomes] == [True, False, True, True, False, True]
        assert outcomes[1] is outcomes[4] is ReadOutcome.CHECKSUM
    assert sum(device.counted.corrupt_units for device in stripes.status().devices) == 10
    stripes.close(None)
    assert not any(thread.name.startswith("ssd-") for thread in threading.enumerate())


# Namespaces.


def test_namespaces_are_separate_and_flushed_separately(rig) -> None:
    array = rig.memory(3, 16)
    stripes = rig.open(array)
    assert stripes.register_namespace(rig.NAMESPACE, "one") == 1
    assert stripes.register_namespace(rig.OTHER, "two") == 2
    assert stripes.register_namespace(rig.NAMESPACE, "one") == 1
    one, two = rig.put(stripes, 1), rig.put(stripes, 1, version=9, namespace=rig.OTHER)
    assert rig.holds(stripes, one, 1)
    assert rig.holds(stripes, two, 1, version=9)
    mixed = one._replace(record=two.record)
    assert rig.read(stripes, mixed)[0] is ReadOutcome.NAMESPACE
    assert stripes.flush_namespace(rig.NAMESPACE)
    assert stripes.flush_namespace(b"x" * 16), "of an unknown one there is nothing to be found"
    assert rig.read(stripes, one)[0] is ReadOutcome.FLUSHED
    stripes.release(one.placement)
    later = rig.put(stripes, 5)
    stripes.close(None)
    again = rig.open(array)
    assert {(page.record.namespace, page.record.key) for page in again.recovered} == {
        (rig.NAMESPACE, rig.key_of(5)), (rig.OTHER, rig.key_of(1)),
    }  # fmt: skip
    assert rig.holds(again, later, 5)


def test_a_flush_does_not_come_back_through_a_checkpoint_or_one_lost_table(rig) -> None:
    array = rig.memory(1, 16)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)
    stripes.flush_namespace(rig.NAMESPACE)
    stripes.close([page])
    for offset in (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + (64 << 10)):
        image = array.images[0].copy()
        image[offset + 100] ^= 1
        again = rig.open(MemoryArray.from_images([image]))
        assert again.recovered == []


def test_after_a_flush_new_pages_count_even_if_the_old_headers_are_gone(rig) -> None:
    array = rig.memory(1, 4)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    for number in range(5):
        stripes.release(rig.put(stripes, number, length=100).placement)
    stripes.flush_namespace(rig.NAMESPACE)
    stripes.close(None)
    array.images[0][stripes._devices[0].geometry.first_slot :] = 0
    again = rig.open(array)
    page = rig.put(again, 9)
    again.close(None)
    assert rig.open(array).recovered == [page]


def test_without_any_table_nothing_is_recovered(rig) -> None:
    array = rig.memory(1, 16)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)
    stripes.close([page])
    for offset in (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + (64 << 10)):
        array.images[0][offset + 100] ^= 1
    again = rig.open(array)
    assert again.recovered == []
    again.register_namespace(rig.NAMESPACE, "one")
    again.close(None)
    assert rig.open(array).recovered == [], "pages of before the loss came back"


# Opening.


def snapshot(stripes: StripeSet) -> tuple[list[StoredPage], int]:
    return sorted(stripes.recovered), stripes.free_units


def test_checkpoint_and_scan_give_the_same(rig) -> None:
    array = rig.memory(3, 24)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=5000 * (number + 1)) for number in range(6)]
    newer = rig.put(stripes, 2, version=1, length=15_000)
    live = sorted([*pages[:2], *pages[3:], newer])
    images = [image.copy() for image in array.images]
    stripes.close(live)
    stripes.close(None)
    by_checkpoint = rig.open(array)
    by_scan = rig.open(MemoryArray.from_images(images))
    assert (by_checkpoint.scanned, by_scan.scanned) == ((), (0, 1, 2))
    assert snapshot(by_checkpoint) == snapshot(by_scan) == (live, 72 - sum(len(page.placement) for page in live))
    for opened in (by_checkpoint, by_scan):
        assert rig.holds(opened, newer, 2, version=1)
        assert rig.put(opened, 50, length=100).generation > newer.generation


def test_a_page_left_out_of_the_checkpoint_is_free(rig) -> None:
    array = rig.memory(3, 24)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number) for number in range(3)]
    stripes.close(pages[:2])
    assert sorted(rig.open(array).recovered) == pages[:2]


def test_a_broken_checkpoint_is_not_believed(rig) -> None:
    array = rig.memory(1, 24)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number) for number in range(3)]
    stripes.close(pages)
    array.images[0][2 * BLOCK_BYTES + (128 << 10) + 70] ^= 4
    again = rig.open(array)
    assert again.scanned == (0,)
    assert sorted(again.recovered) == pages


def test_an_old_clean_superblock_does_not_hide_a_newer_one(rig) -> None:
    """The copy that says "not clean" is lost: the other one's checkpoint is older than the slots."""
    array = rig.memory(1, 24)
    first = rig.open(array)
    first.register_namespace(rig.NAMESPACE, "one")
    first.close([rig.put(first, 0)])
    before = array.images[0][:8192].copy()
    second = rig.open(array)
    written = int(np.flatnonzero(array.images[0][:8192] != before)[0]) // BLOCK_BYTES
    second.release(second.recovered[0].placement)
    page = rig.put(second, 1)
    second.close(None)
    array.images[0][written * BLOCK_BYTES + 50] ^= 1
    third = rig.open(array)
    assert third.scanned == (0,)
    assert third.recovered == [page]


def test_members_in_any_order(rig) -> None:
    array = rig.memory(4, 12)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number) for number in range(4)]
    images = [image.copy() for image in array.images]
    stripes.close(pages)
    for source in (array.images, images):
        turned = rig.open(MemoryArray.from_images([source[at] for at in (2, 0, 3, 1)]))
        assert len(turned.recovered) == 4
        assert turned.missing == 0
        for page in turned.recovered:
            assert rig.holds(turned, page, page.record.key[0])


@pytest.mark.parametrize("clean", [True, False])
def test_degraded_then_whole_again(rig, clean: bool) -> None:
    array = rig.memory(3, 12)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=8192) for number in range(6)]
    stripes.close(pages if clean else None)
    absent = array.images[1]
    rest = MemoryArray.from_images([array.images[0], array.images[2]])
    degraded = rig.open(rest)
    assert degraded.missing == 1
    assert {page.record.key[0] for page in degraded.recovered} == {0, 2, 3, 5}
    assert degraded.capacity_units == 24
    extra = [rig.put(degraded, number) for number in (7, 8)]
    degraded.close([*degraded.recovered, *extra])
    whole = rig.open(MemoryArray.from_images([absent, *rest.images]))
    assert whole.missing == 0
    assert {page.record.key[0] for page in whole.recovered} == {0, 1, 2, 3, 4, 5, 7, 8}
    for page in whole.recovered:
        assert rig.holds(whole, page, page.record.key[0])


def test_blank_devices_join(rig) -> None:
    array = rig.memory(2, 8)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 0)
    stripes.close([page])
    sizes = [rig.device_bytes(20), 1000]
    grown = MemoryArray.from_images([np.zeros(sizes[0], np.uint8), *array.images, np.zeros(sizes[1], np.uint8)])
    stripes = rig.open(grown)
    assert stripes.capacity_units == 16 + 20
    assert stripes.missing == 0
    assert "1000 bytes" in stripes.status().devices[3].reason
    assert len(stripes.recovered) == 1
    assert rig.holds(stripes, stripes.recovered[0], 0)
    other = rig.put(stripes, 1)
    stripes.close([*stripes.recovered, other])
    again = rig.open(MemoryArray.from_images(grown.images[:3]))
    assert (len(again.recovered), again.missing, again.scanned) == (2, 0, ())


def images_unchanged(array: MemoryArray, action) -> str:
    before = [image.copy() for image in array.images]
    with pytest.raises(FormatError) as caught:
        action()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 40
    assert all((old == new).all() for old, new in zip(before, array.images, strict=True))
    return str(caught.value)


def test_foreign_devices_are_refused_and_left_alone(rig) -> None:
    one, two = rig.memory(1), MemoryArray([rig.device_bytes(8)] * 2)
    create_set(two, rig.UNIT, Patience(), b"another set here")
    mixed = MemoryArray.from_images([one.images[0], two.images[1]])
    assert "zero the first 8 KiB" in images_unchanged(mixed, lambda: StripeSet.open(mixed))
    twice = MemoryArray.from_images([one.images[0], one.images[0]])
    assert "copies of one member" in images_unchanged(twice, lambda: StripeSet.open(twice))
    stranger = MemoryArray.from_images([one.images[0], np.full(1 << 19, 7, np.uint8)])
    images_unchanged(stranger, lambda: StripeSet.open(stranger))
    nothing = MemoryArray([1 << 19])
    images_unchanged(nothing, lambda: StripeSet.open(nothing))
    with pytest.raises(ConfigError):
        create_set(MemoryArray([1 << 14]), rig.UNIT, Patience(), rig.SET_ID)


def test_a_damaged_header_counts_for_nothing(rig) -> None:
    """Neither as a page nor as the highest generation, which it would push to the end of its range."""
    array = rig.memory(2)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 0, length=8192)
    geometry = stripes._devices[0].geometry
    stripes.close(None)
    ((device, slot),) = page.placement
    array.images[device][geometry.slot_offset(slot) + 151] ^= 0xFF
    again = rig.open(array)
    assert again.recovered == []
    assert rig.put(again, 1).generation < 10


def test_slots_of_an_earlier_stripe_set_do_not_count(rig) -> None:
    array = rig.memory(2)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    rig.put(stripes, 0)
    stripes.close(None)
    create_set(array, rig.UNIT, Patience(), b"a later set here")
    for _ in range(2):
        stripes = rig.open(array)
        stripes.register_namespace(rig.NAMESPACE, "one")
        assert stripes.recovered == []
        assert stripes.free_units == 16
        assert stripes._next_generation == 1, "a header of another stripe set was taken for one of this"
        stripes.close(None)


def test_another_format_version_is_refused_and_left_alone(rig) -> None:
    from swift_tiers.radix_tiering.base.page import page_digest

    array = rig.memory(2)
    for offset in SUPERBLOCK_OFFSETS:
        block = bytearray(array.images[1][offset : offset + BLOCK_BYTES].tobytes())
        block[8] = 2
        block[-16:] = page_digest(bytes(block[:-16]))
        array.images[1][offset : offset + BLOCK_BYTES] = np.frombuffer(bytes(block), np.uint8)
    images_unchanged(array, lambda: StripeSet.open(array))
    with pytest.raises(FormatError, match="format version 2"):
        StripeSet.open(array)


def test_two_sessions_that_used_the_same_generation_are_never_mixed(rig) -> None:
    """Each ran without the other's device; both wrote the same key, under the same generation."""
    array = rig.memory(2, 8)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    stripes.close([])
    halves = [MemoryArray.from_images([image]) for image in array.images]
    pages = []
    for version, half in enumerate(halves):
        alone = rig.open(half)
        pages.append(rig.put(alone, 1, version=version, length=16384))
        alone.close(None)
    assert pages[0].generation == pages[1].generation
    # One unit of each is lost: what is left would make a page, if only key and generation were looked at.
    for half, unit in ((halves[0], 1), (halves[1], 0)):
        whole = rig.open(MemoryArray.from_images([half.images[0]]))
        place = whole._devices[0].geometry.slot_offset(pages[0].placement[unit][1])
        half.images[0][place : place + BLOCK_BYTES] = 0
    both = rig.open(MemoryArray.from_images([half.images[0] for half in halves]))
    assert both.recovered == []


# Devices that fail.


class Ahead:
    """The machine's time, and as many seconds more as a test says."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return time.monotonic() + self.seconds

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.001))


def faulty(
    rig, devices: int = 3, slots: int = 16, clock: Ahead | None = None, **options: object
) -> tuple[FaultyArray, StripeSet, list]:
    array = FaultyArray(rig.memory(devices, slots), clock=clock)
    out: list[tuple[int, str]] = []
    stripes = rig.open(array, on_device_out=lambda device, reason: out.append((device, reason)), **options)
    stripes.register_namespace(rig.NAMESPACE, "one")
    return array, stripes, out


def test_a_write_error_takes_the_device_out(rig) -> None:
    array, stripes, out = faulty(rig)
    page = rig.put(stripes, 0)
    spare, alone = rig.put(stripes, 9, length=8192), rig.put(stripes, 1, length=8192)
    assert (spare.uses(1), alone.uses(1)) == (True, False)
    stripes.release(spare.placement)
    array.add(Fault(Fail(errno.EIO), device=1, operation=Operation.WRITE))
    stored, reason = rig.write(stripes, rig.record(2, 20_000), rig.content(2, 0, 20_000))
    assert stored is None
    assert "device 1" in reason
    wait_for(lambda: out)
    ((device, why),) = out
    assert device == 1
    assert "EIO" in why
    status = stripes.status()
    assert [state.service for state in status.devices] == [Service.IN, Service.OUT, Service.IN]
    assert stripes.capacity_units == 32
    assert stripes.free_units == 32 - 3
    stripes.release(page.placement)
    assert stripes.free_units == 32 - 1
    assert rig.read(stripes, page)[0] is ReadOutcome.DEVICE_GONE
    assert rig.holds(stripes, alone, 1)
    later = rig.put(stripes, 3)
    assert not later.uses(1)
    assert rig.holds(stripes, later, 3)
    array.clear()
    stripes.close([alone, later, page])
    again = rig.open(array)
    assert again.scanned == (1,)
    # 0 was lost with the device, and is in no checkpoint; 9 was released, and comes back since its device is scanned.
    assert {page.record.key[0] for page in again.recovered} == {1, 3, 9}


def test_three_read_errors_in_a_row_take_the_device_out(rig) -> None:
    array, stripes, out = faulty(rig, devices=2)
    pages = [rig.put(stripes, number, length=8192) for number in range(8)]
    mine = [page for page in pages if page.uses(0)]
    array.add(Fault(Fail(errno.EIO), device=0, operation=Operation.READ, times=2))
    assert [rig.read(stripes, page)[0] for page in mine[:3]] == [
        ReadOutcome.IO_ERROR, ReadOutcome.IO_ERROR, ReadOutcome.OK,
    ]  # fmt: skip
    assert not out
    array.add(Fault(Fail(errno.EIO), device=0, operation=Operation.READ))
    assert [rig.read(stripes, page)[0] for page in mine[:4]] == [*[ReadOutcome.IO_ERROR] * 3, ReadOutcome.DEVICE_GONE]
    wait_for(lambda: out)
    assert out[0][0] == 0
    assert all(rig.holds(stripes, page, page.record.key[0]) for page in pages if not page.uses(0))
    assert stripes.status().devices[0].counted.read_errors == 5


def test_a_device_that_goes_ends_what_waits_for_it(rig) -> None:
    array, stripes, _ = faulty(rig, depth=1)
    page = rig.put(stripes, 0, length=24576 * 2)
    array.add(Fault(Gone(), device=2))
    results = [outcome for outcome, _ in rig.read_all(stripes, [page] * 10)]
    assert set(results) <= {ReadOutcome.IO_ERROR, ReadOutcome.DEVICE_GONE}
    assert stripes.status().devices[2].service is Service.OUT
    wait_for(lambda: stripes.status().queued == 0)  # one that was called back is counted a moment longer
    assert all(state.slots is None or state.slots.held == 0 for state in stripes._devices)


def test_an_absent_device_is_noticed_without_any_request(rig) -> None:
    array, _, out = faulty(rig)
    array.remove_device(0)
    wait_for(lambda: out)
    assert out == [(0, "no longer present")]


def test_a_device_that_does_not_answer_goes_out(rig) -> None:
    clock = Ahead()
    array, stripes, out = faulty(rig, clock=clock)
    page = rig.put(stripes, 0, length=8192)
    stripes._io.patience.seconds = 0.2  # not before: a busy machine may keep devices waiting that are well
    array.add(Fault(Delay(1000.0), device=page.placement[0][0]))
    outcomes: list[ReadOutcome] = []
    stripes.read(page, aligned_buffer(8192), outcomes.append)
    wait_for(lambda: out)
    assert "no answer" in out[0][1]
    assert not outcomes
    clock.seconds = 2000.0
    wait_for(lambda: outcomes)


def test_all_devices_gone(rig) -> None:
    array, stripes, out = faulty(rig)
    page = rig.put(stripes, 0)
    for device in range(3):
        array.remove_device(device)
    rig.read_all(stripes, [page] * 4)
    wait_for(lambda: len(out) == 3)
    assert stripes.capacity_units == 0
    assert stripes.reserve(1) is None
    assert not stripes.flush_namespace(rig.NAMESPACE)
    stripes.close([page])


def test_draining(rig) -> None:
    stripes = rig.open(rig.memory(3, 8))
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 0)
    stripes.drain(1)
    assert stripes.capacity_units == 16
    later = rig.put(stripes, 1)
    assert not later.uses(1)
    assert rig.holds(stripes, page, 0)
    assert stripes.status().devices[1].service is Service.DRAINING
    stripes.release(page.placement)
    assert stripes.free_units == 13
    assert stripes.status().devices[1].used_units == 0


def test_a_device_that_cannot_be_marked_stays_out(rig) -> None:
    array = rig.memory(3, 8)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=8192) for number in range(3)]
    stripes.close(pages)
    broken = FaultyArray(array)
    broken.add(Fault(Fail(errno.EROFS), device=1, operation=Operation.WRITE))
    again = rig.open(broken)
    assert {page.record.key[0] for page in again.recovered} == {0, 2}
    assert again.status().devices[1].service is Service.OUT
    assert again.free_units == 14


def test_an_array_that_breaks_its_promise_leaves_nobody_waiting(rig) -> None:
    class Broken(MemoryArray):
        submitting, reaping = False, False

        def submit(self, requests) -> None:
            if self.submitting:
                raise OSError(errno.ENOMEM, "no memory")
            super().submit(requests)

        def reap(self, at_least, timeout=None):
            if self.reaping:
                self.reaping = False
                raise RuntimeError("a bug")
            return super().reap(at_least, timeout)

    array = Broken([rig.device_bytes(8)] * 2)
    stripes = rig.open(array, create=rig.UNIT)
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 0)
    array.submitting = True
    assert rig.read(stripes, page)[0] is ReadOutcome.IO_ERROR
    array.submitting = False
    assert rig.holds(stripes, page, 0)
    array.reaping = True
    rig.read(stripes, page)
    assert {state.service for state in stripes.status().devices} == {Service.OUT}
    stripes.close(None)


# Closing.


def test_after_closing(rig) -> None:
    stripes = rig.open(rig.memory())
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 0)
    placement = stripes.reserve(100)
    ended = []
    stripes.read_many([ReadRequest(page, aligned_buffer(20480), ended.append) for _ in range(20)])
    stripes.close([page])
    assert ended == [ReadOutcome.OK] * 20, "closing waits for what was accepted"
    assert stripes.reserve(1) is None
    for late in (
        lambda: stripes.read(page, aligned_buffer(20480), ended.append),
        lambda: stripes.write(rig.record(1, 100), placement, aligned_buffer(4096), lambda *_: ended.append(None)),
        lambda: stripes.flush_namespace(rig.NAMESPACE),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            late()
    assert len(ended) == 20, "what is refused is not called back as well"
    stripes.release(placement)
    assert not any(thread.name.startswith("ssd-") for thread in threading.enumerate())


def test_a_failed_opening_leaves_no_thread(rig) -> None:
    with pytest.raises(FormatError):
        StripeSet.open(MemoryArray([1 << 19]))
    assert not any(thread.name.startswith("ssd-") for thread in threading.enumerate())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_device_without_room_serves_what_it_has_and_gets_nothing_new(rig, error: int) -> None:
    """As a file system whose blocks are shared with a copy, or that is for reading alone by now."""
    array, out, full = FaultyArray(rig.memory(2, 16)), [], []
    stripes = rig.open(array, on_device_out=lambda *what: out.append(what))
    stripes.on_device_full = lambda *what: full.append(what)
    stripes.register_namespace(rig.NAMESPACE, "one")
    old = [rig.put(stripes, number, length=5000) for number in range(6)]
    array.add(Fault(Fail(error), device=0, operation=Operation.WRITE))
    written = [rig.write(stripes, rig.record(number, 5000), rig.content(number, 0, 5000)) for number in range(10, 18)]
    failed = [reason for stored, reason in written if stored is None]
    assert len(failed) == 1
    assert errno.errorcode[error] in failed[0]
    devices = stripes.status().devices
    assert [one.service for one in devices] == [Service.DRAINING, Service.IN]
    assert errno.errorcode[error] in devices[0].reason
    assert full == [(0, devices[0].reason)]
    assert not out
    stripes.drain(1)
    assert len(full) == 1, "who drains a device knows"
    assert all(rig.holds(stripes, page, number) for number, page in enumerate(old))


def test_a_write_that_this_machine_had_no_memory_for_costs_one_page(rig) -> None:
    array, out = FaultyArray(rig.memory(2, 16)), []
    stripes = rig.open(array, on_device_out=lambda *what: out.append(what))
    stripes.register_namespace(rig.NAMESPACE, "one")
    array.add(Fault(Fail(errno.ENOMEM), device=0, operation=Operation.WRITE, times=1))
    written = [rig.write(stripes, rig.record(number, 5000), rig.content(number, 0, 5000)) for number in range(4)]
    assert [reason for stored, reason in written if stored is None] == [NOT_NOW]
    assert [one.service for one in stripes.status().devices] == [Service.IN] * 2
    assert not out


@pytest.mark.parametrize("where", ["enter", "digest", "queue", "fill"])
def test_whatever_is_raised_for_a_batch_everybody_is_answered_and_the_set_can_be_closed(
    rig, monkeypatch, where: str
) -> None:
    """As MemoryError is. No device is used any more, and nobody waits for ever."""
    stripes = rig.open(rig.memory(3, 16), stall_seconds=0.5)
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)
    work, raised = getattr(Units, where), threading.Event()

    def fail(*arguments: object) -> object:
        if raised.is_set():
            return work(*arguments)
        raised.set()
        raise MemoryError(where)

    ended: list[object] = []
    monkeypatch.setattr(Units, where, fail)
    record = rig.record(2, 20_000)
    placement = stripes.reserve(record.length)
    stripes.write(record, placement, aligned_buffer(20_480), lambda stored, reason: ended.append(stored))
    stripes.read(page, aligned_buffer(20_480), ended.append)
    stripes.close([page])
    assert raised.is_set()
    assert len(ended) == 2
    assert stripes.status().queued == 0


@pytest.mark.parametrize("what", ["flush", "register"])
def test_who_has_asked_for_something_is_answered_whatever_is_raised_in_that_round(rig, monkeypatch, what: str) -> None:
    """A transfer comes between two rounds, and with it a command, which the next round takes; there is no memory then
    to begin the transfer."""
    array = rig.memory(3, 16)
    stripes = rig.open(array, stall_seconds=0.5)
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)
    begun, go_on, answered = threading.Event(), threading.Event(), threading.Event()
    stripes._io.post(lambda: (begun.set(), go_on.wait(60)))
    assert begun.wait(60)
    submit = array.submit

    def fail(requests: object) -> None:
        monkeypatch.setattr(array, "submit", submit)
        raise MemoryError("submit")

    monkeypatch.setattr(array, "submit", fail)
    stripes.read(page, aligned_buffer(20_480), lambda outcome: None)

    def ask() -> None:
        if what == "flush":
            stripes.flush_namespace(rig.NAMESPACE)
            answered.set()
        else:
            stripes.register_namespace(rig.OTHER, "two", lambda durable: answered.set())

    threading.Thread(target=ask, daemon=True).start()
    wait_for(lambda: stripes._io._commands)
    go_on.set()
    assert answered.wait(60)
    assert array.submit == submit, "it was reached"
    stripes.close(None)


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_a_set_whose_index_cannot_be_made_is_closed_all_the_same(rig, error: type[Exception]) -> None:
    array = rig.memory(2, 16)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    page = rig.put(stripes, 1)

    def pages() -> Iterator[StoredPage]:
        yield page
        raise error("the index")

    with pytest.raises(error, match="the index"):
        stripes.close(pages())
    stripes.close(None)
    assert not stripes._io._thread.is_alive()
    again = rig.open(array)
    assert [one.record for one in again.recovered] == [page.record], "by its headers"


def test_a_device_with_more_slots_than_there_are_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"make ssd\.stripe_unit larger"):
        Geometry.of(2**45, 4096)
