"""Waiting for devices, and no longer than they deserve."""

from __future__ import annotations

import errno
import itertools

import numpy as np

from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.blockio import IN_FLIGHT, Patience, aligned_buffer, execute, sync_devices
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.faulty_array import Fail, Fault, FaultyArray
from support.silent import SilentArray

BLOCKS = 100


def make(devices: int = 2) -> MemoryArray:
    array = MemoryArray([BLOCKS * BLOCK_BYTES] * devices, seed=3)
    for device, image in enumerate(array.images):
        image.reshape(BLOCKS, BLOCK_BYTES)[:] = (np.arange(BLOCKS, dtype=np.uint8) + 100 * device)[:, None]
    return array


def patience() -> Patience:
    """With time that passes by a second whenever somebody looks."""
    return Patience(50.0, ThreadRunner(itertools.count().__next__))


def reads(*devices: int) -> list[Request]:
    """Every block of the devices, by turns."""
    return [
        Request(0, Operation.READ, device, block * BLOCK_BYTES, [aligned_buffer(BLOCK_BYTES)])
        for block in range(BLOCKS)
        for device in devices
    ]


def test_answers_are_told_apart_and_only_so_many_requests_are_under_way() -> None:
    most = 0

    class Watched(MemoryArray):
        def submit(self, requests) -> None:
            nonlocal most
            super().submit(requests)
            most = max(most, *(sum(one.device == device for one in self._requests) for device in range(2)))

    array = FaultyArray(Watched.from_images(make().images, seed=5))
    array.add(Fault(Fail(errno.EIO), device=1, start=7 * BLOCK_BYTES, stop=8 * BLOCK_BYTES))
    requests = reads(0, 1)
    errors = execute(array, requests, patience())
    assert [at for at, error in enumerate(errors) if error] == [15]
    assert errors[15] == errno.EIO
    for at, request in enumerate(requests):
        if at != 15:
            assert (request.buffers[0] == at // 2 + 100 * (at % 2)).all()
    assert most == IN_FLIGHT


def test_a_silent_device_is_asked_no_more_and_harms_no_other() -> None:
    array = SilentArray(make())
    array.silence(1)
    waiting = patience()
    errors = execute(array, reads(0, 1), waiting)
    assert errors[0::2] == [0] * BLOCKS
    assert errors[1::2] == [errno.ETIMEDOUT] * BLOCKS
    assert len(array.swallowed) == IN_FLIGHT, "it would use up an array that takes a bounded number of requests"
    assert waiting.given_up == {1}
    before = waiting.clock()
    assert execute(array, reads(1), waiting) == [errno.ETIMEDOUT] * BLOCKS
    assert sync_devices(array, [0, 1], waiting) == {0: 0, 1: errno.ETIMEDOUT}
    assert waiting.clock() < before + 10, "it was waited for again"
    assert len(waiting.abandoned) == IN_FLIGHT, "what the device may still write to must stay"
    array.answer()
    while waiting.abandoned:
        assert execute(array, reads(0), waiting) == [0] * BLOCKS


def test_an_answer_to_an_earlier_user_of_the_array_is_not_taken_for_ones_own() -> None:
    array = SilentArray(make())
    array.silence(1)
    execute(array, reads(1), patience())
    array.answer()
    requests = reads(1)
    assert execute(array, requests, patience()) == [0] * BLOCKS
    assert all((request.buffers[0] == at + 100).all() for at, request in enumerate(requests))


def test_a_sync_that_does_not_return() -> None:
    array = SilentArray(make())
    array.sync_hangs.add(0)
    waiting = patience()
    assert sync_devices(array, [0, 1], waiting) == {0: errno.ETIMEDOUT, 1: 0}
    assert waiting.given_up == {0}
    array.sync_answers.set()
