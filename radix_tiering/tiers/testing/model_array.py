"""Devices in memory that take their time, by the runner's clock, and answer late, with an error, or never."""

from __future__ import annotations

import errno
import heapq
import random
from collections.abc import Container, Sequence

from ...base.runner import Runner
from ..ssd.arrays.checking import check_requests
from ..ssd.arrays.devices import Completion, Request
from .memory_array import MemoryArray

#: How long it takes until an answer comes that never does, seconds: whoever waits for it has long given up.
NEVER = 1000.0


class ModelArray(MemoryArray):
    """Used by one thread of the runner's; what goes wrong may be changed on any."""

    description = "a model"

    def __init__(self, runner: Runner, sizes: Sequence[int], *, seconds: float = 1e-4) -> None:
        """`seconds`: what a request takes on the average."""
        super().__init__(sizes)
        self._runner = runner
        self._draw = random.Random(runner.random.random())
        self._seconds = seconds
        self._due: list[tuple[float, int, Request]] = []  # a heap
        self._number = 0
        #: Devices that have gone, that answer nothing, and that answer every other request with an error.
        self.lost: set[int] = set()
        self.silent: set[int] = set()
        self.failing: set[int] = set()
        self._mended: set[int] = set()

    @property
    def in_flight(self) -> int:
        return len(self._due)

    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self.sizes)
        now = self._runner.monotonic()
        for request in requests:
            self._number += 1
            due = now + NEVER if request.device in self.silent else self._due_at(request, now)
            heapq.heappush(self._due, (due, self._number, request))

    def _due_at(self, request: Request, now: float) -> float:
        """When a request that is given to its device now is done."""
        return now + self._seconds * self._draw.expovariate(1.0)

    def reap(self, at_least: int, timeout: float | None = None) -> list[Completion]:
        while self._mended:
            self._answer({self._mended.pop()})
        end = None if timeout is None else self._runner.monotonic() + timeout
        while True:
            now = self._runner.monotonic()
            if not at_least or not self._due or self._due[0][0] <= now or (end is not None and now >= end):
                break
            first = self._due[0][0]
            self._runner.sleep((first if end is None else min(first, end)) - now)
        done = []
        while self._due and self._due[0][0] <= now:
            done.append(heapq.heappop(self._due)[2])
        return [self._carry_out(request) for request in done]

    def _answer(self, devices: Container[int]) -> None:
        """At once, to all that these were asked."""
        now = self._runner.monotonic()
        due = [
            (min(at, now) if request.device in devices else at, number, request) for at, number, request in self._due
        ]
        self._due = sorted(due)

    def heal(self) -> None:
        """What was silent answers after all, and nothing goes wrong any more."""
        self.silent.clear()
        self.failing.clear()
        self._answer(range(len(self.sizes)))

    def mend(self, device: int) -> None:
        """Likewise, of one, from the next look on at what is done."""
        self.silent.discard(device)
        self.failing.discard(device)
        self._mended.add(device)

    def sync(self, device: int) -> int:
        self._runner.sleep(NEVER if device in self.silent else self._seconds * self._draw.random())
        return 0

    def present(self, device: int) -> bool:
        # A file system that has lost its server keeps waiting who asks it for anything; a local device does not.
        if device in self.silent and self._draw.random() < 0.5:
            self._runner.sleep(NEVER)
        return device not in self.lost

    def close(self) -> None:
        self._due.clear()

    def _carry_out(self, request: Request) -> Completion:
        if request.device in self.failing and self._draw.random() < 0.5:
            return Completion(request.tag, request.device, errno.EIO)
        return super()._carry_out(request)
