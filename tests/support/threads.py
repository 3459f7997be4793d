"""Threads of the engine that outlive the test, or the file of tests, that began them."""

from __future__ import annotations

import threading

from swift_tiers.radix_tiering.base.runner import Lock

#: How long a thread that has been told to end may take.
THREAD_SECONDS = 60.0

#: Threads that have failed the test they belong to, and need not fail those after it.
_blamed: set[threading.Thread] = set()


def assert_engine_threads_ended() -> None:
    """None may be left, but for those that an earlier test was failed for."""
    left = {thread for thread in threading.enumerate() if thread.name.startswith(("ssd-", "swift-"))} - _blamed
    for thread in left:
        thread.join(THREAD_SECONDS)
    left = {thread for thread in left if thread.is_alive()}
    _blamed.update(left)
    if left:
        raise AssertionError(f"threads outlive their test: {', '.join(sorted(thread.name for thread in left))}")


class WatchedLock:
    """A lock that tells when somebody waits for it. It is another one's: whoever has that already has both."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.awaited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.awaited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
