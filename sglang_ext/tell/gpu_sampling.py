"""The GPU of one scheduler process, for the thread that looks at it."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from swift_tiers.radix_tiering.gpus.nvml import Nvml
from swift_tiers.radix_tiering.gpus.sampler import GpuSampler
from swift_tiers.radix_tiering.gpus.watch import GpuWatch


def gpu_sampler(open_nvml: Callable[[], Nvml] = Nvml) -> GpuSampler | None:
    """Not started; None where this process is not on an NVIDIA GPU. For a process whose CUDA device is chosen."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    ordinal = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
    return GpuSampler(GpuWatch(ordinal, None if uuid is None else str(uuid), os.environ, open_nvml=open_nvml))
