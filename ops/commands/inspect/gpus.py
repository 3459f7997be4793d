"""What NVML says of ranks' GPUs just now: beneath the engine's own links, which are a part of it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView, ReachView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, share, short, size, text
from swift_tiers.radix_tiering.bus.hear.troubles import Troubles
from swift_tiers.radix_tiering.gpus.snapshots import ALLOWED, way

from .tables import Row, how_old, place, table

_GPUS = (
    " rank|GPU| name|NVLinks|NVLink sent|received|PCIe sent, about|received, about|memory|of|busy|in all sent|received"
    "| trouble|age"
)
_REACHES = " rank| reaches| by| access|NVLink sent|received|in all sent|received|age"


def gpu_tables(gpus: Sequence[GpuView], reaches: Sequence[ReachView], troubles: Troubles) -> list[RenderableType]:
    """Nothing where no rank is on a GPU that NVML knows."""
    shown: list[RenderableType] = []
    if gpus:
        shown += [Text(""), Text("by NVML: all that goes over the wires of each GPU, whoever copies"), Text("")]
        shown.append(table(_GPUS, map(_gpu_row, gpus), troubles))
    if reaches:
        shown += [Text(""), table(_REACHES, map(_reach_row, reaches), troubles)]
    return shown


def _gpu_row(gpu: GpuView) -> Row:
    busy = UNKNOWN if gpu.busy_share is None else share(gpu.busy_share, 1.0)
    rates = (
        gpu.nvlink_sent_bytes_per_second, gpu.nvlink_received_bytes_per_second, gpu.pcie_sent_bytes_per_second,
        gpu.pcie_received_bytes_per_second,
    )  # fmt: skip
    return Row(
        [gpu],
        [
            place(gpu), UNKNOWN if gpu.index is None else str(gpu.index), text(gpu.name), count(gpu.nvlinks),
            *map(_rate, rates), size(gpu.memory_used_bytes), size(gpu.memory_total_bytes), busy,
            size(gpu.nvlink_sent_bytes), size(gpu.nvlink_received_bytes), text(gpu.trouble) or NONE, how_old(gpu),
        ],
    )  # fmt: skip


def _reach_row(reach: ReachView) -> Row:
    words = way(reach.nvlinks, text(reach.pcie)) + (" over NVSwitch" if reach.nvlinks and reach.switched else "")
    refused = sorted({reach.read, reach.write} - {ALLOWED, ""})
    access = ", ".join(map(text, refused)) if refused else ALLOWED if ALLOWED in (reach.read, reach.write) else UNKNOWN
    return Row(
        [reach],
        [
            place(reach), f"{text(reach.name)} {short(reach.gpu)}", words, access,
            _rate(reach.nvlink_sent_bytes_per_second), _rate(reach.nvlink_received_bytes_per_second),
            size(reach.nvlink_sent_bytes), size(reach.nvlink_received_bytes), how_old(reach),
        ],
    )  # fmt: skip


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{size(value)}/s"
