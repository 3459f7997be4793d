"""What the hardware itself counts of copies, beside what the engine does: NVLink and PCIe of ranks' GPUs, by NVML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView
from swift_tiers.radix_tiering.bus.contract.neighbours import lease_name
from swift_tiers.radix_tiering.bus.contract.views import LinkView, RankState
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, share, size, text
from swift_tiers.radix_tiering.gpus.snapshots import LATE_GPU

from ...model.charts import Drawn, fitting
from ...model.history import History
from ...model.moment import Moment
from ..parts.measures import TIERS, sum_of
from ..parts.view import Scene
from ..parts.ways import way_of
from .gpu_tables import way_words

#: Both are compared over so many seconds, at most; NVML is asked every so many.
SECONDS, LOOK_SECONDS = 8.0, 2.0
NVLINK, PCIE = "NVLink", "PCIe"
#: Cells of the names of wires, and of the heading above them.
HEAD = 10
#: Before figures that are made of samples.
ABOUT = "~"


class Both(NamedTuple):
    """Bytes per second of one direction of one wire; None: not known, or not counted."""

    hardware: float | None
    engine: float | None

    @property
    def difference(self) -> float | None:
        """What others copied, and what the two counted at different times."""
        return None if self.hardware is None or self.engine is None else self.hardware - self.engine


class WireTraffic(NamedTuple):
    """One kind of wire, of one GPU or of several together."""

    name: str
    sent: Both  # out of the GPUs
    received: Both

    @property
    def sampled(self) -> bool:
        """Whether NVML looks at it now and then for 20 ms, and does not count: then a difference is a rough one."""
        return self.name == PCIE


def wires(moment: Moment, server: str | None, rank: str | None = None) -> list[WireTraffic]:
    """Those that NVML says something of. Of each, GPUs of which it says nothing are left out on both sides."""
    homes = _homes(moment)
    ranks = [one for one in moment.ranks(server) if rank in (None, one.name) and not _silent(moment, one.gpu)]
    found = [
        WireTraffic(name, *(_both(name, outward, ranks, homes, moment.history) for outward in (True, False)))
        for name in (NVLINK, PCIE)
    ]
    return [wire for wire in found if wire.sent.hardware is not None or wire.received.hardware is not None]


def _homes(moment: Moment) -> dict[str, str]:
    """The GPU of each rank, by its lease name: a donor's, as links have it."""
    return {lease_name(one.gpu.server, one.name): one.gpu.uuid for one in moment.ranks() if one.gpu is not None}


def _silent(moment: Moment, gpu: GpuView | None) -> bool:
    """Whether there is nothing that NVML says of it now."""
    age = None if gpu is None else moment.age_of(gpu)
    return gpu is None or bool(gpu.trouble) or bool(moment.lost) or (age is not None and age > LATE_GPU)


def _both(name: str, outward: bool, ranks: Iterable[RankState], homes: dict[str, str], history: History) -> Both:
    hardware: list[float] = []
    engine: list[float | None] = []
    for rank in ranks:
        assert rank.gpu is not None
        window = _window(rank.gpu, history)
        value = _hardware(name, outward, rank.gpu, window, history)
        if value is None:
            continue
        hardware.append(value)
        # NVML is asked less often than servers speak: over any other time, a burst would be on one side only.
        engine += [
            history.rate_between(link, "bytes", *window)
            for link in rank.links
            if _carried_by(link, rank, homes) == (name, outward)
        ]
    return Both(sum_of(hardware), sum_of(engine))


def _window(gpu: GpuView, history: History) -> tuple[float, float]:
    """From when to when both sides are compared, by the server's clock: from a look of NVML to its last one."""
    times = history.times(gpu, SECONDS)
    last = times[-1] if times else gpu.time or 0.0
    return (times[0] if len(times) > 1 else last - LOOK_SECONDS), last


def _hardware(name: str, outward: bool, gpu: GpuView, window: tuple[float, float], history: History) -> float | None:
    direction = "sent" if outward else "received"
    if name == NVLINK:
        rate = history.rate_between(gpu, f"nvlink_{direction}_bytes", *window)
        return getattr(gpu, f"nvlink_{direction}_bytes_per_second") if rate is None else rate
    looks = max(1, len(history.times(gpu, SECONDS)) - 1)  # the first one was before that time
    samples = history.values(gpu, f"pcie_{direction}_bytes_per_second", length=looks)
    known = [value for value in samples if value is not None]
    return sum(known) / len(known) if known else None


def _carried_by(link: LinkView, rank: RankState, homes: dict[str, str]) -> tuple[str, bool] | None:
    """The wire of the rank's GPU that these copies go over, and whether outward; None for those that go over none, or
    of which it is not known. What all donors have together is left out: it is counted for each."""
    source, destination = way_of(link.link)
    outward = source == "device"
    if not outward and destination != "device":
        return None
    other = destination if outward else source
    if other == "host":
        return PCIE, outward
    if other in TIERS or other not in homes or rank.gpu is None or homes[other] == rank.gpu.uuid:
        return None
    reach = next((one for one in rank.reaches if one.gpu == homes[other]), None)
    if reach is None or reach.nvlinks is None:
        return None
    return (NVLINK if reach.nvlinks else PCIE), outward


