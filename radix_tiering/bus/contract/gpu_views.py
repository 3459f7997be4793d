"""What a reader of the bus sees of a rank's GPU: NVML's figures, of which each may be None."""

from __future__ import annotations

from ...figures.declare import Series, counter, fact, gauge, several, text
from ...figures.forms import NAMES
from .view import RankedView

#: How many other GPUs a rank names at most.
MOST_REACHES = 64

_NVLINK = Series("gpu_nvlink_bytes", "direction", "over all NVLinks of the GPU, by everybody")
_SINCE = "since the look before; empty in the first, and after a gap"
_SAMPLE = "to host memory and elsewhere, in 20 ms just before `time`: a sample"


class GpuView(RankedView):
    """The GPU of one rank. What was sent left it, what was received came to it, whoever copied."""

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
    nvlinks: int | None = gauge(
        "that are up; empty where it has none, or NVML does not say", series=Series("gpu_nvlinks")
    )
    nvlink_sent_bytes: int | None = counter(
        "over all of them; by everybody, since this server began to look", series=_NVLINK._replace(value="sent")
    )
    nvlink_received_bytes: int | None = counter("likewise", series=_NVLINK._replace(value="received"))
    nvlink_sent_bytes_per_second: float | None = gauge(_SINCE)
    nvlink_received_bytes_per_second: float | None = gauge("likewise")
    pcie_sent_bytes_per_second: float | None = gauge(_SAMPLE)
    pcie_received_bytes_per_second: float | None = gauge("from there, likewise")
    reaches: tuple[str, ...] = several(
        f"names of the keys `reach:GPU`, joined by commas; at most {MOST_REACHES}", NAMES
    )  # uuids of other GPUs


class ReachView(RankedView):
    """How the GPU of one rank reaches another one. Byte counts are of NVLinks that are theirs alone."""

    gpu: str  # uuid of the other one
    name: str = text("of the other GPU")
    nvlinks: int | None = gauge("that are up between both; 0 if there is none")
    switched: bool | None = fact("1 if they go over NVSwitches, which are everybody's")
    pcie: str = text(
        "what both are below: `same board`, `single switch`, `multiple switches`, `host bridge`, `node`, `system`"
    )
    read: str = text("whether each can read the other's memory by itself: `ok`, or why not")
    write: str = text("whether it can write there, likewise")
    nvlink: str = text("whether it can over NVLink, likewise")
    nvlink_sent_bytes: int | None = counter(
        "to and from this GPU alone; empty over NVSwitches; by everybody, since this server began to look"
    )
    nvlink_received_bytes: int | None = counter("likewise")
    nvlink_sent_bytes_per_second: float | None = gauge(_SINCE)
    nvlink_received_bytes_per_second: float | None = gauge("likewise")
