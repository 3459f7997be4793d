"""Devices that are not here: GPUs, links and SSDs as models in virtual time, and requests that are restored on them.

The simulation (`ops/lab/simulate`) stands on them, the console's demo on what GPUs and models are. What decides is the
product's own code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .clock import Clock
    from .curve import Curve, Linear
    from .hardware import GPUS, SSDS, USAGE, Gpu, Ssd, Usage
    from .lines import Done, Line, Stripes
    from .models import MODELS, Model
    from .restoring import Method, Request, Restoration, Server
    from .setup import SSD, Computes, Setup, geometry
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "GPUS",
    "MODELS",
    "SSD",
    "SSDS",
    "USAGE",
    "Clock",
    "Computes",
    "Curve",
    "Done",
    "Gpu",
    "Line",
    "Linear",
    "Method",
    "Model",
    "Request",
    "Restoration",
    "Server",
    "Setup",
    "Ssd",
    "Stripes",
    "Usage",
    "geometry",
]
