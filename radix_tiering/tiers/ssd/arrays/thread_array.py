"""Real devices driven by preadv and pwritev in threads: for where io_uring is not allowed."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from .devices import Completion, NewDevice, Operation, Request
from .file_array import FileArray


class ThreadArray(FileArray):
    """Devices driven by preadv and pwritev in threads: the fallback.

    Each device has threads of its own, so that a slow one does not hold up the others. What is handed to them is
    bounded by `depth` over all devices; more waits in a queue here until completions are reaped.
    """

    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        depth: int = 256,
        threads: int = 8,
        reason: str = "as configured",
    ) -> None:
        """`threads` are per device: about as many requests as a device takes at once. `reason` goes into the
        description."""
        super().__init__(paths)
        self._depth = max(1, depth)
        self._lock = threading.Lock()
        self._work_arrived = [threading.Condition(self._lock) for _ in self._files]
        self._work: list[deque[Request]] = [deque() for _ in self._files]
        self._done_arrived = threading.Condition(self._lock)
        self._done: list[Completion] = []
        self._wanted = 1  # how many completions the one who waits is waiting for
        self._waiting: deque[Request] = deque()
        self._started = 0  # handed to the threads and not yet reaped
        self._stopping = False
        self._per_device = threads
        self._threads: list[threading.Thread] = []
        self._reason = reason
        for device in range(len(self._files)):
            self._staff(device)
        self.description = self._describe()

    @property
    def in_flight(self) -> int:
        return self._started + len(self._waiting)

    def append(self, device: NewDevice) -> None:
        super().append(device)
        with self._lock:
            self._work_arrived.append(threading.Condition(self._lock))
            self._work.append(deque())
        self._staff(len(self._files) - 1)
        self.description = self._describe()

    def submit(self, requests: Sequence[Request]) -> None:
        self._check(requests)
        self._waiting.extend(requests)
        with self._lock:
            self._hand_out()

    def reap(self, at_least: int, timeout: float | None = None) -> list[Completion]:
        wanted = min(at_least, self.in_flight)
        deadline = None if timeout is None else time.monotonic() + timeout
        arrived: list[Completion] = []
        with self._lock:
            while True:
                arrived += self._done
                self._started -= len(self._done)
                self._done.clear()
                self._hand_out()
                missing = wanted - len(arrived)
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if missing <= 0 or left == 0.0:
                    return arrived
                self._wanted = min(missing, max(1, self._depth // 4)) if self._waiting else missing
                self._done_arrived.wait(left)

    def close(self) -> None:
        while self.in_flight:
            self.reap(self.in_flight)
        self._closed = True
        with self._lock:
            self._stopping = True
            for condition in self._work_arrived:
                condition.notify_all()
        for thread in self._threads:
            thread.join()
        self._close_files()

    def _staff(self, device: int) -> None:
        """Give a device its threads."""
        for number in range(self._per_device):
            name = f"swift-ssd-{device}.{number}"
            thread = threading.Thread(target=self._serve, args=(device,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _describe(self) -> str:
        return f"threads ({self._per_device} per device), {self._mode()}; no io_uring: {self._reason}"

    def _hand_out(self) -> None:
        """Move requests from the queue to the threads, within the bound. Called with the lock held."""
        while self._waiting and self._started < self._depth:
            request = self._waiting.popleft()
            self._started += 1
            self._work[request.device].append(request)
            self._work_arrived[request.device].notify()

    def _serve(self, device: int) -> None:
        """One thread of one device, until the array is closed."""
        work = self._work[device]
        while True:
            with self._lock:
                while not work:
                    if self._stopping:
                        return
                    self._work_arrived[device].wait()
                request = work.popleft()
            error = errno.EIO  # stands if anything unforeseen ends the transfer: a completion must always come
            try:
                error = self._transfer(request)
            finally:
                with self._lock:
                    self._done.append(Completion(request.tag, device, error))
                    if len(self._done) >= self._wanted:
                        self._done_arrived.notify()

    def _transfer(self, request: Request) -> int:
        """Carry out one request; 0 or an errno."""
        fd = self._fds[request.device]
        call = os.preadv if request.operation == Operation.READ else os.pwritev
        buffers: list[memoryview] = [buffer.reshape(-1).data.cast("B") for buffer in request.buffers]
        offset, left = request.offset, request.length
        while True:
            try:
                moved = call(fd, buffers, offset)
            except OSError as error:
                return error.errno or errno.EIO
            if moved == left:
                return 0
            if not self._resumable(request.device, moved):
                return errno.EIO
            offset += moved
            left -= moved
            while moved >= len(buffers[0]):
                moved -= len(buffers.pop(0))
            buffers[0] = buffers[0][moved:]
