"""Threads of the engine that get their turns late: a test fails that counts on one having done its part by now, and so
does an engine that does."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from swift_tiers.radix_tiering.base.poller import ThreadPoller
from swift_tiers.radix_tiering.base.runner import ThreadRunner

#: How often a thread that has been woken sleeps on, and for how long at most, seconds.
SHARE, MOST_SECONDS = 0.3, 0.03


def sleep_on() -> None:
    """Not the thread that runs the tests: it asks, and the others are to be late."""
    if threading.current_thread() is not threading.main_thread() and random.random() < SHARE:
        time.sleep(random.random() * MOST_SECONDS)


class LateQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        sleep_on()
        return item


class LateCondition(threading.Condition):
    def wait(self, timeout: float | None = None) -> bool:
        woken = super().wait(timeout)
        sleep_on()
        return woken


class LateEvent(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        is_set = super().wait(timeout)
        sleep_on()
        return is_set


class LatePoller(ThreadPoller):
    def poll(self, seconds: float) -> dict[int, int]:
        ready = super().poll(seconds)
        sleep_on()
        return ready


def install() -> None:
    """From now on, in this process."""
    made: dict[str, Callable[..., Any]] = {
        "queue": lambda self: LateQueue(),
        "condition": lambda self, lock=None: LateCondition(lock),
        "flag": lambda self: LateEvent(),
        "poller": lambda self: LatePoller(),
    }
    for name, make in made.items():
        setattr(ThreadRunner, name, make)
