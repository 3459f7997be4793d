"""Tasks of one thread, in virtual time, in an order that a seed decides.

A task runs until it waits, or until a step at which another one may go on; every primitive of the runner's is a step.
What is drawn decides who goes on, who of several is woken, and how long a task is held up; so a seed stands for one
order of everything, in every process. Time stands still while somebody can go on, but for a microsecond a step; when
all wait, it jumps to the first timer. Where all wait and there is no timer, that is an error: `Stuck`.

What is written between two steps is atomic here: a lock that is missing shows only where a step lies between. Tasks are
greenlets: a task cannot go on across a C frame of another's that holds state.
"""

from __future__ import annotations

import heapq
import random
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import greenlet

#: How far time goes on with every step, and every look at the clock, seconds.
STEP_SECONDS = 1e-6
#: Why a task waits that could go on.
STARVED = "gets no turn"
#: What the clock says at the beginning, seconds.
BEGIN = 1000.0


class Stuck(AssertionError):
    """Everybody waits and no timer is left, or the steps or the virtual time that were granted are used up."""


class TaskDied(AssertionError):
    """An exception left a task; it is the cause."""


class Task:
    """One thread of the program. States: ready, running, waiting (with or without a timer), over."""

    __slots__ = (
        "dead", "epoch", "glet", "name", "number", "over", "place", "priority", "steps", "stopped_until",
        "timed_out", "waiters", "why",
    )  # fmt: skip

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.glet: Any = None
        self.epoch = 0  # how often it has been woken: a timer of an earlier wait does not count
        self.place = -1  # in the list of those that are ready; -1: it is not
        self.priority = 0.0
        self.timed_out = self.over = False
        self.dead = False  # its process was killed: it never goes on
        self.stopped_until = 0.0
        self.steps = 0
        self.waiters: deque[Task] | None = None  # where it waits
        self.why: object = None

    def __str__(self) -> str:
        return f"the end of {self.name}"


