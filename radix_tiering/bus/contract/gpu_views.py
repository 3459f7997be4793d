"""What a reader of the bus sees of a rank's GPU: NVML's figures, of which each may be None."""

from __future__ import annotations

from ...figures.declare import several, text
from ...figures.forms import NAMES
from ...gpus.snapshots import Gpu, GpuTraffic, ReachFigures, ReachTraffic
from .view import RankedView

#: How many other GPUs a rank names at most.
MOST_REACHES = 64


class GpuView(RankedView, Gpu, GpuTraffic):
    """The GPU of one rank."""

    reaches: tuple[str, ...] = several(
        f"names of the keys `reach:GPU`, joined by commas; at most {MOST_REACHES}", NAMES
    )  # uuids of other GPUs


class ReachView(RankedView, ReachFigures, ReachTraffic):
    """How the GPU of one rank reaches another one."""

    gpu: str  # uuid of the other one
    name: str = text("of the other GPU")
