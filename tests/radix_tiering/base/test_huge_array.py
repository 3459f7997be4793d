"""Buffers in huge pages, this process' own and shared ones."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from swift_tiers.radix_tiering.base import memory
from swift_tiers.radix_tiering.base.memory import (
    HUGE_PAGE_BYTES,
    collapse,
    huge_array,
    shared_array,
)


def mapping(address: int) -> list[str]:
    """What the kernel says of the mapping that holds an address; nothing where there is none."""
    smaps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    inside = [part.splitlines() for part in smaps if any(_holds(line, address) for line in part.splitlines())]
    assert len(inside) <= 1
    return inside[0] if inside else []


def size_of(part: list[str], figure: str) -> int:
    return next(int(line.split()[1]) << 10 for line in part if line.startswith(figure + ":"))


@pytest.mark.parametrize("size", [1, 4096, 5_000_001, 3 * HUGE_PAGE_BYTES])
def test_it_is_zeroed_aligned_and_writable(size: int) -> None:
    array = huge_array(size)
    assert array.shape == (size,)
    assert array.dtype == np.uint8
    assert array.ctypes.data % HUGE_PAGE_BYTES == 0
    assert not array.any()
    array[:] = 255


def test_it_is_in_huge_pages_where_the_kernel_gives_them() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    allowed = setting.exists() and "[never]" not in setting.read_text()
    array = huge_array(8 * HUGE_PAGE_BYTES)
    assert (size_of(mapping(array.ctypes.data), "AnonHugePages") > 0) == allowed


def _holds(line: str, address: int) -> bool:
    span = line.split(" ", 1)[0].split("-")
    if len(span) != 2:
        return False
    try:
        return int(span[0], 16) <= address < int(span[1], 16)
    except ValueError:
        return False


@pytest.mark.parametrize("populate", [True, False])
def test_it_is_resident_reports_progress_and_goes_with_its_last_view(
    populate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_PIECE_BYTES", 8 << 20)
    if not populate:
        monkeypatch.setattr(memory, "_madvise", lambda *arguments: -1)  # a kernel that does not know the advice
    size = (60 << 20) + 1
    seen: list[tuple[int, int]] = []
    array = huge_array(size, progress=lambda done, total: seen.append((done, total)))
    address = array.ctypes.data
    assert size_of(mapping(address), "Rss") >= size
    assert seen[-1] == (size, size)
    assert len(seen) > 1
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    view = array[100:200]
    del array
    gc.collect()
    assert size_of(mapping(address), "Rss") >= size
    del view
    gc.collect()
    # Another thread may have mapped something there since.
    left = mapping(address)
    assert not left or size_of(left, "Size") < size


def test_too_much_is_a_memory_error_that_says_what_to_do() -> None:
    with pytest.raises(MemoryError, match=r"1000000 bytes of host memory asked for, 10 available: configure a smaller"):
        huge_array(1_000_000, available=lambda: 10)
    with pytest.raises(MemoryError, match="cannot be mapped"):
        huge_array(1 << 60, available=lambda: None)
    with pytest.raises(ValueError, match="positive"):
        huge_array(0)


# ---- shared with others ----


def shared(size: int) -> tuple[int, np.ndarray]:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor, shared_array(descriptor, size)


@pytest.mark.parametrize("size", [1, 5_000_001, 3 * HUGE_PAGE_BYTES])
def test_all_who_map_shared_memory_see_the_same(size: int) -> None:
    """Before it is moved to huge pages, or as far as it can be, and after."""
    descriptor, one = shared(size)
    other = shared_array(descriptor, size)
    os.close(descriptor)
    assert one.shape == (size,)
    assert one.ctypes.data % HUGE_PAGE_BYTES == 0
    one[:] = 7
    collapse(one)
    assert (other == 7).all()
    other[-1] = 9
    assert one[-1] == 9


def test_shared_memory_is_moved_to_huge_pages_whatever_the_kernel_does_by_itself() -> None:
    descriptor, array = shared(4 * HUGE_PAGE_BYTES)
    array[0] = 1  # most of it is not there yet
    moved = collapse(array)
    os.close(descriptor)
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    denied = not setting.exists() or "[deny]" in setting.read_text()
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release >= (6, 1) and not denied:
        assert moved
        assert size_of(mapping(array.ctypes.data), "ShmemPmdMapped") == array.nbytes
    assert size_of(mapping(array.ctypes.data), "Rss") == array.nbytes


def test_shared_memory_is_let_go_of_with_its_last_view() -> None:
    descriptor, array = shared(HUGE_PAGE_BYTES)
    os.close(descriptor)
    address, view = array.ctypes.data, array[10:20]
    del array
    gc.collect()
    view[:] = 1
    del view
    gc.collect()
    left = mapping(address)  # another thread may have mapped something there since
    assert not left or size_of(left, "Size") < HUGE_PAGE_BYTES


def test_what_cannot_be_mapped_says_so(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "read only", os.O_RDONLY | os.O_CREAT)
    with pytest.raises(OSError, match="4096 bytes cannot be mapped"):
        shared_array(descriptor, 4096)
    os.close(descriptor)


_COPIED_AT_THE_END = """
import os, threading
import numpy as np
from swift_tiers.radix_tiering.base.memory import shared_array

size = 64 << 20
descriptor = os.memfd_create("pages")
os.ftruncate(descriptor, size)
shared, into, copying = shared_array(descriptor, size), np.zeros(size, np.uint8), threading.Event()

def copy():
    while True:
        into[:] = shared
        copying.set()

threading.Thread(target=copy, daemon=True).start()
copying.wait()
"""


def test_a_thread_that_nobody_waits_for_copies_on_while_the_interpreter_ends() -> None:
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", _COPIED_AT_THE_END], check=False).returncode == 0
