"""The engine's threads in one thread, in virtual time, in an order that a seed decides: `VirtualRunner`.

For simulation and tests; no server loads it. How it works: `schedule`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runner import Condition, Flag, Lock, Queue, Runner, Thread
from .primitives import VirtualCondition, VirtualFlag, VirtualLock, VirtualQueue, VirtualThread
from .schedule import STEP_SECONDS, Schedule, Stuck, TaskDied

__all__ = ["Stuck", "TaskDied", "VirtualRunner"]

#: How long the beginning is after the epoch, seconds.
EPOCH = 1.7e9


class VirtualRunner(Schedule, Runner):
    """Use by `run`; the parameters are those of `Schedule`."""

    #: How far the time of day has jumped, seconds. What never goes back does not jump.
    clock_off = 0.0

    def lock(self) -> Lock:
        return VirtualLock(self)

    def condition(self, lock: Lock | None = None) -> Condition:
        if lock is not None and not isinstance(lock, VirtualLock):
            raise TypeError(f"a condition under {lock!r}, which is of another runner")
        return VirtualCondition(self, VirtualLock(self) if lock is None else lock)

    def flag(self) -> Flag:
        return VirtualFlag(self)

    def queue(self) -> Queue:
        return VirtualQueue(self)

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        return VirtualThread(self, target, name)

    def here(self, thread: Thread | None) -> bool:
        return isinstance(thread, VirtualThread) and thread.task is not None and thread.task is self.current

    def monotonic(self) -> float:
        return self.look()

    def time(self) -> float:
        return EPOCH + self.look() + self.clock_off

    def sleep(self, seconds: float) -> None:
        if self.current is None:
            self.now += max(0.0, seconds)
        else:
            self.block(None, "sleep", max(seconds, STEP_SECONDS))
