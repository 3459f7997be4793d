"""Numbers that the device has, on their way to host memory without anybody waiting for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Passing:
    """A moment that a device passes, when it has done all that was queued before on the current stream. Made on the
    scheduler's thread; any may ask and wait.

    CUDA counts a call for the device that is the calling thread's, GPU 0 until the thread says otherwise: asking about
    an event of GPU 3 takes half a gigabyte of GPU 0 for a context there. So a thread that asks here is the event's
    device's from then on.
    """

    def __init__(self, device: torch.device, *, sleeps: bool = False) -> None:
        """`sleeps`: whoever waits does not keep a processor busy."""
        module = getattr(torch, device.type)
        self._device = device
        self._event: Any = module.Event(blocking=True) if sleeps and device.type == "cuda" else module.Event()
        self._event.record()

    def passed(self) -> bool:
        """Whether it has; waits for nothing."""
        self._adopt()
        return bool(self._event.query())

    def wait(self) -> None:
        self._adopt()
        self._event.synchronize()

    def _adopt(self) -> None:
        index = self._device.index
        if self._device.type == "cuda" and index is not None and torch.cuda.current_device() != index:
            torch.cuda.set_device(index)


class OnTheWay:
    """A tensor as it is when the copy is queued: scheduler's thread, on its stream. Any thread may have it then."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._copied: Passing | None = None
        if tensor.device.type == "cpu":
            self._there = tensor.clone()
            return
        self._there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._there.copy_(tensor, non_blocking=True)
        self._copied = Passing(tensor.device, sleeps=True)  # a forward may be computed before it

    def __len__(self) -> int:
        return len(self._there)

    def ready(self) -> bool:
        return self._copied is None or self._copied.passed()

    def numpy(self) -> np.ndarray:
        """Only once it is `ready`."""
        return self._there.numpy()

    def wait(self) -> torch.Tensor:
        """The numbers in host memory, once they are there. Not on the scheduler's thread."""
        if self._copied is not None:
            self._copied.wait()
        return self._there
