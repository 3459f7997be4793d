"""What is made of NVML's answers: units, ways between GPUs, and nothing where NVML says nothing."""

from __future__ import annotations

from itertools import permutations

import pynvml
import pytest

from swift_tiers.radix_tiering.gpus.nvml import GpuLost, NoNvml, Nvml
from swift_tiers.radix_tiering.gpus.snapshots import Reach, way

from support.fake_nvml import GIB, FakeGpu, FakeNvml, join, switch


def between(nvml: Nvml, one: FakeGpu, other: FakeGpu) -> Reach:
    (reach,) = (each for each in nvml.reaches(nvml.gpus()) if {each.one, each.other} == {one.uuid, other.uuid})
    return reach


# ---- GPUs ----


def test_a_gpu() -> None:
    with Nvml(FakeNvml(FakeGpu(0), FakeGpu(1))) as nvml:
        (_, gpu) = nvml.gpus()
    assert (gpu.index, gpu.name, gpu.pci) == (1, "NVIDIA H200", "0000:1c:00.0")
    assert gpu.uuid == "GPU-00000001-1111-2222-3333-444455556666"
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.memory_free_bytes) == (140 * GIB, 10 * GIB, 130 * GIB)
    assert (gpu.busy_share, gpu.mig, gpu.trouble) == (0.37, False, "")


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_what_is_not_supported_is_not_known_and_not_zero(code: int) -> None:
    one, other = FakeGpu(0), FakeGpu(1)
    join(one, other, 4)
    names = (
        "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMigMode", "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetName", "nvmlDeviceGetIndex", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus",
    )  # fmt: skip
    one.unsupported = dict.fromkeys(names, code)
    with Nvml(FakeNvml(one, other)) as nvml:
        gpu = nvml.gpus()[0]
        links = nvml.links(gpu.uuid)
        assert (gpu.uuid, gpu.name, gpu.pci, gpu.trouble) == (one.uuid, "", "", "")
        assert {gpu.index, gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.memory_free_bytes} == {None}
        assert (gpu.busy_share, gpu.mig) == (None, None)
        assert nvml.pcie_rates(gpu.uuid) == (None, None)
        assert links is not None
        assert {(link.active, link.sent_bytes, link.received_bytes) for link in links} == {(True, None, None)}
        reach = between(nvml, one, other)
    assert (reach.pcie, reach.read, reach.write, reach.nvlink, reach.direct) == ("", "", "", "", None)


def test_a_gpu_without_nvlink_has_no_links() -> None:
    with Nvml(FakeNvml(FakeGpu(0))) as nvml:
        assert nvml.links(nvml.gpus()[0].uuid) is None


# ---- counters ----


def test_counters_of_links_are_bytes_and_throughput_is_bytes_per_second() -> None:
    one, other = FakeGpu(0), FakeGpu(1)
    join(one, other, 2)
    one.links[1].sent_kib, one.links[1].received_kib = 3, 5
    with Nvml(FakeNvml(one, other)) as nvml:
        links = nvml.links(nvml.gpus()[0].uuid)
        assert links is not None
        assert [(link.number, link.sent_bytes, link.received_bytes) for link in links] == [(0, 0, 0), (1, 3072, 5120)]
        assert {link.remote for link in links} == {"0000:1c:00.0"}
        assert nvml.pcie_rates(one.uuid) == (1_000_000, 2_000_000)


@pytest.mark.parametrize(("kind", "bits"), [("UNSIGNED_INT", 32), ("UNSIGNED_LONG_LONG", 64)])
def test_counters_are_read_as_the_type_that_nvml_says(kind: str, bits: int) -> None:
    """A union: what lies beyond the type is not part of the value."""
    one, other = FakeGpu(0), FakeGpu(1)
    join(one, other, 1)

    class Typed(FakeNvml):
        def nvmlDeviceGetFieldValues(self, handle, fieldIds):
            values = super().nvmlDeviceGetFieldValues(handle, fieldIds)
            for value in values:
                value.valueType = getattr(pynvml, f"NVML_VALUE_TYPE_{kind}")
                value.value.ullVal = (1 << 40) + 7
            return values

    with Nvml(Typed(one, other)) as nvml:
        links = nvml.links(nvml.gpus()[0].uuid)
    assert links is not None
    assert links[0].sent_bytes == (((1 << 40) + 7) % (1 << bits)) * 1024


