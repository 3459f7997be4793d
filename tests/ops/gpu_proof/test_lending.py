"""Two real processes that lend each other memory of a device that is none: what the proof finds, and that it finds it.

Figures from here mean nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from swift_tiers.ops.commands.gpu_proof import borrower, lending, stopwatch
from swift_tiers.ops.commands.gpu_proof.figures import Findings, LeftOutError, ProofCheck, ProofFigure, line
from swift_tiers.ops.commands.gpu_proof.layouts import Layout
from swift_tiers.ops.commands.gpu_proof.lending import LendingSetup, lend_on_cuda
from swift_tiers.ops.commands.gpu_proof.lending_donor import DonorOptions
from swift_tiers.ops.commands.gpu_proof.proof import Proof
from swift_tiers.ops.commands.gpu_proof.stopwatch import Stopwatch
from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory

from support import fake_sgl_kernel
from support.deferred_accelerator import DeferredAccelerator
from support.fake_cuda_driver import FakeCudaDriver
from support.fake_device import FakeDeviceMemory
from support.quick_proof import make_quick

CPU = torch.device("cpu")
SMALL = Layout("Small-1M", 2, 2, 8, 16, 32)
CHILD = Path(__file__).parents[2] / "support" / "lending_donor_child.py"
PAGES = 32


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "_LONG", 0.0)
    monkeypatch.setattr(lending, "ROUNDS", 2)
    monkeypatch.setattr(lending, "RECALLS", 3)


@pytest.fixture
def directory() -> Iterator[str]:
    # Shorter than pytest's own directories: a socket's path is at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="swift-proof-") as found:
        yield found


def make(directory: str, memory: FakeDeviceMemory, manner: str = "honest") -> LendingSetup:
    command = [sys.executable, str(CHILD), manner]
    return LendingSetup(
        SMALL, DeferredAccelerator(0, locked=True), memory, Stopwatch(CPU), PAGES, 1, directory, command
    )


def check_of(found: Iterator[ProofCheck | ProofFigure], name: str) -> ProofCheck:
    """The one of this name; what would come after it is not done."""
    return next(one for one in found if isinstance(one, ProofCheck) and one.name == name)


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_everything_is_found_and_nothing_is_left_behind(directory: str) -> None:
    memory = FakeDeviceMemory("GPU-0")
    before = children()
    found = list(make(directory, memory).on_one_device(0))
    checks = {one.name: one for one in found if isinstance(one, ProofCheck)}
    assert {name: check.failure for name, check in checks.items() if check.failure} == {}
    assert {name: check.cases for name, check in checks.items() if "returned" in name or "alone" in name} == {
        "recalled memory is returned": 6,
        "memory that came back is its donor's alone": 6,
    }
    assert checks["what is lent is read as it was stored"].cases == 2 * PAGES
    assert checks["pages go from device to device"].cases == PAGES // 2
    assert set(checks) - {"recalled memory is returned", "memory that came back is its donor's alone"} == {
        "what is lent is read as it was stored",
        "pages go from device to device",
        "no byte of a later owner is accepted",
        "a donor that was killed is outlived, and its next life borrowed from",
    }
    figures = {one.name: one for one in found if isinstance(one, ProofFigure)}
    assert [(name, one.holds is None) for name, one in figures.items()] == [
        ("borrow on one GPU", False),
        ("pages stored, through host memory", True),
        ("pages stored, from device to device", True),
        ("pages landed", True),
        ("pages read to host memory", True),
        ("recall until return", False),
        ("leases over after their donor's death", True),
    ]
    assert all(one.value > 0 for one in figures.values())
    assert memory.calls["attach"] > 3, "mapped to try it, to measure, for the borrower, for the next life"
    assert memory.mapped == 0
    assert children() == before
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("swift", "proof"))]


def test_memory_that_is_overwritten_while_it_is_lent_is_found(directory: str) -> None:
    found = make(directory, FakeDeviceMemory("GPU-0"), "careless").on_one_device(0)
    failure = check_of(found, "no byte of a later owner is accepted").failure
    assert failure.endswith("a page under a lease that lasted: corrupt: checksum")


def test_memory_that_changes_after_it_came_back_is_found(directory: str) -> None:
    found = make(directory, FakeDeviceMemory("GPU-0"), "leaky").on_one_device(0)
    check = check_of(found, "memory that came back is its donor's alone")
    assert (check.cases, check.failure) == (6, "2 runs were changed after their return")


class Flipping(FakeDeviceMemory):
    """One bit of all that is read to host memory is another."""

    def _read(self, memory: torch.Tensor, pieces: np.ndarray, into: np.ndarray) -> None:
        super()._read(memory, pieces, into)
        into[7] ^= 1


def test_a_wrong_byte_is_found_by_a_checksum(directory: str) -> None:
    found = make(directory, Flipping("GPU-0")).on_one_device(0)
    failure = check_of(found, "what is lent is read as it was stored").failure
    assert failure == f"{PAGES} times: a page under a lease that lasted: corrupt: checksum"


def test_a_wrong_byte_is_found_where_no_checksum_finds_it(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrower, "page_digest", lambda page: b"the same for all")
    found = make(directory, Flipping("GPU-0")).on_one_device(0)
    failure = check_of(found, "what is lent is read as it was stored").failure
    assert failure == f"{PAGES} times: a page that was read is not what was stored there"


def test_pages_that_landed_otherwise_are_found(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = borrower.Landing.fetch

    def spoil(landing: borrower.Landing, memory: torch.Tensor, pages: list[np.ndarray], slots: list[int]) -> None:
        fetch(landing, memory, pages, slots)
        landing.memory[slots, 3] ^= 1  # of these alone: others may not have been looked at, and would be right again

    monkeypatch.setattr(borrower.Landing, "fetch", spoil)
    monkeypatch.setattr(borrower.Landing, "digests", lambda landing, slots: [b"the same"] * len(slots))
    found = make(directory, FakeDeviceMemory("GPU-0")).on_one_device(0)
    failure = check_of(found, "what is lent is read as it was stored").failure
    assert failure.endswith("a page that was landed is not what was stored there")


def test_a_recall_that_takes_too_long_misses_the_bound(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is returned before the tier does it by itself, near the bound.
    monkeypatch.setattr(borrower.PeerTier, "give_up", lambda tier, key: None)
    monkeypatch.setattr(lending, "RECALL_MS", 20.0)
    found = make(directory, FakeDeviceMemory("GPU-0")).on_one_device(0)
    figure = next(one for one in found if one.name == "recall until return")
    assert isinstance(figure, ProofFigure)
    assert figure.holds is False
    assert line(figure).startswith("MISSED recall until return")
    assert "(<= 20) worst of 6" in line(figure)


def test_from_another_device(directory: str) -> None:
    memory = FakeDeviceMemory("GPU-0")
    found = list(make(directory, memory).between_devices(1, 5e9))
    assert [(one.name, bool(one.failure)) for one in found if isinstance(one, ProofCheck)] == [
        ("what is lent is read as it was stored, from GPU 1", False),
        ("pages go from device to device, from GPU 1", False),
    ]
    rate = found[0]
    assert isinstance(rate, ProofFigure)
    assert (rate.name, rate.of, rate.holds) == ("borrow from GPU 1", 5.0, None)
    assert memory.mapped == 0


def test_a_device_that_is_not_reached_is_told(directory: str) -> None:
    [check] = make(directory, FakeDeviceMemory("GPU-0", reaches=set())).between_devices(1, 5e9)
    assert isinstance(check, ProofCheck)
    assert check.name == "lending from GPU 1"
    assert "does not reach" in check.failure


def on_cuda(
    memory: CudaDeviceMemory, pages: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProofCheck | ProofFigure]:
    monkeypatch.setattr(
        "swift_tiers.radix_tiering.lending.donation.cuda_memory.CudaDeviceMemory", lambda ordinal: memory
    )
    accelerator = DeferredAccelerator(0, locked=True)
    accelerator.device = torch.device("cpu", 0)
    return lend_on_cuda(SMALL, accelerator, Stopwatch(CPU), pages, 1, [sys.executable, str(CHILD), "driver"])


def test_memory_of_cuda_devices_on_one_and_from_the_next_that_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of CUDA but the driver itself, by that of tests."""
    driver = FakeCudaDriver("GPU-0", reaches=("GPU-2",))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda here, there: (here, there) in {(0, 2), (0, 3)})
    monkeypatch.setattr(lending, "_peer_copy_rate", lambda device, other, watch: 1e9 * other)
    found = list(on_cuda(CudaDeviceMemory(0, driver, CPU), PAGES, monkeypatch))
    checks = [one for one in found if isinstance(one, ProofCheck)]
    assert [check.name for check in checks if check.failure] == []
    assert len(checks) == 8
    assert checks[-2].name == "what is lent is read as it was stored, from GPU 2"
    rate = next(one for one in found if one.name == "borrow from GPU 2")
    assert isinstance(rate, ProofFigure)
    assert rate.of == 2.0


