"""What tasks wait at: as `threading` and `queue` have it, less what nobody here uses."""

from __future__ import annotations

import queue
import select
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .schedule import Schedule, Task


class VirtualLock:
    """Whoever is woken competes with who comes by, as with threads."""

    __slots__ = ("_schedule", "owner", "waiters")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.owner: object = None
        self.waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        schedule = self._schedule
        schedule.step()
        if schedule.ending:
            return True
        until = None if timeout < 0 else schedule.now + timeout
        while self.owner is not None:
            if not blocking:
                return False
            if self.owner is schedule.current:
                raise RuntimeError(f"it waits for {self}, and that is itself")
            if not schedule.block(self.waiters, self, None if until is None else until - schedule.now):
                return False
        self.owner = schedule.current or schedule
        return True

    def release(self) -> None:
        if self._schedule.ending:
            self.owner = None
            return
        if self.owner is None:
            raise RuntimeError("release of a lock that nobody holds")
        self.let_go()
        self._schedule.step()

    def let_go(self) -> None:
        """Release it, without a step."""
        self.owner = None
        if self.waiters:
            self._schedule.wake_some(self.waiters)

    def locked(self) -> bool:
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()

    def __str__(self) -> str:
        return f"a lock that {getattr(self.owner, 'name', 'nobody')} holds"


class VirtualCondition:
    """Under a `VirtualLock`."""

    def __init__(self, schedule: Schedule, lock: VirtualLock) -> None:
        self._schedule = schedule
        self._lock = lock
        self._waiters: deque[Task] = deque()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        schedule = self._schedule
        self._check("wait")
        # No step between the two: it counts as waiting before anybody else can take the lock, so no notice is missed.
        self._lock.let_go()
        woken = schedule.block(self._waiters, self, timeout)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._schedule.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - self._schedule.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        self._check("notify")
        self._schedule.wake_some(self._waiters, n)

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    def _check(self, what: str) -> None:
        schedule = self._schedule
        if not schedule.ending and self._lock.owner is not (schedule.current or schedule):
            raise RuntimeError(f"{what} on a condition whose lock is not held")

    def __str__(self) -> str:
        return f"a condition, with {len(self._waiters)} others"


class VirtualFlag:
    """As `threading.Event`."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._up = False
        self._waiters: deque[Task] = deque()

    def is_set(self) -> bool:
        self._schedule.step()
        return self._up

    def set(self) -> None:
        self._up = True
        self._schedule.wake_some(self._waiters, len(self._waiters))
        self._schedule.step()

    def clear(self) -> None:
        self._up = False

    def wait(self, timeout: float | None = None) -> bool:
        self._schedule.step()
        if not self._up:
            self._schedule.block(self._waiters, self, timeout)
        return self._up

    def __str__(self) -> str:
        return "a flag"


class VirtualQueue:
    """As `queue.SimpleQueue`."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._items: deque[Any] = deque()
        self._takers: deque[Task] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._schedule.wake_some(self._takers)
        self._schedule.step()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self._schedule.step()
        until = None if timeout is None else self._schedule.now + timeout
        while not self._items:
            left = None if until is None else until - self._schedule.now
            if not block or not self._schedule.block(self._takers, self, left):
                raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def __str__(self) -> str:
        return "a queue"


class VirtualPoller:
    """For descriptors whose both ends are in this process: whatever comes is there at once."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._poll = select.poll()
        self._woken = False
        #: That are waited for.
        self.descriptors: set[int] = set()

    def register(self, descriptor: int, events: int) -> None:
        self._poll.register(descriptor, events)
        self.descriptors.add(descriptor)

    def unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self.descriptors.discard(descriptor)

    def poll(self, seconds: float) -> dict[int, int]:
        schedule = self._schedule
        schedule.step()
        if seconds > 0 and not self._ready():
            schedule.watch(self._ready)
            schedule.block(None, self, seconds)
        self._woken = False
        return dict(self._poll.poll(0))

    def wake(self) -> None:
        self._woken = True
        self._schedule.step()

    def close(self) -> None:
        pass

    def _ready(self) -> bool:
        return self._woken or bool(self._poll.poll(0))

    def __str__(self) -> str:
        return "descriptors"


class VirtualLocal:
    """As `threading.local`."""

    def __init__(self, schedule: Schedule) -> None:
        object.__setattr__(self, "_schedule", schedule)
        object.__setattr__(self, "_of", {})  # by task

    def __getattr__(self, name: str) -> Any:
        try:
            return self._of[self._schedule.current][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._of.setdefault(self._schedule.current, {})[name] = value


class VirtualThread:
    """As `threading.Thread`."""

    def __init__(self, schedule: Schedule, target: Callable[[], None], name: str) -> None:
        self._schedule = schedule
        self._target = target
        self.name = name
        self.task: Task | None = None

    def start(self) -> None:
        if self.task is not None:
            raise RuntimeError(f"{self.name} has been started before")
        self.task = self._schedule.spawn(self._target, self.name)
        self._schedule.step()

    def join(self, timeout: float | None = None) -> None:
        self._schedule.step()
        if self.task is not None and not self.task.over:
            self._schedule.block(None, self.task, timeout)

    def is_alive(self) -> bool:
        self._schedule.step()
        return self.task is not None and not self.task.over
