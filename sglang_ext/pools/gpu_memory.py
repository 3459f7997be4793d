"""This process' door to memory that GPUs lend each other: one for each GPU, since it holds streams."""

from __future__ import annotations

import functools

import torch

from swift_tiers.radix_tiering.lending.donation.cuda_memory import CudaDeviceMemory
from swift_tiers.radix_tiering.lending.donation.device_memory import DeviceMemory


def gpu_memory(device: torch.device) -> DeviceMemory:
    """Of a CUDA device; without a number, of the current one. Raises ArenaError where it cannot be lent or mapped."""
    return _of(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _of(ordinal: int) -> DeviceMemory:
    return CudaDeviceMemory(ordinal)