def test_counters_that_are_not_supported_are_not_zero() -> None:
    one, other = FakeGpu(0), FakeGpu(1)
    join(one, other, 2)
    one.counts = False
    with Nvml(FakeNvml(one, other)) as nvml:
        links = nvml.links(nvml.gpus()[0].uuid)
    assert links is not None
    assert [(link.sent_bytes, link.received_bytes) for link in links] == [(None, None), (None, None)]


# ---- ways ----


@pytest.fixture
def board() -> tuple[FakeNvml, list[FakeGpu]]:
    """Four GPUs: 0 and 1 by four links, 0 and 2 by two, 3 by PCIe alone."""
    gpus = [FakeGpu(number) for number in range(4)]
    join(gpus[0], gpus[1], 4)
    join(gpus[0], gpus[2], 2)
    return FakeNvml(*gpus), gpus


def test_every_pair_once_and_the_same_from_both_sides(board: tuple[FakeNvml, list[FakeGpu]]) -> None:
    library, gpus = board
    library.levels[frozenset(gpus[:2])] = pynvml.NVML_TOPOLOGY_SINGLE
    with Nvml(library) as nvml:
        seen = nvml.gpus()
        every = nvml.reaches(seen)
        backwards = nvml.reaches(tuple(reversed(seen)))
    assert len({frozenset((reach.one, reach.other)) for reach in every}) == len(every) == 6

    def told(reaches: tuple[Reach, ...]) -> dict[frozenset[str], tuple[object, ...]]:
        return {
            frozenset((one.one, one.other)): (one.nvlinks, one.switched, one.pcie, one.read, one.write, one.nvlink)
            for one in reaches
        }

    assert told(every) == told(backwards)
    for uuid, other in permutations([gpu.uuid for gpu in gpus], 2):
        assert [reach.to(uuid) for reach in every if {uuid, other} == {reach.one, reach.other}] == [other]


def test_direct_links_are_counted_for_each_pair(board: tuple[FakeNvml, list[FakeGpu]]) -> None:
    library, gpus = board
    gpus[0].links[3].up = False
    gpus[2].links[1].up = False
    with Nvml(library) as nvml:
        first, second, last = (between(nvml, gpus[0], gpus[number]) for number in (1, 2, 3))
        other = between(nvml, gpus[1], gpus[2])
    assert (first.nvlinks, second.nvlinks, last.nvlinks) == (3, 1, 0)
    assert not other.nvlinks
    assert [way(each.nvlinks, each.pcie) for each in (first, last)] == ["NVLink x3", "PCIe, system"]


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("INTERNAL", "same board"), ("SINGLE", "single switch"), ("MULTIPLE", "multiple switches"),
        ("HOSTBRIDGE", "host bridge"), ("NODE", "node"), ("SYSTEM", "system"),
    ],
)  # fmt: skip
def test_what_both_are_below(level: str, words: str) -> None:
    one, other = FakeGpu(0), FakeGpu(1)
    library = FakeNvml(one, other)
    library.level = getattr(pynvml, f"NVML_TOPOLOGY_{level}")
    with Nvml(library) as nvml:
        assert between(nvml, one, other).pcie == words


def test_over_switches_all_reach_all_by_all_their_links() -> None:
    gpus = [FakeGpu(number) for number in range(3)]
    switch(gpus, 18)
    gpus[2].links[7].up = False
    with Nvml(FakeNvml(*gpus)) as nvml:
        reaches = nvml.reaches(nvml.gpus())
    assert [(reach.nvlinks, reach.switched) for reach in reaches] == [(18, True), (17, True), (17, True)]


