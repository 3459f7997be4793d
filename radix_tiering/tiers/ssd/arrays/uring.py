"""An io_uring ring over ctypes and numpy: no C extension, no dependency.

A ring is two queues in memory shared with the kernel. The submission queue takes entries (SQEs, 64 bytes) for any
number of files; one `io_uring_enter` hands the whole batch over, and may wait in the same call. The completion queue
gives back one 16-byte entry (CQE) per SQE. Both are numpy arrays here, filled and reaped by batch. Layouts and
numbers are those of `include/uapi/linux/io_uring.h`.

**Memory ordering.** The kernel works on other CPUs, so each shared index has to be argued for.

- Submission: without a polling thread (SQPOLL is never asked for) the kernel reads the submission tail and the SQEs
  inside our own `io_uring_enter`, on our own thread. Program order alone makes our stores visible there: nothing else
  is needed on any machine.
- Completion: the kernel, on any CPU, stores the CQE and then the tail with release. We must load the tail and then the
  CQEs, in that order. x86 never reorders loads, and a numpy element read of an aligned u32 is one load, so reading the
  tail first is enough. ARM may hoist the CQE loads above the tail load. A system call is no cure by itself: entering
  and leaving the kernel synchronises the instruction stream but is not architecturally a data barrier, and a reap
  after which nothing is submitted makes no call at all. So elsewhere than on x86 `_fence` runs between the two: an
  uncontended lock taken and released twice. The tail load may not sink below the first release, the first release and
  the second acquire are ordered (store-release before load-acquire), and the CQE loads may not rise above the latter.
- The completion head tells the kernel which CQEs it may overwrite. It could only race with our copy if the queue were
  full, and it never is: see below.

**The completion queue cannot overflow.** It is at least as long as the submission queue, and `push` refuses more than
`entries` operations that are pushed and not yet reaped. A slot of it is reused only after a later submission, which
is a call of ours made after the copy.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import threading
from pathlib import Path

import numpy as np

from ....base.kernel_files import text_in

_SETUP, _ENTER = 425, 426  # the same on every architecture but alpha
_OFFSET_RINGS, _OFFSET_SQES = 0, 0x10000000
_ENTER_GETEVENTS, _ENTER_EXT_ARG = 1 << 0, 1 << 3
_SETUP_CLAMP = 1 << 4
_FEATURES = {1 << 0: "SINGLE_MMAP", 1 << 1: "NODROP", 1 << 2: "SUBMIT_STABLE", 1 << 8: "EXT_ARG"}

NOP, READV, WRITEV = 0, 1, 2

_SQE = np.dtype(
    [
        ("opcode", "u1"),
        ("flags", "u1"),
        ("ioprio", "<u2"),
        ("fd", "<i4"),
        ("offset", "<u8"),
        ("address", "<u8"),
        ("length", "<u4"),
        ("operation_flags", "<u4"),
        ("user_data", "<u8"),
        ("buffer_index", "<u2"),
        ("personality", "<u2"),
        ("splice_fd", "<i4"),
        ("padding", "<u8", 2),
    ]
)
_CQE = np.dtype([("user_data", "<u8"), ("result", "<i4"), ("flags", "<u4")])
_U32 = 0xFFFFFFFF


def _u32s(names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_uint32) for name in names.split()]


class _SubmissionOffsets(ctypes.Structure):
    _fields_ = [*_u32s("head tail mask entries flags dropped array reserved"), ("user_address", ctypes.c_uint64)]


class _CompletionOffsets(ctypes.Structure):
    _fields_ = [*_u32s("head tail mask entries overflow cqes flags reserved"), ("user_address", ctypes.c_uint64)]


class _Parameters(ctypes.Structure):
    _fields_ = [
        *_u32s("sq_entries cq_entries flags sq_thread_cpu sq_thread_idle features wq_fd"),
        ("reserved", ctypes.c_uint32 * 3),
        ("sq", _SubmissionOffsets),
        ("cq", _CompletionOffsets),
    ]


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64)]


class _WaitArgument(ctypes.Structure):
    _fields_ = [
        ("signals", ctypes.c_uint64),
        *_u32s("signals_bytes min_wait_us"),
        ("timespec", ctypes.c_uint64),
    ]


_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

_fence_lock = threading.Lock()


def _fence() -> None:
    """A full barrier for machines that reorder loads; see the module's notes."""
    for _ in range(2):
        _fence_lock.acquire()
        _fence_lock.release()


#: Whether two loads may be seen out of order here.
_WEAKLY_ORDERED = platform.machine() not in ("x86_64", "AMD64", "i686", "i386")


class UringUnavailableError(OSError):
    """This kernel has io_uring but not what this module needs of it."""


