"""Which devices a server with tiers may compute on."""

from __future__ import annotations

import pytest
import torch

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.sglang_ext.pools.supported import check_device


@pytest.mark.parametrize("device", [None, "cpu", "cuda", "cuda:1"])
def test_gpus_of_nvidia_and_the_cpu_are_served(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    check_device(device)


@pytest.mark.parametrize("device", [None, "cuda"])
def test_rocm_calls_its_devices_by_the_same_name(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    with pytest.raises(ConfigError, match=r"not for AMD GPUs \(ROCm\): remove the flag$"):
        check_device(device)
    check_device("cpu")


@pytest.mark.parametrize("device", [None, "npu", "npu:3"])
def test_others_are_refused_before_anything_is_loaded(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        type = "npu"

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: Found())
    with pytest.raises(ConfigError, match=r"not for npu: remove the flag$"):
        check_device(device)
