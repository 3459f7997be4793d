"""Looking at a GPU is nobody's business but its own thread's, and nobody waits for that."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Any

import pynvml
import pytest

from swift_tiers.radix_tiering.gpus.nvml import Nvml
from swift_tiers.radix_tiering.gpus.sampler import GpuSampler
from swift_tiers.radix_tiering.gpus.watch import GpuWatch

from support.fake_nvml import FakeGpu, FakeNvml, join
from support.redis import wait_for


@pytest.fixture
def pair() -> tuple[FakeGpu, FakeGpu]:
    one, other = FakeGpu(0), FakeGpu(1)
    join(one, other, 2)
    return one, other


def real(library: FakeNvml, **options: Any) -> GpuSampler:
    return GpuSampler(GpuWatch(0, None, {}, open_nvml=partial(Nvml, library)), **options)


def test_without_a_driver_it_ends_and_says_nothing(caplog) -> None:
    library = FakeNvml()
    library.absent = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    sampler = real(library, interval=0.01)
    with caplog.at_level(logging.INFO):
        sampler.start()
        wait_for(lambda: not sampler._thread.is_alive(), "the end of the thread")
    sampler.close()
    assert sampler.newest() is None
    assert library.calls == ["nvmlInit"]
    assert not caplog.records


def test_every_call_is_on_its_own_thread_and_the_library_is_closed_at_the_end(pair) -> None:
    library = FakeNvml(*pair)
    sampler = real(library, interval=0.01)
    assert library.calls == []
    sampler.start()
    wait_for(lambda: library.calls.count("nvmlDeviceGetMemoryInfo") >= 5, "five samples")
    sampler.close(20)
    sampler.close(20)
    assert library.threads == {sampler._thread.ident}
    assert (library.opened, library.calls[-1]) == (0, "nvmlShutdown")
    seen = len(library.calls)
    assert sampler.newest() is not None
    assert len(library.calls) == seen


def test_the_end_does_not_wait_for_a_pause_nor_for_a_driver_that_hangs(pair) -> None:
    """A call that does not come back: closing gives up, and the process could end."""
    library, hanging, go_on = FakeNvml(*pair), threading.Event(), threading.Event()
    patient = real(library, interval=3600.0)
    patient.start()
    wait_for(lambda: patient.newest() is not None, "a sample")
    started = time.monotonic()
    patient.close(60)
    assert not patient._thread.is_alive()

    def hang(name: str) -> None:
        if name == "nvmlDeviceGetPcieThroughput":
            hanging.set()
            go_on.wait(60)

    library.on_call = hang
    sampler = real(library)
    sampler.start()
    assert hanging.wait(20)
    sampler.close(0.05)
    assert time.monotonic() - started < 50
    assert sampler._thread.is_alive()
    assert sampler._thread.daemon
    assert sampler.newest() is None
    go_on.set()
    sampler._thread.join(20)
    assert library.opened == 0


def test_closing_what_was_never_started(pair) -> None:
    real(FakeNvml(*pair)).close()
