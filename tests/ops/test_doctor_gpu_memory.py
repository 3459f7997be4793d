"""What `swift-tiers doctor` says of GPUs' memory: whether it can be lent, and read into from SSDs."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import pytest
import torch
from cuda.bindings import driver as real

from swift_tiers.ops.commands.doctor.finding import note
from swift_tiers.ops.commands.doctor.gpu_memory import checks, direct, lent, try_gpus
from swift_tiers.radix_tiering.base.config import PeerConfig, TiersConfig
from swift_tiers.radix_tiering.lending.donation.arena import ArenaError
from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory

from support import fake_kvikio
from support.doctor import assert_finding
from support.fake_cuda_driver import FakeCudaDriver
from support.fake_device import FakeDeviceMemory

ALONE, LENDING = PeerConfig(), PeerConfig(donate=True)


def cuda(driver: FakeCudaDriver) -> CudaDeviceMemory:
    return CudaDeviceMemory(0, driver, torch.device("cpu"))


def test_what_can_be_lent_has_been_lent() -> None:
    driver = FakeCudaDriver()
    tried = try_gpus(lambda number: cuda(driver), 2)
    assert tried == {0: "", 1: ""}
    assert driver.calls["cuMemExportToShareableHandle"] == driver.calls["cuMemImportFromShareableHandle"] == 2
    assert not {"handles", "ranges", "mappings"} & set(driver.open_things), "nothing is left behind"
    assert_finding(lent(tried, LENDING), "ok", "GPU 0, 1: exported, mapped and read")


def test_descriptors_are_closed() -> None:
    gc.collect()  # what other tests have left must not go meanwhile
    before = os.listdir("/proc/self/fd")
    try_gpus(lambda number: FakeDeviceMemory(), 3)
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda driver: setattr(driver, "attributes", 0), ("no virtual memory management", "remove peer.donate")),
        (
            lambda driver: driver.failing.update(cuMemExportToShareableHandle=real.CUresult.CUDA_ERROR_NOT_SUPPORTED),
            ("cuMemExportToShareableHandle: not supported", "cannot share memory"),
        ),
    ],
)
def test_a_gpu_that_cannot_lend(spoil: Any, words: tuple[str, ...]) -> None:
    fit, unfit = FakeCudaDriver(), FakeCudaDriver()
    spoil(unfit)
    tried = try_gpus(lambda number: cuda(unfit if number else fit), 2)
    assert_finding(lent(tried, LENDING), "warning", "GPU 0: exported", "GPU 1 cannot be lent:", *words)
    assert_finding(lent(tried, PeerConfig(borrow=True)), "warning", *words)
    assert_finding(lent(tried, ALONE), "note", *words)


def test_without_the_bindings() -> None:
    def missing(number: int) -> Any:
        raise ArenaError("cuda-bindings is missing; install it beside torch: pip install cuda-bindings")

    assert_finding(lent(try_gpus(missing, 1), LENDING), "warning", "cuda-bindings is missing", "pip install")


def test_memory_that_is_not_the_same_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDeviceMemory, "_read", lambda *_: None)
    assert_finding(lent(try_gpus(lambda number: FakeDeviceMemory(), 1), LENDING), "warning", "is not read", "report")


def test_no_gpu() -> None:
    assert lent({}, LENDING) == note("none in use")
    assert list(checks(TiersConfig(), nodes=False)) == []
    assert [check.name for check in checks(TiersConfig(), nodes=True)] == ["lent GPU memory", "SSD to GPU"]


def test_gpudirect_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_kvikio.install(monkeypatch)
    assert_finding(direct("auto"), "ok", "GPUDirect Storage")
    assert_finding(direct("off"), "note", "switched off")
    fake_kvikio.install(monkeypatch, gds=False)
    assert_finding(direct("auto"), "note", "no GPUDirect Storage", "through host memory")
    assert_finding(direct("on"), "warning", "copies through host memory itself", "nvidia-fs")


def test_without_kvikio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    assert_finding(direct("auto"), "note", "kvikio cannot be used", "through host memory")
    assert_finding(direct("on"), "wrong", "kvikio cannot be used", "pip install kvikio")
