"""Arenas in the memory of a device: what may be done to them, and until when they stay mapped."""

from __future__ import annotations

import gc
import logging
import os
import threading

import numpy as np
import pytest
import torch

from swift_tiers.radix_tiering.lending.donation.arena import ArenaError, SharedArena
from swift_tiers.radix_tiering.lending.donation.device_arena import AttachedDevice, DeviceArena

from support.fake_device import GRANULE, POISON, FakeDeviceMemory

SIZE = 2 * GRANULE - 100


def table(*pieces: tuple[int, int, int]) -> np.ndarray:
    return np.array(pieces, np.int64).reshape(-1, 3)


@pytest.fixture
def device() -> FakeDeviceMemory:
    return FakeDeviceMemory()


def attach(device: FakeDeviceMemory, arena: DeviceArena, size: int = SIZE) -> AttachedDevice:
    return AttachedDevice(device, os.dup(arena.fd), size)


def test_what_the_donor_writes_is_read_at_the_other_end(device: FakeDeviceMemory) -> None:
    other = FakeDeviceMemory("GPU-b")
    arena = DeviceArena(device, SIZE)
    assert (arena.kind, arena.device, arena.size) == ("cuda", "GPU-a", SIZE)
    attached = attach(other, arena)
    assert not arena.memory.any()
    source = np.arange(1, 101, dtype=np.uint8)
    arena.write(source, table((0, SIZE - 60, 60), (60, 7, 40)))
    into = np.zeros(120, np.uint8)
    attached.read(table((7, 0, 40), (SIZE - 60, 50, 60)), into)
    assert into.tolist() == [*range(61, 101), *[0] * 10, *range(1, 61), *[0] * 10]
    with attached.use() as memory:
        assert memory[7].item() == 61
        assert memory.shape == (SIZE,)
        assert memory.dtype == torch.uint8


@pytest.mark.parametrize(
    "piece",
    [(0, SIZE, 1), (0, SIZE - 9, 10), (0, 0, 101), (100, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, -1), (0, 2**63 - 1, 9)],
)
def test_pieces_beyond_either_end_are_not_copied(device: FakeDeviceMemory, piece: tuple[int, int, int]) -> None:
    arena = DeviceArena(device, SIZE)
    attached = attach(device, arena)
    host = np.ones(100, np.uint8)
    here, there, length = piece
    with pytest.raises(ValueError, match="beyond"):
        arena.write(host, table((0, 0, 5), piece))
    with pytest.raises(ValueError, match="beyond"):
        attached.read(table((0, 0, 5), (there, here, length)), host)
    assert not arena.memory.any()
    assert host.all()


def test_pieces_of_another_shape_are_refused(device: FakeDeviceMemory) -> None:
    arena = DeviceArena(device, SIZE)
    for wrong in (np.zeros((2, 2), np.int64), np.zeros(3, np.int64), np.zeros((1, 3), np.int32)):
        with pytest.raises(ValueError, match=r"int64 \[n, 3\]"):
            arena.write(np.zeros(4, np.uint8), wrong)
    arena.write(np.zeros(4, np.uint8), table())


