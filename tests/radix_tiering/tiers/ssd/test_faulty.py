"""Faults strike where the plan says, and nowhere else."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Operation, Request
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.faulty_array import (
    Delay,
    Fail,
    Fault,
    FaultPlan,
    FaultyArray,
    FlipBits,
    Gone,
    Lose,
)

READ, WRITE = Operation.READ, Operation.WRITE
BLOCK = 4096
BLOCKS = 8


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def make(*faults: Fault, seed: int = 0) -> FaultyArray:
    return FaultyArray(MemoryArray([BLOCKS * BLOCK] * 2), FaultPlan(faults, seed), clock=FakeClock())


def read(array: FaultyArray, device: int, block: int) -> tuple[int, bytes]:
    room = [np.zeros(BLOCK // 2, np.uint8), np.zeros(BLOCK // 2, np.uint8)]
    array.submit([Request(1, READ, device, block * BLOCK, room)])
    (completion,) = array.reap(1)
    return completion.error, b"".join(part.tobytes() for part in room)


def write(array: FaultyArray, device: int, block: int, fill: int) -> int:
    array.submit([Request(2, WRITE, device, block * BLOCK, [np.full(BLOCK, fill, np.uint8)])])
    (completion,) = array.reap(1)
    return completion.error


def test_a_fault_strikes_its_device_operation_and_range_only() -> None:
    array = make(Fault(Fail(errno.EIO), device=1, operation=READ, start=2 * BLOCK, stop=4 * BLOCK))
    hit = {(d, b) for d in range(2) for b in range(BLOCKS) if read(array, d, b)[0]}
    assert hit == {(1, 2), (1, 3)}
    assert [write(array, 1, b, 1) for b in range(BLOCKS)] == [0] * BLOCKS
    assert array.struck == [2]


def test_nth_and_times_count_the_requests_that_fit() -> None:
    array = make(
        Fault(Fail(errno.ENOSPC), operation=WRITE, nth=3),
        Fault(Fail(errno.EIO), operation=READ, times=2),
    )
    assert [write(array, 0, 0, 1) for _ in range(5)] == [0, 0, errno.ENOSPC, 0, 0]
    assert [read(array, 0, 0)[0] for _ in range(4)] == [errno.EIO, errno.EIO, 0, 0]


def test_a_failed_write_leaves_the_device_as_it_was_and_the_first_error_counts() -> None:
    array = make(Fault(Fail(errno.EIO), operation=WRITE, nth=2), Fault(Fail(errno.ENOSPC), operation=WRITE, nth=2))
    assert write(array, 0, 1, 7) == 0
    assert write(array, 0, 1, 8) == errno.EIO
    assert read(array, 0, 1) == (0, bytes([7]) * BLOCK)


def test_a_rate_is_seeded() -> None:
    def pattern(seed: int) -> list[bool]:
        array = make(Fault(Fail(), rate=0.3), seed=seed)
        return [read(array, 0, 0)[0] != 0 for _ in range(400)]

    assert pattern(1) == pattern(1)
    assert pattern(1) != pattern(2)
    assert 80 < sum(pattern(1)) < 160


def test_a_delay_holds_a_request_back_and_no_other() -> None:
    array = make(Fault(Delay(2.0), device=0))
    rooms = [np.zeros(BLOCK, np.uint8) for _ in range(2)]
    array.submit([Request(device, READ, device, 0, [rooms[device]]) for device in range(2)])
    assert [completion.tag for completion in array.reap(1)] == [1]
    assert array.clock.now() == 0.0
    assert [completion.tag for completion in array.reap(1)] == [0]
    assert array.clock.now() == 2.0


def test_flipped_bits_are_as_many_as_asked_and_only_in_what_was_read() -> None:
    array = make(Fault(FlipBits(3), device=0, nth=1), seed=5)
    assert write(array, 0, 0, 0) == 0  # a write is not one of its requests
    error, content = read(array, 0, 0)
    assert error == 0
    assert int.from_bytes(content, "big").bit_count() == 3
    assert read(array, 0, 0) == (0, bytes(BLOCK))  # the device itself is whole
    again = make(Fault(FlipBits(3), device=0, nth=1), seed=5)
    assert read(again, 0, 0) == (0, content)


def test_a_lost_write_is_reported_as_done() -> None:
    array = make(Fault(Lose(), nth=2))
    assert [write(array, 0, 0, fill) for fill in (1, 2)] == [0, 0]
    assert read(array, 0, 0) == (0, bytes([1]) * BLOCK)


def test_a_device_that_has_gone_fails_everything_until_it_is_back() -> None:
    array = make(Fault(Gone(), device=1, nth=3))
    assert [write(array, 1, b, 5) for b in range(4)] == [0, 0, errno.ENODEV, errno.ENODEV]
    assert [array.present(device) for device in range(2)] == [True, False]
    assert [array.sync(device) for device in range(2)] == [0, errno.ENODEV]
    assert read(array, 0, 0)[0] == 0
    array.return_device(1)
    assert array.present(1)
    assert read(array, 1, 1) == (0, bytes([5]) * BLOCK)
    array.remove_device(0, errno.EIO)
    assert read(array, 0, 0)[0] == errno.EIO


def test_a_sync_fails_only_by_a_fault_for_syncs() -> None:
    array = make(Fault(Fail(errno.EIO), operation="sync", device=0, nth=2), Fault(Fail(errno.EPERM), device=1))
    assert [array.sync(0) for _ in range(3)] == [0, errno.EIO, 0]
    assert array.sync(1) == 0
    array.clear()
    assert read(array, 1, 0)[0] == 0
    array.add(Fault(Gone(errno.EIO), operation="sync"))
    assert array.sync(1) == errno.EIO
    assert not array.present(1)


def test_a_plan_that_cannot_be_meant_is_refused() -> None:
    for wrong in ({"rate": 1.5}, {"nth": 0}):
        with pytest.raises(ValueError):
            Fault(Fail(), **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a sync cannot"):
        Fault(Delay(1), operation="sync")
