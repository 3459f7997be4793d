"""A rank's GPU, looked at again and again: sums and rates over whatever happens to it."""

from __future__ import annotations

import logging
from functools import partial

import pynvml
import pytest

from swift_tiers.radix_tiering.gpus.nvml import Nvml
from swift_tiers.radix_tiering.gpus.snapshots import GpuSample
from swift_tiers.radix_tiering.gpus.watch import GpuWatch

from support.fake_nvml import GIB, FakeGpu, FakeNvml, join, switch

LOST = pynvml.NVML_ERROR_GPU_IS_LOST


class Clock:
    """Two seconds a look; the wall's is 1,000 ahead."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1000.0


class Turns(GpuWatch):
    """Two seconds pass before each look."""

    def __init__(self, library: FakeNvml, ordinal: int = 0, uuid: str | None = None) -> None:
        self.clock = Clock()
        super().__init__(
            ordinal, uuid, {}, open_nvml=partial(Nvml, library), wall=self.clock.wall, monotonic=self.clock.monotonic
        )

    def next(self) -> GpuSample | None:
        self.clock.now += 2.0
        return self.look()


@pytest.fixture
def pair() -> tuple[FakeGpu, FakeGpu]:
    one, other = FakeGpu(0), FakeGpu(1)
    join(one, other, 2)
    return one, other


def said(sample: GpuSample | None) -> GpuSample:
    assert sample is not None
    return sample


# ---- figures ----


def test_a_sample(pair) -> None:
    look = Turns(FakeNvml(*pair))
    first = said(look.next())
    assert (first.time, first.gpu.uuid, first.gpu.memory_used_bytes) == (1102.0, pair[0].uuid, 10 * GIB)
    assert first.nvlinks == 2
    assert (first.nvlink_sent_bytes, first.nvlink_sent_bytes_per_second) == (0, None)
    assert (first.pcie_sent_bytes_per_second, first.pcie_received_bytes_per_second) == (1_000_000, 2_000_000)
    (reach,) = first.reaches
    assert (reach.reach.to(pair[0].uuid), reach.reach.nvlinks, reach.name) == (pair[1].uuid, 2, "NVIDIA H200")


def test_sums_and_rates_are_bytes_of_all_links_since_sampling_began(pair) -> None:
    one, _ = pair
    one.links[0].sent_kib = one.links[0].received_kib = 1_000_000  # before anybody looked
    look = Turns(FakeNvml(*pair))
    look.next()
    one.links[0].sent_kib += 100
    one.links[1].sent_kib += 50
    one.links[1].received_kib += 8
    sample = said(look.next())
    assert (sample.nvlink_sent_bytes, sample.nvlink_received_bytes) == (150 * 1024, 8 * 1024)
    assert (sample.nvlink_sent_bytes_per_second, sample.nvlink_received_bytes_per_second) == (75 * 1024, 4 * 1024)
    (reach,) = sample.reaches
    assert (reach.nvlink_sent_bytes, reach.nvlink_received_bytes_per_second) == (150 * 1024, 4 * 1024)


def test_each_direct_peer_has_its_links() -> None:
    gpus = [FakeGpu(number) for number in range(4)]
    join(gpus[1], gpus[0], 1)
    join(gpus[1], gpus[2], 3)
    look = Turns(FakeNvml(*gpus), ordinal=1)
    look.next()
    for number, link in enumerate(gpus[1].links):
        link.sent_kib += 1 << number
    sample = said(look.next())
    by_peer = {reach.reach.to(gpus[1].uuid): reach.nvlink_sent_bytes for reach in sample.reaches}
    assert by_peer == {gpus[0].uuid: 1024, gpus[2].uuid: 14 * 1024, gpus[3].uuid: None}
    assert sample.nvlink_sent_bytes == 15 * 1024


def test_over_switches_only_the_sum_is_known() -> None:
    gpus = [FakeGpu(number) for number in range(3)]
    switch(gpus, 18)
    look = Turns(FakeNvml(*gpus))
    look.next()
    gpus[0].links[5].received_kib += 4
    sample = said(look.next())
    assert sample.nvlink_received_bytes == 4096
    assert {(one.reach.nvlinks, one.reach.switched, one.nvlink_received_bytes) for one in sample.reaches} == {
        (18, True, None)
    }


def test_a_driver_that_counts_all_links_together_only(pair) -> None:
    one, _ = pair
    one.counts = False
    look = Turns(FakeNvml(*pair))
    look.next()
    one.links[0].sent_kib += 6
    one.links[1].sent_kib += 2
    sample = said(look.next())
    assert (sample.nvlink_sent_bytes, sample.nvlink_sent_bytes_per_second) == (8 * 1024, 4 * 1024)
    assert sample.reaches[0].nvlink_sent_bytes is None, "which of them is whose is not known"


def test_a_sum_of_some_is_not_taken_for_the_sum_of_all(pair) -> None:
    one, _ = pair
    look = Turns(FakeNvml(*pair))
    look.next()
    one.links[0].sent_kib += 6
    one.links[1].mute = True
    sample = said(look.next())
    assert (sample.nvlink_sent_bytes, sample.nvlink_sent_bytes_per_second) == (None, None)
    one.links[1].mute = False
    one.links[1].sent_kib += 1
    assert said(look.next()).nvlink_sent_bytes == 7 * 1024


def test_unsupported_counters_are_not_known(pair) -> None:
    pair[0].counts = pair[0].counts_together = False
    look = Turns(FakeNvml(*pair))
    look.next()
    sample = said(look.next())
    assert sample.nvlinks == 2
    assert {sample.nvlink_sent_bytes, sample.nvlink_sent_bytes_per_second, sample.reaches[0].nvlink_sent_bytes} == {
        None
    }


def test_a_counter_that_wraps_around_goes_on(pair) -> None:
    link = pair[0].links[0]
    link.sent_kib = (1 << 32) - 6
    look = Turns(FakeNvml(*pair))
    look.next()
    link.sent_kib = 4
    sample = said(look.next())
    assert (sample.nvlink_sent_bytes, sample.nvlink_sent_bytes_per_second) == (10 * 1024, 5 * 1024)


def test_a_link_that_goes_down_and_comes_up(pair) -> None:
    link = pair[0].links[1]
    look = Turns(FakeNvml(*pair))
    assert said(look.next()).nvlinks == 2
    link.up = False
    assert said(look.next()).nvlinks == 1
    link.up = True
    link.sent_kib += 3
    sample = said(look.next())
    assert (sample.nvlinks, sample.nvlink_sent_bytes) == (2, 3072)


def test_who_reaches_whom_is_asked_again_once_a_minute(pair) -> None:
    library = FakeNvml(*pair)
    look = Turns(library)
    look.next()
    pair[0].links[0].up = False
    asked = library.calls.count("nvmlDeviceGetP2PStatus")
    assert said(look.next()).reaches[0].reach.nvlinks == 2
    assert library.calls.count("nvmlDeviceGetP2PStatus") == asked
    look.clock.now += 60.0
    assert said(look.next()).reaches[0].reach.nvlinks == 1


# ---- troubles ----


def test_a_gpu_that_is_lost_and_comes_back(pair, caplog) -> None:
    one, _ = pair
    library = FakeNvml(*pair)
    look = Turns(library)
    look.next()
    one.links[0].sent_kib += 10
    assert said(look.next()).nvlink_sent_bytes == 10 * 1024
    one.failing = LOST
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            sample = said(look.next())
            assert (sample.gpu.uuid, sample.gpu.trouble) == (one.uuid, "GPU is lost")
            assert (sample.gpu.memory_used_bytes, sample.nvlinks, sample.reaches) == (None, None, ())
    assert [record.message for record in caplog.records] == [
        "swift-tiers: no figures of the GPU until it answers again: GPU is lost"
    ]
    assert library.opened == 0, "NVML is opened anew: a handle of a lost GPU stays lost"
    one.failing = None
    one.links[0].sent_kib = 4  # reset
    sample = said(look.next())
    assert (sample.gpu.trouble, sample.nvlinks) == ("", 2)
    assert (sample.nvlink_sent_bytes, sample.nvlink_sent_bytes_per_second) == (14 * 1024, None)
    one.links[0].sent_kib += 2
    assert said(look.next()).nvlink_sent_bytes_per_second == 1024


def test_a_driver_that_is_reloaded(pair) -> None:
    library = FakeNvml(*pair)
    look = Turns(library)
    look.next()
    pair[0].failing, library.absent = pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert said(look.next()).gpu.trouble == "Driver Not Loaded"
    assert said(look.next()).gpu.trouble == "no NVIDIA driver here"
    pair[0].failing = library.absent = None
    assert said(look.next()).gpu.trouble == ""


def test_a_gpu_that_is_lost_from_the_beginning(pair) -> None:
    library = FakeNvml(*pair)
    pair[0].failing = LOST
    look = Turns(library)
    assert look.next() is None
    pair[0].failing = None
    assert said(look.next()).gpu.uuid == pair[0].uuid


def test_a_fault_that_nobody_thought_of(pair) -> None:
    library = FakeNvml(*pair)
    look = Turns(library)
    look.next()

    def fail(name: str) -> None:
        if name == "nvmlDeviceGetMemoryInfo":
            raise OSError("an exception of another kind")

    library.on_call = fail
    assert said(look.next()).gpu.trouble == "an exception of another kind"
    library.on_call = lambda name: None
    assert said(look.next()).gpu.trouble == ""


def test_which_gpu_is_ours_is_not_guessed() -> None:
    library = FakeNvml(FakeGpu(0), FakeGpu(1, "NVIDIA A10"))
    assert Turns(library).next() is None
    assert Turns(library, uuid="00000001-1111-2222-3333-444455556666").next().gpu.name == "NVIDIA A10"


def test_a_mig_instance() -> None:
    whole = FakeGpu(0)
    whole.mig = True
    part = FakeGpu(5, part_of=whole)
    part.used = GIB
    sample = said(Turns(FakeNvml(whole, instances=[part]), uuid=part.uuid.removeprefix("MIG-")).next())
    assert (sample.gpu.uuid, sample.gpu.memory_used_bytes) == (part.uuid, GIB)
    assert (sample.nvlinks, sample.pcie_sent_bytes_per_second, sample.reaches) == (None, None, ())
