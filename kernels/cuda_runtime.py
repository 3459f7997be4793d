"""The CUDA runtime that torch has loaded, for what torch's own door to it lacks: strided copies, lists of copies, and
forgetting errors.

A call that fails leaves its error behind for the thread, and torch looks for one after each kernel that it launches:
the next launch, whoever's, would be blamed for it. So whoever goes on after a failure has to take the error away.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np
import torch

#: cudaMemcpyDefault: the runtime finds out which side is the device.
_MEMCPY_DEFAULT = 4
#: cudaMemcpySrcAccessOrderStream: sources are read in the stream's turn.
_IN_STREAM_ORDER = 1
#: The release of CUDA whose cudaMemcpyBatchAsync takes the arguments that it is given here.
FIRST_WITH_LISTS = 13


class Rows(NamedTuple):
    """Rows of bytes in memory."""

    address: int
    stride: int  # bytes from one to the next


class _Location(ctypes.Structure):
    """cudaMemLocation: ignored but for managed memory."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _CopyAttributes(ctypes.Structure):
    """cudaMemcpyAttributes."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


class CudaRuntime:
    """Any thread may call; the interpreter lock is not held meanwhile. What is called is done to its current device."""

    def __init__(self, library: Any, *, lists: bool = True) -> None:
        """`library`: libcudart, or what stands in for it. `lists`: whether it is of `FIRST_WITH_LISTS` or later."""
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        library.cudaMemcpy2DAsync.argtypes = [pointer, size, pointer, size, size, size, ctypes.c_int, pointer]
        library.cudaHostRegister.argtypes = [pointer, size, ctypes.c_uint]
        library.cudaHostUnregister.argtypes = [pointer]
        library.cudaGetLastError.argtypes = []
        #: Whether `copy_list` can be called.
        self.copies_lists = lists
        if lists:
            library.cudaMemcpyBatchAsync.argtypes = [pointer] * 3 + [size, pointer, pointer, size, pointer]
        # Of every list of copies, which are only read.
        self._attributes, self._first = _CopyAttributes(source_order=_IN_STREAM_ORDER), ctypes.c_size_t(0)
        self._lengths = np.empty(0, dtype=np.uint64)  # of the last list: a load has many of the same
        self._library = library

    def copy_rows(self, source: Rows, target: Rows, width: int, count: int, stream: int) -> None:
        """Queue a copy of `count` rows of `width` bytes, one of the two sides in page-locked host memory. Raises
        RuntimeError; nothing is queued then."""
        error = self._library.cudaMemcpy2DAsync(
            target.address, target.stride, source.address, source.stride, width, count, _MEMCPY_DEFAULT, stream
        )
        if error:
            self._library.cudaGetLastError()
            raise RuntimeError(f"cudaMemcpy2DAsync failed with error {error}")

    def copy_list(self, sources: np.ndarray, targets: np.ndarray, nbytes: int, stream: int) -> None:
        """Queue a copy of `nbytes` from each address of `sources` to the one of `targets`, uint64 [n], n > 0, all in
        page-locked host memory or all on the device; they are done in no order of their own. The lists may change as
        soon as this returns. Raises RuntimeError; nothing is queued then."""
        lengths = self._lengths
        if len(lengths) < len(sources) or lengths[0] != nbytes:
            # Never written to again: another thread may be copying by it.
            lengths = self._lengths = np.full(len(sources), nbytes, dtype=np.uint64)
        error = self._library.cudaMemcpyBatchAsync(
            targets.ctypes.data,
            sources.ctypes.data,
            lengths.ctypes.data,
            len(sources),
            ctypes.addressof(self._attributes),
            ctypes.addressof(self._first),
            1,
            stream,
        )
        if error:
            self._library.cudaGetLastError()
            raise RuntimeError(f"cudaMemcpyBatchAsync failed with error {error}")

    def page_lock(self, address: int, nbytes: int) -> int:
        """Have the device reach host memory by itself, until `page_unlock`: 0, or the error."""
        error: int = self._library.cudaHostRegister(address, nbytes, 0)
        if error:
            self._library.cudaGetLastError()
        return error

    def page_unlock(self, address: int) -> int:
        """Take `page_lock` back, which takes long where much memory is locked: 0, or the error, as of memory that was
        not."""
        error: int = self._library.cudaHostUnregister(address)
        if error:
            self._library.cudaGetLastError()
        return error


_lock = threading.Lock()
_runtime: CudaRuntime | None = None


def cuda_runtime() -> CudaRuntime:
    """This process' own. Raises OSError where torch has not brought it along."""
    global _runtime
    with _lock:
        if _runtime is None:
            assert torch.version.cuda is not None, "this torch is built without CUDA"
            torch.cuda.init()
            release = torch.version.cuda.split(".")[0]
            library = ctypes.CDLL(f"libcudart.so.{release}")
            _runtime = CudaRuntime(library, lists=int(release) >= FIRST_WITH_LISTS)
        return _runtime
