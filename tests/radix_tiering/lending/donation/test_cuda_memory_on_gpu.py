"""Memory of a real GPU, lent between processes: what the tests beside this one put to a driver that is none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from swift_tiers.radix_tiering.lending.donation.arena import ArenaError, SharedArena
from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory

pytestmark = pytest.mark.gpu

SIZE = 5 * 2**20 + 100

DONOR = textwrap.dedent(
    """
    import socket, sys
    import torch
    from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory
    link = socket.socket(fileno=int(sys.argv[1]))
    fd, own = CudaDeviceMemory(0).export(int(sys.argv[2]))
    assert not own.any().item()
    own.copy_(torch.arange(len(own), device=own.device) % 251)
    torch.cuda.synchronize()
    socket.send_fds(link, [b"here"], [fd])
    while True:
        link.recv(1)
        own.add_(1)
        torch.cuda.synchronize()
        link.send(b"x")
    """
)


def pattern(start: int, length: int) -> np.ndarray:
    return (np.arange(start, start + length) % 251).astype(np.uint8)


def table(*pieces: tuple[int, int, int]) -> np.ndarray:
    return np.array(pieces, np.int64).reshape(-1, 3)


@pytest.fixture
def donor() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, int]]:
    """A process with memory of the first GPU, our end of the link, and the descriptor."""
    ours, theirs = socket.socketpair()
    arguments = [sys.executable, "-c", DONOR, str(theirs.fileno()), str(SIZE)]
    process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()])
    theirs.close()
    ours.settimeout(120)
    _, (fd,), _, _ = socket.recv_fds(ours, 16, 1)
    yield process, ours, fd
    os.close(fd)
    process.kill()
    process.wait()
    ours.close()


def test_it_is_read_by_copies_and_by_kernels_of_another_process(donor) -> None:
    _, link, fd = donor
    memory = CudaDeviceMemory(0)
    assert memory.name.removeprefix("GPU-") == str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    mapped = memory.attach(fd, SIZE)
    into = np.zeros(SIZE, np.uint8)
    memory.read(mapped, table((0, 0, 3000), (SIZE - 7, 3000, 7)), into)
    assert (into[:3000] == pattern(0, 3000)).all()
    assert (into[3000:3007] == pattern(SIZE - 7, 7)).all()
    assert torch.equal(mapped.clone().cpu(), torch.from_numpy(pattern(0, SIZE)))
    link.send(b"x")
    assert link.recv(1) == b"x"
    assert int(mapped[1000].item()) == pattern(1000, 1)[0] + 1, "what the donor writes later is not seen"
    memory.release(mapped)


def test_it_stays_when_its_donor_is_killed(donor) -> None:
    process, _, fd = donor
    memory = CudaDeviceMemory(0)
    mapped = memory.attach(fd, SIZE)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert torch.equal(mapped.cpu(), torch.from_numpy(pattern(0, SIZE)))
    memory.release(mapped)
    memory.release(mapped)


def test_what_is_none_or_too_small_is_refused(donor) -> None:
    _, _, fd = donor
    memory = CudaDeviceMemory(0)
    with pytest.raises(ArenaError, match="cuMemMap: "):
        memory.attach(fd, SIZE + 2**30)
    host = SharedArena(4096)
    with pytest.raises(ArenaError, match="cuMemImportFromShareableHandle: "):
        memory.attach(host.fd, 4096)
    host.close()
    with pytest.raises(ArenaError, match="out of memory; make the KV pool smaller"):
        memory.export(2**50)


def test_nothing_leaks_in_the_device() -> None:
    memory = CudaDeviceMemory(0)
    fd, own = memory.export(SIZE)
    memory.write(np.ones(SIZE, np.uint8), own, table((0, 0, SIZE)))
    memory.release(own)
    os.close(fd)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(20):
        fd, own = memory.export(64 * 2**20)
        mapped = memory.attach(fd, 64 * 2**20)
        assert not mapped.any().item()
        torch.cuda.synchronize()
        os.close(fd)
        memory.release(mapped)
        memory.release(own)
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > free - 64 * 2**20
