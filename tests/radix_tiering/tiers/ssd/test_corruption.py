"""Whatever byte of a device changes while nobody looks: a miss and a counter, never wrong bytes, never an exception."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.errors import FormatError
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.tiers.ssd import StoredPage, StripeSet
from swift_tiers.radix_tiering.tiers.ssd.layout import Defect, Superblock, decode_superblock, first_slot_offset
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.examples import examples

SLOTS = 5
LENGTHS = (100, 8192, 9000, 20_000)
QUIET = settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@pytest.fixture(params=["clean", "crashed"])
def images(rig, request) -> list[np.ndarray]:
    array = rig.memory(2, SLOTS)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=length) for number, length in enumerate(LENGTHS)]
    stripes.close(pages if request.param == "clean" else None)
    return array.images


def read_everything(rig, images: list[np.ndarray]) -> dict[int, ReadOutcome]:
    """Open, read all, compare what is OK with what was written; the outcomes by page."""
    stripes = StripeSet.open(MemoryArray.from_images(images))
    try:
        results = rig.read_all(stripes, stripes.recovered)
        outcomes = {}
        for page, (outcome, data) in zip(stripes.recovered, results, strict=True):
            number = page.record.key[0]
            assert page.record.length == LENGTHS[number]
            if outcome is ReadOutcome.OK:
                assert (data == rig.content(number, 0, LENGTHS[number])).all(), "wrong bytes"
            else:
                assert outcome.corrupt
            outcomes[number] = outcome
        corrupt = sum(outcome.corrupt for outcome in outcomes.values())
        assert sum(device.counted.corrupt_units for device in stripes.status().devices) == corrupt
        return outcomes
    finally:
        stripes.close(None)


def test_nothing_is_wrong_to_begin_with(rig, images) -> None:
    assert read_everything(rig, images) == dict.fromkeys(range(4), ReadOutcome.OK)


@QUIET
@given(data=st.data())
def test_any_one_byte(rig, images, data) -> None:
    device = data.draw(st.integers(0, 1))
    # Half of the flips among the metadata, which is small.
    limit = data.draw(st.sampled_from([BLOCK_BYTES * 2, first_slot_offset(SLOTS), len(images[device])]))
    at = data.draw(st.integers(0, limit - 1))
    changed = [image.copy() for image in images]
    changed[device][at] ^= data.draw(st.integers(1, 255))
    outcomes = read_everything(rig, changed)
    assert sum(outcome is ReadOutcome.OK for outcome in outcomes.values()) >= 3, "one byte cost more than one page"


@QUIET
@given(data=st.data())
def test_any_bytes(rig, images, data) -> None:
    """Many at once. Both superblocks of every device may be gone then: only that may be refused."""
    changed = [image.copy() for image in images]
    for _ in range(data.draw(st.integers(1, 12))):
        image = changed[data.draw(st.integers(0, 1))]
        at = data.draw(st.integers(0, data.draw(st.sampled_from([8192, len(image)])) - 1))
        run = data.draw(st.sampled_from([1, 16, 5000]))
        image[at : at + run] = data.draw(st.integers(0, 255))
    try:
        read_everything(rig, changed)
    except FormatError:
        whole = [
            decode_superblock(image[at : at + BLOCK_BYTES].tobytes()) for image in changed for at in (0, BLOCK_BYTES)
        ]
        foreign = any(isinstance(copy, Defect) and copy.kind == "foreign" for copy in whole)
        assert foreign or not any(isinstance(copy, Superblock) for copy in whole), "refused without need"


@pytest.mark.parametrize("step", [61])
def test_all_over_one_device(rig, images, step: int) -> None:
    """Every so many bytes from the first to the last, one at a time, within one opened stripe set."""
    for at in range(0, first_slot_offset(SLOTS), step * 23):
        changed = [images[0].copy(), images[1]]
        changed[0][at] ^= 0x41
        assert read_everything(rig, changed) == dict.fromkeys(range(4), ReadOutcome.OK), at
    array = MemoryArray.from_images(images)
    stripes = rig.open(array)
    pages = {page.record.key[0]: page for page in stripes.recovered}
    in_page = payload_bytes(rig, stripes, list(pages.values()))
    misses = 0
    for at in range(first_slot_offset(SLOTS), len(images[0]), step):
        array.images[0][at] ^= 0x41
        for number, (outcome, data) in zip(pages, rig.read_all(stripes, list(pages.values())), strict=True):
            hit = at in in_page[number]
            assert outcome.corrupt if hit else outcome is ReadOutcome.OK, (at, number)
            assert hit or (data == rig.content(number, 0, LENGTHS[number])).all()
            misses += hit
        array.images[0][at] ^= 0x41
    assert misses == sum(outcome.corrupt * count for outcome, count in stripes.status().outcomes.items()) > 300


class Spans(list):
    def __contains__(self, at: object) -> bool:
        return any(start <= at < stop for start, stop in self)


def payload_bytes(rig, stripes: StripeSet, pages: list[StoredPage]) -> dict[int, Spans]:
    """By page, the bytes of device 0 that its headers and its payload occupy; padding is nobody's."""
    geometry = stripes._devices[0].geometry
    spans = {}
    for page in pages:
        spans[page.record.key[0]] = Spans(
            (
                geometry.slot_offset(slot),
                geometry.slot_offset(slot) + BLOCK_BYTES + min(rig.UNIT, page.record.length - index * rig.UNIT),
            )
            for index, (device, slot) in enumerate(page.placement)
            if device == 0
        )
    return spans


def test_slots_exchanged_between_pages_devices_and_sets(rig) -> None:
    """Sound units in the wrong place: the header says where it belongs."""
    array = rig.memory(2, SLOTS)
    stripes = rig.open(array)
    stripes.register_namespace(rig.NAMESPACE, "one")
    pages = [rig.put(stripes, number, length=8192) for number in range(4)]
    geometry = stripes._devices[0].geometry

    def slot_of(page: StoredPage) -> np.ndarray:
        ((device, slot),) = page.placement
        return array.images[device][geometry.slot_offset(slot) : geometry.slot_offset(slot + 1)]

    first, second, third, _ = (slot_of(page) for page in pages)
    kept = first.copy()
    first[:] = third
    assert rig.read(stripes, pages[0])[0] is ReadOutcome.PLACE
    first[:] = kept
    second[:] = kept
    assert rig.read(stripes, pages[1])[0] is ReadOutcome.PLACE
    third[:] = kept
    assert rig.read(stripes, pages[2])[0] is ReadOutcome.PLACE
    assert rig.holds(stripes, pages[0], 0)
    stripes.close(None)
    again = rig.open(array)
    assert {page.record.key[0] for page in again.recovered} == {0, 3}
