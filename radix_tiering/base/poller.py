"""Waiting for descriptors, and being woken from it by another thread."""

from __future__ import annotations

import os
import select
import threading

#: What a descriptor is waited for: that something has come, or can be sent; and what is told without being asked for.
READABLE, WRITABLE, BROKEN = select.POLLIN, select.POLLOUT, select.POLLHUP | select.POLLERR


class Waker:
    """`set` by any thread, also under locks and after `close`. `descriptor` is to be polled, `clear` called then."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False

    def set(self) -> None:
        with self._lock:  # so that nobody writes to what the descriptor's number means by then
            if not self._closed:
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        os.eventfd_read(self.descriptor)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)


class ThreadPoller:
    """See `runner.Poller`."""

    def __init__(self) -> None:
        self._waker = Waker()
        self._poll = select.poll()
        self._poll.register(self._waker.descriptor, select.POLLIN)

    def register(self, descriptor: int, events: int) -> None:
        self._poll.register(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)

    def poll(self, seconds: float) -> dict[int, int]:
        ready = dict(self._poll.poll(seconds * 1000))
        if ready.pop(self._waker.descriptor, 0):
            self._waker.clear()
        return ready

    def wake(self) -> None:
        self._waker.set()

    def close(self) -> None:
        self._waker.close()