@pytest.mark.parametrize(
    ("pages", "failing", "reason"), [(15, "", "too little"), (PAGES, "cuMemCreate", "cuMemCreate")]
)
def test_where_no_gpu_can_lend_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, pages: int, failing: str, reason: str
) -> None:
    driver = FakeCudaDriver("GPU-0")
    if failing:
        driver.failing[failing] = driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
    with pytest.raises(LeftOutError, match=reason):
        next(on_cuda(CudaDeviceMemory(0, driver, CPU), pages, monkeypatch))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: test_on_a_gpu runs the command")
def test_the_process_that_is_started_is_the_one_for_gpus(directory: str) -> None:
    real = LendingSetup(
        SMALL, DeferredAccelerator(0, locked=True), FakeDeviceMemory("GPU-0"), Stopwatch(CPU), PAGES, 1, directory
    )
    [check] = real.on_one_device(0)
    assert isinstance(check, ProofCheck)
    assert check.failure.startswith("the process that lends has ended by itself: cuInit: ")
    assert "install NVIDIA's driver" in check.failure


def test_a_donor_that_does_not_start_is_told_in_its_words(directory: str) -> None:
    broken = make(directory, FakeDeviceMemory("GPU-0"))
    broken._command = [sys.executable, "-c", "import sys; sys.exit('no such GPU')"]
    [check] = broken.on_one_device(0)
    assert isinstance(check, ProofCheck)
    assert check.failure == "the process that lends has ended by itself: no such GPU"


