"""What GPUs, SSDs and models are: figures of data sheets, and how long a GPU computes.

The simulation (`ops/lab/simulate`) and the console's demo stand on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .curve import Curve, Linear
    from .hardware import GPUS, SSDS, USAGE, Gpu, Ssd, Usage
    from .models import MODELS, Model
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "GPUS",
    "MODELS",
    "SSDS",
    "USAGE",
    "Curve",
    "Gpu",
    "Linear",
    "Model",
    "Ssd",
    "Usage",
]
