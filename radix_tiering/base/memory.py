"""Large buffers in huge pages."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np

from .page import round_up
from .usable_memory import available_memory

HUGE_PAGE_BYTES = 2 << 20
#: Touched by one thread at a time: small enough for a smooth progress report.
_PIECE_BYTES = 256 << 20
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_MADV_COLLAPSE = 25  # Linux 6.1
_MAP_FIXED = 0x10
_EHWPOISON = 133  # a page whose memory is known to be bad; not in the errno module of every Python

_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_madvise.restype = ctypes.c_int
_mmap = _libc.mmap
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mmap.restype = ctypes.c_void_p
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NOWHERE = ctypes.c_void_p(-1).value


def huge_array(
    size: int,
    *,
    progress: Callable[[int, int], None] | None = None,
    available: Callable[[], int | None] = available_memory,
) -> np.ndarray:
    """`size` zeroed bytes (uint8) at a 2 MiB boundary, in huge pages where the kernel gives them, resident on return.

    Huge pages decide the speed of direct I/O: the kernel pins a buffer page by page and makes one disk segment of each
    run of neighbours, so a 256 KiB read into 4 KiB pages costs 64 pins and as many segments. Measured with the same
    ring on the same disk: 1.2 GB/s into `mmap.mmap(-1, n)`, which is shared memory and gets 4 KiB pages even after
    madvise, 1.3 into private memory without madvise, 3.7 into private memory with MADV_HUGEPAGE.

    Every page is touched here, in parallel, so that neither a page fault nor a lack of memory comes later in the
    middle of a transfer. `progress(done, size)`, both in bytes, is called from this thread.

    Memory goes back to the system when the array and all views of it have died. Raises MemoryError, naming size and
    remedy: before touching anything when `size` exceeds `available()` bytes, since the kernel would kill a process
    rather than refuse, most of all one in a container.
    """
    if size <= 0:
        raise ValueError(f"size must be positive, not {size}")
    free = available()
    if free is not None and size > free:
        raise MemoryError(f"{size} bytes of host memory asked for, {free} available: {_REMEDY}")
    length = round_up(size, HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES  # room to start at a boundary
    try:
        mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes of host memory cannot be mapped ({error}): {_REMEDY}") from error
    whole: np.ndarray = np.frombuffer(mapping, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE_BYTES
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE, start, length - HUGE_PAGE_BYTES)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: a kernel without transparent huge pages; slower, but it works
            raise
    array = whole[start : start + size]
    _touch(array, progress)
    return array


def shared_array(descriptor: int, size: int) -> np.ndarray:
    """The first `size` bytes (uint8) of a file in memory, which others map, too, at a 2 MiB boundary, so that they may
    lie in huge pages: see `collapse`. Raises OSError where they cannot be mapped. They are let go of when the array and
    all views of it have died; the descriptor may be closed before."""
    # Where a mapping begins is the kernel's choice, so one that is too large is made, and this one in the midst of it.
    length = size + HUGE_PAGE_BYTES
    begin = _map(None, length, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    memory = (ctypes.c_ubyte * size).from_address(round_up(begin, HUGE_PAGE_BYTES))
    # Not at the interpreter's end: threads that it does not wait for may be at it then.
    weakref.finalize(memory, _munmap, begin, length).atexit = False
    at = ctypes.addressof(memory)
    _map(at, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, descriptor)
    array: np.ndarray = np.frombuffer(memoryview(memory), np.uint8)
    return array


def _map(at: int | None, length: int, protection: int, flags: int, descriptor: int) -> int:
    address: int = _mmap(at, length, protection, flags, descriptor, 0)
    if address == _NOWHERE:
        number = ctypes.get_errno()
        raise OSError(number, f"{length} bytes cannot be mapped: {os.strerror(number)}")
    return address


def collapse(array: np.ndarray) -> bool:
    """Move what `shared_array` made into huge pages, resident on return, whatever the kernel does with shared memory by
    itself, which mostly is nothing. False where it cannot: then it stays as it is, and is slower. Takes about 1.5 ms
    for each MiB. Raises MemoryError, naming size and remedy, where there is no memory for it."""
    _populate(array)  # what is not there is not moved
    return bool(_madvise(array.ctypes.data, array.nbytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, _MADV_COLLAPSE) == 0)


_REMEDY = "configure a smaller tier, or end other processes"


def _touch(array: np.ndarray, progress: Callable[[int, int], None] | None) -> None:
    pieces = [array[at : at + _PIECE_BYTES] for at in range(0, array.nbytes, _PIECE_BYTES)]
    if len(pieces) == 1:
        _populate(pieces[0])
        if progress is not None:
            progress(array.nbytes, array.nbytes)
        return
    # Zeroing is bound by memory bandwidth, which a few cores use up.
    workers = min(8, os.cpu_count() or 1, len(pieces))
    done = 0
    with ThreadPoolExecutor(workers, thread_name_prefix="swift-touch") as pool:
        pending: set[Future[int]] = {pool.submit(_populate, piece) for piece in pieces}
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                done += sum(future.result() for future in finished)
                if progress is not None:
                    progress(done, array.nbytes)
        finally:
            for future in pending:
                future.cancel()


def _populate(piece: np.ndarray) -> int:
    """Make one piece resident; returns its bytes. The call releases the interpreter lock."""
    start = piece.ctypes.data
    length = round_up(start + piece.nbytes, mmap.PAGESIZE) - start  # whole pages, all of them inside the mapping
    if _madvise(start, length, _MADV_POPULATE_WRITE) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOMEM, errno.EFAULT, _EHWPOISON):
            raise MemoryError(f"{piece.nbytes} bytes cannot be made resident ({os.strerror(number)}): {_REMEDY}")
        piece[:: mmap.PAGESIZE] = 0  # a kernel before 5.14
    return piece.nbytes
