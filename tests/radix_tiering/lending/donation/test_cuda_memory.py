"""What is asked of NVIDIA's driver, put to one that is none: what comes of it, and what is left when a call fails."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swift_tiers.radix_tiering.lending.donation.arena import ArenaError, SharedArena
from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed: its types are what is checked")

from support.fake_cuda_driver import GRANULE, FakeCudaDriver, real, uuid_of

SIZE = 2 * GRANULE - 100
HOST = torch.device("cpu")
#: What every `CudaDeviceMemory` holds until its process ends.
HELD = {"contexts": 1, "streams": 2}


def memory_of(driver: FakeCudaDriver) -> CudaDeviceMemory:
    return CudaDeviceMemory(0, driver, HOST)


def table(*pieces: tuple[int, int, int]) -> np.ndarray:
    return np.array(pieces, np.int64).reshape(-1, 3)


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_exported_is_mapped_written_and_read_in_another_context() -> None:
    here, there = FakeCudaDriver("a"), FakeCudaDriver("b", reaches=("a",))
    donor, borrower = memory_of(here), memory_of(there)
    assert donor.name == uuid_of("a")
    assert borrower.name == uuid_of("b") != donor.name
    fd, own = donor.export(SIZE)
    assert own.shape == (SIZE,)
    assert own.dtype == torch.uint8
    assert not own.any(), "what was left behind by others is seen"
    assert not os.get_inheritable(fd)
    mapped = borrower.attach(fd, SIZE)
    os.close(fd)
    source = np.arange(1, 101, dtype=np.uint8)
    donor.write(source, own, table((0, SIZE - 60, 60), (60, 7, 40)))
    into = np.zeros(120, np.uint8)
    borrower.read(mapped, table((7, 0, 40), (SIZE - 60, 50, 60)), into)
    assert into.tolist() == [*range(61, 101), *[0] * 10, *range(1, 61), *[0] * 10]
    assert here.open_things == there.open_things == HELD | {"ranges": 1, "mappings": 1}
    donor.release(own)
    assert mapped[7].item() == 61, "what is mapped went with its donor's mapping"
    borrower.release(mapped)
    borrower.release(mapped)
    assert here.open_things == there.open_things == HELD


def test_a_donor_copies_what_a_borrower_has_exported() -> None:
    here, there = FakeCudaDriver("a", reaches=("b",)), FakeCudaDriver("b")
    donor, borrower = memory_of(here), memory_of(there)
    fd, theirs = borrower.export(SIZE)
    mapped = donor.attach(fd, SIZE)
    os.close(fd)
    fd, own = donor.export(SIZE)
    os.close(fd)
    theirs[:] = torch.arange(SIZE, dtype=torch.int64).to(torch.uint8)
    donor.pull(mapped, own, table((3, SIZE - 60, 60), (SIZE - 7, 11, 7), (0, 0, 0)))
    assert torch.equal(own[SIZE - 60 :], theirs[3:63])
    assert torch.equal(own[11:18], theirs[SIZE - 7 :])
    assert not own[18 : SIZE - 60].any()
    for wrong in ((0, 0, SIZE + 1), (SIZE, 0, 1), (0, SIZE, 1), (-1, 0, 1)):
        with pytest.raises(ValueError, match="reach beyond"):
            donor.pull(mapped, own, table(wrong))
    donor.release(mapped)
    with pytest.raises(ArenaError, match="not mapped here any more"):
        donor.pull(mapped, own, table((0, 0, 1)))
    donor.release(own)
    borrower.release(theirs)
    assert here.open_things == there.open_things == HELD


def test_copies_are_complete_on_return_from_any_thread() -> None:
    driver = FakeCudaDriver()
    memory = memory_of(driver)
    fd, own = memory.export(SIZE)
    os.close(fd)
    wrong: list[Any] = []

    def work(number: int) -> None:
        """In bytes of its own."""
        try:
            for round_ in range(50):
                page = np.full(100, (number + round_) % 256, np.uint8)
                memory.write(page, own, table((0, number * 100, 100)))
                back = np.zeros(100, np.uint8)
                memory.read(own, table((number * 100, 0, 100)), back)
                wrong.extend(back[back != page].tolist())
        except Exception as error:  # noqa: BLE001 - told to the test
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    memory.release(own)
    assert driver.open_things == HELD


def test_it_is_mapped_for_reading_and_for_writing_only_where_the_driver_does_not_know_the_difference() -> None:
    flags = real.CUmemAccess_flags
    donor = memory_of(FakeCudaDriver("a"))
    fd, own = donor.export(SIZE)
    for refused, asked in (((), 1), ((flags.CU_MEM_ACCESS_FLAGS_PROT_READ,), 2)):
        driver = FakeCudaDriver("a")
        driver.refused_access.update(refused)
        borrower = memory_of(driver)
        mapped = borrower.attach(fd, SIZE)
        assert driver.calls["cuMemSetAccess"] == asked
        maps = Path("/proc/self/maps").read_text().splitlines()
        (line,) = [line for line in maps if line.startswith(f"{mapped.data_ptr():x}-")]
        assert line.split()[1] == ("rw-s" if refused else "r--s")
        borrower.release(mapped)
    os.close(fd)
    donor.release(own)


def scenario(driver: FakeCudaDriver) -> None:
    """Everything that is done with one device; what it was given it gives back, whatever happens."""
    memory = memory_of(driver)
    fd, own = memory.export(SIZE)
    try:
        try:
            memory.write(np.ones(8, np.uint8), own, table((0, 0, 4), (4, 9, 4)))
            mapped = memory.attach(fd, SIZE)
            try:
                memory.read(mapped, table((0, 0, 4)), np.zeros(4, np.uint8))
            finally:
                memory.release(mapped)
        finally:
            os.close(fd)
    finally:
        memory.release(own)


def calls_of_scenario() -> int:
    driver = FakeCudaDriver()
    scenario(driver)
    assert driver.open_things == HELD
    return driver._count


@pytest.mark.parametrize("number", range(1, calls_of_scenario() + 1))
def test_whichever_call_fails_there_is_one_line_about_it_and_nothing_is_left(number: int) -> None:
    driver = FakeCudaDriver(fail_at=number)
    if driver_asks_again(number):
        scenario(driver)  # the refused access is asked for in another way
    else:
        with pytest.raises(ArenaError) as raised:
            scenario(driver)
        line = str(raised.value)
        assert line.startswith(f"{driver.failed}: unknown; ")
        assert "\n" not in line
    assert driver.failed
    assert driver.open_things in ({}, HELD)


def driver_asks_again(number: int) -> bool:
    """Whether this call asks for read access, which a driver need not know."""
    driver = FakeCudaDriver(fail_at=number)
    try:
        scenario(driver)
    except ArenaError:
        return False
    return driver.failed == "cuMemSetAccess"


@pytest.mark.parametrize("name", ["cuMemRelease", "cuCtxPopCurrent"])
def test_what_cannot_be_given_back_is_logged_and_the_work_goes_on(name: str, caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeCudaDriver()
    memory = memory_of(driver)
    driver.failing[name] = real.CUresult.CUDA_ERROR_UNKNOWN
    fd, own = memory.export(SIZE)
    os.close(fd)
    assert not own.any()
    assert f"not given back: {name}: unknown" in caplog.text
    driver.failing.clear()
    memory.release(own)
    for handle in list(driver.handles):
        driver.do_cuMemRelease(handle)


def test_memory_of_the_host_is_locked_for_copies_where_the_driver_can(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeCudaDriver()
    memory = memory_of(driver)
    page = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ), np.uint8)
    assert memory.lock(page)
    assert driver.open_things == HELD | {"locked": 1}
    memory.unlock(page)
    assert driver.open_things == HELD
    for name, said in (
        ("cuMemHostRegister", "cuMemHostRegister: out of memory; raise the limit of locked memory"),
        ("cuCtxPushCurrent", "cuCtxPushCurrent: out of memory"),
    ):
        driver.failing[name] = real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        assert not memory.lock(page)
        assert said in caplog.text
        driver.failing.clear()
    assert memory.lock(page)
    driver.failing["cuCtxPushCurrent"] = real.CUresult.CUDA_ERROR_UNKNOWN
    memory.unlock(page)  # is logged: whoever unlocks has nothing else to do about it
    assert "not given back: cuCtxPushCurrent: unknown" in caplog.text


def test_a_gpu_that_locks_no_memory_that_it_may_only_read_is_not_asked_to() -> None:
    driver = FakeCudaDriver()
    driver.lacking.add(real.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
    assert not memory_of(driver).lock(np.zeros(mmap.PAGESIZE, np.uint8))
    assert not driver.calls["cuMemHostRegister"]


def test_a_refused_unmapping_is_an_error_and_not_tried_twice() -> None:
    driver = FakeCudaDriver()
    memory = memory_of(driver)
    fd, own = memory.export(SIZE)
    os.close(fd)
    driver.failing["cuMemUnmap"] = real.CUresult.CUDA_ERROR_NOT_PERMITTED
    with pytest.raises(ArenaError, match="cuMemUnmap: not permitted; see `nvidia-smi`"):
        memory.release(own)
    memory.release(own)


def test_a_copy_that_fails_half_way_has_ended_when_it_is_told() -> None:
    driver = FakeCudaDriver()
    memory = memory_of(driver)
    fd, own = memory.export(SIZE)
    os.close(fd)
    driver.fail_at = driver._count + 3  # a context, a copy, and then
    page = np.ones(8, np.uint8)
    with pytest.raises(ArenaError, match="cuMemcpyHtoDAsync: unknown"):
        memory.write(page, own, table((0, 0, 4), (4, 100, 4)))
    assert not any(driver.streams.values()), "a copy is under way after write has returned"
    assert own[:4].tolist() == [1] * 4
    assert not own[4:].any()
    memory.release(own)


def test_memory_that_was_released_is_not_copied_even_if_its_address_is_used_again() -> None:
    driver = FakeCudaDriver()
    memory = memory_of(driver)
    fd, _ = memory.export(SIZE)
    mapped = memory.attach(fd, SIZE)
    memory.release(mapped)
    for copy in (
        lambda: memory.read(mapped, table((0, 0, 1)), np.zeros(1, np.uint8)),
        lambda: memory.write(np.zeros(1, np.uint8), mapped, table((0, 0, 1))),
    ):
        with pytest.raises(ArenaError, match="not mapped here any more"):
            copy()
    again = memory.attach(fd, SIZE)
    if again.data_ptr() == mapped.data_ptr():
        memory.release(mapped)  # the former one
        assert memory.attach(fd, SIZE) is not None
        assert again[0].item() == 0
    os.close(fd)
    for one in [one.memory for one in list(memory._mappings.values())]:
        memory.release(one)
    assert driver.open_things == HELD


def test_what_cannot_be_is_refused_with_its_remedy() -> None:
    driver = FakeCudaDriver("a")
    memory = memory_of(driver)
    driver.memory_left = SIZE
    with pytest.raises(ArenaError, match=r"cuMemCreate: out of memory; make the KV pool smaller \(--mem-fraction"):
        memory.export(SIZE)
    driver.memory_left = 1 << 30
    fd, own = memory.export(SIZE)
    far = memory_of(FakeCudaDriver("far"))
    with pytest.raises(ArenaError, match=r"cuMemSetAccess: not supported; the two GPUs may not reach .*VISIBLE"):
        far.attach(fd, SIZE)
    with pytest.raises(ArenaError, match=r"cuMemMap: invalid value; the donor may have handed out less"):
        memory.attach(fd, SIZE + GRANULE)
    host = SharedArena(SIZE)
    with pytest.raises(ArenaError, match="cuMemImportFromShareableHandle: invalid value; "):
        memory.attach(host.fd, SIZE)
    host.close()
    del host
    os.close(fd)
    memory.release(own)
    assert driver.open_things == HELD


def test_a_gpu_that_cannot_share_memory_is_refused() -> None:
    driver = FakeCudaDriver()
    driver.attributes = 0
    with pytest.raises(ArenaError, match=r"GPU-.* has no virtual memory management, which lending needs; remove"):
        memory_of(driver)
    with pytest.raises(ArenaError, match="cuDeviceGet: invalid device; name a GPU that this server sees"):
        CudaDeviceMemory(1, FakeCudaDriver(), HOST)
    assert not driver.open_things


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver here, which would do as it is told")
def test_the_installed_bindings_take_every_argument_as_it_is_given() -> None:
    """They convert all of them before they look for the driver."""
    driver = FakeCudaDriver()
    scenario(driver)
    memory, page = memory_of(driver), np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
    assert memory.lock(page)
    memory.unlock(page)
    assert len(driver.asked) >= 22
    for name, arguments in driver.asked.items():
        with pytest.raises(RuntimeError, match="driver"):
            getattr(real, name)(*arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver here")
def test_without_a_driver_one_line_says_so() -> None:
    with pytest.raises(ArenaError, match=r"^cuInit: .*; install NVIDIA's driver, and give this container its devices$"):
        CudaDeviceMemory(0)


def test_without_the_bindings_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(ArenaError, match="cuda-bindings is missing; install it beside torch"):
        CudaDeviceMemory(0)


def test_the_module_is_imported_without_the_bindings() -> None:
    code = (
        "import sys; sys.modules['cuda.bindings.driver'] = None; "
        "import swift_tiers.radix_tiering.lending.donation.cuda_memory"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


CHILD = textwrap.dedent(
    """
    import os, signal, socket, sys
    sys.path[0] = sys.argv[1]
    import torch
    from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory
    from support.fake_cuda_driver import FakeCudaDriver
    memory = CudaDeviceMemory(0, FakeCudaDriver("a"), torch.device("cpu"))
    fd, own = memory.export(int(sys.argv[3]))
    own[:] = 7
    link = socket.socket(fileno=int(sys.argv[2]))
    socket.send_fds(link, [b"here"], [fd])
    link.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)
    """
)


def test_memory_outlives_the_process_that_has_exported_it() -> None:
    ours, theirs = socket.socketpair()
    arguments = [sys.executable, "-c", CHILD, str(Path(__file__).parents[3]), str(theirs.fileno()), str(SIZE)]
    process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()])
    theirs.close()
    ours.settimeout(120)
    _, (fd,), _, _ = socket.recv_fds(ours, 16, 1)
    driver = FakeCudaDriver("b", reaches=("a",))
    memory = memory_of(driver)
    mapped = memory.attach(fd, SIZE)
    os.close(fd)
    ours.send(b"x")
    assert process.wait(60) == -9
    ours.close()
    into = np.zeros(SIZE, np.uint8)
    memory.read(mapped, table((0, 0, SIZE)), into)
    assert (into == 7).all()
    memory.release(mapped)
    assert driver.open_things == HELD
