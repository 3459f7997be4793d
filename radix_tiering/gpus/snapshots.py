"""GPUs as the driver sees them, typed. None, or an empty text, means that it does not say; it never means zero."""

from __future__ import annotations

import msgspec

from ..figures.declare import Figures, Series, counter, fact, gauge, text

#: Figures of a GPU that are older than this, seconds, are none of now: NVML is asked every 2 s.
LATE_GPU = 10.0
#: A direction of peer access that works, as `Reach` has it.
ALLOWED = "ok"

_NVLINK = Series("gpu_nvlink_bytes", "direction", "over all NVLinks of the GPU, by everybody")
_BEGAN = "by everybody, since this server began to look"
_SINCE = "since the look before; empty in the first, and after a gap"


class Gpu(Figures):
    """One GPU, or one MIG instance, at one moment. Of an instance, index and address are those of its GPU."""

    index: int | None = fact("its number at NVML and `nvidia-smi`, whatever CUDA_VISIBLE_DEVICES says")
    uuid: str = text("`GPU-…`, or `MIG-…` of an instance of a divided one")
    name: str = text("")
    pci: str = text("its address, `0000:1b:00.0`")
    trouble: str = text("why nothing else is known: it is lost, or its driver is; empty if it answers")
    mig: bool | None = fact("1 if it is divided with MIG, or is an instance; empty where NVML does not say")
    memory_total_bytes: int | None = gauge("")
    memory_used_bytes: int | None = gauge(
        "by all processes, what the driver keeps included", series=Series("gpu_memory_used_bytes")
    )
    memory_free_bytes: int | None = gauge("")
    busy_share: float | None = gauge("of the last moments in which a kernel ran, 0 to 1")


class NvLink(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink of one GPU, with its counters as they stand: they may begin anew."""

    number: int
    active: bool
    remote: str = ""  # PCI address of what is at its other end
    switch: bool = False  # that is an NVSwitch
    sent_bytes: int | None = None
    received_bytes: int | None = None


class ReachFigures(Figures):
    """How two GPUs reach each other; the same from both sides."""

    nvlinks: int | None = gauge("that are up between both, or to the same NVSwitches; 0 if there is none")
    switched: bool | None = fact("1 if they go over NVSwitches, which are everybody's")
    pcie: str = text(
        "what both are below: `same board`, `single switch`, `multiple switches`, `host bridge`, `node`, `system`"
    )
    read: str = text("whether each can read the other's memory by itself: `ok`, or why not")
    write: str = text("whether it can write there, likewise")
    nvlink: str = text("whether it can over NVLink, likewise")


class Reach(ReachFigures):
    """How two GPUs, known by their uuids, reach each other."""

    one: str
    other: str

    @property
    def direct(self) -> bool | None:
        """Whether each may read and write the other's memory; None where that is not known."""
        said = {self.read, self.write}
        return True if said == {ALLOWED} else None if said <= {ALLOWED, ""} else False

    def to(self, uuid: str) -> str:
        """The GPU at the other side from this one."""
        return self.other if uuid == self.one else self.one


class ReachTraffic(Figures):
    """What has gone between two GPUs over NVLinks that are theirs alone."""

    nvlink_sent_bytes: int | None = counter(f"to and from this GPU alone; empty over NVSwitches; {_BEGAN}")
    nvlink_received_bytes: int | None = counter("likewise")
    nvlink_sent_bytes_per_second: float | None = gauge(_SINCE)
    nvlink_received_bytes_per_second: float | None = gauge("likewise")


class ReachSample(ReachTraffic):
    """How a rank's GPU reaches another one at one moment."""

    reach: Reach
    name: str = ""  # of the other GPU


class GpuTraffic(Figures):
    """What has gone over the links of a GPU, whoever copied. What was sent left it, what was received came to it."""

    nvlinks: int | None = gauge(
        "that are up; empty where it has none, or NVML does not say", series=Series("gpu_nvlinks")
    )
    nvlink_sent_bytes: int | None = counter(f"over all of them; {_BEGAN}", series=_NVLINK._replace(value="sent"))
    nvlink_received_bytes: int | None = counter("likewise", series=_NVLINK._replace(value="received"))
    nvlink_sent_bytes_per_second: float | None = gauge(_SINCE)
    nvlink_received_bytes_per_second: float | None = gauge("likewise")
    pcie_sent_bytes_per_second: float | None = gauge(
        "to host memory and elsewhere, in 20 ms just before `time`: a sample"
    )
    pcie_received_bytes_per_second: float | None = gauge("from there, likewise")


class GpuSample(GpuTraffic):
    """A rank's own GPU at one moment."""

    time: float  # seconds since the epoch
    gpu: Gpu
    reaches: tuple[ReachSample, ...] = ()

    def as_of(self, now: float) -> GpuSample:
        """What it says now, `now` in seconds since the epoch: if it is late, that the driver does not answer, and no
        figures."""
        if now - self.time <= LATE_GPU:
            return self
        silent = Gpu(index=self.gpu.index, uuid=self.gpu.uuid, trouble=f"no answer for {now - self.time:.0f} s")
        return GpuSample(time=self.time, gpu=silent)


def way(nvlinks: int | None, pcie: str) -> str:
    """How two GPUs are connected, in words: `NVLink x18`, `PCIe, host bridge`; `?` where neither is known."""
    if nvlinks:
        return f"NVLink x{nvlinks}"
    return f"PCIe, {pcie}" if pcie else "?"