def test_memory_that_cannot_be_exported_leaves_the_part_out(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sgl_kernel.install(monkeypatch)
    make_quick(monkeypatch)  # what comes before the part
    memory = FakeDeviceMemory("GPU-0")
    memory.faults["export"] = "this driver exports no memory"
    findings = Findings({})
    proof = Proof(
        DeferredAccelerator(0, locked=True),
        findings,
        [SMALL],
        1,
        1,
        1e9,
        serves=False,
        pages=8,
        ceiling_bytes=2**16,
        lends=lambda layout, pages: make(directory, memory).on_one_device(0),
    )
    proof.run()
    assert findings.left_out["lending"] == "this driver exports no memory"


def test_the_pool_is_lent_as_a_server_would_cut_it() -> None:
    options = DonorOptions("/tmp", "d", 0, planes=72, plane_bytes=32768, pages=512)
    runs = list(options.runs())
    assert (options.run_pages, options.lent_pages, len(runs)) == (8, 512, 64)
    assert all(len(run) == 72 for run in runs)
    lent = sorted((one.offset, one.offset + one.length) for run in runs for one in run)
    assert lent[0][0] == 0
    assert lent[-1][1] == 512 * 72 * 32768
    assert all(end == start for (_, end), (start, _) in pairwise(lent))
