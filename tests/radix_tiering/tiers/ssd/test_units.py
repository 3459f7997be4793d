"""Units in arrays: what kernels make of them is what the format says, batch by batch and one by one."""

from __future__ import annotations

import numpy as np
import pytest

from swift_tiers.radix_tiering.base import checksum
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES, page_digest
from swift_tiers.radix_tiering.tiers.ssd import ReadRequest, StripeSet
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Operation, RequestArrays
from swift_tiers.radix_tiering.tiers.ssd.blockio import aligned_buffer
from swift_tiers.radix_tiering.tiers.ssd.layout import (
    Geometry,
    SlotPlace,
    unit_count,
    unit_identity,
    unit_length,
)
from swift_tiers.radix_tiering.tiers.ssd.transfers import PageWrite, WriteRequest
from swift_tiers.radix_tiering.tiers.ssd.units import Units
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.headers import combined_digest, encode_header

UNIT = 8192
LENGTH = 3 * UNIT + 1234
PLACEMENT = ((0, 5), (1, 7), (2, 0), (0, 6))
SET_ID = b"set-id-for-tests"


def units_of(devices: int = 3, depth: int = 8) -> Units:
    units = Units(UNIT, depth)
    for device in range(devices):
        units.add_device(10 + device, Geometry.of(64 << 20, UNIT))
    return units


def write_of(rig, number: int = 1) -> PageWrite:
    record = rig.record(number, LENGTH)
    data = aligned_buffer(4 * UNIT)
    data[:LENGTH] = rig.content(number, 0, LENGTH)
    units = unit_count(record.length, UNIT)
    identity = unit_identity(record, 77, bytes(16), 3, 0, units, UNIT, SlotPlace(SET_ID, 0, 0))
    return PageWrite(WriteRequest(record, PLACEMENT, data, lambda stored, reason: None), 77, identity)


def begun(units: Units, write: PageWrite) -> RequestArrays:
    units.enter([write])
    units.digest([write])
    units.queue([write])
    requests = units.fill(1.0)
    assert requests is not None
    return requests


@pytest.mark.parametrize("native", [True, False], ids=["the C function", "the package"])
def test_headers_and_checksums_are_those_of_the_format(rig, monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    """Also where the package does not show the function beneath it."""
    if not native:
        monkeypatch.setattr(checksum, "FUNCTION", 0)
    units, write = units_of(), write_of(rig)
    requests = begun(units, write)
    digests = [page_digest(write.data[at * UNIT :][: unit_length(LENGTH, UNIT, at)].copy()) for at in range(4)]
    assert write.digest == combined_digest(digests)
    assert {(one.device, one.offset) for one in requests} == {
        (device, Geometry.of(64 << 20, UNIT).slot_offset(slot)) for device, slot in PLACEMENT
    }
    for one in requests:
        index = units.unit(one.tag)[1]
        device, slot = PLACEMENT[index]
        assert one.operation is Operation.WRITE
        assert one.device == device
        header, payload = one.buffers
        place = SlotPlace(SET_ID, 10 + device, slot)
        identity = unit_identity(write.record, 77, write.digest, 3, index, len(write.placement), UNIT, place)
        assert header.tobytes() == encode_header(identity, digests[index])
        assert payload.ctypes.data == write.data[index * UNIT :].ctypes.data
        assert payload.nbytes == (UNIT if index < 3 else BLOCK_BYTES)
        assert requests.tagged(one.tag)[:4] == one[:4]
    addresses = [[buffer.ctypes.data for buffer in one.buffers] for one in requests]
    assert requests.addresses.tolist() == addresses
    assert requests.lengths.tolist() == [[buffer.nbytes for buffer in one.buffers] for one in requests]


def test_units_that_failed_are_under_way_until_they_are_looked_at(rig) -> None:
    """Two units of a page come back with errors together: ending the page with the first must not give the place of the
    second away, which follows when that is looked at."""
    units, write = units_of(), write_of(rig)
    requests = begun(units, write)
    done = units.complete(requests.tags.copy(), np.array([5, 0, 5, 0]), 2.0)
    assert done.faulty.tolist() == [0, 2]
    assert not len(done.ending)
    assert len(units.places_away(write)) == 2
    first, second = (int(requests.tags[at]) for at in done.faulty)
    units.landed(first)
    units.fail(write)
    assert units.back(np.array([first])) == []
    units.landed(second)
    assert units.places_away(write) == set()
    assert units.back(np.array([second])) == [write]


def test_a_page_keeps_its_row_until_all_its_units_are_back(rig) -> None:
    units, write = units_of(), write_of(rig)
    requests = begun(units, write)
    units.complete(requests.tags[:2].copy(), np.zeros(2, np.int64), 2.0)
    write.finished = True
    units.leave(write)
    assert write.row >= 0
    done = units.complete(requests.tags[2:].copy(), np.zeros(2, np.int64), 3.0)
    assert sorted(done.late) == sorted(PLACEMENT[units_index] for units_index in _last_two(requests, units))
    units.fill(4.0)
    assert write.row == -1
    assert units.all_flying == 0


def _last_two(requests: RequestArrays, units: Units) -> list[int]:
    slots = {(device, Geometry.of(64 << 20, UNIT).slot_offset(slot)): at for at, (device, slot) in enumerate(PLACEMENT)}
    return [slots[one.device, one.offset] for one in list(requests)[2:]]


def test_more_units_wait_for_a_device_than_its_queue_held_at_first(rig) -> None:
    """And more pages are under way than there were rows for."""
    array = rig.memory(devices=1, slots=400)
    stripes: StripeSet = rig.open(array, depth=4)
    stripes.register_namespace(rig.NAMESPACE, "")
    stored = [rig.put(stripes, number, length=2 * UNIT) for number in range(190)]
    assert [outcome for outcome, _ in rig.read_all(stripes, stored)] == [ReadOutcome.OK] * len(stored)
    buffers = [aligned_buffer(2 * UNIT) for _ in stored]
    outcomes: list[ReadOutcome] = []
    stripes.read_many([ReadRequest(page, buffers[at], outcomes.append) for at, page in enumerate(stored)])
    stripes.close(None)
    assert outcomes == [ReadOutcome.OK] * len(stored)
    for number, buffer in enumerate(buffers):
        assert np.array_equal(buffer, rig.content(number, 0, 2 * UNIT))
