"""A device joins a stripe set that is open: what it is good for at once and later, and what may go wrong."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.errors import ConfigError, FormatError
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.tiers.ssd import Operation, Service
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.ssd.arrays.uring import probe
from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience
from swift_tiers.radix_tiering.tiers.ssd.files import ThreadArray, UringArray, create_device_file, open_device_file
from swift_tiers.radix_tiering.tiers.ssd.layout import CHECKPOINT_OFFSET, SUPERBLOCK_OFFSETS, decode_superblock
from swift_tiers.radix_tiering.tiers.ssd.opening import create_set
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.faulty_array import Fail, Fault, FaultyArray
from support.silent import SilentArray, wait_for

ENGINES = [pytest.param(ThreadArray, id="threads")] + [pytest.param(UringArray, id="io_uring")] * (probe() is None)


def blank(rig, slots: int = 8) -> np.ndarray:
    return np.zeros(rig.device_bytes(slots), np.uint8)


def opened(rig, array=None, **options):
    stripes = rig.open(array if array is not None else rig.memory(devices=2), **options)
    stripes.register_namespace(rig.NAMESPACE, "test")
    return stripes


def test_a_new_device_takes_pages_at_once_and_gives_them_back(rig) -> None:
    stripes = opened(rig)
    old = {number: rig.put(stripes, number) for number in range(3)}
    room = stripes.capacity_units
    assert stripes.add(blank(rig), "third") == 2
    assert stripes.capacity_units == room + 8
    assert (stripes.names[2], stripes.missing) == ("third", 0)
    new = {number: rig.put(stripes, number) for number in range(3, 6)}
    assert any(page.uses(2) for page in new.values())
    for number, page in {**old, **new}.items():
        assert rig.holds(stripes, page, number)
    third = stripes.status().devices[2]
    assert (third.service, third.capacity_units) == (Service.IN, 8)
    assert third.counted.reads == third.counted.writes > 0


@pytest.mark.parametrize("orderly", [True, False], ids=["closed", "killed"])
def test_all_pages_are_found_when_the_set_is_opened_with_the_new_device(rig, orderly: bool) -> None:
    array = rig.memory(devices=2)
    stripes = opened(rig, array)
    pages = [rig.put(stripes, number) for number in range(2)]
    stripes.add(blank(rig), "third")
    pages += [rig.put(stripes, number) for number in range(2, 6)]
    assert any(page.uses(2) for page in pages)
    stripes.close(pages if orderly else None)
    images = array.images
    again = rig.open(MemoryArray.from_images([images[2], images[0], images[1]]))
    assert again.missing == 0
    assert {page.record.key for page in again.recovered} == {page.record.key for page in pages}
    for page in again.recovered:
        assert rig.holds(again, page, page.record.key[0])


def test_without_the_new_device_one_member_is_missing_and_the_others_serve(rig) -> None:
    array = rig.memory(devices=2)
    stripes = opened(rig, array)
    old = [rig.put(stripes, number, length=8000) for number in range(2)]
    stripes.add(blank(rig), "third")
    new = [rig.put(stripes, number, length=8000) for number in range(2, 6)]
    stripes.close([*old, *new])
    without = rig.open(MemoryArray.from_images(array.images[:2]))
    assert without.missing == 1
    expected = {page.record.key for page in [*old, *new] if not page.uses(2)}
    assert {page.record.key for page in without.recovered} == expected
    assert len(expected) >= 2
    without.register_namespace(rig.NAMESPACE, "test")
    rig.put(without, 9, length=8000)
    without.close(None)


def test_devices_may_join_one_after_the_other(rig) -> None:
    array = rig.memory(devices=1)
    stripes = opened(rig, array)
    for number in range(1, 5):
        assert stripes.add(blank(rig), f"device {number}") == number
    pages = [rig.put(stripes, number) for number in range(8)]
    assert {device for page in pages for device, _ in page.placement} == set(range(5))
    stripes.close(pages)
    again = rig.open(MemoryArray.from_images(array.images))
    assert (again.missing, len(again.recovered), again.scanned) == (0, 8, ())


def test_no_superblock_copy_is_written_over_that_counts_now(rig) -> None:
    array = rig.memory(devices=2)
    stripes = opened(rig, array)
    stripes.add(blank(rig), "third")
    stripes.close([])
    for image in array.images:
        copies = [decode_superblock(image[offset : offset + 4096].tobytes()) for offset in SUPERBLOCK_OFFSETS]
        assert [copy.device_count for copy in copies] == [3, 3], "the copy from before was the one to go"
        assert abs(copies[0].sequence - copies[1].sequence) == 1


def test_flushes_reach_the_new_device(rig) -> None:
    array = rig.memory(devices=1)
    stripes = opened(rig, array)
    stripes.register_namespace(rig.OTHER, "other")
    stripes.add(blank(rig), "second")
    rig.put(stripes, 1)
    stripes.flush_namespace(rig.NAMESPACE)
    kept = rig.put(stripes, 2, namespace=rig.OTHER)
    stripes.close(None)
    # The old device has forgotten everything.
    alone = rig.open(MemoryArray.from_images([array.images[1]]))
    assert alone.missing == 1
    assert {entry.digest for entry in alone.namespaces} == {rig.NAMESPACE, rig.OTHER}
    assert not [page for page in alone.recovered if page.record.namespace == rig.NAMESPACE]
    assert kept.record.namespace == rig.OTHER


def test_a_device_that_is_too_small_is_refused_before_anything_is_touched(rig) -> None:
    array = rig.memory(devices=2)
    stripes = opened(rig, array)
    with pytest.raises(ConfigError, match="too small"):
        stripes.add(np.zeros(CHECKPOINT_OFFSET, np.uint8), "small")
    assert (len(array.images), len(stripes.status().devices), stripes.missing) == (2, 2, 0)


def test_a_device_that_cannot_be_written_stays_out_and_its_index_is_free(rig) -> None:
    array = FaultyArray(rig.memory(devices=2))
    stripes = opened(rig, array)
    array.add(Fault(Fail(), device=2, operation=Operation.WRITE))
    with pytest.raises(FormatError, match=r"^bad: cannot be written \(EIO\)"):
        stripes.add(blank(rig), "bad")
    bad = stripes.status().devices[2]
    assert (bad.service, bad.reason, bad.capacity_units) == (Service.OUT, "cannot be written (EIO)", 0)
    assert stripes.missing == 0
    array.clear()
    assert stripes.add(blank(rig), "good") == 3
    page = rig.put(stripes, 1, length=60_000)
    assert {device for device, _ in page.placement} == {0, 1, 3}
    assert rig.holds(stripes, page, 1)
    stripes.close([page])
    images = array.inner.images
    again = rig.open(MemoryArray.from_images([images[0], images[1], images[3]]))
    assert (again.missing, len(again.recovered)) == (0, 1)


def test_a_device_that_breaks_after_its_index_was_taken_leaves_a_member_missing(rig) -> None:
    array = FaultyArray(rig.memory(devices=2))
    stripes = opened(rig, array)
    array.add(Fault(Fail(), device=2, operation=Operation.WRITE, stop=8192))  # its superblocks, not its table
    with pytest.raises(FormatError):
        stripes.add(blank(rig), "bad")
    assert stripes.missing == 1
    array.clear()
    stripes.add(blank(rig), "good")
    assert stripes.missing == 1
    page = rig.put(stripes, 1, length=60_000)
    stripes.close([page])
    images = array.inner.images
    again = rig.open(MemoryArray.from_images([images[0], images[1], images[3]]))
    assert (again.missing, len(again.recovered)) == (1, 1)


def test_a_member_that_cannot_be_written_meanwhile_goes_out_and_the_device_joins(rig) -> None:
    array = FaultyArray(rig.memory(devices=2))
    stripes = opened(rig, array)
    array.add(Fault(Fail(), device=0, operation=Operation.WRITE, stop=8192))
    assert stripes.add(blank(rig), "third") == 2
    assert [device.service for device in stripes.status().devices] == [Service.OUT, Service.IN, Service.IN]
    page = rig.put(stripes, 1)
    assert rig.holds(stripes, page, 1)
    stripes.close([page])
    images = array.inner.images
    assert rig.open(MemoryArray.from_images(images)).missing == 0


def test_transfers_go_on_while_a_device_joins_that_does_not_answer(rig) -> None:
    now = [0.0]
    array = SilentArray(rig.memory(devices=2))
    stripes = opened(rig, array, stall_seconds=100.0, runner=ThreadRunner(lambda: now[0]))
    page = rig.put(stripes, 1)
    array.silence(2)
    outcome: list[Exception] = []

    def add() -> None:
        try:
            stripes.add(blank(rig), "silent")
        except FormatError as error:
            outcome.append(error)

    adding = threading.Thread(target=add)
    adding.start()
    wait_for(lambda: array.swallowed)
    assert rig.holds(stripes, page, 1)
    assert rig.holds(stripes, rig.put(stripes, 2), 2)
    assert not outcome
    now[0] += 101
    adding.join(20)
    assert "no answer for 100 seconds" in str(outcome[0])
    assert stripes.status().devices[2].service is Service.OUT
    assert rig.holds(stripes, rig.put(stripes, 3), 3)
    array.answer()


def test_a_closed_stripe_set_takes_no_device(rig) -> None:
    array = rig.memory(devices=1)
    stripes = opened(rig, array)
    stripes.close(None)
    with pytest.raises(RuntimeError, match="closed"):
        stripes.add(blank(rig), "late")
    assert len(array.images) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_joins_an_array_of_files(rig, tmp_path, engine) -> None:
    paths = [tmp_path / f"{number}.stripe" for number in range(3)]
    for path in paths:
        create_device_file(path, rig.device_bytes(40))
    array = engine(paths[:1], depth=8)
    create_set(array, rig.UNIT, Patience(), rig.SET_ID)
    stripes = opened(rig, array)
    pages = [rig.put(stripes, number) for number in range(3)]
    for number in (1, 2):
        assert stripes.add(open_device_file(paths[number]), str(paths[number])) == number
    pages += [rig.put(stripes, number) for number in range(3, 12)]
    assert {device for page in pages for device, _ in page.placement} == {0, 1, 2}
    for number, page in enumerate(pages):
        assert rig.holds(stripes, page, number)
    stripes.close(pages)
    array.close()
    again = engine([paths[2], paths[0], paths[1]])
    try:
        reopened = rig.open(again)
        assert (reopened.missing, len(reopened.recovered)) == (0, 12)
        for page in reopened.recovered:
            assert rig.holds(reopened, page, page.record.key[0])
        reopened.close(None)
    finally:
        again.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_of_files_take_no_bytes_and_arrays_in_memory_no_file(rig, tmp_path, engine) -> None:
    path = tmp_path / "one.stripe"
    create_device_file(path, rig.device_bytes(4))
    array = engine([path])
    with pytest.raises(TypeError):
        array.append(blank(rig))
    assert len(array.sizes) == 1
    array.close()
    file = open_device_file(path)
    with pytest.raises(TypeError):
        rig.memory(devices=1).append(file)
    file.close()


def test_a_device_that_joins_a_throttled_array_is_as_slow_as_the_others(rig) -> None:
    array = ThrottledArray(rig.memory(devices=2), [1e6, 2e6])
    array.append(blank(rig))
    assert len(array.sizes) == 3
    assert array.description == "memory, throttled to 1, 2, 2 MB/s"
    array.close()
