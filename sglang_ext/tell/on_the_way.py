"""Numbers that the device has, on their way to host memory without anybody waiting for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class OnTheWay:
    """A tensor as it is when the copy is queued: scheduler's thread, on its stream. Any thread may have it then."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._copied: Any = None
        if tensor.device.type == "cpu":
            self._there = tensor.clone()
            return
        module = getattr(torch, tensor.device.type)
        self._there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._there.copy_(tensor, non_blocking=True)
        # Whoever waits for it sleeps: a forward may be computed before it.
        self._copied = module.Event(blocking=True) if tensor.device.type == "cuda" else module.Event()
        self._copied.record()

    def __len__(self) -> int:
        return len(self._there)

    def ready(self) -> bool:
        return self._copied is None or bool(self._copied.query())

    def numpy(self) -> np.ndarray:
        """Only once it is `ready`."""
        return self._there.numpy()

    def wait(self) -> torch.Tensor:
        """The numbers in host memory, once they are there. Not on the scheduler's thread."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._there
