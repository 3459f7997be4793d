"""A rank's GPU on the bus: what NVML said and when; nothing where there is none, and no zero for what is unknown."""

from __future__ import annotations

from functools import partial

import msgspec
import pynvml
import pytest

from swift_tiers.radix_tiering.bus.contract.gpu_views import MOST_REACHES, GpuView, ReachView
from swift_tiers.radix_tiering.bus.contract.records import reaches
from swift_tiers.radix_tiering.bus.contract.views import RankState
from swift_tiers.radix_tiering.bus.hear.reader import BusReader, Part
from swift_tiers.radix_tiering.gpus.nvml import Nvml
from swift_tiers.radix_tiering.gpus.sampler import GpuSampler
from swift_tiers.radix_tiering.gpus.snapshots import Gpu, GpuSample, Reach, ReachSample
from swift_tiers.radix_tiering.gpus.watch import GpuWatch

from support.fake_nvml import FakeGpu, FakeNvml, join
from support.publishing import wait_published
from support.redis import RealRedis, wait_for
from support.telemetry import GPUS, gpu

ALPHA = "swift:alpha:dp0-tp0"


class Sampled:
    """What a sampler has seen last."""

    def __init__(self, sample: GpuSample | None) -> None:
        self.sample = sample

    def __call__(self) -> GpuSample | None:
        return self.sample


def read(redis: RealRedis, part: Part = Part.LINKS) -> RankState:
    with BusReader(redis.client()) as reader:
        (server,) = reader.snapshot(part).servers
    (rank,) = server.ranks
    return rank


def keys(redis: RealRedis) -> set[str]:
    found = (*redis.admin.scan_iter(f"{ALPHA}:gpu*"), *redis.admin.scan_iter(f"{ALPHA}:reach:*"))
    return {str(key).removeprefix(f"{ALPHA}:") for key in found}


def test_a_reader_reads_what_was_sampled(redis, publish) -> None:
    publish(redis, gpu=gpu)
    wait_published(redis)
    rank, sample = read(redis), gpu()
    assert isinstance(rank.gpu, GpuView)
    for field in ("memory_total_bytes", "memory_used_bytes", "uuid", "name", "pci", "index", "mig", "busy_share"):
        assert getattr(rank.gpu, field) == getattr(sample.gpu, field), field
    for field in ("nvlinks", "nvlink_sent_bytes", "nvlink_received_bytes_per_second", "pcie_sent_bytes_per_second"):
        assert getattr(rank.gpu, field) == getattr(sample, field), field
    assert rank.gpu.reaches == (GPUS[1], GPUS[2])
    linked, apart = rank.reaches
    assert isinstance(linked, ReachView)
    assert (linked.gpu, linked.nvlinks, linked.pcie, linked.read) == (GPUS[1], 4, "node", "ok")
    assert (linked.nvlink_sent_bytes, linked.nvlink_received_bytes_per_second) == (10**9, 4 * 10**6)
    assert (apart.gpu, apart.nvlinks, apart.nvlink, apart.nvlink_sent_bytes) == (GPUS[2], 0, "not supported", None)
    assert read(redis, Part.TIERS).gpu is None


@pytest.mark.parametrize("sampler", [None, Sampled(None)], ids=["no GPU", "nothing seen yet"])
def test_without_a_sample_there_is_no_key(redis, publish, sampler) -> None:
    publish(redis, gpu=sampler)
    wait_published(redis)
    assert keys(redis) == set()
    rank = read(redis)
    assert (rank.gpu, rank.reaches) == (None, ())
    assert rank.links


def test_what_is_not_supported_is_empty(redis, publish) -> None:
    bare = GpuSample(time=5.0, gpu=Gpu(index=0, uuid=GPUS[0]))
    publish(redis, gpu=Sampled(bare))
    wait_published(redis)
    said = redis.admin.hgetall(f"{ALPHA}:gpu")
    assert {name for name, value in said.items() if value} == {"time", "index", "uuid"}
    view = read(redis).gpu
    assert view is not None
    assert {view.memory_used_bytes, view.nvlinks, view.nvlink_sent_bytes, view.pcie_sent_bytes_per_second} == {None}


def test_a_lost_gpu_says_so_and_forgets_whom_it_reached(redis, publish) -> None:
    sampled = Sampled(gpu())
    publish(redis, gpu=sampled)
    wait_for(lambda: len(keys(redis)) == 3, "the GPU")
    lost = msgspec.structs.replace(gpu().gpu, trouble="GPU is lost", memory_used_bytes=None)
    sampled.sample = GpuSample(time=1_700_000_006.0, gpu=lost)
    wait_for(lambda: keys(redis) == {"gpu"}, "the end of what it reached")
    view = read(redis).gpu
    assert view is not None
    assert (view.trouble, view.name, view.memory_used_bytes, view.nvlinks) == ("GPU is lost", "NVIDIA H200", None, None)


def test_it_is_as_old_as_the_sample(redis, publish) -> None:
    """A driver that hangs: the last sample stays, and its age grows."""
    publish(redis, gpu=gpu, wall=lambda: 1_700_000_100.0)
    wait_published(redis)
    view = read(redis).gpu
    assert view is not None
    assert view.time == 1_700_000_004.0
    assert view.age_seconds is not None
    assert 95.5 < view.age_seconds < 120


def test_from_the_driver_to_a_reader(redis, publish) -> None:
    """Bytes over a link, as the binding counts them, are on the bus; so is the loss of the GPU, and its return."""
    one, other = FakeGpu(0), FakeGpu(1)
    join(one, other, 2)
    sampler = GpuSampler(GpuWatch(0, None, {}, open_nvml=partial(Nvml, FakeNvml(one, other))), 0.02)
    sampler.start()
    publish(redis, gpu=sampler.newest)

    def said(field: str) -> str | None:
        return redis.admin.hget(f"{ALPHA}:gpu", field)

    wait_for(lambda: said("nvlink_sent_bytes") == "0", "the first sample")
    one.links[1].sent_kib += 5
    wait_for(lambda: said("nvlink_sent_bytes") == "5120", "what was sent")
    wait_for(lambda: [one.nvlink_sent_bytes for one in read(redis).reaches] == [5120], "and over which link")
    (reach,) = read(redis).reaches
    assert (reach.gpu, reach.nvlinks, reach.nvlink_sent_bytes, reach.pcie) == (other.uuid, 2, 5120, "system")
    one.failing = pynvml.NVML_ERROR_GPU_IS_LOST
    wait_for(lambda: said("trouble") == "GPU is lost", "the loss")
    assert said("memory_used_bytes") == ""
    one.failing = None
    wait_for(lambda: said("trouble") == "" and said("nvlink_sent_bytes") == "5120", "its return")
    sampler.close(20)


def test_a_fault_of_the_sampler_is_told_and_takes_nothing_else_with_it(redis, publish) -> None:
    def fail() -> GpuSample:
        raise ValueError("no such GPU")

    publish(redis, gpu=fail)
    wait_published(redis)
    assert keys(redis) == set()
    assert redis.admin.exists(f"{ALPHA}:tier:host", f"{ALPHA}:tree", f"{ALPHA}:request:one") == 3


def test_not_more_gpus_than_a_reader_wants() -> None:
    many = tuple(
        ReachSample(
            reach=Reach(
                one=GPUS[0], other=f"GPU-{number}", nvlinks=None, switched=False, pcie="", read="", write="", nvlink=""
            )
        )
        for number in range(MOST_REACHES + 9)
    )
    assert len(reaches(gpu(reaches=many))) == MOST_REACHES