def test_what_is_no_memory_of_a_device_or_out_of_reach_is_refused_and_its_descriptor_closed() -> None:
    far = FakeDeviceMemory("GPU-far", reaches=set())
    arena = DeviceArena(FakeDeviceMemory("GPU-a"), SIZE)
    host = SharedArena(SIZE)
    gc.collect()  # mappings of former tests
    before = len(os.listdir("/proc/self/fd"))
    for fd, size, device, reason in (
        (arena.fd, SIZE, far, "reach"),
        (arena.fd, 2 * GRANULE + 1, FakeDeviceMemory(), "smaller"),
        (arena.fd, 0, FakeDeviceMemory(), "has 0 bytes"),
        (host.fd, SIZE, FakeDeviceMemory(), "no memory of a device"),
    ):
        with pytest.raises(ArenaError, match=reason):
            AttachedDevice(device, os.dup(fd), size)
        assert device.mapped == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_it_is_unmapped_when_it_is_closed_and_the_last_use_has_ended(device: FakeDeviceMemory) -> None:
    arena = DeviceArena(FakeDeviceMemory(), SIZE)
    arena.memory[:] = 5
    attached = attach(device, arena)
    with attached.use() as memory, attached.use() as again:
        assert again is memory
        attached.close()
        assert attached.memory is None
        assert device.mapped == 1
        assert (memory == 5).all()
        with pytest.raises(ArenaError, match="not mapped here any more"), attached.use():
            pass
    assert device.mapped == 0
    assert memory[0].item() == POISON
    attached.close()
    with pytest.raises(ArenaError, match="not mapped here any more"):
        attached.read(table((0, 0, 1)), np.zeros(1, np.uint8))
    assert device.calls == {"attach": 1, "release": 1}


def test_a_read_under_way_in_another_thread_keeps_it_mapped(device: FakeDeviceMemory) -> None:
    arena = DeviceArena(FakeDeviceMemory(), SIZE)
    arena.memory[:] = 5
    attached = attach(device, arena)
    begun, go_on = threading.Event(), threading.Event()

    def wait(what: str) -> None:
        begun.set()
        assert go_on.wait(60)

    device.on_copy = wait
    into = np.zeros(SIZE, np.uint8)
    reader = threading.Thread(target=attached.read, args=(table((0, 0, SIZE)), into))
    reader.start()
    assert begun.wait(60)
    attached.close()
    assert device.mapped == 1
    go_on.set()
    reader.join(60)
    assert not reader.is_alive()
    assert (into == 5).all()
    assert device.mapped == 0


def test_many_threads_use_it_while_it_is_closed_and_it_is_released_once(device: FakeDeviceMemory) -> None:
    arena = DeviceArena(FakeDeviceMemory(), SIZE)
    arena.memory[:] = 5
    for _ in range(50):
        attached = attach(device, arena)
        start = threading.Barrier(5)
        wrong: list[int] = []

        def read(attached: AttachedDevice = attached, start: threading.Barrier = start, wrong: list = wrong) -> None:
            into = np.zeros(16, np.uint8)
            start.wait(60)
            try:
                for _ in range(20):
                    attached.read(table((0, 0, 16)), into)
                    wrong.extend(into[into != 5].tolist())
            except ArenaError:
                pass

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        start.wait(60)
        attached.close()
        for thread in threads:
            thread.join(60)
        assert not wrong
        assert device.mapped == 0
    assert device.calls["release"] == 50


def test_a_device_that_fails_leaves_nothing_used(device: FakeDeviceMemory, caplog: pytest.LogCaptureFixture) -> None:
    arena = DeviceArena(FakeDeviceMemory(), SIZE)
    attached = attach(device, arena)
    device.faults["read"] = "the bus is down"
    with pytest.raises(ArenaError, match="the bus is down"):
        attached.read(table((0, 0, 1)), np.zeros(1, np.uint8))

    def refuse(memory: torch.Tensor) -> None:
        raise ArenaError("the driver is gone")

    device.release = refuse  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        attached.close()
    assert "stays mapped: the driver is gone" in caplog.text


def test_a_donors_arena_is_closed_once(device: FakeDeviceMemory) -> None:
    gc.collect()  # mappings of former tests
    before = len(os.listdir("/proc/self/fd"))
    arena = DeviceArena(device, SIZE)
    arena.close()
    arena.close()
    assert device.mapped == 0
    assert len(os.listdir("/proc/self/fd")) == before
    device.faults["export"] = "no memory is left"
    with pytest.raises(ArenaError, match="no memory is left"):
        DeviceArena(device, SIZE)
    with pytest.raises(ValueError, match="at least one byte"):
        DeviceArena(device, 0)
