"""Memory of the host that one process exports and others map: sealed memfds. `device_arena` has memory of devices.

A donor keeps its KV pool in a `SharedArena`; a borrower that was given the file descriptor (over a unix socket) maps
the same pages as an `AttachedArena` and reads them at the speed of memory. Sealing is what makes that safe on both
sides: a file that can shrink under a mapping kills whoever touches it (SIGBUS), and a borrower that could write might
be stopped in the middle of a copy and finish it when the memory is somebody else's. So each process writes to its own
arenas alone, and nobody else can.

The memory outlives its donor for as long as anybody maps it. That a donor has died must therefore be learnt elsewhere
(its socket closes), and the lease be declared lost then: what is still readable is nobody's any more.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

from ...base.errors import SwiftTiersError
from ...base.usable_memory import available_memory

#: F_SEAL_FUTURE_WRITE of linux/fcntl.h, which Python does not name yet: mappings made before it may write, later ones
#: may not. Linux 5.1.
_SEAL_FUTURE_WRITE = 0x0010
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS = _SIZE_SEALS | _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


#: Where an arena lies: in memory of the host, or of a device.
ArenaKind = Literal["host", "cuda"]


class ArenaError(SwiftTiersError):
    """Memory that cannot be shared or mapped."""


class ExportedArena(Protocol):
    """Memory of this process that others may map: a `SharedArena` or a `DeviceArena`."""

    size: int  # bytes
    fd: int
    kind: ArenaKind
    device: str  # the name of the device that it is part of; empty for the host

    def write(self, source: np.ndarray, pieces: np.ndarray) -> None:
        """Copy bytes here: int64 [n, 3] of (offset in `source`, offset here, length). Nothing is under way any more
        when this returns or raises."""
        ...

    def lock(self, source: np.ndarray) -> bool:
        """See `DeviceMemory.lock`: much is going to be copied from this memory."""
        ...

    def unlock(self, source: np.ndarray) -> None:
        """See `DeviceMemory.unlock`."""
        ...


class SharedArena:
    """Memory of this process that others may map, for reading. Resident and of a fixed size from the start."""

    kind: ArenaKind = "host"
    device = ""

    def __init__(
        self, size: int, name: str = "swift-tiers", available: Callable[[], int | None] = available_memory
    ) -> None:
        """`size` bytes, zeroed. Raises ArenaError where the machine has not got them: before touching anything when
        `size` exceeds `available()` bytes, since nothing else bounds a memfd and the kernel would kill processes."""
        if size < 1:
            raise ValueError(f"an arena has at least one byte, not {size}")
        free = available()
        if free is not None and size > free:
            raise ArenaError(f"{size} bytes of shared memory asked for, {free} available; make the pool smaller")
        self.size = size
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Takes the memory now: a page that cannot be had when it is first touched is a SIGBUS.
            os.posix_fallocate(self.fd, 0, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
            mapping = mmap.mmap(self.fd, size)
        except OSError as error:
            os.close(self.fd)
            raise ArenaError(
                f"{size} bytes of shared memory cannot be had ({error.strerror}); make the pool smaller"
            ) from None
        try:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
        except OSError:
            os.close(self.fd)
            raise ArenaError("this kernel cannot share memory for reading alone; lending needs Linux 5.1") from None
        #: uint8 [size]. The memory is mapped for as long as this array, or a part of it, is referred to.
        self.array: np.ndarray = np.frombuffer(mapping, np.uint8)
        self._give_up = weakref.finalize(self, os.close, self.fd)  # of one that nobody closes, too
        self._give_up.atexit = False

    def write(self, source: np.ndarray, pieces: np.ndarray) -> None:
        """See `ExportedArena`. Without the interpreter lock: other threads go on meanwhile."""
        copy_pieces(source, self.array, pieces)

    def lock(self, source: np.ndarray) -> bool:
        """A processor copies from any memory alike."""
        return False

    def unlock(self, source: np.ndarray) -> None:
        """Nothing was locked."""

    def close(self) -> None:
        """Give up this process' descriptor; the memory goes with the last mapping of it. Idempotent."""
        self._give_up()
        self.fd = -1


class AttachedArena:
    """An arena of another process, mapped here for reading."""

    kind: ArenaKind = "host"

    def __init__(self, fd: int, size: int) -> None:
        """Takes `fd` over and closes it. Raises ArenaError for memory that could be taken away under the mapping, that
        others than its donor may write to, or that is not of this size."""
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or _seals(fd) & _SEALS != _SEALS:
                raise ArenaError("what was offered is not a sealed memfd: its donor could take it away under our hands")
            if size < 1 or status.st_size != size:
                raise ArenaError(f"what was offered has {status.st_size} bytes, not the {size} that were agreed on")
            mapping = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise ArenaError(f"what was offered cannot be mapped ({error.strerror})") from None
        finally:
            os.close(fd)
        self.size = size
        #: uint8 [size], read-only. The memory is mapped for as long as this array, or a part of it, is referred to: a
        #: read under way keeps it, whatever becomes of this object.
        self.array: np.ndarray = np.frombuffer(mapping, np.uint8)

    def read(self, pieces: np.ndarray, into: np.ndarray) -> None:
        """Copy bytes from here: int64 [n, 3] of (offset here, offset in `into`, length)."""
        copy_pieces(self.array, into, pieces)

    def close(self) -> None:
        """Unmap it, as soon as no part of the array is in use any more. Idempotent."""
        self.array = self.array[:0].copy()


def copy_pieces(source: np.ndarray, target: np.ndarray, pieces: np.ndarray) -> None:
    """Copy bytes within this process: int64 [n, 3] of (offset in `source`, offset in `target`, length)."""
    for start, at, length in pieces.tolist():
        np.copyto(target[at : at + length], source[start : start + length])


def _seals(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return 0  # not a memfd
