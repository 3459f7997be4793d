"""NVML as it is, on a machine that has it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from swift_tiers.radix_tiering.gpus.nvml import NoNvml, Nvml
from swift_tiers.radix_tiering.gpus.watch import GpuWatch

pytestmark = pytest.mark.gpu


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    try:
        library = Nvml()
    except NoNvml as error:
        pytest.skip(str(error))
    with library:
        if not library.gpus():
            pytest.skip("the driver lists no GPU")
        yield library


def test_gpus_are_told_apart_and_have_memory(nvml: Nvml) -> None:
    gpus = [gpu for gpu in nvml.gpus() if not gpu.trouble]
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.pci for gpu in gpus}) == len(gpus)
    for gpu in gpus:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.memory_total_bytes is None or gpu.memory_total_bytes > 1 << 30
        assert gpu.busy_share is None or 0 <= gpu.busy_share <= 1


def test_every_pair_has_a_way(nvml: Nvml) -> None:
    gpus = tuple(gpu for gpu in nvml.gpus() if not gpu.trouble and not gpu.mig)
    reaches = nvml.reaches(gpus)
    assert len(reaches) == len(gpus) * (len(gpus) - 1) // 2
    assert all(reach.pcie or reach.nvlinks or reach.nvlink for reach in reaches)


def test_torch_and_nvml_agree_on_which_gpu_it_is(nvml: Nvml) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    properties = torch.cuda.get_device_properties(0)
    watch = GpuWatch(0, str(properties.uuid), os.environ)
    sample = watch.look()
    watch.close()
    assert sample is not None
    assert sample.gpu.name == properties.name
    assert sample.gpu.memory_total_bytes is not None
    assert abs(sample.gpu.memory_total_bytes - properties.total_memory) < sample.gpu.memory_total_bytes // 16


def test_bytes_that_go_over_pcie_are_seen(nvml: Nvml) -> None:
    """Copies go on while NVML counts: far more than nothing, and not a unit's factor off."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    own = GpuWatch(0, str(torch.cuda.get_device_properties(0).uuid), os.environ)
    sample = own.look()
    own.close()
    assert sample is not None
    if sample.pcie_received_bytes_per_second is None:
        pytest.skip("NVML counts no PCIe traffic of this GPU")
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(40):
        device.copy_(host, non_blocking=True)
    end.record()
    _, received = nvml.pcie_rates(sample.gpu.uuid)
    end.synchronize()
    speed = 40 * host.nbytes / (start.elapsed_time(end) / 1000)
    assert received is not None
    assert speed / 3 < received < speed * 3
