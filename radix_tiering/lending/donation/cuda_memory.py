"""Memory of NVIDIA GPUs that processes of one machine lend each other, by CUDA's virtual memory management.

An allocation has a file descriptor, which travels over the arena's socket as a memfd does. It lives until nobody has it
mapped and no descriptor of it is open, so a donor that ends takes nothing from under a borrower (docs/decisions/0013).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import torch

from .arena import ArenaError
from .cuda_driver import CudaDriver
from .device_memory import DeviceMemory

logger = logging.getLogger(__name__)


class _Mapping(NamedTuple):
    memory: torch.Tensor
    length: int  # bytes, in whole granules


class _Lane(NamedTuple):
    """Copies of one direction, one caller's at a time: each waits for what it has queued."""

    lock: threading.Lock
    stream: Any


class CudaDeviceMemory(DeviceMemory):
    """One GPU. It holds its primary context, which torch uses too, and two streams until the process ends."""

    def __init__(self, ordinal: int, driver: Any = None, device: torch.device | None = None) -> None:
        """`ordinal`: as torch and CUDA count. `driver`: `cuda.bindings.driver`, or what stands in for it. `device`: of
        the tensors; by default the GPU.

        Raises ArenaError for a GPU or a driver that cannot share memory.
        """
        self._ordinal = ordinal
        self._device = device or torch.device("cuda", ordinal)
        self._driver = CudaDriver(driver)
        self._lock = threading.Lock()
        self._mappings: dict[int, _Mapping] = {}  # by address
        types = self._driver.types
        self._handle_type = types.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._call("cuInit", 0)
        number = self._call("cuDeviceGet", ordinal)
        # Where there are both, in CUDA 12, it is the second version that tells the instances of a MIG device apart.
        uuid = "cuDeviceGetUuid_v2" if hasattr(types, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self.name = f"GPU-{UUID(bytes=bytes(self._call(uuid, number).bytes))}"
        for attribute, what in (
            ("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "virtual memory management"),
            ("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", "memory behind file descriptors"),
        ):
            key = getattr(types.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
            if not self._call("cuDeviceGetAttribute", key, number):
                raise ArenaError(f"{self.name} has no {what}, which lending needs; remove peer.donate and peer.borrow")
        locks = types.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        #: Whether memory that this process may only read can be locked.
        self._locks = bool(self._call("cuDeviceGetAttribute", locks, number))
        with ExitStack() as undo:
            self._context = self._call("cuDevicePrimaryCtxRetain", number)
            undo.callback(self._undo, "cuDevicePrimaryCtxRelease", number)
            with self._current(), ExitStack() as streams:
                kind = types.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
                self._granule = int(self._call("cuMemGetAllocationGranularity", self._properties(), kind))
                self._in, self._out = self._lane(streams), self._lane(streams)
                streams.pop_all()
            undo.pop_all()

    # ---- DeviceMemory ----

    def export(self, size: int) -> tuple[int, torch.Tensor]:
        length = self._rounded(size)
        with self._current(), ExitStack() as undo, ExitStack() as always:
            handle = self._call("cuMemCreate", length, self._properties(), 0)
            # The mapping and the descriptor keep the memory.
            always.callback(self._undo, "cuMemRelease", handle)
            fd = int(self._call("cuMemExportToShareableHandle", handle, self._handle_type, 0))
            undo.callback(os.close, fd)
            os.set_inheritable(fd, False)
            address = self._map(undo, handle, length, "READWRITE")
            self._call("cuMemsetD8Async", address, 0, length, self._in.stream)
            self._call("cuStreamSynchronize", self._in.stream)
            memory = self._tensor(address, size, length)
            undo.pop_all()
        return fd, memory

    def attach(self, fd: int, size: int) -> torch.Tensor:
        length = self._rounded(size)
        with self._current(), ExitStack() as undo, ExitStack() as always:
            handle = self._call("cuMemImportFromShareableHandle", fd, self._handle_type)
            always.callback(self._undo, "cuMemRelease", handle)
            memory = self._tensor(self._map(undo, handle, length, "READ", "READWRITE"), size, length)
            undo.pop_all()
        return memory

    def release(self, memory: torch.Tensor) -> None:
        address = memory.data_ptr()
        with self._lock:
            mapping = self._mappings.get(address)
            if mapping is None or mapping.memory is not memory:
                return  # the address may be another mapping's by now
            del self._mappings[address]
        self._call("cuMemUnmap", address, mapping.length)
        self._call("cuMemAddressFree", address, mapping.length)

    def lock(self, memory: np.ndarray) -> bool:
        if not self._locks:
            return False
        try:
            with self._current():
                self._call(
                    "cuMemHostRegister",
                    memory.ctypes.data,
                    memory.nbytes,
                    self._driver.types.CU_MEMHOSTREGISTER_READ_ONLY,
                )
        except ArenaError as error:
            # Such as a limit of locked memory (ulimit -l). Copies are slower, and right.
            logger.warning(
                "swift-tiers: pages to be stored come to %s through a buffer of its driver: %s", self.name, error
            )
            return False
        return True

    def unlock(self, memory: np.ndarray) -> None:
        try:
            with self._current():
                self._call("cuMemHostUnregister", memory.ctypes.data)
        except ArenaError as error:
            logger.warning("swift-tiers: memory of the host is not given back: %s", error)

    def _read(self, memory: torch.Tensor, pieces: np.ndarray, into: np.ndarray) -> None:
        device, host = self._address(memory), into.ctypes.data
        self._copy("cuMemcpyDtoHAsync", self._out, [(host + at, device + start, n) for start, at, n in pieces.tolist()])

    def _write(self, source: np.ndarray, memory: torch.Tensor, pieces: np.ndarray) -> None:
        device, host = self._address(memory), source.ctypes.data
        self._copy("cuMemcpyHtoDAsync", self._in, [(device + at, host + start, n) for start, at, n in pieces.tolist()])

    def _pull(self, source: torch.Tensor, memory: torch.Tensor, pieces: np.ndarray) -> None:
        # By the copy engine: nobody waits for a store, and the processors are the forward's.
        there, here = self._address(source), self._address(memory)
        self._copy("cuMemcpyDtoDAsync", self._in, [(here + at, there + start, n) for start, at, n in pieces.tolist()])

    # ---- the driver ----

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._driver.call(name, *arguments)

    def _undo(self, name: str, *arguments: Any) -> None:
        self._driver.undo(name, *arguments)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The GPU's context is the calling thread's, which it need not have been before."""
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._undo("cuCtxPopCurrent")

    def _lane(self, undo: ExitStack) -> _Lane:
        # Does not wait for, nor keep, the default stream, on which forwards run.
        stream = self._call("cuStreamCreate", self._driver.types.CUstream_flags.CU_STREAM_NON_BLOCKING)
        undo.callback(self._undo, "cuStreamDestroy", stream)
        return _Lane(threading.Lock(), stream)

    def _properties(self) -> Any:
        types = self._driver.types
        properties = types.CUmemAllocationProp()
        properties.type = types.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = types.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self._ordinal
        properties.requestedHandleTypes = self._handle_type
        return properties

    def _rounded(self, size: int) -> int:
        return -(-size // self._granule) * self._granule

    def _map(self, undo: ExitStack, handle: Any, length: int, *access: str) -> int:
        """Where the memory lies now, with the first access of these that the driver grants."""
        address = int(self._call("cuMemAddressReserve", length, 0, 0, 0))
        undo.callback(self._undo, "cuMemAddressFree", address, length)
        self._call("cuMemMap", address, length, 0, handle, 0)
        undo.callback(self._undo, "cuMemUnmap", address, length)
        types = self._driver.types
        description = types.CUmemAccessDesc()
        description.location.type = types.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        description.location.id = self._ordinal
        for number, one in enumerate(access, 1):
            description.flags = getattr(types.CUmemAccess_flags, f"CU_MEM_ACCESS_FLAGS_PROT_{one}")
            try:
                self._call("cuMemSetAccess", address, length, [description], 1)
            except ArenaError:
                if number == len(access):
                    raise
            else:
                break
        return address

    def _tensor(self, address: int, size: int, length: int) -> torch.Tensor:
        # Told which device it is for: of memory of another GPU, torch would find out that one's number, which need not
        # even be visible here.
        storage = torch._C._construct_storage_from_data_pointer(address, self._device, size)
        memory = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage, 0, (size,))
        with self._lock:
            self._mappings[address] = _Mapping(memory, length)
        return memory

    def _address(self, memory: torch.Tensor) -> int:
        """Where a tensor lies. Raises ArenaError for one that is not mapped any more."""
        address = memory.data_ptr()
        with self._lock:
            if not any(start <= address < start + one.length for start, one in self._mappings.items()):
                raise ArenaError("this memory of a GPU is not mapped here any more")
        return address

    def _copy(self, name: str, lane: _Lane, copies: list[tuple[int, int, int]]) -> None:
        with lane.lock, self._current():
            try:
                for target, source, length in copies:
                    self._call(name, target, source, length, lane.stream)
            except ArenaError:
                self._undo("cuStreamSynchronize", lane.stream)
                raise
            self._call("cuStreamSynchronize", lane.stream)
