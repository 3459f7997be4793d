"""The engine's threads in one thread, in virtual time, in an order that a seed decides: `VirtualRunner`.

For simulation and tests; no server loads it. How it works: `schedule`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..runner import Condition, Flag, Lock, Poller, Queue, Runner, Thread
from .primitives import (
    VirtualCondition,
    VirtualFlag,
    VirtualLocal,
    VirtualLock,
    VirtualPoller,
    VirtualQueue,
    VirtualThread,
)
from .schedule import STEP_SECONDS, Schedule, Stuck, Task, TaskDied

__all__ = ["Stuck", "TaskDied", "VirtualProcess", "VirtualRunner"]

#: How long the beginning is after the epoch, seconds.
EPOCH = 1.7e9


class _Virtual(Runner):
    """What is the same for a whole runner and for one process of it."""

    #: Who says what goes on when.
    schedule: VirtualRunner

    def lock(self) -> Lock:
        return VirtualLock(self.schedule)

    def condition(self, lock: Lock | None = None) -> Condition:
        if lock is not None and not isinstance(lock, VirtualLock):
            raise TypeError(f"a condition under {lock!r}, which is of another runner")
        return VirtualCondition(self.schedule, VirtualLock(self.schedule) if lock is None else lock)

    def flag(self) -> Flag:
        return VirtualFlag(self.schedule)

    def queue(self) -> Queue:
        return VirtualQueue(self.schedule)

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        return VirtualThread(self.schedule, target, name)

    def poller(self) -> Poller:
        return VirtualPoller(self.schedule)

    def local(self) -> Any:
        return VirtualLocal(self.schedule)

    def here(self, thread: Thread | None) -> bool:
        return isinstance(thread, VirtualThread) and thread.task is not None and thread.task is self.schedule.current

    def monotonic(self) -> float:
        return self.schedule.look()

    def boot_time(self) -> float:
        return self.monotonic()

    def thread_time(self) -> float:
        return self.schedule.computed()

    def time(self) -> float:
        return EPOCH + self.schedule.look() + self.schedule.clock_off

    def sleep(self, seconds: float) -> None:
        schedule = self.schedule
        if schedule.current is None:
            schedule.now += max(0.0, seconds)
        else:
            schedule.block(None, "sleep", max(seconds, STEP_SECONDS))


class VirtualRunner(Schedule, _Virtual):
    """Use by `run`; the parameters are those of `Schedule`."""

    #: How far the time of day has jumped, seconds. What never goes back does not jump.
    clock_off = 0.0

    @property
    def schedule(self) -> VirtualRunner:  # type: ignore[override]
        return self


class VirtualProcess(_Virtual):
    """One process of several that run in the same virtual time: it can be stopped, or killed, with all its threads."""

    def __init__(self, runner: VirtualRunner, *, begin: float = 0.0, rate: float = 1.0) -> None:
        """Its clocks say `begin` seconds more than the runner's, and go `rate` times as fast."""
        self.schedule = runner
        self.random = runner.random
        self._begin, self._rate = begin, rate
        self._threads: list[VirtualThread] = []
        self._pollers: list[VirtualPoller] = []

    def stop(self, seconds: float) -> None:
        """Its threads do nothing for so long. Not to be called by one of them."""
        for task in self._tasks():
            self.schedule.stop(task, seconds)

    def kill(self) -> None:
        """Its threads never go on, and what it is connected by ends. Not to be called by one of them."""
        for task in self._tasks():
            self.schedule.kill(task)
        for poller in self._pollers:
            for descriptor in sorted(poller.descriptors):
                with socket.socket(fileno=os.dup(descriptor)) as connection, suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def bury(self) -> None:
        """Once it was killed: keep nothing of what its threads knew."""
        self.schedule.bury(self._tasks())
        self._threads.clear()
        self._pollers.clear()

    def _tasks(self) -> list[Task]:
        return [thread.task for thread in self._threads if thread.task is not None and not thread.task.over]

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        thread = VirtualThread(self.schedule, target, name)
        self._threads.append(thread)
        return thread

    def poller(self) -> Poller:
        poller = VirtualPoller(self.schedule)
        self._pollers.append(poller)
        return poller

    def monotonic(self) -> float:
        return self._begin + self._rate * self.schedule.look()
