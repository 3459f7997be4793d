"""Which GPU a scheduler's process is on, as torch and NVML name it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from swift_tiers.radix_tiering.gpus.nvml import Nvml
from swift_tiers.sglang_ext.tell.gpu_sampling import gpu_sampler

from support.fake_nvml import FakeGpu, FakeNvml
from support.redis import wait_for


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The process computes on CUDA device 1, whatever this machine has; what torch says of it."""
    properties = SimpleNamespace(name="NVIDIA H200", uuid="00000002-1111-2222-3333-444455556666")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return properties


def sampled() -> str:
    """The uuid of the GPU that is looked at."""
    library = FakeNvml(*(FakeGpu(number) for number in range(4)))
    sampler = gpu_sampler(partial(Nvml, library))
    assert sampler is not None
    assert library.calls == [], "nothing is asked on the scheduler's thread"
    sampler.start()
    sample = wait_for(sampler.newest, "a sample")
    sampler.close(20)
    uuid: str = sample.gpu.uuid
    return uuid


def test_without_a_gpu_nothing_is_made(on_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_sampler() is None


def test_a_gpu_of_another_maker_is_not_nvmls(on_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_sampler() is None


def test_the_uuid_that_torch_knows_decides(on_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert sampled() == "GPU-00000002-1111-2222-3333-444455556666"


def test_a_torch_without_uuids(on_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    del on_gpu.uuid
    assert sampled().startswith("GPU-00000001")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert sampled().startswith("GPU-00000003")