# ---- drawn ----


def wire_lines(scene: Scene, found: Sequence[WireTraffic]) -> list[Text]:
    """A small table: a line for each wire."""
    if not found:
        return []
    names = ("sent/s", "engine's", "difference", "received/s", "engine's", "difference")
    width = min(16, (scene.width - HEAD) // len(names))
    if width < max(map(len, names)) + 1:
        return _narrow(scene, found)
    lines = [scene.line((f"{f'NVML, {SECONDS:g} s':<{HEAD}}", "title"), "".join(f"{name:>{width}}" for name in names))]
    for wire in found:
        about = ABOUT if wire.sampled else ""
        parts: list[tuple[str, str] | str] = [(f"{wire.name:<{HEAD}}", "text")]
        for one in (wire.sent, wire.received):
            parts.append((f"{_size(one.hardware, about, UNKNOWN):>{width}}", "text"))
            parts.append(f"{_size(one.engine):>{width}}")
            parts.append((f"{_signed(one.difference, about):>{width}}", "muted" if wire.sampled else "note"))
        lines.append(scene.line(*parts))
    return lines


def _narrow(scene: Scene, found: Sequence[WireTraffic]) -> list[Text]:
    return [
        scene.line(*fitting(
            scene.width,
            [(f"{wire.name} by NVML", "text")],
            [f" {_size(wire.sent.hardware, '', UNKNOWN)}/s out"],
            [f", {_size(wire.received.hardware, '', UNKNOWN)}/s in"],
        ))
        for wire in found
    ]  # fmt: skip


def gpu_lines(scene: Scene, most: int) -> list[Text]:
    """A line for each rank's GPU, ones in trouble first: its memory, its load, and whom it reaches how."""
    gpus = [rank for rank in scene.moment.ranks(scene.server) if rank.gpu is not None]
    gpus.sort(key=lambda rank: not _silent(scene.moment, rank.gpu))
    left_out = len(gpus) - most + 1 if len(gpus) > most > 1 else 0
    lines = [_gpu_line(scene, rank) for rank in gpus[: most - bool(left_out)]] if most > 0 else []
    return [*lines, scene.line(f"and {left_out} more GPUs")] if left_out else lines


def _gpu_line(scene: Scene, rank: RankState) -> Text:
    gpu = rank.gpu
    assert gpu is not None
    number = UNKNOWN if gpu.index is None else str(gpu.index)
    name: Drawn = [
        (f"{text(gpu.server)} {text(rank.name)}", "title"),
        (f"  GPU {number} {text(gpu.name).removeprefix('NVIDIA ')}", "text"),
    ]
    if gpu.trouble:
        return scene.line(*name, (f"  {text(gpu.trouble)}", "wrong"))
    if _silent(scene.moment, gpu):
        return scene.line(*name, ("  its driver has not answered for a while", "warning"))
    counts: dict[str, int] = {}
    for reach in rank.reaches:
        words = way_words(reach)
        counts[words] = counts.get(words, 0) + 1
    parts: list[Drawn] = [[f"  reaches {count} by ", (words, "peer")] for words, count in counts.items()]
    if gpu.memory_used_bytes is not None:
        parts.append([f"  {size(gpu.memory_used_bytes)} of {size(gpu.memory_total_bytes)}"])
    if gpu.busy_share is not None:
        parts.append([f"  busy {share(gpu.busy_share, 1.0)}"])
    return scene.line(*fitting(scene.width, name, *parts))


def carried_line(scene: Scene, name: str) -> Text | None:
    """Of one way between tiers: what NVML says of the wire that it goes over; None where it says nothing."""
    server, rank = scene.server, scene.place.name("rank")
    homes = _homes(scene.moment)
    ways = {
        _carried_by(link, one, homes)
        for one in scene.moment.ranks(server) if rank in (None, one.name) for link in one.links if link.link == name
    }  # fmt: skip
    if len(ways) != 1 or (only := ways.pop()) is None:
        return None
    wire = next((one for one in wires(scene.moment, server, rank) if one.name == only[0]), None)
    if wire is None:
        return None
    outward = only[1]
    both, about = wire.sent if outward else wire.received, ABOUT if wire.sampled else ""
    words = f"{'sent' if outward else 'received'} by GPUs over {wire.name}, by NVML "
    parts = fitting(
        scene.width,
        [words, (f"{_size(both.hardware, about, UNKNOWN)}/s", "text")],
        ["  engine's ", (f"{_size(both.engine)}/s", "text")] if both.engine is not None else [],
        ["  difference ", (f"{_signed(both.difference, about)}/s", "text")] if both.difference is not None else [],
    )
    return scene.line(*parts)


def _size(value: float | None, about: str = "", unknown: str = NONE) -> str:
    return unknown if value is None else f"{about}{size(value)}"


def _signed(value: float | None, about: str) -> str:
    return NONE if value is None else f"{about}{'-' if value < 0 else '+'}{size(abs(value))}"
