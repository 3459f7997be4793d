"""Checking finds what is wrong and changes nothing; repairing leaves a stripe set that is sound, and keeps the rest."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.errors import ConfigError, FormatError
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.tiers.ssd import Operation, Service
from swift_tiers.radix_tiering.tiers.ssd.blockio import Patience
from swift_tiers.radix_tiering.tiers.ssd.fsck import Report, Severity, check, repair
from swift_tiers.radix_tiering.tiers.ssd.layout import StoredPage
from swift_tiers.radix_tiering.tiers.ssd.members import Standing, find_members
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.faulty_array import Fail, Fault, FaultyArray


def filled(rig, *, clean: bool, devices: int = 3) -> tuple[MemoryArray, list[StoredPage]]:
    """Pages 0, 1, 2 of three units, each the parent of the next; page 3 of one unit, on its own."""
    array = rig.memory(devices, 10)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, 0)]
    pages += [rig.put(stripes, 1, parent=0), rig.put(stripes, 3, length=5000)]
    extra = rig.put(stripes, 7)
    stripes.release(extra.placement)
    stripes.close(pages if clean else None)
    if not clean:
        for device, slot in extra.placement:
            zero(array, device, slot)
    return array, pages


def slot_bytes(array: MemoryArray, device: int, slot: int) -> np.ndarray:
    from swift_tiers.radix_tiering.tiers.ssd.layout import first_slot_offset

    size = BLOCK_BYTES + 8192
    return array.images[device][first_slot_offset(10) + slot * size :][:size]


def zero(array: MemoryArray, device: int, slot: int) -> None:
    slot_bytes(array, device, slot)[:BLOCK_BYTES] = 0


def checked(array: MemoryArray, **options: bool) -> Report:
    before = [image.copy() for image in array.images]
    report = check(array, **options)
    assert all((old == new).all() for old, new in zip(before, array.images, strict=True)), "check changed something"
    for device in report.devices:
        assert device.used + device.free + device.torn + device.corrupt == device.slots
    assert all("\n" not in problem.what + problem.remedy and problem.remedy for problem in report.problems)
    return report


def mended(rig, array: MemoryArray, report: Report, keys: set[int]) -> None:
    result = repair(array, report)
    assert not result.failed
    again = checked(array)
    assert again.problems == ()
    assert all(device.clean for device in again.devices)
    assert again.complete == len(keys)
    stripes = rig.open(array)
    assert stripes.scanned == ()
    assert {page.record.key[0] for page in stripes.recovered} == keys
    assert all(rig.holds(stripes, page, page.record.key[0]) for page in stripes.recovered)
    stripes.close(None)
    crashed = rig.open(array)
    assert {page.record.key[0] for page in crashed.recovered} - {7} == keys, "what was repaired away came back"


def test_a_sound_stripe_set(rig) -> None:
    array, _ = filled(rig, clean=True)
    report = checked(array)
    assert report.problems == ()
    assert report.sound
    assert (report.complete, report.incomplete, report.corrupt, report.unreachable) == (3, 0, 0, ())
    assert [device.used for device in report.devices] == [2, 2, 3]
    assert [entry.description for entry in report.namespaces] == ["one"]
    mended(rig, array, report, {0, 1, 3})


def test_after_a_crash(rig) -> None:
    array, _ = filled(rig, clean=False)
    report = checked(array)
    assert {problem.severity for problem in report.problems} == {Severity.NOTE}
    assert report.sound
    mended(rig, array, report, {0, 1, 3})


def test_once_opened_it_is_no_longer_clean(rig) -> None:
    array, _ = filled(rig, clean=True)
    rig.open(array).close(None)
    report = checked(array)
    assert not any(device.clean for device in report.devices)
    assert [problem.what for problem in report.problems] == ["was not closed in order"] * 3


@pytest.mark.parametrize("clean", [True, False])
def test_a_torn_page_is_found_and_its_child_is_unreachable(rig, clean: bool) -> None:
    array, pages = filled(rig, clean=clean)
    zero(array, *pages[0].placement[1])
    report = checked(array)
    assert report.complete == 2
    assert report.incomplete == 1
    assert [page.record.key[0] for page in report.unreachable] == [1]
    assert sum(device.torn for device in report.devices) == 2
    mended(rig, array, report, {3})


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_payload_is_found_only_if_payloads_are_read(rig, clean: bool) -> None:
    array, pages = filled(rig, clean=clean)
    slot_bytes(array, *pages[2].placement[0])[BLOCK_BYTES + 17] ^= 1
    assert checked(array, verify_payload=False).complete == 3
    ticks = []
    report = check(array, progress=lambda *tick: ticks.append(tick))
    assert ticks[0] == ("headers", 10, 30)
    assert ticks[-1] == ("payloads", 3, 3)
    assert (report.complete, report.corrupt) == (2, 1)
    assert not report.sound
    mended(rig, array, report, {0, 1})


def test_a_damaged_header(rig) -> None:
    array, pages = filled(rig, clean=False)
    slot_bytes(array, *pages[2].placement[0])[100] ^= 1
    report = checked(array)
    assert report.complete == 2
    assert sum(device.corrupt for device in report.devices) == 1
    mended(rig, array, report, {0, 1})


def test_behind_a_damaged_version_an_older_one_shows(rig) -> None:
    array = rig.memory(3, 10)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    old, new = rig.put(stripes, 1, version=0), rig.put(stripes, 1, version=1)
    stripes.close(None)
    slot_bytes(array, *new.placement[2])[BLOCK_BYTES] ^= 1
    report = checked(array)
    assert report.pages == (old,)
    mended(rig, array, report, {1})


@pytest.mark.parametrize("copy", [0, 1])
def test_a_bad_superblock_copy_is_rewritten(rig, copy: int) -> None:
    array, _ = filled(rig, clean=True)
    array.images[1][copy * BLOCK_BYTES + 40] ^= 1
    report = checked(array)
    assert any(f"superblock copy {copy}" in problem.what for problem in report.problems)
    assert "damaged" in report.devices[1].superblock_copies[copy]
    mended(rig, array, report, {0, 1, 3} | ({7} if report.complete == 4 else set()))


def test_a_bad_namespace_table_is_rewritten(rig) -> None:
    array, _ = filled(rig, clean=True)
    array.images[2][2 * BLOCK_BYTES + 70] ^= 1
    report = checked(array)
    assert report.devices[2].table_copies == (False, True)
    mended(rig, array, report, {0, 1, 3})


def test_a_bad_checkpoint_is_rewritten(rig) -> None:
    array, _ = filled(rig, clean=True)
    array.images[0][2 * BLOCK_BYTES + (128 << 10) + 3] ^= 1
    report = checked(array)
    assert any("checkpoint" in problem.what for problem in report.problems)
    mended(rig, array, report, {0, 1, 3})


def test_a_device_without_any_superblock_is_an_error_and_is_left_alone(rig) -> None:
    array, pages = filled(rig, clean=False)
    for copy in (0, 1):
        array.images[1][copy * BLOCK_BYTES + 40] ^= 1
    before = array.images[1].copy()
    report = checked(array)
    assert [device.standing for device in report.devices] == [Standing.MEMBER, Standing.DAMAGED, Standing.MEMBER]
    assert Severity.ERROR in {problem.severity for problem in report.problems}
    assert report.missing == 1
    assert report.pages == tuple(page for page in pages if page.record.key[0] == 3 and not page.uses(1))
    result = repair(array, report)
    assert "device 1" in result.failed[0]
    assert (array.images[1] == before).all()
    # The units of the pages that need device 1 are still there, should it be found again.
    slot = pages[0].placement[0]
    assert slot_bytes(array, *slot)[:8].tobytes() == b"SWFTSLOT"


def test_a_report_is_good_for_one_repair(rig) -> None:
    array, _ = filled(rig, clean=True)
    report = checked(array)
    rig.open(array).close(None)
    with pytest.raises(ValueError, match="check it again"):
        repair(array, report)
    nothing = MemoryArray([1 << 19])
    with pytest.raises(FormatError):
        check(nothing)


def test_a_device_that_cannot_be_written_is_reported(rig) -> None:
    array, _ = filled(rig, clean=True)
    broken = FaultyArray(array)
    broken.add(Fault(Fail(errno.EIO), device=0, operation=Operation.WRITE))
    result = repair(broken, check(broken))
    assert len(result.failed) == 1
    assert len(result.done) == 2
    assert {page.record.key[0] for page in rig.open(array).recovered} >= {0, 1, 3}


def test_unreadable_slots_are_counted(rig) -> None:
    array, pages = filled(rig, clean=False)
    broken = FaultyArray(array)
    device, slot = pages[2].placement[0]
    offset = slot_bytes(array, device, slot).__array_interface__["data"][0]
    offset -= array.images[device].__array_interface__["data"][0]
    broken.add(Fault(Fail(errno.EIO), device=device, operation=Operation.READ, start=offset, stop=offset + 1))
    report = check(broken)
    assert report.devices[device].corrupt == 1
    assert report.complete == 2


def test_what_follows_pages_of_a_missing_member_is_left_alone(rig) -> None:
    """They are reachable again when it is back."""
    array = rig.memory(2, 10)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, 0, length=5000), rig.put(stripes, 1, length=5000, parent=0)]
    (first, _), (second, _) = pages[0].placement[0], pages[1].placement[0]
    assert first != second, "one device has the first page, and the other what follows"
    stripes.close(pages)
    alone = MemoryArray.from_images([array.images[second]])
    report = checked(alone)
    assert report.missing == 1
    assert len(report.unreachable) == 1
    assert not any("repair" in problem.remedy for problem in report.problems if "reached" in problem.what)
    assert not repair(alone, report).failed
    array.images[second][:] = alone.images[0]
    again = rig.open(array)
    assert {page.record.key[0] for page in again.recovered} == {0, 1}
    assert all(rig.holds(again, page, page.record.key[0]) for page in again.recovered)


def test_what_an_earlier_life_of_a_device_has_left_in_slots_is_no_damage(rig) -> None:
    array, pages = filled(rig, clean=False)
    used = {place for page in pages for place in page.placement}
    for device in range(3):
        for slot in range(10):
            if (device, slot) not in used:
                slot_bytes(array, device, slot)[:] = 0xA5
    report = checked(array)
    assert [device.corrupt for device in report.devices] == [0, 0, 0]
    assert report.complete == len(pages)
    mended(rig, array, report, {0, 1, 3})


# ---- devices that are gone for good ----


def without(array: MemoryArray, *gone: int) -> MemoryArray:
    return MemoryArray.from_images([image for number, image in enumerate(array.images) if number not in gone])


@pytest.mark.parametrize("clean", [True, False])
def test_a_member_that_is_forgotten_is_missed_no_more_and_its_index_is_given_to_nobody(rig, clean: bool) -> None:
    array, pages = filled(rig, clean=clean)
    left = without(array, 2)
    assert checked(left).missing == 1
    report = check(left, forget_missing=True)
    assert (report.missing, report.forgotten) == (0, {2})
    assert not repair(left, report).failed
    again = checked(left)
    assert (again.missing, again.forgotten, again.problems) == (0, {2}, ())
    stripes = rig.open(left)
    assert stripes.missing == 0
    assert {page.record.key[0] for page in stripes.recovered} == {3} - {3 for page in pages if page.uses(2)}
    stripes.add(np.zeros(rig.device_bytes(8), np.uint8), "new")
    assert stripes.missing == 0
    stripes.close(None)
    indices = [probe.superblock.device_index for probe in find_members(left, Patience()).probes if probe.superblock]
    assert indices == [0, 1, 3]
    assert rig.open(without(left, 1)).missing == 1, "others are missed as before"


def test_a_forgotten_member_that_is_back_is_one_as_before(rig) -> None:
    array, _ = filled(rig, clean=True)
    left = without(array, 2)
    repair(left, check(left, forget_missing=True))
    back = MemoryArray.from_images([*left.images, array.images[2]])
    stripes = rig.open(back)
    assert (stripes.missing, [state.service for state in stripes.status().devices]) == (0, [Service.IN] * 3)
    stripes.register_namespace(rig.NAMESPACE, "one")
    for number in range(10, 16):
        assert rig.holds(stripes, rig.put(stripes, number), number)
    stripes.close(None)
    assert rig.open(without(back, 0)).missing == 1, "it is missed again"
    assert rig.open(without(back, 2)).missing == 1


def test_a_member_that_is_there_and_cannot_be_used_is_not_forgotten(rig) -> None:
    array, _ = filled(rig, clean=True)
    array.images[1][: 2 * BLOCK_BYTES] ^= 0xFF
    array.images[1][:8] = np.frombuffer(b"SWFTSUPR", np.uint8)
    with pytest.raises(ConfigError, match="leave it out"):
        check(array, forget_missing=True)


def test_a_set_that_lost_a_member_by_a_start_that_was_killed_is_made_anew(rig) -> None:
    """As far as making it came: nothing, or some of its devices, or one half of a device."""
    whole = rig.memory(3, 10)
    for made in range(4):
        for half in (False, True):
            images = [image.copy() for image in whole.images]
            for number in range(made, 3):
                images[number][:] = 0
            if half and made:
                images[made - 1][BLOCK_BYTES : 2 * BLOCK_BYTES] = 0
            stripes = rig.open(MemoryArray.from_images(images), create=rig.UNIT)
            assert (stripes.missing, len(stripes.status().devices)) == (0, 3), (made, half)


def test_a_set_that_was_used_is_not_made_anew_because_a_blank_device_is_there(rig) -> None:
    array, _ = filled(rig, clean=True)
    array.images[2][:] = 0
    stripes = rig.open(array, create=rig.UNIT)
    assert stripes.missing == 1
    array = rig.memory(2, 10)
    rig.open(array).close([])
    array.images[1][:] = 0
    assert rig.open(array, create=rig.UNIT).missing == 1
