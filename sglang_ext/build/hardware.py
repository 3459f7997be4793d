"""What a model is computed on, by name: two machines of one name are taken to be equally fast."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from swift_tiers.radix_tiering.base.kernel_files import text_in


def hardware_name() -> str:
    """The accelerator of this process ("NVIDIA H200"), or the processor and how many of its cores may be used."""
    if torch.cuda.is_available():
        name: str = torch.cuda.get_device_name()
        return name
    return f"{processor_name(Path('/proc/cpuinfo'))}, {len(os.sched_getaffinity(0))} cores"


def processor_name(cpuinfo: Path) -> str:
    """As the kernel calls it, or its architecture where the kernel has no name for it."""
    lines = text_in(cpuinfo).splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine()
