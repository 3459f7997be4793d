"""What blocks, wakes and tells time: the engine asks its runner for all of it, and does nothing of the kind by itself.

`ThreadRunner` serves: the standard library as it is. `virtual.VirtualRunner` runs the same code in one thread, in
virtual time, in an order that follows from a seed. Rules for code that is to run on both:

- Whatever waits, wakes, tells time or draws comes from the runner. No lock, clock or thread is made at import.
- A loop waits at something of the runner's in each of its rounds.
- A timeout is a belt, never the way something comes to be woken.
- Nothing depends on addresses: no set of objects is gone through that hash by where they lie.
- Callbacks from C only put something into a queue.
- Sizes of steps are attributes or constants of a module, so that a seed can make them small.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from .poller import ThreadPoller

#: What `Queue.get` raises where nothing has come.
Empty = queue.Empty


class Guard(Protocol):
    """What is held between entering and leaving."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Lock(Guard, Protocol):
    """As `threading.Lock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...


class Condition(Guard, Protocol):
    """As `threading.Condition`: who waits, notifies or enters holds its lock."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any: ...
    def notify(self, n: int = 1) -> None: ...
    def notify_all(self) -> None: ...


class Flag(Protocol):
    """As `threading.Event`."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Queue(Protocol):
    """As `queue.SimpleQueue`. `get` raises `Empty` after its timeout."""

    def put(self, item: Any) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> Any: ...
    def empty(self) -> bool: ...


class Poller(Protocol):
    """Waits for descriptors, as `select.poll` does. For one thread, but for `wake`."""

    def register(self, descriptor: int, events: int) -> None:
        """Wait for these events of it from now on (`poller.READABLE`, ...), whatever was waited for before."""

    def unregister(self, descriptor: int) -> None:
        """Wait for it no more. Raises KeyError for one that is not waited for."""

    def poll(self, seconds: float) -> dict[int, int]:
        """Which have events, and which events; after at most so many seconds, or once woken."""

    def wake(self) -> None:
        """Let `poll` return now, or the next one at once. Any thread, also under locks, and after `close`."""

    def close(self) -> None:
        """The descriptors stay open."""


class Thread(Protocol):
    """As `threading.Thread`; always a daemon."""

    @property
    def name(self) -> str: ...
    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Runner(ABC):
    """The one source of concurrency and time; see the module. Any thread may ask it for anything."""

    #: For whatever is drawn.
    random: random.Random

    @abstractmethod
    def lock(self) -> Lock:
        """A lock that is not held, and cannot be taken twice by one thread."""

    @abstractmethod
    def condition(self, lock: Lock | None = None) -> Condition:
        """A condition under `lock`, or one of its own."""

    @abstractmethod
    def flag(self) -> Flag:
        """A flag that is down."""

    @abstractmethod
    def queue(self) -> Queue:
        """A queue without bound."""

    @abstractmethod
    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """A thread that is not started yet. It does not keep the process alive."""

    @abstractmethod
    def poller(self) -> Poller:
        """Waits for descriptors of this process; it has none yet."""

    @abstractmethod
    def local(self) -> Any:
        """As `threading.local`: each thread finds the attributes that it has set itself."""

    @abstractmethod
    def here(self, thread: Thread | None) -> bool:
        """Whether the caller is on this thread."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds that never go back."""

    @abstractmethod
    def boot_time(self) -> float:
        """Seconds of a clock that goes on while this process, or the machine, sleeps."""

    @abstractmethod
    def thread_time(self) -> float:
        """Seconds that this thread has computed for."""

    @abstractmethod
    def time(self) -> float:
        """Seconds since the epoch."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Let others go on for so long; 0: have their turn."""


class _ThreadQueue(queue.SimpleQueue[Any]):
    """Whoever waits for something to come is seen to wait here, as at a condition: see
    `sglang_ext.tell.hang_watch`."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return super().get(block, timeout)


class ThreadRunner(Runner):
    """Threads and time as they are."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        """`monotonic`, `wall`: other clocks, for whoever moves them by hand."""
        self._monotonic, self._wall = monotonic, wall
        self.random = random.SystemRandom()

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self, lock: Lock | None = None) -> Condition:
        return threading.Condition(lock)  # type: ignore[arg-type]

    def flag(self) -> Flag:
        return threading.Event()

    def queue(self) -> Queue:
        return _ThreadQueue()

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def poller(self) -> Poller:
        return ThreadPoller()

    def local(self) -> Any:
        return threading.local()

    def here(self, thread: Thread | None) -> bool:
        return threading.current_thread() is thread

    def monotonic(self) -> float:
        return self._monotonic()

    def boot_time(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def thread_time(self) -> float:
        return time.thread_time()

    def time(self) -> float:
        return self._wall()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


#: For whoever is given none.
THREADS = ThreadRunner()
