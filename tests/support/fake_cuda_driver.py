"""Stands in for `cuda.bindings.driver`: the functions that lending uses, over memfds, strict about how they are used.

Types and enumerations are the real module's, which needs no driver, so that a field or a flag that it does not have is
found out here. Queued copies happen when their stream is waited for, and not before. Memory without access is memory
that the kernel lets nobody touch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import Counter
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from cuda.bindings import driver as real

#: Bytes; a real GPU's is 2 MiB.
GRANULE = 1 << 16
_MARK = "fake-gpu:"
_OK = real.CUresult.CUDA_SUCCESS
_CONTEXT = 77
_MAP_FIXED, _PROT_NONE = 0x10, 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


#: What the real module returns in place of numbers.
_NUMBERED = (real.CUdevice, real.CUcontext, real.CUstream, real.CUmemGenericAllocationHandle, real.CUdeviceptr)


class _Range:
    def __init__(self, length: int) -> None:
        self.length = length
        self.handle: int | None = None
        self.gpu = ""  # that the memory is of


def uuid_of(gpu: str) -> str:
    """The name that a GPU of this fake has as `DeviceMemory`."""
    return f"GPU-{uuid5(NAMESPACE_DNS, gpu)}"


class FakeCudaDriver:
    """`gpu`: which one this process sees, as its device 0. `reaches`: the others that it can map memory of.

    `failing`: results that functions of a name return from now on, instead of doing anything. `fail_at`: the number of
    the call, from 1, that fails with an unknown error, if it is not one that gives something back.
    """

    def __init__(self, gpu: str = "a", reaches: tuple[str, ...] = (), *, fail_at: int = 0) -> None:
        self.gpu, self.reaches = gpu, (gpu, *reaches)
        self.failing: dict[str, Any] = {}
        self.refused_access: set[Any] = set()
        self.fail_at = fail_at
        self.failed = ""
        self.calls: Counter[str] = Counter()
        self.asked: dict[str, tuple[Any, ...]] = {}  # what each was last called with
        self.memory_left = 1 << 40
        self.attributes = 1
        self.lacking: set[Any] = set()  # attributes that are 0
        self._count = 0
        self._threads = threading.local()
        self._numbers = iter(range(1, 1 << 30))
        self.contexts = 0
        self.handles: dict[int, int] = {}  # -> memfd
        self.ranges: dict[int, _Range] = {}
        self.streams: dict[int, list[tuple[int, int, int]]] = {}
        self.locked: dict[int, int] = {}  # memory of the host: address -> bytes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return getattr(real, name)
        if name.startswith("cu") and hasattr(real, name) and hasattr(type(self), f"do_{name}"):
            return lambda *arguments: self._do(name, arguments)
        raise AttributeError(name)

    @property
    def open_things(self) -> dict[str, int]:
        """What has not been given back."""
        mapped = sum(one.handle is not None for one in self.ranges.values())
        found = {
            "contexts": self.contexts,
            "handles": len(self.handles),
            "ranges": len(self.ranges),
            "mappings": mapped,
            "streams": len(self.streams),
            "pushed": len(self._stack),
            "locked": len(self.locked),
        }
        return {name: count for name, count in found.items() if count}

    @property
    def _stack(self) -> list[int]:
        """The contexts of the calling thread."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[int] = self._threads.stack
        return stack

    def _do(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        gives_back = any(word in name for word in ("Release", "Unmap", "Free", "Pop", "Destroy", "Unregister"))
        if not gives_back:
            self._count += 1
        if name in self.failing or (self._count == self.fail_at and not gives_back):
            self.failed = name
            return (self.failing.get(name, real.CUresult.CUDA_ERROR_UNKNOWN),)
        if name not in _ANYWHERE and not self._stack:
            return (real.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        self.calls[name] += 1
        self.asked[name] = arguments
        plain = (int(one) if isinstance(one, _NUMBERED) else one for one in arguments)
        result: tuple[Any, ...] = getattr(self, f"do_{name}")(*plain)
        return result

    # ---- devices and contexts ----

    def do_cuInit(self, flags: int) -> tuple[Any, ...]:
        return (_OK,)

    def do_cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return (_OK, real.CUdevice(0)) if ordinal == 0 else (real.CUresult.CUDA_ERROR_INVALID_DEVICE,)

    def do_cuDeviceGetUuid(self, number: int) -> tuple[Any, ...]:
        class Uuid:
            bytes = uuid5(NAMESPACE_DNS, self.gpu).bytes

        return _OK, Uuid

    def do_cuDeviceGetAttribute(self, attribute: Any, number: int) -> tuple[Any, ...]:
        assert isinstance(attribute, real.CUdevice_attribute)
        return _OK, 0 if attribute in self.lacking else self.attributes

    def do_cuDevicePrimaryCtxRetain(self, number: int) -> tuple[Any, ...]:
        self.contexts += 1
        return _OK, real.CUcontext(_CONTEXT)

    def do_cuDevicePrimaryCtxRelease(self, number: int) -> tuple[Any, ...]:
        assert not self.streams, "a context was released with streams in it"
        self.contexts -= 1
        return (_OK,)

    def do_cuCtxPushCurrent(self, context: Any) -> tuple[Any, ...]:
        assert context == _CONTEXT
        assert self.contexts
        self._stack.append(context)
        return (_OK,)

    def do_cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return _OK, self._stack.pop()

    # ---- memory ----

    def do_cuMemGetAllocationGranularity(self, properties: Any, option: Any) -> tuple[Any, ...]:
        self._check(properties)
        assert isinstance(option, real.CUmemAllocationGranularity_flags)
        return _OK, GRANULE

    def do_cuMemCreate(self, size: int, properties: Any, flags: int) -> tuple[Any, ...]:
        self._check(properties)
        assert flags == 0
        assert size % GRANULE == 0
        if size > self.memory_left:
            return (real.CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
        fd = os.memfd_create(_MARK + self.gpu)
        os.ftruncate(fd, size)
        os.pwrite(fd, b"left behind by others", 0)
        return _OK, real.CUmemGenericAllocationHandle(self._new(self.handles, fd))

    def do_cuMemExportToShareableHandle(self, handle: int, kind: Any, flags: int) -> tuple[Any, ...]:
        assert kind == real.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        fd = os.dup(self.handles[handle])
        os.set_inheritable(fd, True)
        return _OK, fd

    def do_cuMemImportFromShareableHandle(self, fd: int, kind: Any) -> tuple[Any, ...]:
        assert kind == real.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{_MARK}"):
            return (real.CUresult.CUDA_ERROR_INVALID_VALUE,)
        return _OK, real.CUmemGenericAllocationHandle(self._new(self.handles, os.dup(fd)))

    def do_cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        os.close(self.handles.pop(handle))
        return (_OK,)

    def do_cuMemAddressReserve(self, size: int, alignment: int, hint: int, flags: int) -> tuple[Any, ...]:
        assert (alignment, hint, flags) == (0, 0, 0)
        address: int = _libc.mmap(None, size, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.ranges[address] = _Range(size)
        return _OK, real.CUdeviceptr(address)

    def do_cuMemAddressFree(self, address: int, size: int) -> tuple[Any, ...]:
        one = self.ranges.pop(address)
        assert one.handle is None, "addresses were freed with memory at them"
        assert one.length == size
        _libc.munmap(address, size)
        return (_OK,)

    def do_cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> tuple[Any, ...]:
        one = self.ranges[address]
        assert one.handle is None
        assert one.length == size
        assert (offset, flags) == (0, 0)
        fd = self.handles[handle]
        if size > os.fstat(fd).st_size:
            return (real.CUresult.CUDA_ERROR_INVALID_VALUE,)
        _libc.mmap(address, size, _PROT_NONE, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
        one.handle = handle
        one.gpu = os.readlink(f"/proc/self/fd/{fd}").removeprefix(f"/memfd:{_MARK}").removesuffix(" (deleted)")
        return (_OK,)

    def do_cuMemUnmap(self, address: int, size: int) -> tuple[Any, ...]:
        one = self.ranges[address]
        assert one.handle is not None, "what is not mapped was unmapped"
        assert one.length == size
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        _libc.mmap(address, size, _PROT_NONE, flags, -1, 0)
        one.handle = None
        return (_OK,)

    def do_cuMemSetAccess(self, address: int, size: int, descriptions: list[Any], count: int) -> tuple[Any, ...]:
        one, (description,) = self.ranges[address], descriptions
        assert one.handle is not None
        assert count == 1
        assert description.location.type == real.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        assert description.location.id == 0
        if one.gpu not in self.reaches or description.flags in self.refused_access:
            return (real.CUresult.CUDA_ERROR_NOT_SUPPORTED,)
        writes = description.flags == real.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _libc.mprotect(address, size, mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0))
        return (_OK,)

    def do_cuMemHostRegister(self, address: int, size: int, flags: int) -> tuple[Any, ...]:
        assert flags == real.CU_MEMHOSTREGISTER_READ_ONLY
        assert address % mmap.PAGESIZE == 0
        if address in self.locked:
            return (real.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,)
        ctypes.string_at(address, size)  # it is mapped
        self.locked[address] = size
        return (_OK,)

    def do_cuMemHostUnregister(self, address: int) -> tuple[Any, ...]:
        ctypes.string_at(address, self.locked.pop(address))
        return (_OK,)

    # ---- copies ----

    def do_cuStreamCreate(self, flags: Any) -> tuple[Any, ...]:
        assert flags == real.CUstream_flags.CU_STREAM_NON_BLOCKING
        return _OK, real.CUstream(self._new(self.streams, []))

    def do_cuStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        assert not self.streams.pop(stream), "a stream was destroyed with copies in it"
        return (_OK,)

    def do_cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        self.streams[stream].append((target, source, size))
        return (_OK,)

    do_cuMemcpyDtoHAsync = do_cuMemcpyDtoDAsync = do_cuMemcpyHtoDAsync

    def do_cuMemsetD8Async(self, target: int, value: int, size: int, stream: int) -> tuple[Any, ...]:
        zeros = ctypes.create_string_buffer(size)
        self._kept = zeros
        assert value == 0
        self.streams[stream].append((target, ctypes.addressof(zeros), size))
        return (_OK,)

    def do_cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        queued = self.streams[stream]
        while queued:
            ctypes.memmove(*queued.pop(0))
        return (_OK,)

    def _check(self, properties: Any) -> None:
        assert properties.type == real.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        assert properties.location.type == real.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        assert properties.location.id == 0
        kind = real.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        assert properties.requestedHandleTypes == kind

    def _new(self, where: dict[int, Any], what: Any) -> int:
        number = next(self._numbers)
        where[number] = what
        return number


#: What needs no context.
_ANYWHERE = {
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetUuid",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuCtxPushCurrent",
    "cuMemUnmap",
    "cuMemAddressFree",
}
