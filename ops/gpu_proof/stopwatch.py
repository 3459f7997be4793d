"""Seconds of work on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

#: Work is repeated for so long, seconds, and so often, at least and at most.
_LONG = 0.05
_LEAST, _MOST = 5, 200


class Stopwatch:
    """By the device's own events on CUDA, which leaves out what the host takes to launch the next one; on the CPU,
    which only serves to try the measurements themselves, by its clock."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, work: Callable[[], object]) -> float:
        """The median of several runs, after two that are not counted."""
        for _ in range(2):
            first = self.once(work)
        times = max(_LEAST, min(_MOST, int(_LONG / max(first, 1e-9))))
        return statistics.median(self.once(work) for _ in range(times))

    def once(self, work: Callable[[], object]) -> float:
        """One run, complete."""
        if self.device.type != "cuda":
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000

    def host_seconds(self, work: Callable[[], object]) -> float:
        """The same by the host's clock, of work that returns when it is done."""
        return Stopwatch(torch.device("cpu")).seconds(work)