class Schedule:
    """Who goes on, and when. Everything that tasks do with it follows from `seed`."""

    def __init__(
        self,
        seed: int = 0,
        *,
        switch: float = 0.3,
        stall: float = 0.002,
        stall_seconds: float = 0.05,
        changes: int = 0,
        expected_steps: int = 8000,
        most_steps: int = 2_000_000,
        most_seconds: float = 1e5,
    ) -> None:
        """`switch`: how often another task goes on at a step. `stall`: how often a task is held up there, for up to
        `stall_seconds`. `changes`: instead of both, the ready task of the highest priority goes on, and the running
        one gets the lowest at so many steps of the first `expected_steps` (PCT, Burckhardt et al. 2010)."""
        self.random = random.Random(seed)
        self.seed = seed
        self.now = BEGIN
        self.steps = self.switches = 0
        #: A number for the whole order of what happened so far.
        self.history = seed & 0xFFFF
        self.current: Task | None = None
        self.ending = False  # `run` is over: whatever is left is ended, and may not wait any more
        self._switch = switch
        self._stall = stall
        self._stall_seconds = stall_seconds
        self._changes = sorted(self.random.sample(range(expected_steps), changes))
        self._by_priority = changes > 0
        self._lowest = 0.0
        self._most_steps = most_steps
        self._until = BEGIN + most_seconds
        self._tasks: list[Task] = []
        self._spawned = 0
        self._ready: list[Task] = []
        self._watching: dict[Task, Callable[[], bool]] = {}  # who waits for what nobody here tells of
        self._timers: list[tuple[float, int, Task, int]] = []
        self._timers_made = 0
        self._failure: BaseException | None = None
        self._hub = greenlet.getcurrent()

    # ---- running ----

    def run(self, main: Callable[[], Any]) -> Any:
        """Run `main` as the first task until it returns; what it returns. Tasks that are left then are ended.

        Raises what `main` raises, TaskDied where an exception leaves another task, and Stuck.
        """
        result: list[Any] = []
        self._hub = greenlet.getcurrent()
        task = self.spawn(lambda: result.append(main()), "main")
        try:
            self._go(task)
            if self._failure is not None:
                raise self._failure
            return result[0]
        finally:
            self.ending = True
            for left in self._tasks:
                if not left.glet.dead:  # one that is over has gone on to the next, and would keep all that it knew
                    self.current = left
                    left.glet.throw(greenlet.GreenletExit)
            self.current = None

    def spawn(self, function: Callable[[], Any], name: str) -> Task:
        """A new task, which is ready."""
        task = Task(self._spawned, name)
        self._spawned += 1
        task.priority = self.random.random() + 1 if self._by_priority else 0.0
        task.glet = greenlet.greenlet(lambda: self._body(task, function), self._hub)
        self._tasks.append(task)
        self._make_ready(task)
        return task

    def _body(self, task: Task, function: Callable[[], Any]) -> None:
        try:
            function()
        except greenlet.GreenletExit:
            task.over = True
            return
        except SystemExit:
            pass  # ends a thread, and nothing is said: so it is with Python's
        except BaseException as error:  # noqa: BLE001 - it is raised by `run`
            self._failure = self._failure or self._what_ended(task, error)
        task.over = True
        if self.ending:
            return
        self._not_ready(task)
        if task.number == 0 or self._failure is not None:
            self.current = None
            return  # to the hub, which is in `run`
        for one in self._tasks:
            if one.why is task and not one.over:
                self.wake(one)
        self._go(self._next())

    def _what_ended(self, task: Task, error: BaseException) -> BaseException:
        if task.number == 0:
            return error
        died = TaskDied(f"{task.name}: {error!r}\n{''.join(traceback.format_exception(error))}")
        died.__cause__ = error
        return died

    # ---- for the primitives ----

    def look(self) -> float:
        """The time, seconds."""
        self.now += STEP_SECONDS  # a loop that only looks at the clock comes to its end
        return self.now

    def computed(self) -> float:
        """How long the running task has not waited, seconds."""
        return 0.0 if self.current is None else self.current.steps * STEP_SECONDS

    def step(self) -> None:
        """Another task may go on here."""
        task = self.current
        if task is None or self.ending:
            return
        self.steps += 1
        task.steps += 1
        self.now += STEP_SECONDS
        if self._watching:
            self._look_outside()
        if self._timers and self._timers[0][0] <= self.now:
            self._fire()
        if self.steps > self._most_steps or self.now > self._until:
            self._fail(f"no end after {self.steps} steps and {self.now - BEGIN:.3f} s of virtual time")
        if self._by_priority:
            while self._changes and self.steps >= self._changes[0]:
                self._changes.pop(0)
                self._lowest -= 1
                task.priority = self._lowest
            if len(self._ready) > 1:
                self._go(self._next())
            return
        chance = self.random.random()
        if chance < self._switch:
            if len(self._ready) > 1:
                self._go(self._next())
        elif chance > 1 - self._stall:
            self.block(None, "held up", self._stall_seconds * self.random.random() ** 4)

    def block(self, waiters: deque[Task] | None, why: object, timeout: float | None = None) -> bool:
        """Wait until woken, or for so long: False then. `waiters`: whoever wakes looks there; `why`: for people."""
        task = self.current
        if self.ending:
            raise greenlet.GreenletExit
        if task is None:
            raise RuntimeError(f"outside of a task nobody can wait: {why}")
        self._not_ready(task)
        task.why, task.waiters, task.timed_out = why, waiters, False
        if waiters is not None:
            waiters.append(task)
        if timeout is not None:
            self._timers_made += 1
            heapq.heappush(self._timers, (self.now + max(timeout, 0.0), self._timers_made, task, task.epoch))
        self._go(self._next())
        return not task.timed_out

    def watch(self, there: Callable[[], bool]) -> None:
        """Have the running task, which is about to wait, woken as soon as this is so: it is asked at every step."""
        assert self.current is not None, "outside of a task nobody can wait"
        self._watching[self.current] = there

    def kill(self, task: Task) -> None:
        """It never goes on. What it holds it keeps."""
        self._not_ready(task)
        if task.waiters is not None:
            task.waiters.remove(task)
        self._watching.pop(task, None)
        task.epoch += 1
        task.dead, task.waiters, task.why, task.stopped_until = True, None, "killed", 0.0

    def bury(self, tasks: Sequence[Task]) -> None:
        """Keep nothing of tasks that were killed. Not to be called by one of them. What they would have done on their
        way out is done at once, and waits for nothing."""
        living, self.ending = self.current, True
        try:
            for task in tasks:
                assert task.dead, f"{task.name} may go on"
                self.current = task
                task.glet.parent = greenlet.getcurrent()  # where it ends
                task.glet.throw(greenlet.GreenletExit)
        finally:
            self.ending, self.current = False, living
        self._tasks = [task for task in self._tasks if task not in tasks]

    def stop(self, task: Task, seconds: float) -> None:
        """It does nothing for so long, as in a process that is stopped; then it goes on with whatever has come."""
        task.stopped_until = max(task.stopped_until, self.now + seconds)
        if task.place >= 0 and task is not self.current:
            self._starve(task, seconds)

    def starve(self, seconds: float) -> str:
        """One of the others that could go on gets no turn for so long; its name, or "" where none could."""
        others = [task for task in self._ready if task is not self.current]
        if not others:
            return ""
        task = self.random.choice(others)
        self._starve(task, seconds)
        return task.name

    def _starve(self, task: Task, seconds: float) -> None:
        self._not_ready(task)
        task.why = STARVED
        self._timers_made += 1
        heapq.heappush(self._timers, (self.now + seconds, self._timers_made, task, task.epoch))

    def wake(self, task: Task) -> None:
        """It need not wait any longer."""
        task.epoch += 1
        task.waiters = task.why = None
        self._watching.pop(task, None)
        if task.stopped_until > self.now:
            self._starve(task, task.stopped_until - self.now)
        elif not task.dead:
            self._make_ready(task)

    def wake_some(self, waiters: deque[Task], count: int = 1) -> None:
        """So many of those who wait there, whichever."""
        for _ in range(min(count, len(waiters))):
            at = self.random.randrange(len(waiters)) if len(waiters) > 1 else 0
            task = waiters[at]
            del waiters[at]
            self.wake(task)

    # ---- inside ----

    def _make_ready(self, task: Task) -> None:
        if task.place < 0:
            task.place = len(self._ready)
            self._ready.append(task)

    def _not_ready(self, task: Task) -> None:
        if task.place >= 0:
            last = self._ready.pop()
            if last is not task:
                self._ready[task.place], last.place = last, task.place
            task.place = -1

    def _next(self) -> Task:
        """Who goes on. Time jumps where nobody can."""
        if self._watching:
            self._look_outside()
        while not self._ready:
            if not self._timers:
                self._fail("everybody waits")
            self.now = max(self.now, self._timers[0][0])
            if self.now > self._until:
                self._fail(f"no end after {self.now - BEGIN:.3f} s of virtual time")
            self._fire()
            if self._watching:
                self._look_outside()
        if self._by_priority:
            return max(self._ready, key=lambda task: task.priority)
        return self._ready[self.random.randrange(len(self._ready))] if len(self._ready) > 1 else self._ready[0]

    def _go(self, task: Task) -> None:
        if task is not self.current:
            self.switches += 1
            self.current = task
            self.history = hash((self.history, self.steps, task.number))
            task.glet.switch()

    def _look_outside(self) -> None:
        for task, there in list(self._watching.items()):
            if there():
                self.wake(task)

    def _fire(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            _, _, task, epoch = heapq.heappop(self._timers)
            if task.epoch == epoch:
                if task.why is not STARVED:  # whatever it waited for before has come
                    task.timed_out = True
                if task.waiters is not None:
                    task.waiters.remove(task)
                self.wake(task)

    def _fail(self, problem: str) -> None:
        self._failure = self._failure or Stuck(self.report(problem))
        self.current = None
        self._hub.switch()
        raise greenlet.GreenletExit

    def report(self, title: str) -> str:
        """What each task does and waits for, for people."""
        lines = [title, f"seed {self.seed}, step {self.steps}, after {self.now - BEGIN:.6f} s"]
        for task in self._tasks:
            if task.over:
                continue
            frame = sys._getframe(1) if task is self.current or task.glet.gr_frame is None else task.glet.gr_frame
            calls = [
                f"{call.filename.rsplit('/', 1)[-1]}:{call.lineno} {call.name}"
                for call in traceback.extract_stack(frame)
                if "/virtual/" not in call.filename
            ]
            state = "ready" if task.place >= 0 else str(task.why)
            lines.append(f"  {task.number:2} {task.name:14} {state:32} {' < '.join(reversed(calls[-6:]))}")
        return "\n".join(lines)
