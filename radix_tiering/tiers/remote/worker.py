"""The remote tier's thread, "swift-remote": takes what is asked, goes on with what waits, and tells the answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...base.events import EventLog
from ...base.runner import Empty, Runner
from ...base.token_bucket import TokenBucket
from ...figures.counters import LinkCounters
from ..tier import ReadOutcome, Write
from .breaker import Asked
from .engine import OpenEngine
from .line import EngineLine, LifeEvent
from .objects import ObjectNames, ObjectShape
from .probe import CostProbe
from .reads import ObjectReads, RunSearch, WantedPage
from .rumours import Rumours
from .writes import ObjectWrites

logger = logging.getLogger(__name__)

#: How long the thread waits where nothing is due, and rests after an error of ours, seconds.
IDLE_SECONDS, FAULT_SECONDS = 60.0, 0.1
CLOSING = "the tier is closed"


class ForgetArrived(NamedTuple):
    """What has arrived is not wanted again."""


FORGET_ARRIVED = ForgetArrived()


class RemoteWorker:
    """`put`, `close`, `counts` and `links` are for any thread, all else for its own."""

    def __init__(
        self,
        shape: ObjectShape,
        names: ObjectNames,
        open_engine: OpenEngine,
        *,
        runner: Runner,
        trial_seconds: Mapping[Asked, float],
        throttle: TokenBucket | None,
        fingerprint: Callable[[np.ndarray], bytes],
        events: EventLog | None,
        probes: bool,
        writes: bool,
    ) -> None:
        """`trial_seconds`, `throttle`: see `EngineLine`. The others: see `RemoteTier`."""
        self.names = names
        self.answers: AbstractContextManager[object] = nullcontext()
        self.rumours = Rumours(runner)
        #: Told of loads that no restore waited for: bytes, and seconds.
        self.loaded: Callable[[int, float], None] = lambda nbytes, seconds: None
        self._clock = clock = runner.monotonic
        self._events = events
        self._inbox = runner.queue()
        self._sleep = runner.sleep
        self._found: list[Callable[[], None]] = []  # who asked is told at the end of a round
        self._ended: list[Callable[[], None]] = []  # of reads and writes
        self._last_fault = ""
        self._closing = False
        self._closed = runner.lock()
        self.line = EngineLine(
            shape,
            open_engine,
            told=self._inbox.put,
            ended=self._life_ended,
            emit=self._emit,
            clock=clock,
            trial_seconds=trial_seconds,
            throttle=throttle,
        )
        told = lambda nbytes, seconds: self.loaded(nbytes, seconds)  # noqa: E731 - whoever learns is named later
        self._probe = CostProbe(shape, self.line, clock, told, writes) if probes else None
        self._reads = ObjectReads(
            self.line, shape, names, self.rumours,
            clock=clock, fingerprint=fingerprint, probe=self._probe, told=told, found=self._found, ended=self._ended,
        )  # fmt: skip
        self._writes = ObjectWrites(
            self.line, shape, names, self.rumours, clock=clock, fingerprint=fingerprint, ended=self._ended
        )
        self._thread = runner.thread(self._loop, "swift-remote")
        self._thread.start()

    # ---- any thread ----

    def put(self, work: RunSearch | ForgetArrived | Sequence[WantedPage] | Sequence[Write]) -> None:
        """Raises RuntimeError once it is closed."""
        with self._closed:
            if self._closing:
                raise RuntimeError(CLOSING)
            self._inbox.put(work)

    def close(self) -> None:
        """Answer everything, and end. Idempotent."""
        with self._closed:
            if self._closing:
                return
            self._closing = True
            self._inbox.put(None)
        self._thread.join()

    @property
    def counts(self) -> Mapping[str, int]:
        """What has been counted."""
        return {"lives": self.line.lives, "late": self.line.late, "errors": self.line.errors, **self._reads.counts}

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        """Both ways."""
        return {"host-remote": self._writes.link, "remote-host": self._reads.link}

    # ---- the thread ----

    def _loop(self) -> None:
        goes_on = True
        while goes_on:
            try:
                goes_on = self._round()
            except Exception as error:  # noqa: BLE001 - whoever waits has a deadline, and the next one is served
                self._fault(error)
                self._sleep(FAULT_SECONDS)
        self.line.end(CLOSING)
        while not self._inbox.empty():
            work = self._inbox.get()
            if work is not None:
                self._refuse(work)
        self._tell()

    def _round(self) -> bool:
        """Wait until there is something to do, and do it; False: the tier is to be closed."""
        try:
            works = [self._inbox.get(timeout=self._next_due())]
        except Empty:
            works = []
        # What has come is not late for having waited here.
        while works and not self._inbox.empty():
            works.append(self._inbox.get())
        goes_on = None not in works
        try:
            for work in works:
                self._guarded(lambda work=work: self._handle(work))  # type: ignore[misc]
            if goes_on:
                self._look_at_the_time()
                self._go_on()
        finally:
            self._tell()
        return goes_on

    def _guarded(self, step: Callable[[], None]) -> None:
        """What goes wrong with one harms nobody else."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - it is told
            self._fault(error)

    def _fault(self, error: Exception) -> None:
        """Tell an error of ours; one that comes again and again is told once."""
        told, self._last_fault = self._last_fault, repr(error)
        if told != self._last_fault:
            logger.error("swift-tiers: the remote tier's thread failed", exc_info=error)
            self._emit("remote.error", error=repr(error))

    def _handle(self, work: Any) -> None:
        if isinstance(work, LifeEvent):
            self.line.heard(work)
        elif isinstance(work, RunSearch):
            self._reads.find(work)
        elif isinstance(work, ForgetArrived):
            self.line.slots.forget()
        elif work and isinstance(work[0], WantedPage):
            for reading in work:
                self._reads.want(reading)
        elif work:
            self._writes.add(work)

    def _refuse(self, work: Any) -> None:
        if isinstance(work, RunSearch):
            self._found.append(partial(work.done, []))
        elif not isinstance(work, LifeEvent | ForgetArrived):
            for one in work:
                if isinstance(one, WantedPage):
                    self._ended.append(partial(one.read.done, ReadOutcome.CANCELLED))
                else:
                    self._ended.append(partial(one.done, None, CLOSING))

    def _tell(self) -> None:
        """What this round has come to."""
        found, ended = self._found[:], self._ended[:]
        self._found.clear()
        self._ended.clear()
        for tell in found:
            self._guarded(tell)
        if ended:
            with self.answers:
                for tell in ended:
                    self._guarded(tell)

    def _look_at_the_time(self) -> None:
        now = self._clock()
        self.line.look_at_the_time(now)
        self._reads.look_at_the_time(now)
        self._writes.look_at_the_time(now)

    def _go_on(self) -> None:
        now = self._clock()
        self.line.go_on(now)
        if self.line.ready:
            self._reads.go_on()
            self._writes.go_on()
        probed_at = self._probed_at()
        if probed_at is not None and now >= probed_at and self._probe is not None:
            self._probe.begin()  # behind what somebody waits for

    def _probed_at(self) -> float | None:
        """When it is to be found out what a read takes; None: not now."""
        return self._probe.due if self._probe is not None and self.line.open else None

    def _next_due(self) -> float:
        """Seconds until something is to be done."""
        now, probed_at = self._clock(), self._probed_at()
        due = [now + IDLE_SECONDS, *self.line.due(), *self._reads.due(), *self._writes.due()]
        return max(0.0, min(due if probed_at is None else [*due, probed_at]) - now)

    def _life_ended(self, why: str) -> None:
        self.rumours.engine_ended()
        self._reads.end()
        self._writes.end(why)

    def _emit(self, event: str, **facts: Any) -> None:
        if self._events is not None:
            self._events.emit(event, **facts)
