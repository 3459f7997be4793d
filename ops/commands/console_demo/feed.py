"""The simulation as a feed of the console.

Everything simulated is on one runner, in one thread of its own: the servers' threads are tasks there, and so is what
the feed asks, which reads the model of a Redis as the console reads a real one.
"""

from __future__ import annotations

import logging
import math
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from swift_tiers.console.feeds.feed import Feed, Look, Nature, ViewAnswers, ViewQuestion
from swift_tiers.console.feeds.live import FORMER_EVENTS, put_question
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
from swift_tiers.radix_tiering.bus.contract.views import CommandView, Snapshot
from swift_tiers.radix_tiering.bus.hear.event_tail import EventTail
from swift_tiers.radix_tiering.bus.hear.reader import BusReader

from .redis_model import RedisModel
from .script import Script

logger = logging.getLogger(__name__)

#: What has happened before the first look, seconds, and how often that was looked at: so that there is a history.
BEFORE, APART = 20.0, 0.5
#: Questions and commands that are waited for at one time, and how often it is looked for an answer, seconds.
AT_ONCE, POLL_SECONDS = 2, 0.05
#: The most that one look lets go by, seconds: a console that was stopped does not wait for the time that it missed.
MOST_AT_ONCE = 5.0

Result = TypeVar("Result")


class DemoWorld:
    """What is simulated, and the thread that it is in."""

    def __init__(self, wall: float) -> None:
        """`wall`: the time of day at the beginning, seconds since 1970."""
        self.runner = VirtualRunner(switch=0.0, stall=0.0, most_steps=sys.maxsize, most_seconds=math.inf)
        self.runner.clock_off = wall - self.runner.time()
        self.redis = RedisModel(self.runner)
        self.reader = BusReader(self.redis.client(), runner=self.runner)
        self.script: Script
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._long = self.runner.queue()  # of what waits there, likewise
        self._lock = threading.Lock()
        self._asked: Future[Any] | None = None  # for what is being done
        self._over = ""  # why nothing is done any more
        self.closing = False
        self._thread = threading.Thread(target=self._run, name="demo", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], Result]) -> Result:
        """Have this done as a task of the runner, which may wait there; what it returns. Raises what it raises, and
        BusError once the run is over."""
        future: Future[Result] = Future()
        with self._lock:
            if self._over:
                raise BusError(self._over)
            self._jobs.put((job, future))
        return future.result()

    def begin(self, job: Callable[[], Result]) -> Future[Result]:
        """As `do`, for what waits until time has gone on: who began it sees to that."""
        future: Future[Result] = Future()
        self.do(lambda: self._long.put((job, future)))
        return future

    def close(self) -> None:
        """End it, and wait for that: the interpreter must not end while tasks of its thread go on."""
        self.closing = True
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        why = "it was closed"
        try:
            self.runner.run(self._live)
        except BaseException as error:
            logger.exception("the demo has ended")
            why = str(error).partition("\n")[0]
        with self._lock:
            self._over = f"the demo has ended: {why}"
        waiting = [] if self._asked is None else [self._asked]
        while not self._jobs.empty():
            if (asked := self._jobs.get()) is not None:
                waiting.append(asked[1])
        for future in waiting:
            future.set_exception(BusError(self._over))

    def _live(self) -> None:
        for _ in range(AT_ONCE):
            self.runner.thread(self._wait, "asks").start()
        while (asked := self._jobs.get()) is not None:
            self._asked = asked[1]
            _fulfil(*asked)
            self._asked = None

    def _wait(self) -> None:
        while True:
            _fulfil(*self._long.get())


def _fulfil(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(job())
    except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
        future.set_exception(error)


class DemoFeed(Feed):
    """Virtual time goes on with the real one."""

    nature = Nature.DEMO
    name = "three servers"

    def __init__(
        self,
        *,
        steers: bool = True,
        before: float = BEFORE,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`before`: seconds that have gone by at the first look; `wall`: seconds since 1970, read once."""
        self.steers = steers
        self._before = before
        self._monotonic = monotonic
        self._world = DemoWorld(wall() - before)
        weakref.finalize(self, self._world.close)
        self._tail = EventTail(None, FORMER_EVENTS)
        self._looked = 0.0  # when, by the console's clock
        self._now = 0.0  # until when time is to have gone on, by the runner's

    def look(self) -> Look:
        return self._world.do(self._look)

    def ask(self, question: ViewQuestion) -> ViewAnswers:
        return self._wait_for(lambda: put_question(self._world.reader, question))

    def command(self, server: str, command: AnyCommand) -> CommandView:
        return self._wait_for(lambda: self._world.reader.command(server, "demo", command))

    def _wait_for(self, job: Callable[[], Result]) -> Result:
        """Time goes on meanwhile as it does at a look; where the console's clock stands, so far as it takes."""
        future = self._world.begin(job)
        while not future.done():
            if self._world.do(self._follow):
                wait([future], POLL_SECONDS)
            else:
                self._world.do(lambda: self._world.runner.sleep(POLL_SECONDS))
        return future.result()

    def close(self) -> None:
        self._world.close()

    def within(self, look: Callable[[Script], Result]) -> Result:
        """What this finds out in the simulation, while nothing goes on there."""
        return self._world.do(lambda: look(self._world.script))

    # ---- a task of the runner ----

    def _look(self) -> Look:
        passed = list[Snapshot]()
        if not self._now:
            self._now = self._world.runner.monotonic()
            self._world.script = Script(self._world.runner, self._world.redis)
            for _ in range(int(self._before / APART) - 1):
                if self._world.closing:
                    raise BusError("the demo has ended: it was closed")
                self._go_on(APART)
                passed.append(self._snapshot())
            self._go_on(APART)
            self._looked = self._monotonic()
        else:
            self._follow()
        snapshot = self._snapshot()
        items = self._tail.read(self._world.reader, [state.server.server for state in snapshot.servers])
        return Look(snapshot=snapshot, items=tuple(items), passed=tuple(passed))

    def _follow(self) -> bool:
        """Let time go on as the console's clock has; whether it has. Raises BusError before the first look."""
        if not self._now:
            raise BusError("the demo has not begun yet")
        now = self._monotonic()
        passed, self._looked = now - self._looked, now
        self._go_on(min(MOST_AT_ONCE, passed))
        return passed > 0

    def _go_on(self, seconds: float) -> None:
        """Where somebody has asked while the console's clock stood, time is ahead."""
        self._now += seconds
        self._world.runner.sleep(max(0.0, self._now - self._world.runner.monotonic()))

    def _snapshot(self) -> Snapshot:
        return self._world.reader.snapshot(requests_seconds=self.requests_seconds)
