"""Memory shared between real processes, and what either side can and cannot do to the other."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.lending.donation.arena import ArenaError, AttachedArena, SharedArena

SIZE = 1 << 20

DONOR = textwrap.dedent(
    """
    import os, socket, sys
    from swift_tiers.radix_tiering.lending.donation.arena import SharedArena
    link = socket.socket(fileno=int(sys.argv[1]))
    arena = SharedArena({size})
    arena.array[:] = 7
    socket.send_fds(link, [b"here"], [arena.fd])
    while link.recv(1):
        arena.array[0] = 8
        try:
            os.ftruncate(arena.fd, 0)
            link.send(b"shrunk")
        except PermissionError:
            link.send(b"refused")
    """
).format(size=SIZE)


@pytest.fixture
def donor() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, int]]:
    """A donor in a process of its own: (process, our end of the link, the descriptor it sent)."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", DONOR, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    ours.settimeout(60)
    _, (fd,), _, _ = socket.recv_fds(ours, 16, 1)
    yield process, ours, fd
    process.kill()
    process.wait()
    ours.close()


def test_both_see_the_same_bytes_and_the_donor_cannot_take_them_away(donor) -> None:
    _, link, fd = donor
    arena = AttachedArena(fd, SIZE)
    assert (arena.array == 7).all()
    link.send(b"x")
    assert link.recv(16) == b"refused"
    assert arena.array[0] == 8


def test_only_the_donor_can_write(donor) -> None:
    _, _, fd = donor
    again = os.dup(fd)
    arena = AttachedArena(fd, SIZE)
    with pytest.raises(ValueError, match="read-only"):
        arena.array[1] = 9
    # Nor by any other way that its descriptor opens.
    with pytest.raises(PermissionError):
        mmap.mmap(again, SIZE)
    with pytest.raises(PermissionError):
        os.pwrite(again, b"9", 1)
    reopened = os.open(f"/proc/self/fd/{again}", os.O_RDWR)
    with pytest.raises(PermissionError):
        mmap.mmap(reopened, SIZE)
    os.close(reopened)
    os.close(again)
    assert (arena.array == 7).all()


def test_a_donor_that_is_killed_leaves_the_mapping_readable_and_closes_its_link(donor) -> None:
    process, link, fd = donor
    arena = AttachedArena(fd, SIZE)
    process.send_signal(signal.SIGKILL)
    assert link.recv(16) == b""
    assert (arena.array == 7).all()


def test_memory_that_could_be_taken_away_is_refused() -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, SIZE)
    with pytest.raises(ArenaError, match="not a sealed memfd"):
        AttachedArena(unsealed, SIZE)
    with tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        with pytest.raises(ArenaError, match="not a sealed memfd"):
            AttachedArena(os.dup(file.fileno()), SIZE)
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(ArenaError, match="not a sealed memfd"):
        AttachedArena(reading, SIZE)


def test_a_size_that_was_not_agreed_on_is_refused_and_no_descriptor_leaks() -> None:
    gc.collect()  # mappings of former tests
    arena = SharedArena(SIZE)
    before = len(os.listdir("/proc/self/fd"))
    for size in (0, SIZE - 1, 2 * SIZE):
        with pytest.raises(ArenaError, match="agreed on"):
            AttachedArena(os.dup(arena.fd), size)
    attached = AttachedArena(os.dup(arena.fd), SIZE)
    # The mapping keeps one of its own.
    assert len(os.listdir("/proc/self/fd")) == before + 1
    arena.array[:4] = range(4)
    assert attached.array[:4].tolist() == [0, 1, 2, 3]
    attached.close()
    assert len(os.listdir("/proc/self/fd")) == before
    arena.close()
    arena.close()


def test_an_arena_is_unmapped_when_the_last_read_of_it_has_ended() -> None:
    name = f"unmapped-{os.getpid()}"
    arena = SharedArena(SIZE, name)
    arena.array[:] = 5
    mapped = Path("/proc/self/maps").read_text().count(name)
    attached = AttachedArena(os.dup(arena.fd), SIZE)
    reading = attached.array[100:200]
    attached.close()
    attached.close()
    assert Path("/proc/self/maps").read_text().count(name) == mapped + 1
    assert (reading == 5).all()
    del reading
    assert Path("/proc/self/maps").read_text().count(name) == mapped


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(ArenaError, match="make the pool smaller"):
        SharedArena(SIZE, available=lambda: SIZE - 1)
