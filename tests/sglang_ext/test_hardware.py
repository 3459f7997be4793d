"""The name of what a model is computed on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
import torch

from swift_tiers.sglang_ext.build.hardware import hardware_name, processor_name


def test_a_gpu_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert hardware_name() == "NVIDIA H200"


def test_a_processor_is_its_name_and_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    assert hardware_name().endswith(", 3 cores")


def test_a_processor_without_a_name_is_its_architecture(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert processor_name(cpuinfo) == platform.machine()
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50\n")
    assert processor_name(cpuinfo) == platform.machine()
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert processor_name(cpuinfo) == "Some CPU @ 2 GHz"
