"""GPUs as the driver sees them, typed. None, or an empty text, means that it does not say; it never means zero."""

from __future__ import annotations

import msgspec

#: A direction of peer access that works, as `Reach` has it.
ALLOWED = "ok"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, or one MIG instance, at one moment."""

    index: int | None  # NVML's, by PCI bus; of a MIG instance, that of its GPU
    uuid: str  # "GPU-…" or "MIG-…"
    name: str = ""
    pci: str = ""  # "0000:1b:00.0"; of a MIG instance, that of its GPU
    trouble: str = ""  # why nothing else is known: lost, or in need of a reset
    mig: bool | None = None  # it is divided into MIG instances, or is one
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None  # by everybody, what the driver keeps included
    memory_free_bytes: int | None = None
    busy_share: float | None = None  # of the driver's last sampling period in which a kernel ran, 0 to 1


class NvLink(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink of one GPU, with its counters as they stand: they may begin anew."""

    number: int
    active: bool
    remote: str = ""  # PCI address of what is at its other end
    switch: bool = False  # that is an NVSwitch
    sent_bytes: int | None = None
    received_bytes: int | None = None


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How two GPUs reach each other; the same from both sides."""

    one: str  # uuid
    other: str
    nvlinks: int | None  # active ones between both, or from both to the same NVSwitches
    switched: bool  # over NVSwitches: its links are not of this pair alone
    pcie: str  # what both are below: "same board", "single switch", … "system"
    read: str  # whether each may read the other's memory: "ok", or why not
    write: str
    nvlink: str  # whether it may over NVLink

    @property
    def direct(self) -> bool | None:
        """Whether each may read and write the other's memory; None where that is not known."""
        said = {self.read, self.write}
        return True if said == {ALLOWED} else None if said <= {ALLOWED, ""} else False

    def to(self, uuid: str) -> str:
        """The GPU at the other side from this one."""
        return self.other if uuid == self.one else self.one


class ReachSample(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank's GPU reaches another one, and what has gone between them over NVLinks that are theirs alone."""

    reach: Reach
    name: str = ""  # of the other GPU
    sent_bytes: int | None = None  # since sampling began
    received_bytes: int | None = None
    sent_bytes_per_second: int | None = None
    received_bytes_per_second: int | None = None


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's own GPU at one moment. What was sent left the GPU, what was received came to it."""

    time: float  # seconds since the epoch
    gpu: Gpu
    nvlinks: int | None = None  # active ones
    nvlink_sent_bytes: int | None = None  # over all of them, since sampling began
    nvlink_received_bytes: int | None = None
    nvlink_sent_bytes_per_second: int | None = None  # since the sample before
    nvlink_received_bytes_per_second: int | None = None
    pcie_sent_bytes_per_second: int | None = None  # in 20 ms just before `time`
    pcie_received_bytes_per_second: int | None = None
    reaches: tuple[ReachSample, ...] = ()


def way(nvlinks: int | None, pcie: str) -> str:
    """How two GPUs are connected, in words: `NVLink x18`, `PCIe, host bridge`; `?` where neither is known."""
    if nvlinks:
        return f"NVLink x{nvlinks}"
    return f"PCIe, {pcie}" if pcie else "?"
