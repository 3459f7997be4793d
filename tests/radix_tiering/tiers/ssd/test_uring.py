"""The ring itself, on the running kernel. Where io_uring is not allowed these tests fail and say why."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from swift_tiers.radix_tiering.tiers.ssd.arrays import uring
from swift_tiers.radix_tiering.tiers.ssd.arrays.uring import NOP, READV, WRITEV, Ring, UringUnavailableError, probe


@pytest.fixture
def ring() -> Iterator[Ring]:
    reason = probe()
    if reason is not None:
        pytest.fail(f"the ring cannot be tested here: {reason}")
    ring = Ring(8)
    yield ring
    ring.close()


def iovecs(*arrays: np.ndarray) -> np.ndarray:
    return np.array([(array.ctypes.data, array.nbytes) for array in arrays], np.uint64)


def push_one(ring: Ring, opcode: int, fd: int, offset: int, table: np.ndarray, number: int) -> None:
    ring.push([opcode], [fd], [offset], [table.ctypes.data], [len(table)], [number])


def take(ring: Ring, count: int) -> dict[int, int]:
    """`count` completions, as user data -> result."""
    got: dict[int, int] = {}
    while len(got) < count:
        ring.enter(wait=count - len(got), timeout=10)
        got |= dict(zip(*(part.tolist() for part in ring.reap()), strict=True))
    return got


def test_one_call_serves_several_files(ring: Ring, tmp_path: Path) -> None:
    fds = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "abc"]
    parts = [(np.full(100, i, np.uint8), np.full(50, 100 + i, np.uint8)) for i in range(3)]
    tables = [iovecs(*pair) for pair in parts]
    ring.push([WRITEV] * 3, fds, [0, 10, 20], [table.ctypes.data for table in tables], [2] * 3, [7, 8, 9])
    before = ring.calls
    ring.enter(wait=3, timeout=10)
    assert ring.calls == before + 1
    assert take(ring, 0) == {}
    user_data, results = ring.reap()
    assert sorted(user_data.tolist()) == [7, 8, 9]
    assert results.tolist() == [150] * 3
    for i, fd in enumerate(fds):
        assert os.pread(fd, 1000, 10 * i) == bytes([i] * 100 + [100 + i] * 50)
        os.close(fd)


def test_a_read_reports_a_short_count_and_an_errno(ring: Ring, tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 10)
    fd = os.open(path, os.O_RDONLY)
    room = np.zeros(64, np.uint8)
    table = iovecs(room)
    push_one(ring, READV, fd, 0, table, 1)
    push_one(ring, READV, 1_000_000, 0, table, 2)
    push_one(ring, READV, fd, 10, table, 3)
    assert take(ring, 3) == {1: 10, 2: -errno.EBADF, 3: 0}
    os.close(fd)


def test_indices_go_round_many_times(ring: Ring) -> None:
    seen = []
    for start in range(0, 1000, 5):
        ring.push([NOP] * 5, [-1] * 5, [0] * 5, [0] * 5, [0] * 5, list(range(start, start + 5)))
        seen += sorted(take(ring, 5))
    assert seen == list(range(1000))
    assert ring.outstanding == ring.unsent == 0


def test_more_than_the_ring_holds_is_refused_so_that_completions_cannot_overflow(ring: Ring) -> None:
    full = ring.entries
    ring.push([NOP] * full, [-1] * full, [0] * full, [0] * full, [0] * full, list(range(full)))
    ring.enter()
    assert ring.unsent == 0
    with pytest.raises(ValueError, match="0 places free"):
        ring.push([NOP], [-1], [0], [0], [0], [99])  # sent but not reaped still counts
    assert sorted(take(ring, full)) == list(range(full))


def test_a_wait_ends_at_its_timeout_and_the_operation_lives_on(ring: Ring) -> None:
    source, sink = os.pipe()
    room = np.zeros(4, np.uint8)
    table = iovecs(room)
    push_one(ring, READV, source, 0, table, 5)
    started = time.monotonic()
    assert ring.enter(wait=1, timeout=0.05)
    assert 0.04 <= time.monotonic() - started < 5
    ring.enter(wait=1, timeout=0.05)
    assert ring.reap()[0].size == 0
    assert ring.outstanding == 1
    os.write(sink, b"late")
    assert take(ring, 1) == {5: 4}
    assert bytes(room) == b"late"
    os.close(source)
    os.close(sink)


def test_a_signal_during_a_wait_is_not_an_error(ring: Ring) -> None:
    assert threading.current_thread() is threading.main_thread()
    source, sink = os.pipe()
    room = np.zeros(1, np.uint8)
    table = iovecs(room)
    push_one(ring, READV, source, 0, table, 5)
    ring.enter()
    seen: list[int] = []

    def handler(number: int, frame: object) -> None:
        seen.append(number)
        os.write(sink, b"!")

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert ring.enter(wait=1, timeout=10)
        assert take(ring, 1) == {5: 1}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert seen == [signal.SIGALRM]
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EBUSY])
def test_a_call_put_off_by_the_kernel_can_be_repeated(ring: Ring, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = uring._syscall
    refusals = [number]

    def syscall(*arguments: object) -> int:
        if refusals:
            ctypes.set_errno(refusals.pop())
            return -1
        return int(real(*arguments))

    monkeypatch.setattr(uring, "_syscall", syscall)
    ring.push([NOP], [-1], [0], [0], [0], [4])
    assert ring.enter() is False
    assert (ring.unsent, ring.put_off) == (1, 1)
    assert take(ring, 1) == {4: 0}


def test_what_only_a_fault_of_ours_can_cause_is_raised(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    def syscall(*arguments: object) -> int:
        ctypes.set_errno(errno.EBADF)
        return -1

    ring.push([NOP], [-1], [0], [0], [0], [4])
    monkeypatch.setattr(uring, "_syscall", syscall)
    with pytest.raises(OSError, match="io_uring_enter"):
        ring.enter()


def test_close_gives_back_the_handle_and_the_mappings() -> None:
    def state() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("io_uring")
        return len(os.listdir("/proc/self/fd")), maps

    gc.collect()  # what other tests have left must not go meanwhile
    before = state()
    for _ in range(3):
        ring = Ring(8)
        assert state()[1] > before[1]
        ring.close()
        ring.close()
    assert state() == before


def test_the_fence_for_weakly_ordered_machines_does_not_change_a_reap(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uring, "_WEAKLY_ORDERED", True)
    ring.push([NOP] * 3, [-1] * 3, [0] * 3, [0] * 3, [0] * 3, [1, 2, 3])
    assert take(ring, 3) == {1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(
    ("error", "level", "words"),
    [
        (OSError(errno.EPERM, "no"), "2", "kernel.io_uring_disabled=2"),
        (OSError(errno.EPERM, "no"), "0", "seccomp"),
        (OSError(errno.ENOSYS, "no"), "0", "ENOSYS"),
        (OSError(errno.ENOMEM, "no"), "0", "ulimit -l"),
        (OSError(errno.EMFILE, "Too many open files"), "0", "Too many open files"),
        (UringUnavailableError(errno.ENOSYS, "io_uring without EXT_ARG: needs Linux 5.11"), "0", "5.11"),
    ],
)
def test_probe_names_the_reason(
    error: OSError, level: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(entries: int) -> Ring:
        raise error

    monkeypatch.setattr(uring, "Ring", refuse)
    sysctl = tmp_path / "io_uring_disabled"
    sysctl.write_text(level + "\n")
    reason = probe(sysctl)
    assert reason is not None
    assert words in reason


#: A process that forbids itself system call {number} (errno {errno}) as a container's seccomp profile does, and then
#: opens an array.
FORBIDDEN = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]
load, compare, forbid, allow = (32, 0, 0, 0), (21, 0, 1, {number}), (6, 0, 0, 0x50000 | {errno}), (6, 0, 0, 0x7FFF0000)
code = (Instruction * 4)(load, compare, forbid, allow)
program = Program(4, code)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program)) == 0, ctypes.get_errno()
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.tiers.ssd.files import ThreadArray, open_array
array = open_array([sys.argv[1]])
assert isinstance(array, ThreadArray)
print(array.description)
array.close()
try:
    open_array([sys.argv[1]], engine="io_uring")
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(("call", "number"), [(425, errno.EPERM), (425, errno.ENOSYS), (426, errno.EPERM)])
def test_under_a_seccomp_filter_threads_take_over_and_say_why(call: int, number: int, tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_bytes(bytes(1 << 16))
    script = FORBIDDEN.format(number=call, errno=number)
    run = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    description, refusal = run.stdout.splitlines()
    assert description.startswith("threads")
    assert errno.errorcode[number] in description
    assert "ssd engine io_uring cannot be used" in refusal
