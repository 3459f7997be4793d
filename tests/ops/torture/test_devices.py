"""What the model devices leave behind, and how they fail."""

from __future__ import annotations

import errno
import random
from collections import Counter

import numpy as np

from swift_tiers.ops.lab.torture.devices import SECTOR, PowerArray
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Operation, Request

BYTES = 8 * SECTOR


def array() -> PowerArray:
    return PowerArray(VirtualRunner(1), [np.zeros(1 << 14, np.uint8)], Counter())


def write(array: PowerArray, value: int, *, done: bool = True) -> int:
    """Write the first sectors; the error."""
    array.submit([Request(1, Operation.WRITE, 0, 0, [np.full(BYTES, value, np.uint8)])])
    return array.reap(1)[0].error if done else 0


def left(array: PowerArray, *, power: bool) -> list[set[int]]:
    """The values of each sector that the next process may find."""
    found = [array.left_behind(random.Random(seed), power=power)[0][:BYTES].reshape(-1, SECTOR) for seed in range(60)]
    assert all((sector == sector[0]).all() for image in found for sector in image), "a sector is written whole"
    return [{int(image[at][0]) for image in found} for at in range(BYTES // SECTOR)]


def test_what_is_synced_is_there() -> None:
    one = array()
    assert not write(one, 5)
    assert not one.sync(0)
    assert left(one, power=True) == left(one, power=False) == [{5}] * 8


def test_what_is_not_synced_is_torn_where_the_power_goes() -> None:
    one = array()
    write(one, 5)
    assert left(one, power=False) == [{5}] * 8
    assert left(one, power=True) == [{0, 5}] * 8


def test_what_is_under_way_is_torn_in_any_crash() -> None:
    one = array()
    write(one, 5)
    one.sync(0)
    write(one, 6, done=False)
    assert left(one, power=False) == left(one, power=True) == [{5, 6}] * 8


def test_a_sync_that_lies_keeps_nothing() -> None:
    one = array()
    one.lying.add(0)
    write(one, 5)
    assert not one.sync(0)
    assert one.lied
    assert left(one, power=True) == [{0, 5}] * 8
    one.heal()
    one.sync(0)
    assert left(one, power=True) == [{5}] * 8


def test_a_device_that_fails_does_half() -> None:
    one = array()
    one.failing.add(0)
    errors = Counter(write(one, 5) for _ in range(50))
    assert errors.keys() == {0, errno.EIO}
    one.images[0][:] = 9
    seen = set()
    for _ in range(50):
        buffer = np.zeros(BYTES, np.uint8)
        one.submit([Request(1, Operation.READ, 0, 0, [buffer])])
        seen.add((one.reap(1)[0].error, int(buffer[0]), int(buffer[-1])))
    assert seen == {(0, 9, 9), (errno.EIO, 0, 0), (errno.EIO, 9, 0)}
    assert {one.sync(0) for _ in range(20)} == {0, errno.EIO}


def test_a_full_device_takes_no_write() -> None:
    one = array()
    one.full.add(0)
    assert write(one, 5) == errno.ENOSPC
    one.heal()
    assert write(one, 5) == 0
