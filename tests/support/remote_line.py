"""A line over engines that do what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from swift_tiers.radix_tiering.base.token_bucket import TokenBucket
from swift_tiers.radix_tiering.tiers.remote.engine import (
    EngineAnswer,
    EngineEvent,
    EngineGone,
    EngineJob,
    EngineReady,
    Verb,
)
from swift_tiers.radix_tiering.tiers.remote.line import EngineLine, LifeEvent
from swift_tiers.radix_tiering.tiers.remote.objects import ObjectShape

TRIAL_SECONDS, READ_SECONDS = 0.02, 2.0
SHAPE = ObjectShape(1024, 1, 1)


class Engine:
    """One life, that does what the test says."""

    memory = np.zeros((8, 4096), np.uint8)

    def __init__(self, tell: Callable[[EngineEvent], None], takes: Callable[[], bool]) -> None:
        self.tell, self.takes = tell, takes
        self.jobs: list[EngineJob] = []
        self.ended = False

    def ask(self, job: EngineJob) -> bool:
        if self.takes():
            self.jobs.append(job)
        return self.takes()

    def end(self) -> None:
        self.ended = True


class Line:
    """A line over engines that tell what they have to tell when the test says so."""

    def __init__(self, object_seconds: float = 0.0) -> None:
        """`object_seconds`: so long an object takes that passes, by a throttle; 0: there is none."""
        self.now, self.takes, self.asked = 0.0, True, 0
        self.engines: list[Engine] = []
        self.told: list[LifeEvent] = []
        self.answered: list[bool] = []
        self.emitted: list[tuple[str, object]] = []  # events, and their reasons
        self.line = EngineLine(
            SHAPE,
            self._open,
            told=self.told.append,
            ended=lambda why: None,
            emit=lambda event, **facts: self.emitted.append((event, facts.get("reason"))),
            clock=lambda: self.now,
            trial_seconds={"exists": TRIAL_SECONDS, "get": READ_SECONDS},
            throttle=TokenBucket(SHAPE.stride / object_seconds) if object_seconds else None,
        )

    def _open(self, tell: Callable[[EngineEvent], None]) -> Engine:
        self.engines.append(Engine(tell, lambda: self.takes))
        return self.engines[-1]

    @property
    def engine(self) -> Engine | None:
        """The one that lives."""
        return self.engines[-1] if self.engines and not self.engines[-1].ended else None

    def turn(self) -> None:
        """What the tier's thread does in one."""
        told, self.told[:] = list(self.told), []
        for one in told:
            self.line.heard(one)
        self.line.look_at_the_time(self.now)
        self.line.go_on(self.now)

    def pass_time(self, seconds: float) -> None:
        """In steps from one thing to do to the next; those at once are few."""
        end, steps = self.now + seconds, 0
        while (due := min([*self.line.due(), end])) < end:
            steps = steps + 1 if due <= self.now else 0
            assert steps < 10, "it is busy with nothing"
            self.now = max(self.now, due)
            self.turn()
        self.now = end
        self.turn()

    def ask(self, verb: Verb = "exists", slots: Sequence[int] = ()) -> None:
        if self.line.open:
            self.asked += self.line.ask(
                verb,
                ["name"],
                slots,
                self.now + 5.0,
                lambda done: self.answered.append(True),
                lambda: self.answered.append(False),
            )

    def do(self, what: str) -> None:
        engine = self.engine
        if what == "ask":
            self.ask()
            self.ask()
        elif what in ("read", "write"):
            slots = self.line.slots.take(1)
            if slots:
                self.ask("get" if what == "read" else "put", slots)
        elif what == "wait":
            self.pass_time(1.0)
        elif what == "next":
            self.pass_time(max(0.0, min(self.line.due(), default=0.0) - self.now))
        elif what in ("stop", "go on"):
            self.takes = what == "go on"
        elif engine is None:
            return
        elif what == "ready":
            engine.tell(EngineReady())
        elif what == "die":
            engine.tell(EngineGone("killed"))
        elif what in ("answer", "fail"):
            for job in engine.jobs:
                engine.tell(EngineAnswer(job.number, [what == "answer"], "" if what == "answer" else "exists: refused"))
            engine.jobs.clear()
        self.turn()


def ready_line() -> Line:
    """A line whose first engine can be asked."""
    world = Line()
    for deed in ("wait", "ready"):
        world.do(deed)
    return world
