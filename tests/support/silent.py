"""Devices that swallow requests and say nothing, and waiting for what they hold up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from swift_tiers.radix_tiering.tiers.ssd.arrays.devices import Completion, DeviceArray, Operation, Request
from swift_tiers.radix_tiering.tiers.ssd.arrays.wrapping import WrappingArray

#: Patience with devices in these tests, by the clock that the test holds.
STALL = 100.0
#: How long something may take that has to happen, seconds: a guard against hanging.
WAIT = 60.0


class SilentArray(WrappingArray):
    """Silent devices swallow what they are given until they are told to answer."""

    def __init__(self, inner: DeviceArray) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._silent: dict[int, Operation | None] = {}
        self.swallowed: list[Request] = []
        self.sync_hangs: set[int] = set()
        self.sync_answers = threading.Event()

    def silence(self, device: int, operation: Operation | None = None) -> None:
        with self._lock:
            self._silent[device] = operation

    def answer(self) -> None:
        """Every device carries out what it has swallowed, and is well again."""
        with self._lock:
            self._silent.clear()
            requests, self.swallowed = self.swallowed, []
            self.inner.submit(requests)

    def hear(self) -> None:
        """Every device is well again, and still says nothing of what it has swallowed."""
        with self._lock:
            self._silent.clear()

    def answer_some(self, units: int) -> None:
        """Carry out so many of what was swallowed, the oldest of each device."""
        with self._lock:
            left = dict.fromkeys(range(len(self.sizes)), units)
            some, rest = [], []
            for request in self.swallowed:
                left[request.device] -= 1
                (some if left[request.device] >= 0 else rest).append(request)
            self.swallowed = rest
            self.inner.submit(some)

    @property
    def silent(self) -> set[int]:
        """The devices that say nothing just now."""
        return set(self._silent)

    @property
    def in_flight(self) -> int:
        return self.inner.in_flight + len(self.swallowed)

    def _swallows(self, request: Request) -> bool:
        return request.device in self._silent and self._silent[request.device] in (None, request.operation)

    def submit(self, requests: Sequence[Request]) -> None:
        with self._lock:
            # In this order: who sees what was swallowed finds in flight what was asked of other devices with it.
            self.inner.submit([request for request in requests if not self._swallows(request)])
            self.swallowed += [request for request in requests if self._swallows(request)]

    def reap(self, at_least: int, timeout: float | None = None) -> list[Completion]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                arrived = self.inner.reap(at_least)
            if arrived or not at_least or not self.in_flight or (end is not None and time.monotonic() >= end):
                return arrived
            time.sleep(0.0002)

    def sync(self, device: int) -> int:
        if device in self.sync_hangs:
            self.sync_answers.wait()
        return self.inner.sync(device)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)
