"""Seconds of work on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

#: Work is repeated for so long, seconds, and so often, at least and at most.
_LONG = 0.05
_LEAST, _MOST = 5, 200
#: Of a GPU's clock, at most: it is to sleep rather too long.
_CYCLES_PER_SECOND = 2e9


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

    def device_seconds(self, work: Callable[[], object]) -> float:
        """As `seconds`, of work that the host takes longer to prepare than the device to do: the device sleeps until
        all of it is queued."""
        if self.device.type != "cuda":
            return self.seconds(work)
        preparing = min(self._queueing(work) for _ in range(3))
        torch.cuda.synchronize(self.device)
        cycles = int(2 * preparing * _CYCLES_PER_SECOND)

        def once() -> float:
            torch.cuda._sleep(cycles)
            return self.once(work)

        return statistics.median(once() for _ in range(_LEAST))

    def _queueing(self, work: Callable[[], object]) -> float:
        """Seconds until it is queued."""
        torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def host_seconds(self, work: Callable[[], object]) -> float:
        """The same by the host's clock, of work that returns when it is done."""
        return Stopwatch(torch.device("cpu")).seconds(work)