class Ring:
    """The two queues of one io_uring. For one thread at a time; holds no buffers: the caller keeps alive, until the
    completion, what an operation points to (its iovecs too: a kernel may read those late)."""

    def __init__(self, entries: int = 256) -> None:
        """A ring for at most `entries` operations at once, rounded up by the kernel to a power of two.

        Raises OSError as `io_uring_setup` does (ENOSYS, EPERM, ENOMEM, EMFILE), and UringUnavailableError for a kernel
        before 5.11.
        """
        parameters = _Parameters(flags=_SETUP_CLAMP)
        fd = _syscall(ctypes.c_long(_SETUP), ctypes.c_uint(entries), ctypes.byref(parameters))
        if fd < 0:
            raise _os_error("io_uring_setup")
        self._fd: int = fd
        try:
            missing = [name for bit, name in _FEATURES.items() if not parameters.features & bit]
            if missing:
                raise UringUnavailableError(errno.ENOSYS, f"io_uring without {', '.join(missing)}: needs Linux 5.11")
            self._map(parameters)
        except BaseException:
            os.close(fd)
            raise

    def _map(self, parameters: _Parameters) -> None:
        sq, cq = parameters.sq, parameters.cq
        self.entries: int = parameters.sq_entries
        assert parameters.cq_entries >= self.entries, "the completion queue must hold every operation"
        ring_bytes = max(
            sq.array + self.entries * 4,
            cq.cqes + parameters.cq_entries * _CQE.itemsize,
        )
        # The views keep the mappings alive; the mappings go when `close` drops the views.
        rings = mmap.mmap(self._fd, ring_bytes, offset=_OFFSET_RINGS)
        sqes = mmap.mmap(self._fd, self.entries * _SQE.itemsize, offset=_OFFSET_SQES)

        def words(offset: int, count: int = 1) -> np.ndarray:
            return np.frombuffer(rings, "<u4", count, offset)

        self._sq_head, self._sq_tail = words(sq.head), words(sq.tail)
        self._cq_head, self._cq_tail = words(cq.head), words(cq.tail)
        self._sq_mask, self._cq_mask = int(words(sq.mask)[0]), int(words(cq.mask)[0])
        words(sq.array, self.entries)[:] = np.arange(self.entries, dtype=np.uint32)  # position i always names SQE i
        self._sqes = np.frombuffer(sqes, _SQE, self.entries)
        #: The same memory as 64-bit words, [entries, 8].
        self.words = np.frombuffer(sqes, np.int64).reshape(self.entries, 8)
        self._cqes = np.frombuffer(rings, _CQE, parameters.cq_entries, cq.cqes)
        self._batch = np.zeros(self.entries, _SQE)
        self._tail, self._head = int(self._sq_tail[0]), int(self._cq_head[0])
        self._outstanding = 0
        self._timespec = _Timespec()
        self._wait_argument = _WaitArgument(timespec=ctypes.addressof(self._timespec))
        #: `io_uring_enter` calls so far, and how many of them the kernel put off (EAGAIN, EBUSY).
        self.calls = 0
        self.put_off = 0

    @property
    def outstanding(self) -> int:
        """Operations pushed and not yet reaped."""
        return self._outstanding

    @property
    def unsent(self) -> int:
        """Operations pushed that the kernel has not taken yet."""
        return (self._tail - int(self._sq_head[0])) & _U32

    def push(
        self,
        opcodes: np.ndarray | list[int],
        fds: np.ndarray | list[int],
        offsets: np.ndarray | list[int],
        addresses: np.ndarray | list[int],
        lengths: np.ndarray | list[int],
        user_data: np.ndarray | list[int],
    ) -> None:
        """Put operations, one per element, into the submission queue; the next `enter` hands them over.

        For READV and WRITEV, `addresses` are those of iovec arrays and `lengths` their iovec counts. Raises
        ValueError when more than `entries` would be outstanding.
        """
        count = len(user_data)
        if count > self.entries - self._outstanding:
            raise ValueError(f"{count} operations pushed, {self.entries - self._outstanding} places free in the ring")
        batch = self._batch[:count]  # fields not set below are always zero
        batch["opcode"] = opcodes
        batch["fd"] = fds
        batch["offset"] = offsets
        batch["address"] = addresses
        batch["length"] = lengths
        batch["user_data"] = user_data
        self._sqes[np.arange(self._tail, self._tail + count) & self._sq_mask] = batch
        self.pushed(count)

    @property
    def tail(self) -> int:
        """Which entry is the next to be filled, of all that ever were."""
        return self._tail

    @property
    def mask(self) -> int:
        """Of such a number, its place in `words`."""
        return self._sq_mask

    def pushed(self, count: int) -> None:
        """So many entries behind `tail` have been filled, by `push` or in `words`; there was room for them."""
        self._tail = (self._tail + count) & _U32
        self._sq_tail[0] = self._tail
        self._outstanding += count

    def enter(self, wait: int = 0, timeout: float | None = None, *, submit: bool = True) -> bool:
        """One `io_uring_enter`: hand over what is unsent (if `submit`) and wait until `wait` CQEs are there to reap.

        `wait` is cut to what is outstanding. It may return earlier than asked: after `timeout` seconds (None: never),
        on a signal, or when the kernel took only a part of the batch. The caller looks at what it can reap and calls
        again. Returns False when the kernel put the call off for want of memory (EAGAIN) or of reaping (EBUSY): reap,
        or wait for something with `submit=False`, before trying again. Raises OSError for what only a fault of this
        module can cause.

        The timeout is an argument of the call (EXT_ARG, Linux 5.11) and not a TIMEOUT operation: that would take an
        SQE and a CQE of its own, which has to be cancelled and reaped again, and would spoil the count on which
        "no overflow" rests.
        """
        sending = self.unsent if submit else 0
        wait = min(wait, self._outstanding - (self.unsent - sending))
        if not sending and wait <= 0:
            return True
        flags, argument, argument_bytes = 0, None, 0
        if wait > 0:
            flags = _ENTER_GETEVENTS
            if timeout is not None:
                self._timespec.seconds, fraction = divmod(max(0, int(timeout * 1e9)), 1_000_000_000)
                self._timespec.nanoseconds = fraction
                flags |= _ENTER_EXT_ARG
                argument, argument_bytes = ctypes.byref(self._wait_argument), ctypes.sizeof(_WaitArgument)
        self.calls += 1
        result = _syscall(
            ctypes.c_long(_ENTER),
            ctypes.c_uint(self._fd),
            ctypes.c_uint(sending),
            ctypes.c_uint(max(wait, 0)),
            ctypes.c_uint(flags),
            argument,
            ctypes.c_size_t(argument_bytes),
        )
        if result >= 0 or ctypes.get_errno() in (errno.EINTR, errno.ETIME):
            return True
        if ctypes.get_errno() in (errno.EAGAIN, errno.EBUSY):
            self.put_off += 1
            return False
        raise _os_error("io_uring_enter")

    def reap(self) -> tuple[np.ndarray, np.ndarray]:
        """Take every completion that is there, without a system call: `(user_data u64, result i32)`, own copies.

        A result is what preadv or pwritev would return, or minus an errno.
        """
        tail = int(self._cq_tail[0])
        if _WEAKLY_ORDERED:
            _fence()
        count = (tail - self._head) & _U32
        taken = self._cqes[np.arange(self._head, self._head + count) & self._cq_mask]
        self._head = tail
        self._cq_head[0] = tail
        self._outstanding -= count
        return taken["user_data"], taken["result"]

    def close(self) -> None:
        """Release the ring. Operations still outstanding are not waited for. Safe to call twice."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self._outstanding = 0
        empty = np.zeros(1, np.uint32)  # drop the views, and with them the mappings
        self._sq_head = self._sq_tail = self._cq_head = self._cq_tail = empty
        self._tail = self._head = 0
        self._sqes, self._cqes = np.zeros(1, _SQE), np.zeros(1, _CQE)
        self.words = np.zeros((1, 8), np.int64)


def _os_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


def probe(sysctl: Path = Path("/proc/sys/kernel/io_uring_disabled")) -> str | None:
    """None where io_uring can be used by this process, else one line that says why not and what would help.

    Makes a ring and takes one empty operation through it, because a filter may allow the one and forbid the other.
    """
    try:
        ring = Ring(2)
        try:
            ring.push([NOP], [-1], [0], [0], [0], [1])
            ring.enter(wait=1, timeout=1.0)
            user_data, results = ring.reap()
            if list(user_data) != [1] or results[0] != 0:
                return "io_uring was set up, but an empty operation did not complete within 1 s"
        finally:
            ring.close()
    except UringUnavailableError as error:
        return str(error.strerror)
    except OSError as error:
        return _reason(error, sysctl)
    return None


def _reason(error: OSError, sysctl: Path) -> str:
    if error.errno == errno.ENOSYS:
        return "the kernel (or a seccomp filter in front of it) has no io_uring: ENOSYS"
    if error.errno == errno.EPERM:
        level = text_in(sysctl).strip()
        if level in ("1", "2"):
            return f"io_uring is switched off by sysctl kernel.io_uring_disabled={level}; set it to 0 to allow it"
        return "io_uring is forbidden to this process: EPERM, probably a container's seccomp profile; allow io_uring_*"
    if error.errno == errno.ENOMEM:
        return "no memory may be locked for io_uring: ENOMEM; raise `ulimit -l` (kernels before 5.12 count the ring)"
    return f"io_uring does not work here: {error.strerror} (errno {error.errno})"
