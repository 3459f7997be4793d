"""What the NVIDIA driver says of GPUs: memory, load, how they reach each other, and what has gone over their links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.door import lazily

if TYPE_CHECKING:
    from .nvml import GpuLost, NoNvml, Nvml
    from .sampler import GpuSampler
    from .snapshots import Gpu, GpuSample, Reach, ReachSample
    from .watch import GpuWatch
else:
    __getattr__ = lazily(__name__)

__all__ = ["Gpu", "GpuLost", "GpuSample", "GpuSampler", "GpuWatch", "NoNvml", "Nvml", "Reach", "ReachSample"]
