"""An engine in memory, with every fault that engines have: late, short, foreign, wrong, hung, absent, failing, dead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from ...base.runner import THREADS, Runner
from ..remote.engine import EngineAnswer, EngineEvent, EngineGone, EngineJob, EngineReady, Verb
from ..remote.objects import HEADER_BYTES

Noted = TypeVar("Noted")

VERBS: tuple[Verb, ...] = ("exists", "get", "put")


class EngineFault(Enum):
    """What becomes of a job's objects, though the engine says that all is well."""

    NONE = "none"
    LATE = "late"  # by `ModelStore.late_seconds`
    SHORT = "short"  # half of it is written
    EMPTY = "empty"  # nothing of it
    FOREIGN = "foreign"  # another object
    WRONG = "wrong"  # a bit of a page
    HEADER = "header"  # a bit of what it says of its pages
    ABSENT = "absent"  # it is not there, though it exists
    REFUSES = "refuses"  # what is put is not taken, and it does not say why
    FAILS = "fails"  # with an error: it does not say that all is well
    HANGS = "hangs"  # no answer, ever
    DIES = "dies"  # the life ends


class ModelStore:
    """What several servers' engines share: objects by name. `fault(job)` says what becomes of a job."""

    def __init__(
        self,
        *,
        runner: Runner = THREADS,
        seconds: float | Callable[[EngineJob], float] = 0.0,
        late_seconds: float = 1.0,
        lanes: bool = False,
    ) -> None:
        """`seconds`: that each job takes. `lanes`: jobs of different verbs do not wait for each other, as in the child;
        else one is done after the other."""
        self.runner = runner
        self.seconds = seconds
        self.late_seconds = late_seconds
        self.lanes = lanes
        self.objects: dict[str, np.ndarray] = {}
        self.fault: Callable[[EngineJob], EngineFault] = lambda job: EngineFault.NONE
        self.jobs: list[EngineJob] = []  # that were asked, in order
        self.lives = 0

    def open(self, slots: int, stride: int) -> Callable[[Callable[[EngineEvent], None]], ModelEngine]:
        """An `OpenEngine` with so many slots."""
        return lambda tell: ModelEngine(self, np.zeros((slots, stride), np.uint8), tell)


class LaneEngine(ABC, Generic[Noted]):
    """One life of an engine that is none. What is asked on a lane is done one job after the other, by a thread of the
    lane's own."""

    def __init__(
        self, runner: Runner, memory: np.ndarray, tell: Callable[[EngineEvent], None], lanes: Mapping[Verb, str]
    ) -> None:
        """`lanes`: what their threads are called; what has none goes to the first."""
        self.memory = memory
        self._tell = tell
        self._lanes: dict[Verb, deque[Noted]] = {verb: deque() for verb in lanes}
        self._first = next(iter(lanes))
        self._wake = runner.condition()
        self._ended = False
        self._threads = [runner.thread(partial(self._run, verb), called) for verb, called in lanes.items()]
        for thread in self._threads:
            thread.start()

    def ask(self, job: EngineJob) -> bool:
        with self._wake:
            self._lanes.get(job.verb, self._lanes[self._first]).append(self._note(job))
            self._wake.notify_all()
        return True

    def end(self) -> None:
        if not self._ended:
            with self._wake:
                self._ended = True
                self._wake.notify_all()
            for thread in self._threads:
                thread.join()

    @abstractmethod
    def _note(self, job: EngineJob) -> Noted:
        """What is kept of a job from when it is asked until its turn."""

    @abstractmethod
    def _do_next(self, noted: Noted) -> bool:
        """Do it, and tell of it; False: nothing more is done on its lane."""

    def _run(self, verb: Verb) -> None:
        noted = self._lanes[verb]
        if verb == self._first:
            self._tell(EngineReady())
        while True:
            with self._wake:
                self._wake.wait_for(lambda: noted or self._ended)
                if self._ended:
                    return
                one = noted.popleft()
            if not self._do_next(one):
                return


class ModelEngine(LaneEngine[EngineJob]):
    """Does what is asked, but for the faults of its store; one job after the other, or one of each verb."""

    def __init__(self, store: ModelStore, memory: np.ndarray, tell: Callable[[EngineEvent], None]) -> None:
        self._store = store
        store.lives += 1
        lanes = enumerate(VERBS[: None if store.lanes else 1])
        called = {verb: f"swift-model-engine{number or ''}" for number, verb in lanes}
        super().__init__(store.runner, memory, tell, called)

    def ask(self, job: EngineJob) -> bool:
        self._store.jobs.append(job)
        return super().ask(job)

    def _note(self, job: EngineJob) -> EngineJob:
        return job

    def _do_next(self, noted: EngineJob) -> bool:
        job, fault = noted, self._store.fault(noted)
        if fault is EngineFault.DIES:
            self._tell(EngineGone("its process was ended by SIGSEGV"))
            return False
        if fault is EngineFault.HANGS:
            return True
        seconds = self._store.seconds(job) if callable(self._store.seconds) else self._store.seconds
        self._wait(seconds + (self._store.late_seconds if fault is EngineFault.LATE else 0.0))
        if self._ended:
            return False
        if fault is EngineFault.FAILS:
            self._tell(EngineAnswer(job.number, [False] * len(job.names), f"{job.verb}: no route to the store"))
        else:
            self._tell(EngineAnswer(job.number, self._do(job, fault)))
        return True

    def _wait(self, seconds: float) -> None:
        if seconds:
            with self._wake:
                self._wake.wait_for(lambda: self._ended, seconds)

    def _do(self, job: EngineJob, fault: EngineFault) -> list[bool]:
        objects = self._store.objects
        if job.verb == "exists":
            return [name in objects for name in job.names]
        if job.verb == "put" and fault is EngineFault.REFUSES:
            return [False] * len(job.names)
        if job.verb == "put":
            for name, slot in zip(job.names, job.slots, strict=True):
                objects.setdefault(name, self.memory[slot].copy())  # the first one counts
            return [True] * len(job.names)
        return [self._get(name, slot, fault) for name, slot in zip(job.names, job.slots, strict=True)]

    def _get(self, name: str, slot: int, fault: EngineFault) -> bool:
        objects, into = self._store.objects, self.memory[slot]
        if name not in objects or fault is EngineFault.ABSENT:
            return False
        found = objects[name]
        if fault is EngineFault.FOREIGN:
            found = next((other for one, other in objects.items() if one != name), found)
        whole = len(found)
        length = {EngineFault.SHORT: whole // 2, EngineFault.EMPTY: 0}.get(fault, whole)
        into[:length] = found[:length]
        if fault in (EngineFault.WRONG, EngineFault.HEADER):
            into[HEADER_BYTES + 7 if fault is EngineFault.WRONG else 100] ^= 4
        return True
