"""What NVML says of ranks' GPUs, and of the other GPUs that each of them reaches."""

from __future__ import annotations

from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView, ReachView
from swift_tiers.radix_tiering.bus.contract.views import RankState
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, short, text
from swift_tiers.radix_tiering.bus.hear.troubles import gpu_troubles
from swift_tiers.radix_tiering.gpus.snapshots import ALLOWED, way

from ...model.table import Cell, Column, Table
from ..parts.measures import share_cell
from ..parts.rank_table import RankColumn, counted, rank_table, sized
from ..parts.view import Scene

_RATE, _SINCE = "B/s, by NVML", "B in all, by NVML"

GPUS = (
    RankColumn(Column("GPU", right=True, rank=9), lambda gpu: Cell(UNKNOWN if gpu.index is None else str(gpu.index))),
    RankColumn(Column("name", widest=30, rank=6), lambda gpu: Cell(text(gpu.name))),
    counted("NVLinks", "nvlinks", 5),
    sized("NVLink sent/s", "nvlink_sent_bytes_per_second", 8, _RATE),
    sized("received/s", "nvlink_received_bytes_per_second", 8, _RATE),
    sized("PCIe sent/s, about", "pcie_sent_bytes_per_second", 7, _RATE),
    sized("received/s, about", "pcie_received_bytes_per_second", 7, _RATE),
    sized("memory", "memory_used_bytes", 4),
    sized("of", "memory_total_bytes", 3),
    RankColumn(Column("busy", right=True, rank=4, unit="share, 0 to 1"), lambda gpu: _busy(gpu)),
    sized("NVLink sent", "nvlink_sent_bytes", 2, _SINCE),
    sized("received", "nvlink_received_bytes", 2, _SINCE),
    RankColumn(
        Column("trouble", rank=6), lambda gpu: Cell(text(gpu.trouble) or NONE, style="wrong" if gpu.trouble else "")
    ),
)
REACHES = (
    RankColumn(Column("reaches", widest=48, rank=9), lambda reach: Cell(f"{text(reach.name)} {short(reach.gpu)}")),
    RankColumn(Column("by", rank=9), lambda reach: Cell(way_words(reach))),
    RankColumn(Column("access", rank=8), lambda reach: _access(reach)),
    sized("NVLink sent/s", "nvlink_sent_bytes_per_second", 7, _RATE),
    sized("received/s", "nvlink_received_bytes_per_second", 7, _RATE),
    sized("NVLink sent", "nvlink_sent_bytes", 5, _SINCE),
    sized("received", "nvlink_received_bytes", 5, _SINCE),
)


def gpu_table(scene: Scene) -> Table:
    """All that goes over the wires of each rank's GPU, whoever copies."""
    gpus = [rank.gpu for rank in _ranks(scene) if rank.gpu is not None]
    return rank_table(scene, gpus, GPUS, gpu_troubles)


def reach_table(scene: Scene) -> Table:
    """How the GPU of each rank reaches others."""
    reaches = [reach for rank in _ranks(scene) for reach in rank.reaches]
    return rank_table(scene, reaches, REACHES) if reaches else Table((), ())


def way_words(reach: ReachView) -> str:
    """`NVLink x18 over NVSwitch`; `PCIe, host bridge, no peer access`."""
    words = way(reach.nvlinks, text(reach.pcie))
    if reach.nvlinks and reach.switched:
        words += " over NVSwitch"
    return f"{words}, no peer access" if _refusals(reach) else words


def _refusals(reach: ReachView) -> list[str]:
    """Why one of them may not read or write the other's memory."""
    return sorted({reach.read, reach.write} - {ALLOWED, ""})


def _access(reach: ReachView) -> Cell:
    refused = _refusals(reach)
    if refused:
        return Cell(", ".join(map(text, refused)), style="warning")
    return Cell(ALLOWED if ALLOWED in (reach.read, reach.write) else UNKNOWN)


def _busy(gpu: GpuView) -> Cell:
    return Cell(UNKNOWN) if gpu.busy_share is None else share_cell(gpu.busy_share)


def _ranks(scene: Scene) -> list[RankState]:
    wanted = scene.place.name("rank")
    return [rank for rank in scene.moment.ranks(scene.server) if wanted in (None, rank.name)]
