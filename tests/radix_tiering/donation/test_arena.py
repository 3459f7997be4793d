"""Memory shared between real processes, and what its donor can and cannot do to a borrower."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest

from swift_tiers.radix_tiering.donation.arena import ArenaError, AttachedArena, SharedArena

SIZE = 1 << 20

DONOR = textwrap.dedent(
    """
    import os, socket, sys
    from swift_tiers.radix_tiering.donation.arena import SharedArena
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
    arena.array[1] = 9


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
    arena = SharedArena(SIZE)
    before = len(os.listdir("/proc/self/fd"))
    for size in (0, SIZE - 1, 2 * SIZE):
        with pytest.raises(ArenaError, match="agreed on"):
            AttachedArena(os.dup(arena.fd), size)
    attached = AttachedArena(os.dup(arena.fd), SIZE)
    # The mapping keeps one of its own.
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    attached.array[:4] = np.arange(4)
    assert arena.array[:4].tolist() == [0, 1, 2, 3]
    arena.close()
    arena.close()


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(ArenaError, match="make the pool smaller"):
        SharedArena(SIZE, available=lambda: SIZE - 1)
