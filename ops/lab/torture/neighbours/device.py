"""Devices whose memory servers map for each other: models in one process, whose copies take time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator, CopyQueue
from swift_tiers.kernels.page_digest import digest_bytes, page_digests
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.lending.donation import arena
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory
from swift_tiers.radix_tiering.tiers.host.landing import Landing

#: What is in device memory that nobody has written to.
POISON = 0xAA


class Fabric:
    """What all devices of a machine have exported, by the inode of its descriptor."""

    def __init__(self) -> None:
        self.exported: dict[int, np.ndarray] = {}


class ModelDevice(DeviceMemory):
    """One server's device. What it has released, and what is being copied, it does not take for memory."""

    def __init__(self, name: str, fabric: Fabric) -> None:
        self.name = name
        self._fabric = fabric
        self._mapped: dict[int, tuple[torch.Tensor, bool]] = {}  # by identity; whether it is its own
        self._uses: Counter[int] = Counter()

    def export(self, size: int) -> tuple[int, torch.Tensor]:
        fd = os.memfd_create("model-device", os.MFD_CLOEXEC)
        found = self._fabric.exported[os.fstat(fd).st_ino] = np.full(size, POISON, np.uint8)
        return fd, self._map(found, own=True)

    def attach(self, fd: int, size: int) -> torch.Tensor:
        found = self._fabric.exported[os.fstat(fd).st_ino]
        assert len(found) == size
        return self._map(found, own=False)

    def release(self, memory: torch.Tensor) -> None:
        if id(memory) in self._mapped:
            assert not self._uses[id(memory)], f"{self.name}: memory was released while it was copied"
            del self._mapped[id(memory)]

    def lock(self, memory: np.ndarray) -> bool:
        return True

    def unlock(self, memory: np.ndarray) -> None:
        """Nothing was locked."""

    def _read(self, memory: torch.Tensor, pieces: np.ndarray, into: np.ndarray) -> None:
        self._copy(memory, lambda: arena.copy_pieces(memory.numpy(), into, pieces))

    def _write(self, source: np.ndarray, memory: torch.Tensor, pieces: np.ndarray) -> None:
        assert self._mapped[id(memory)][1], f"{self.name}: memory of somebody else was written to"
        self._copy(memory, lambda: arena.copy_pieces(source, memory.numpy(), pieces))

    def _pull(self, source: torch.Tensor, memory: torch.Tensor, pieces: np.ndarray) -> None:
        assert not self._mapped[id(source)][1], f"{self.name}: copies from its own memory"
        self._copy(source, lambda: self._write(source.numpy(), memory, pieces))

    def _copy(self, memory: torch.Tensor, copy: Callable[[], None]) -> None:
        assert id(memory) in self._mapped, f"{self.name}: memory was copied after its release"
        self._uses[id(memory)] += 1
        try:
            copy()
        finally:
            self._uses[id(memory)] -= 1

    def _map(self, memory: np.ndarray, *, own: bool) -> torch.Tensor:
        mapped = torch.from_numpy(memory)
        self._mapped[id(mapped)] = mapped, own
        return mapped


class _Done:
    """A mark of a queue that does everything at once."""

    def wait(self) -> None:
        """It has been reached."""

    def synchronize(self) -> None:
        """It has been reached."""

    def query(self) -> bool:
        """It has been reached."""
        return True


class PlainQueue(CopyQueue):
    """Does at once what it is asked for, as slowly as copies between servers are."""

    def after(self, mark: Any) -> None:
        """Everything before it is over."""

    def rows(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def listed(self, *_: Any) -> None:
        raise NotImplementedError("there is no pool here")

    def lists(self, *_: Any) -> Any:
        raise NotImplementedError("there is no pool here")

    def copy(self, *_: Any) -> None:
        raise NotImplementedError("there is no pool here")

    def pieces(self, source: torch.Tensor, target: torch.Tensor, pieces: np.ndarray) -> None:
        arena.copy_pieces(source.numpy(), target.numpy(), pieces)

    def digests(self, slab: torch.Tensor, slots: np.ndarray, nbytes: int) -> list[bytes]:
        return digest_bytes(page_digests(slab, slots, nbytes))

    def pool_digests(self, *_: Any) -> Any:
        raise NotImplementedError("there is no pool here")

    def mark(self) -> _Done:
        return _Done()

    def seconds(self, work: Callable[[], None]) -> float:
        raise NotImplementedError("nothing is measured here")


class PlainAccelerator(Accelerator):
    """A device that copies within this process."""

    device = torch.device("cpu")

    def queue(self) -> CopyQueue:
        return PlainQueue()

    def mark_here(self) -> _Done:
        return _Done()

    def page_locked(self, memory: torch.Tensor) -> bool:
        return True

    def host_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        return self.device_memory(rows, row_bytes)

    def device_memory(self, rows: int, row_bytes: int) -> torch.Tensor:
        return torch.full((rows, row_bytes), POISON, dtype=torch.uint8)


class TriedLanding(Landing):
    """Landing memory in which a slot that is free has no page."""

    def __init__(self, page_bytes: int, slots: int, runner: Runner) -> None:
        super().__init__(PlainAccelerator(), page_bytes, (slots + 1) * -(-page_bytes // 4096) * 4096, runner)
        #: uint8 [slots + 1, stride].
        self.landed: np.ndarray = self.memory.numpy()

    def give_back(self, slot: int) -> None:
        self.landed[slot] = POISON
        super().give_back(slot)
        assert len(set(self._free)) == len(self._free), "a landing slot was given back twice"
