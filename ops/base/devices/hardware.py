"""Devices of the simulation: what their makers say of them, and what is assumed beyond that.

Peaks are dense (no sparsity) bf16 or fp16 with 32-bit accumulation, bandwidths those of the data sheets, in decimal
units. Data sheets are peaks; `Usage` says how much of them is taken to be reached.
"""

from __future__ import annotations

import msgspec

GB = 1e9
#: Of the 10, 40 and 80 Gb/s that CacheFlow's evaluation speaks of.
GIGABIT = 1e9 / 8


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator."""

    name: str
    flops: float  # per second
    memory_bytes: float
    memory_bytes_per_second: float
    nvlink_bytes_per_second: float  # one direction; 0: none
    pcie_bytes_per_second: float  # one direction
    origin: str


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="H100", flops=989.4e12, memory_bytes=80 * GB, memory_bytes_per_second=3350 * GB,
            nvlink_bytes_per_second=450 * GB, pcie_bytes_per_second=64 * GB,
            origin="NVIDIA H100 data sheet, SXM5, halved where it counts sparsity",
        ),
        Gpu(
            name="H200", flops=989.4e12, memory_bytes=141 * GB, memory_bytes_per_second=4800 * GB,
            nvlink_bytes_per_second=450 * GB, pcie_bytes_per_second=64 * GB,
            origin="NVIDIA H200 data sheet, SXM, halved where it counts sparsity",
        ),
        Gpu(
            name="A100", flops=312e12, memory_bytes=40 * GB, memory_bytes_per_second=1555 * GB,
            nvlink_bytes_per_second=300 * GB, pcie_bytes_per_second=32 * GB,
            origin="NVIDIA A100 data sheet, 40 GB",
        ),
        Gpu(
            name="A100-80G", flops=312e12, memory_bytes=80 * GB, memory_bytes_per_second=2039 * GB,
            nvlink_bytes_per_second=300 * GB, pcie_bytes_per_second=32 * GB,
            origin="NVIDIA A100 data sheet, 80 GB SXM",
        ),
        Gpu(
            name="L40S", flops=362e12, memory_bytes=48 * GB, memory_bytes_per_second=864 * GB,
            nvlink_bytes_per_second=0, pcie_bytes_per_second=32 * GB,
            origin="NVIDIA L40S data sheet, halved where it counts sparsity",
        ),
        Gpu(
            name="H20", flops=148e12, memory_bytes=96 * GB, memory_bytes_per_second=4000 * GB,
            nvlink_bytes_per_second=200 * GB, pcie_bytes_per_second=32 * GB,
            origin="published H20 figures; NVLink and PCIe as in SwiftCache, section 5",
        ),
        Gpu(
            name="V100", flops=125e12, memory_bytes=32 * GB, memory_bytes_per_second=900 * GB,
            nvlink_bytes_per_second=150 * GB, pcie_bytes_per_second=16 * GB,
            origin="NVIDIA V100 data sheet, SXM2 32 GB",
        ),
        Gpu(
            name="L4", flops=121e12, memory_bytes=24 * GB, memory_bytes_per_second=300 * GB,
            nvlink_bytes_per_second=0, pcie_bytes_per_second=32 * GB,
            origin="NVIDIA L4 data sheet, halved where it counts sparsity",
        ),
    )
}  # fmt: skip


class Ssd(msgspec.Struct, frozen=True, kw_only=True):
    """One NVMe device, reading."""

    name: str
    bytes_per_second: float
    requests_per_second: float
    latency_seconds: float
    origin: str


SSDS = {
    ssd.name: ssd
    for ssd in (
        Ssd(
            name="PM9A3", bytes_per_second=6.9 * GB, requests_per_second=1.1e6, latency_seconds=80e-6,
            origin="Swarm, section 8.1; latency assumed (flash)",
        ),
        Ssd(
            name="900P", bytes_per_second=2.5 * GB, requests_per_second=0.55e6, latency_seconds=10e-6,
            origin="Swarm, section 8.1; latency assumed (Optane)",
        ),
    )
}  # fmt: skip


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What part of a data sheet's peak is reached. Assumed, the same for all devices; docs/evaluation.md shows what
    other values would give."""

    matrices: float = 0.5
    attention: float = 0.4
    memory: float = 0.8
    link: float = 0.8  # of NVLink and PCIe
    #: Seconds of each forward in which the device waits for its host.
    launch_seconds: float = 0.005


USAGE = Usage()
