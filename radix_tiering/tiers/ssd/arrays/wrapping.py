"""Arrays around an array: what they pass through, and holding completions back until their time has come."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .checking import check_requests
from .devices import Completion, DeviceArray, NewDevice, Request


class Clock(Protocol):
    """Time, so that a test or the simulator can own it."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed."""


class MonotonicClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class WrappingArray:
    """Passes everything to `inner`, which it owns from then on. Subclasses override what they change."""

    def __init__(self, inner: DeviceArray) -> None:
        if inner.in_flight:
            raise ValueError(f"{inner.in_flight} requests are in flight: wrap an array before its first request")
        self.inner = inner
        self.description = inner.description

    @property
    def sizes(self) -> Sequence[int]:
        return self.inner.sizes

    @property
    def in_flight(self) -> int:
        return self.inner.in_flight

    def append(self, device: NewDevice) -> None:
        self.inner.append(device)

    def submit(self, requests: Sequence[Request]) -> None:
        self.inner.submit(requests)

    def reap(self, at_least: int, timeout: float | None = None) -> Sequence[Completion]:
        return self.inner.reap(at_least, timeout)

    def sync(self, device: int) -> int:
        return self.inner.sync(device)

    def present(self, device: int) -> bool:
        return self.inner.present(device)

    def close(self) -> None:
        while self.in_flight:
            self.reap(self.in_flight)
        self.inner.close()


class AdmittedRequest(NamedTuple):
    """What becomes of one request: it completes not before `due` (by the clock), and with `error` without ever
    reaching the inner array if that is not None."""

    due: float
    error: int | None = None


class _Held(NamedTuple):
    request: Request
    due: float


class DelayingArray(WrappingArray):
    """Holds each completion back until a due time that a subclass sets in `admit`.

    `submit` never sleeps: waiting is done by the one who reaps, who would wait for a device too. Requests go to the
    inner array under numbers of our own, so that callers may use a tag twice.
    """

    def __init__(self, inner: DeviceArray, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self.clock: Clock = clock or MonotonicClock()
        self._number = 0
        self._inside: dict[int, _Held] = {}  # in the inner array, by our number
        self._held: list[tuple[float, int, Completion]] = []  # a heap by due time; the number keeps it stable

    def admit(self, number: int, request: Request, now: float) -> AdmittedRequest:
        """When a request that is submitted now may complete. `number` is ours and never used twice."""
        return AdmittedRequest(now)

    def finish(self, number: int, request: Request, error: int) -> int:
        """Called when the inner array has carried out a request; returns the error to report."""
        return error

    @property
    def in_flight(self) -> int:
        return len(self._inside) + len(self._held)

    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self.sizes)
        now = self.clock.now()
        passed = []
        for request in requests:
            self._number += 1
            admission = self.admit(self._number, request, now)
            if admission.error is None:
                self._inside[self._number] = _Held(request, admission.due)
                passed.append(request._replace(tag=self._number))
            else:
                self._hold(self._number, Completion(request.tag, request.device, admission.error), admission.due)
        if passed:
            self.inner.submit(passed)

    def reap(self, at_least: int, timeout: float | None = None) -> list[Completion]:
        wanted = min(at_least, self.in_flight)
        deadline = None if timeout is None else self.clock.now() + timeout
        arrived: list[Completion] = []
        self._take(0, 0.0)
        while True:
            now = self.clock.now()
            while self._held and self._held[0][0] <= now:
                arrived.append(heapq.heappop(self._held)[2])
            limits = [limit - now for limit in (deadline,) if limit is not None]
            if len(arrived) >= wanted or any(limit <= 0 for limit in limits):
                return arrived
            if self._held:
                limits.append(self._held[0][0] - now)
            wait = min(limits, default=None)
            if self._inside:
                self._take(1, wait)
            elif wait is not None:
                self.clock.sleep(wait)

    def _take(self, at_least: int, timeout: float | None) -> None:
        """Move what the inner array has completed into the heap."""
        if not self._inside:
            return
        for completion in self.inner.reap(at_least, timeout):
            request, due = self._inside.pop(completion.tag)
            error = self.finish(completion.tag, request, completion.error)
            self._hold(completion.tag, Completion(request.tag, request.device, error), due)

    def _hold(self, number: int, completion: Completion, due: float) -> None:
        heapq.heappush(self._held, (due, number, completion))
