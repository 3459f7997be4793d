"""What `swift-tiers doctor` says of NVIDIA's GPUs: memory, and who reaches whom how."""

from __future__ import annotations

import pynvml
import pytest

from swift_tiers.ops.commands.doctor import gpus as doctor_gpus
from swift_tiers.ops.commands.doctor.finding import note
from swift_tiers.ops.commands.doctor.gpus import GpusFound, checks, corrected, gpus, see, told_by_cuda, ways
from swift_tiers.ops.commands.doctor.isolation import run_checks
from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.gpus import nvml as nvml_module
from swift_tiers.radix_tiering.gpus.nvml import Nvml

from support.doctor import assert_finding
from support.fake_nvml import GIB, FakeGpu, FakeNvml, join, switch

ALONE, LENDING = PeerConfig(), PeerConfig(donate=True)
READ, WRITE = 0, 1


def seen(library: FakeNvml) -> GpusFound:
    with Nvml(library) as nvml:
        return see(nvml)


def board(count: int) -> tuple[FakeNvml, list[FakeGpu]]:
    found = [FakeGpu(number) for number in range(count)]
    return FakeNvml(*found), found


# ---- GPUs ----


def test_memory_and_load() -> None:
    library, (_, other) = board(2)
    other.used = 100 * GIB
    finding = gpus(seen(library))
    assert finding.status == "ok"
    assert finding.found == (
        "0: NVIDIA H200 (10GiB of 140GiB used, 37% busy), 1: NVIDIA H200 (100GiB of 140GiB used, 37% busy)"
    )


def test_a_lost_gpu() -> None:
    library, found = board(3)
    found[1].failing = pynvml.NVML_ERROR_GPU_IS_LOST
    assert_finding(gpus(seen(library)), "warning", "1: GPU is lost", "--gpu-reset -i 1", "2: NVIDIA H200")


def test_what_the_driver_does_not_say_is_left_out() -> None:
    library, (one, other) = board(2)
    one.mig = True
    other.unsupported = {
        "nvmlDeviceGetMemoryInfo": pynvml.NVML_ERROR_NOT_SUPPORTED,
        "nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
    found = gpus(seen(library)).found
    assert found == "0: NVIDIA H200 (10GiB of 140GiB used, divided with MIG), 1: NVIDIA H200"


def test_a_driver_that_shows_nothing() -> None:
    assert_finding(gpus(seen(FakeNvml())), "note", "shows no GPU to this process")


# ---- ways ----


def test_all_over_switches() -> None:
    library, found = board(8)
    switch(found, 18)
    finding = ways(seen(library), LENDING)
    assert finding.status == "ok"
    assert finding.found == "NVLink x18 over NVSwitch between all 8; peer access everywhere"


def test_two_by_a_bridge_and_one_apart() -> None:
    library, found = board(3)
    join(found[0], found[1], 4)
    library.levels[frozenset(found[1:])] = pynvml.NVML_TOPOLOGY_HOSTBRIDGE
    finding = ways(seen(library), LENDING)
    assert finding.status == "note"
    assert finding.found == "0-1: NVLink x4; 0-2: PCIe, system; 1-2: PCIe, host bridge; peer access everywhere"


@pytest.mark.parametrize("what", [READ, WRITE])
def test_no_peer_access_matters_where_memory_is_lent(what: int) -> None:
    library, found = board(3)
    library.access[found[2], found[0], what] = pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
    for peer in (LENDING, PeerConfig(borrow=True), PeerConfig(donate="0..60%")):
        finding = ways(seen(library), peer)
        assert_finding(finding, "warning", "no peer access between 0-2 (chipset not supported)", "what is lent", "ACS")
    assert_finding(ways(seen(library), ALONE), "note", "no peer access between 0-2", "through host memory")


def test_many_pairs_are_not_named_one_by_one() -> None:
    library, found = board(8)
    for one in found:
        for other in found:
            library.access[one, other, READ] = pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    assert_finding(ways(seen(library), LENDING), "warning", "0-1, 0-2,", "and 20 more", "PCIe, system between all 8")


def test_a_driver_that_says_nothing_of_pairs() -> None:
    """As in some virtual machines."""
    library, (one, _) = board(2)
    names = "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"
    one.unsupported = dict.fromkeys(names, pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert_finding(ways(seen(library), LENDING), "note", "in a way that the driver does not say", "0-1, the driver")


def test_one_gpu_reaches_nobody() -> None:
    assert ways(seen(board(1)[0]), LENDING) == note("no second GPU")
    assert ways(seen(FakeNvml()), LENDING) == note("none in use")


def test_what_cuda_refuses_is_refused() -> None:
    library, found = board(3)
    switch(found, 18)
    one, other, last = (gpu.uuid for gpu in found)
    cuda = {(one, other): True, (other, one): True, (one, last): True, (last, one): False}
    finding = ways(corrected(seen(library), cuda), LENDING)
    assert_finding(finding, "warning", "NVLink x18", "no peer access between 0-2 (refused by CUDA)")


def test_gpus_of_another_maker() -> None:
    """Without NVML, CUDA's word is all there is."""
    both = told_by_cuda({("cuda-0", "cuda-1"): True, ("cuda-1", "cuda-0"): True})
    assert_finding(ways(both, LENDING), "note", "peer access everywhere")
    one = told_by_cuda({("cuda-0", "cuda-1"): True, ("cuda-1", "cuda-0"): False})
    assert_finding(ways(one, LENDING), "warning", "no peer access between 0-1 (refused by CUDA)")


# ---- without a driver ----


def test_without_a_driver_there_is_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command asks: in a process of its own, of the binding."""

    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    monkeypatch.setattr(doctor_gpus, "_cuda_access", dict)
    doctor_gpus.look.cache_clear()
    assert list(run_checks(list(checks(LENDING, nodes=False)))) == [note("no NVIDIA driver here")]
    assert list(run_checks(list(checks(LENDING, nodes=True)))) == [note("no NVIDIA driver here")] * 2


def test_through_the_command_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    library, found = board(2)
    join(*found, 4)
    monkeypatch.setattr(nvml_module, "_binding", lambda: library)
    monkeypatch.setattr(doctor_gpus, "_cuda_access", dict)
    doctor_gpus.look.cache_clear()
    first, second = run_checks(list(checks(LENDING, nodes=True)))
    assert_finding(first, "ok", "0: NVIDIA H200", "1: NVIDIA H200")
    assert_finding(second, "ok", "NVLink x4 between the 2; peer access everywhere")
