"""Wakes a thread that polls."""

from __future__ import annotations

import os
import threading


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
