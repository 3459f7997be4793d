"""What a reader of the bus sees of a rank's GPU: NVML's figures, of which each may be None."""

from __future__ import annotations

from .view import RankedView


class GpuView(RankedView, frozen=True):
    """The GPU of one rank. What was sent left it, what was received came to it, whoever copied."""

    index: int | None = None  # NVML's
    uuid: str = ""
    name: str = ""
    pci: str = ""
    trouble: str = ""
    mig: bool | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    busy_share: float | None = None
    nvlinks: int | None = None
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    nvlink_sent_bytes_per_second: float | None = None
    nvlink_received_bytes_per_second: float | None = None
    pcie_sent_bytes_per_second: float | None = None  # a sample of 20 ms
    pcie_received_bytes_per_second: float | None = None
    reaches: tuple[str, ...] = ()  # uuids of other GPUs


class ReachView(RankedView, frozen=True):
    """How the GPU of one rank reaches another one. Byte counts are of NVLinks that are theirs alone."""

    gpu: str  # uuid of the other one
    name: str = ""
    nvlinks: int | None = None
    switched: bool | None = None
    pcie: str = ""
    read: str = ""  # "ok", or why not
    write: str = ""
    nvlink: str = ""
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    nvlink_sent_bytes_per_second: float | None = None
    nvlink_received_bytes_per_second: float | None = None
