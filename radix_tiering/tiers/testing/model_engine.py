"""An engine in memory, with every fault that engines have: late, short, foreign, wrong, hung, absent, failing, dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial

import numpy as np

from ...base.runner import THREADS, Runner
from ..remote.engine import EngineAnswer, EngineEvent, EngineGone, EngineJob, EngineReady, Verb
from ..remote.objects import HEADER_BYTES

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


class ModelEngine:
    """One life. Answers on threads of its own, one or one for each verb, on each one job after the other."""

    def __init__(self, store: ModelStore, memory: np.ndarray, tell: Callable[[EngineEvent], None]) -> None:
        self.memory = memory
        self._store = store
        self._tell = tell
        self._lanes: dict[Verb, deque[EngineJob]] = {verb: deque() for verb in VERBS[: None if store.lanes else 1]}
        self._wake = store.runner.condition()
        self._ended = False
        store.lives += 1
        self._threads = [
            store.runner.thread(partial(self._run, verb), f"swift-model-engine{number or ''}")
            for number, verb in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, job: EngineJob) -> bool:
        self._store.jobs.append(job)
        with self._wake:
            self._lanes.get(job.verb, self._lanes[VERBS[0]]).append(job)
            self._wake.notify_all()
        return True

    def end(self) -> None:
        if not self._ended:
            with self._wake:
                self._ended = True
                self._wake.notify_all()
            for thread in self._threads:
                thread.join()

    def _run(self, verb: Verb) -> None:
        jobs = self._lanes[verb]
        if verb == VERBS[0]:
            self._tell(EngineReady())
        while True:
            with self._wake:
                self._wake.wait_for(lambda: jobs or self._ended)
                if self._ended:
                    return
                job = jobs.popleft()
            fault = self._store.fault(job)
            if fault is EngineFault.DIES:
                self._tell(EngineGone("its process was ended by SIGSEGV"))
                return
            if fault is EngineFault.HANGS:
                continue
            seconds = self._store.seconds(job) if callable(self._store.seconds) else self._store.seconds
            self._wait(seconds + (self._store.late_seconds if fault is EngineFault.LATE else 0.0))
            if self._ended:
                return
            if fault is EngineFault.FAILS:
                self._tell(EngineAnswer(job.number, [False] * len(job.names), f"{job.verb}: no route to the store"))
            else:
                self._tell(EngineAnswer(job.number, self._do(job, fault)))

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