def test_switches_that_let_nobody_through_are_no_way() -> None:
    """Without the fabric manager every link is up, and nobody reaches anybody."""
    one, other = FakeGpu(0), FakeGpu(1)
    switch([one, other], 18)
    library = FakeNvml(one, other)
    library.access[one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK] = pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    with Nvml(library) as nvml:
        reach = between(nvml, one, other)
    assert (reach.nvlinks, reach.switched, reach.nvlink) == (0, False, "not supported")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("what", [0, 1])
def test_access_in_one_direction_is_none(what: int, turned: bool) -> None:
    one, other = FakeGpu(0), FakeGpu(1)
    library = FakeNvml(one, other)
    pair = (other, one) if turned else (one, other)
    library.access[*pair, what] = pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
    with Nvml(library) as nvml:
        reach = between(nvml, one, other)
    assert (reach.read, reach.write)[what] == "chipset not supported"
    assert (reach.read, reach.write)[1 - what] == "ok"
    assert reach.direct is False


# ---- troubles ----


def test_a_lost_gpu_takes_no_other_with_it() -> None:
    gpus = [FakeGpu(number) for number in range(3)]
    gpus[1].failing = pynvml.NVML_ERROR_GPU_IS_LOST
    with Nvml(FakeNvml(*gpus)) as nvml:
        seen = nvml.gpus()
        reaches = nvml.reaches(seen)
    assert [gpu.trouble for gpu in seen] == ["", "GPU is lost", ""]
    assert seen[1].memory_total_bytes is None
    assert [(reach.one, reach.other) for reach in reaches] == [(gpus[0].uuid, gpus[2].uuid)]


def test_a_gpu_that_is_lost_between_two_looks() -> None:
    one = FakeGpu(0)
    with Nvml(FakeNvml(one)) as nvml:
        (gpu,) = nvml.gpus()
        one.failing = pynvml.NVML_ERROR_GPU_IS_LOST
        for look in (nvml.gpu, nvml.links, nvml.pcie_rates):
            with pytest.raises(GpuLost, match="GPU is lost"):
                look(gpu.uuid)


def test_a_gpu_that_is_not_there() -> None:
    with Nvml(FakeNvml(FakeGpu(0))) as nvml, pytest.raises(GpuLost, match="does not know it"):
        nvml.gpu("GPU-77777777-1111-2222-3333-444455556666")


def test_a_mig_instance() -> None:
    """It has memory of its own; load, links and neighbours it has none."""
    whole = FakeGpu(0)
    whole.mig = True
    part = FakeGpu(5, "NVIDIA H200 MIG 1g.18gb", part_of=whole)
    part.total, part.used = 16 * GIB, GIB
    with Nvml(FakeNvml(whole, FakeGpu(1), instances=[part])) as nvml:
        gpu = nvml.gpu(part.uuid)
        seen = nvml.gpus()
        assert (gpu.mig, gpu.index, gpu.pci, gpu.busy_share) == (True, 0, "0000:1b:00.0", None)
        assert gpu.memory_total_bytes == 16 * GIB
        assert nvml.links(part.uuid) is None
        assert nvml.pcie_rates(part.uuid) == (None, None)
        assert nvml.reaches(seen) == ()
    assert [one.mig for one in seen] == [True, False]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver here"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no NVIDIA driver here"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "NVML: RM has detected an NVML/RM version mismatch."),
    ],
)
def test_no_driver(code: int, words: str) -> None:
    library = FakeNvml()
    library.absent = code
    with pytest.raises(NoNvml) as raised:
        Nvml(library)
    assert str(raised.value) == words


def test_it_is_closed_as_often_as_opened() -> None:
    library = FakeNvml(FakeGpu(0))
    with Nvml(library):
        assert library.opened == 1
    assert library.opened == 0
