"""A device that is none: `DeviceMemory` over memfds, which travel between processes as a GPU's descriptors do.

It keeps the contract, and to it: what is released is poison from then on, released memory is not copied, nothing is
released while it is used, and memory of others is not written to (which the kernel sees to: SIGSEGV).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from swift_tiers.radix_tiering.lending.donation.arena import ArenaError, ArenaKind
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory

#: Memory is had in multiples of so many bytes.
GRANULE = 1 << 16
#: What is read where something was mapped before.
POISON = 0xEE
_MARK = "fake-device:"
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


@dataclass
class _Mapping:
    address: int
    length: int  # bytes, in whole granules
    own: bool
    uses: int = 0
    released: bool = False


class FakeDeviceMemory(DeviceMemory):
    """`name` is the device's, `reaches` the names of the others whose memory it can map; None: of all."""

    def __init__(self, name: str = "GPU-a", reaches: set[str] | None = None, kind: ArenaKind = "cuda") -> None:
        self.name = name
        self.kind = kind
        self.reaches = reaches
        #: Why the next calls fail: by "export", "attach", "read", "write", "pull".
        self.faults: dict[str, str] = {}
        #: Called within each read or write, before the copy.
        self.on_copy: Callable[[str], None] = lambda what: None
        #: Calls that ended well.
        self.calls: Counter[str] = Counter()
        #: Where memory of the host begins that is locked for copies.
        self.locked: set[int] = set()
        self._lock = threading.Lock()
        self._mappings: dict[int, _Mapping] = {}

    @property
    def mapped(self) -> int:
        """Mappings that have not been released."""
        return sum(not mapping.released for mapping in self._mappings.values())

    def lock(self, memory: np.ndarray) -> bool:
        assert memory.ctypes.data not in self.locked
        self.locked.add(memory.ctypes.data)
        return True

    def unlock(self, memory: np.ndarray) -> None:
        self.locked.remove(memory.ctypes.data)

    def export(self, size: int) -> tuple[int, torch.Tensor]:
        self._fail("export")
        fd = os.memfd_create(_MARK + self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, -(-size // GRANULE) * GRANULE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        memory = self._map(fd, size, own=True)
        self.calls["export"] += 1
        return fd, memory

    def attach(self, fd: int, size: int) -> torch.Tensor:
        self._fail("attach")
        device = os.readlink(f"/proc/self/fd/{fd}").removeprefix("/memfd:").removesuffix(" (deleted)")
        if not device.startswith(_MARK):
            raise ArenaError("what was offered is no memory of a device")
        if self.reaches is not None and device.removeprefix(_MARK) not in self.reaches | {self.name}:
            raise ArenaError("the one device does not reach the other's memory")
        if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_size < size:
            raise ArenaError(f"what was offered is smaller than the {size} bytes that were agreed on")
        memory = self._map(fd, size, own=False)
        self.calls["attach"] += 1
        return memory

    def release(self, memory: torch.Tensor) -> None:
        with self._lock:
            mapping = self._mappings[memory.data_ptr()]
            if mapping.released:
                return
            assert not mapping.uses, "memory was released while it was used"
            mapping.released = True
            # The addresses stay taken, so that whoever comes back finds out.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _mmap(mapping.address, mapping.length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1)
            ctypes.memset(mapping.address, POISON, mapping.length)
        self.calls["release"] += 1

    @contextmanager
    def using(self, memory: torch.Tensor) -> Iterator[None]:
        """A copy or kernel in this memory is under way."""
        with self._lock:
            mapping = self._mapping_of(memory)
            assert not mapping.released, "memory was used after it had been released"
            mapping.uses += 1
        try:
            yield
        finally:
            with self._lock:
                mapping.uses -= 1

    def _read(self, memory: torch.Tensor, pieces: np.ndarray, into: np.ndarray) -> None:
        self._fail("read")
        with self.using(memory):
            self.on_copy("read")
            for start, at, length in pieces.tolist():
                into[at : at + length] = memory[start : start + length].numpy()
        self.calls["read"] += 1

    def _write(self, source: np.ndarray, memory: torch.Tensor, pieces: np.ndarray) -> None:
        self._fail("write")
        assert self._mapping_of(memory).own, "memory of somebody else was written to"
        with self.using(memory):
            self.on_copy("write")
            for start, at, length in pieces.tolist():
                memory[at : at + length].numpy()[:] = source[start : start + length]
        self.calls["write"] += 1

    def _pull(self, source: torch.Tensor, memory: torch.Tensor, pieces: np.ndarray) -> None:
        self._fail("pull")
        assert self._mapping_of(memory).own, "memory of somebody else was written to"
        with self.using(memory), self.using(source):
            self.on_copy("pull")
            for start, at, length in pieces.tolist():
                memory[at : at + length] = source[start : start + length]
        self.calls["pull"] += 1

    def _fail(self, what: str) -> None:
        if what in self.faults:
            raise ArenaError(self.faults[what])

    def _map(self, fd: int, size: int, *, own: bool) -> torch.Tensor:
        length = os.fstat(fd).st_size
        address = _mmap(None, length, mmap.PROT_READ | (mmap.PROT_WRITE if own else 0), mmap.MAP_SHARED, fd)
        with self._lock:
            self._mappings[address] = _Mapping(address, length, own)
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

    def _mapping_of(self, memory: torch.Tensor) -> _Mapping:
        """That a tensor, or a view of it, lies in."""
        at = memory.data_ptr()
        return next(one for one in self._mappings.values() if one.address <= at < one.address + one.length)


_MAP_FIXED = 0x10


def _mmap(address: int | None, length: int, protection: int, flags: int, fd: int) -> int:
    found: int = _libc.mmap(address, length, protection, flags, fd, 0)
    if found == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return found


def lend_a_gpu() -> None:
    """From now on this process' CPU platform has SGLang's pool lie in the memory of such a device, where it lends."""
    import sglang.srt.managers.scheduler  # noqa: F401 - before its parts, which import each other

    from swift_tiers.sglang_ext.pools import shared_pool

    device = FakeDeviceMemory("GPU-a")
    shared_pool.gpu_memory = lambda _: device
    shared_pool.SharedKVPool = shared_pool.DeviceKVPool  # type: ignore[misc]
