"""Arenas in the memory of a device: what `arena` has for memory of the host."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ...base.runner import THREADS, Runner
from .arena import ArenaError
from .device_memory import DeviceMemory

logger = logging.getLogger(__name__)


class DeviceArena:
    """Memory of this process' device that others may map."""

    def __init__(self, device: DeviceMemory, size: int) -> None:
        """`size` bytes, zeroed. Raises ArenaError where the device has not got them."""
        if size < 1:
            raise ValueError(f"an arena has at least one byte, not {size}")
        self.size = size
        self.kind = device.kind
        self.device = device.name
        self._device = device
        self._released = False
        #: `memory` is uint8 [size], on the device.
        self.fd, self.memory = device.export(size)

    def write(self, source: np.ndarray, pieces: np.ndarray) -> None:
        """Copy `pieces` of host memory here, see `DeviceMemory.write`."""
        self._device.write(source, self.memory, pieces)

    def lock(self, source: np.ndarray) -> bool:
        """See `DeviceMemory.lock`."""
        return self._device.lock(source)

    def unlock(self, source: np.ndarray) -> None:
        """See `DeviceMemory.unlock`."""
        self._device.unlock(source)

    def attach(self, fd: int, size: int, runner: Runner = THREADS) -> AttachedDevice:
        """Memory that a borrower has exported, mapped for `pull`. Takes `fd` over. Raises ArenaError."""
        return AttachedDevice(self._device, fd, size, runner)

    def pull(self, source: AttachedDevice, pieces: np.ndarray) -> None:
        """Copy `pieces` of a borrower's memory here, see `DeviceMemory.pull`."""
        with source.use() as memory:
            self._device.pull(memory, self.memory, pieces)

    def close(self) -> None:
        """Give up the descriptor and unmap the memory, which nothing here may be using any more. It goes with the last
        mapping of it. Idempotent. Raises ArenaError where the driver refuses."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # somebody may be about to send it, and a closed one may be another file's soon
            os.close(fd)
        if not self._released:
            self._released = True
            self._device.release(self.memory)


class AttachedDevice:
    """A device arena of another process, mapped for this process' device, to be read."""

    def __init__(self, device: DeviceMemory, fd: int, size: int, runner: Runner = THREADS) -> None:
        """Takes `fd` over and closes it. Raises ArenaError for what cannot be mapped as so many bytes."""
        if size < 1:
            os.close(fd)
            raise ArenaError(f"what was offered has {size} bytes")
        try:
            self._memory: torch.Tensor | None = device.attach(fd, size)
        finally:
            os.close(fd)
        self.size = size
        self._device = device
        self._lock = runner.lock()
        self._uses = 0
        self._closed = False

    @property
    def memory(self) -> torch.Tensor | None:
        """uint8 [size]; None once it is closed. To be touched within `use` only."""
        with self._lock:
            return None if self._closed else self._memory

    @contextmanager
    def use(self) -> Iterator[torch.Tensor]:
        """The memory, mapped until the end of this: whoever queues copies of it waits for them within. Any thread.
        Raises ArenaError once it is closed."""
        with self._lock:
            memory = self._memory
            if self._closed or memory is None:
                raise ArenaError("the donor's memory is not mapped here any more")
            self._uses += 1
        try:
            yield memory
        finally:
            self._end(use=True)

    def read(self, pieces: np.ndarray, into: np.ndarray) -> None:
        """Copy `pieces` to host memory, see `DeviceMemory.read`. Any thread. Raises ArenaError once it is closed."""
        with self.use() as memory:
            self._device.read(memory, pieces, into)

    def close(self) -> None:
        """Unmap it, as soon as nobody uses it any more. Idempotent; any thread."""
        self._end(use=False)

    def _end(self, *, use: bool) -> None:
        """Of a use, or of the arena; whoever comes last unmaps."""
        with self._lock:
            if use:
                self._uses -= 1
            else:
                self._closed = True
            if not self._closed or self._uses:
                return
            memory, self._memory = self._memory, None
        if memory is None:
            return
        try:
            self._device.release(memory)
        except ArenaError as error:
            # Whoever comes last has nothing to do with it. Addresses and memory are lost until this process ends.
            logger.warning("swift-tiers: a donor's memory stays mapped: %s", error)
