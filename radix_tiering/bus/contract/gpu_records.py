"""What is told of a rank's GPU, as the bus writes it. Pure functions."""

from __future__ import annotations

from ...gpus.snapshots import GpuSample, ReachSample
from .records import Record, make_record
from .schema import MOST_REACHES


def gpu_record(sample: GpuSample) -> Record:
    """`gpu`."""
    gpu = sample.gpu
    return make_record(
        time=sample.time,
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        pci=gpu.pci,
        trouble=gpu.trouble,
        mig=gpu.mig,
        memory_total_bytes=gpu.memory_total_bytes,
        memory_used_bytes=gpu.memory_used_bytes,
        memory_free_bytes=gpu.memory_free_bytes,
        busy_share=gpu.busy_share,
        nvlinks=sample.nvlinks,
        nvlink_sent_bytes=sample.nvlink_sent_bytes,
        nvlink_received_bytes=sample.nvlink_received_bytes,
        nvlink_sent_bytes_per_second=sample.nvlink_sent_bytes_per_second,
        nvlink_received_bytes_per_second=sample.nvlink_received_bytes_per_second,
        pcie_sent_bytes_per_second=sample.pcie_sent_bytes_per_second,
        pcie_received_bytes_per_second=sample.pcie_received_bytes_per_second,
        reaches=",".join(reaches(sample)),
    )


def reaches(sample: GpuSample) -> dict[str, ReachSample]:
    """The GPUs that are told of, by uuid."""
    found = {one.reach.to(sample.gpu.uuid): one for one in sample.reaches}
    return dict(list(found.items())[:MOST_REACHES])


def reach_record(one: ReachSample, *, time: float) -> Record:
    """`reach`."""
    reach = one.reach
    return make_record(
        time=time,
        name=one.name,
        nvlinks=reach.nvlinks,
        switched=reach.switched,
        pcie=reach.pcie,
        read=reach.read,
        write=reach.write,
        nvlink=reach.nvlink,
        nvlink_sent_bytes=one.sent_bytes,
        nvlink_received_bytes=one.received_bytes,
        nvlink_sent_bytes_per_second=one.sent_bytes_per_second,
        nvlink_received_bytes_per_second=one.received_bytes_per_second,
    )
