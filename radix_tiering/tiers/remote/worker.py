"""The remote tier's thread, "swift-remote": what is asked of the engine, what has come, and what is late.

    find:  asked --(answer)--> told             read:  wanted --(slot)--> asked --(answer)--> verified --> told
             '--(deadline)--> told: nothing               '--------------(deadline)--> told: late

A slot that the engine was given is the engine's until it says that it is done with it, or is dead. What arrived stays
in its slot until that is needed: pages of one object are read one after the other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...base.events import EventLog
from ...base.page import page_digest
from ...base.runner import Empty, Runner
from ...base.token_bucket import TokenBucket
from ...figures.counters import LinkCounters
from ..tier import DAMAGED, Chain, Read, ReadOutcome, Write, Written
from .breaker import Breaker
from .engine import EngineAnswer, EngineEvent, EngineGone, EngineJob, EngineReady, OpenEngine, RemoteEngine, Verb
from .objects import ObjectHeader, ObjectNames, ObjectShape, blank, parse_name, tails, unwrap, wrap
from .probe import CostProbe
from .rumours import Rumours

#: Objects asked for or written in one job: an engine that hangs costs one job, whole.
OBJECTS_TOGETHER = 4
#: What several objects may take together by `remote.throttle`, seconds, or else they come one by one: who computes the
#: front of a prefix meanwhile meets what has come.
TOGETHER_SECONDS = 0.05
#: Jobs that may be under way of each kind.
MOST_READS, MOST_RUNS = 2, 2
#: Runs that are asked for in one question.
MOST_TAILS = 512
#: How long a run may take to be written, seconds; and how long a job may take before the child is given up.
WRITE_SECONDS, JOB_SECONDS = 5.0, 10.0
#: How long an engine may take to be opened, and is left alone after it has gone, doubled each time; seconds.
OPEN_SECONDS, FIRST_PAUSE, MOST_PAUSE = 120.0, 1.0, 60.0
#: How long the thread waits where nothing is due, seconds.
IDLE_SECONDS = 60.0
#: An object that nobody writes: whether it is there is asked to see whether anything is answered.
TRIAL = "st1-trial"
CLOSING, AWAY, TOO_LATE, NOT_TAKEN = "the tier is closed", "the engine is away", "not in time", "the engine refused it"


class RemotePlace(NamedTuple):
    """Where a page may be."""

    name: str  # of its object
    at: int  # which one it is there


class RunSearch(NamedTuple):
    """A question: how much of a chain is there."""

    chain: Chain
    done: Callable[[list[RemotePlace]], None]
    until: float


class WantedPage(NamedTuple):
    """A page that is wanted."""

    read: Read
    place: RemotePlace
    until: float


class ForgetArrived(NamedTuple):
    """What has arrived is not wanted again."""


FORGET_ARRIVED = ForgetArrived()


class _Fetch:
    """An object that is wanted."""

    __slots__ = ("key", "name", "namespace", "readings", "until")

    def __init__(self, first: WantedPage, namespace: bytes, key: bytes) -> None:
        self.name = first.place.name
        self.namespace = namespace  # as they are called outside
        self.key = key
        self.readings = [first]
        self.until = first.until


class _Run:
    """A run of pages that is being written: its objects in order, the last one when all others are there."""

    __slots__ = ("asked", "at", "until", "writes")

    def __init__(self, writes: Sequence[Write], until: float) -> None:
        self.writes = writes
        self.until = until
        self.asked = False  # whether it is there already
        self.at = 0  # pages that are there now


class _Arrived(NamedTuple):
    """An object in a slot."""

    slot: int
    header: ObjectHeader


class _Job(NamedTuple):
    """What the engine was asked."""

    slots: Sequence[int]
    began: float
    passes: float  # when its bytes may be there, by `remote.throttle`
    until: float
    done: Callable[[Sequence[bool]], None]  # what to do with the answer, if it comes in time; the slots are its
    late: Callable[[], None]  # if it does not


class RemoteWorker:
    """`find`, `read`, `write` and `close` are for any thread, all else for its own."""

    def __init__(
        self,
        shape: ObjectShape,
        names: ObjectNames,
        open_engine: OpenEngine,
        *,
        runner: Runner,
        trial_seconds: float,
        throttle: TokenBucket | None,
        fingerprint: Callable[[np.ndarray], bytes],
        events: EventLog | None,
        probes: bool,
        writes: bool,
    ) -> None:
        """`trial_seconds`: how soon an engine that did not answer has to answer, to be asked again. `throttle`: what
        lets bytes through, both ways. The others: see `RemoteTier`."""
        self.shape = shape
        self.names = names
        self.runner = runner
        self.answers: AbstractContextManager[object] = nullcontext()
        self.events = events
        self.breaker = Breaker()
        self.ready = False  # the engine can be asked
        self.counts = dict.fromkeys(("lookups", "lookups_late", "found_pages", "late", "absent", "bad", "lives"), 0)
        self.links = {"host-remote": LinkCounters(), "remote-host": LinkCounters()}
        self.rumours = Rumours(runner)
        self._clock = runner.monotonic
        self._fingerprint = fingerprint
        self._open_engine = open_engine
        self._trial_seconds = trial_seconds
        self._throttle = throttle
        self._held: list[EngineAnswer] = []  # whose bytes have not passed yet
        self._inbox = runner.queue()
        self._engine: RemoteEngine | None = None
        self._life = 0
        self._pause = FIRST_PAUSE
        self._opens_at = 0.0  # when the next life begins
        self._open_until = 0.0  # by when it has to be ready
        self._jobs: dict[int, _Job] = {}
        self._late: dict[int, _Job] = {}  # that nobody waits for any more
        self._number = 0
        self._free: list[int] = []
        self._arrived: OrderedDict[str, _Arrived] = OrderedDict()
        self._wanted: OrderedDict[str, _Fetch] = OrderedDict()  # no slot yet
        self._fetching: dict[str, _Fetch] = {}
        self._reads_under_way = 0
        self._runs: deque[_Run] = deque()  # that wait
        self._writing = 0
        self._found: list[Callable[[], None]] = []  # who asked is told at the end of a round
        self._ended: list[Callable[[], None]] = []  # of reads and writes
        self._closing = False
        self._closed = runner.lock()
        #: Told of loads that no restore waited for: bytes, and seconds.
        self.loaded: Callable[[int, float], None] = lambda nbytes, seconds: None
        told = lambda nbytes, seconds: self.loaded(nbytes, seconds)  # noqa: E731 - whoever learns is named later
        self._probe = CostProbe(shape, self, self._clock, told, writes) if probes else None
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

    # ---- the thread ----

    def _loop(self) -> None:
        while True:
            try:
                work = self._inbox.get(timeout=self._next_due())
            except Empty:
                work = ()
            if work is None:
                break
            try:
                self._handle(work)
                self._look_at_the_time()
                self._go_on()
            except Exception as error:  # noqa: BLE001 - whoever waits has a deadline, and the next one is served
                self._emit("remote.error", error=repr(error))
            self._tell()
        self._end_life(CLOSING)
        while not self._inbox.empty():
            work = self._inbox.get()
            if work is not None:
                self._refuse(work)
        self._tell()

    def _handle(self, work: Any) -> None:
        if isinstance(work, _Event):
            if work.life == self._life:
                self._heard(work.event)
        elif isinstance(work, RunSearch):
            self._find(work)
        elif isinstance(work, ForgetArrived):
            self._free += [arrived.slot for arrived in self._arrived.values()]
            self._arrived.clear()
        elif work and isinstance(work[0], WantedPage):
            for reading in work:
                self._want(reading)
        elif work:
            self._runs.append(_Run(work, self._clock() + WRITE_SECONDS))

    def _refuse(self, work: Any) -> None:
        if isinstance(work, RunSearch):
            self._found.append(partial(work.done, []))
        elif not isinstance(work, _Event | ForgetArrived):
            for one in work:
                if isinstance(one, WantedPage):
                    self._ended.append(partial(one.read.done, ReadOutcome.CANCELLED))
                else:
                    self._ended.append(partial(one.done, None, CLOSING))

    def _tell(self) -> None:
        """What this round has come to."""
        found, self._found = self._found, []
        for tell in found:
            tell()
        ended, self._ended = self._ended, []
        if ended:
            with self.answers:
                for tell in ended:
                    tell()

    def _emit(self, event: str, **facts: Any) -> None:
        if self.events is not None:
            self.events.emit(event, **facts)

    def _next_due(self) -> float:
        now = self._clock()
        due = [job.until for job in self._jobs.values()] + [job.began + JOB_SECONDS for job in self._late.values()]
        due += [fetch.until for fetch in self._wanted.values()] + [run.until for run in self._runs]
        due += [self._jobs[answer.number].passes for answer in self._held]
        if self._engine is None:
            due.append(self._opens_at)
        elif not self.ready:
            due.append(self._open_until)
        elif self.breaker.tries_at is not None:
            due.append(self.breaker.tries_at)
        elif self._probe is not None and self.breaker.closed and self._probe.due is not None:
            due.append(self._probe.due)
        return max(0.0, min([now + IDLE_SECONDS, *due]) - now)

    # ---- lives of the engine ----

    def _go_on(self) -> None:
        now = self._clock()
        if self._engine is None and now >= self._opens_at:
            self._begin_life(now)
        tries_at = self.breaker.tries_at
        if self.ready and tries_at is not None and now >= tries_at:
            self._try(now)
        if self.ready:
            self._fetch()
            self._write()
            self._find_out(now)

    def _find_out(self, now: float) -> None:
        """What a read takes, where nobody knows; behind what somebody waits for."""
        if self._probe is not None and self.breaker.closed:
            due = self._probe.due
            if due is not None and now >= due:
                self._probe.begin()

    def _try(self, now: float) -> None:
        """Whether it answers again: nobody waits for that."""
        if self.ask("exists", [TRIAL], (), now + self._trial_seconds, lambda there: None, lambda: None):
            self.breaker.tries()

    def _begin_life(self, now: float) -> None:
        self._life += 1
        life = self._life
        try:
            engine = self._open_engine(lambda event: self._inbox.put(_Event(life, event)))
        except Exception as error:  # noqa: BLE001 - no process, memory or thread to be had: tried again after a while
            self._emit("remote.engine_gone", reason=str(error))
            self._rest(now)
            return
        self.counts["lives"] += 1
        self._engine, self._open_until = engine, now + OPEN_SECONDS
        self._free = list(range(len(engine.memory) - 1, -1, -1))

    def _heard(self, event: EngineEvent) -> None:
        if isinstance(event, EngineReady):
            self.ready, self._pause = True, FIRST_PAUSE
            self._emit("remote.engine_ready", life=self._life)
        elif isinstance(event, EngineGone):
            self._lose_engine(event.reason)
        else:
            self._answered(event)

    def _lose_engine(self, reason: str) -> None:
        """It goes; a new life begins after a while."""
        self._emit("remote.engine_gone", reason=reason)
        self._end_life(AWAY)
        self._rest(self._clock())

    def _rest(self, now: float) -> None:
        self._opens_at = now + self._pause
        self._pause = min(MOST_PAUSE, 2 * self._pause)

    def _end_life(self, why: str) -> None:
        """All that is under way is answered; the slab is thrown away."""
        engine, self._engine, self.ready = self._engine, None, False
        self._life += 1  # what it still has said is not heard
        if engine is not None:
            engine.end()
        jobs = list(self._jobs.values())
        self._jobs.clear()
        self._late.clear()
        self._held.clear()
        for job in jobs:
            job.late()
        for fetch in self._wanted.values():
            self._settle(fetch.readings, ReadOutcome.CANCELLED)
        for run in self._runs:
            self._give_up(run, why)
        self._wanted.clear()
        self._runs.clear()
        self._arrived.clear()
        self._fetching.clear()
        self._free = []
        self._reads_under_way = self._writing = 0

    # ---- jobs ----

    def ask(
        self,
        verb: Verb,
        names: Sequence[str],
        slots: Sequence[int],
        until: float,
        done: Callable[[Sequence[bool]], None],
        late: Callable[[], None],
    ) -> bool:
        """Whether the engine has been asked: then one of the two follows."""
        engine = self._engine
        self._number += 1
        if engine is None or not engine.ask(EngineJob(self._number, verb, names, slots)):
            return False
        now = passes = self._clock()
        if self._throttle is not None:
            for _ in slots:
                passes = self._throttle.take(self.shape.stride, now)
        self._jobs[self._number] = _Job(slots, now, passes, until, done, late)
        return True

    def _answered(self, answer: EngineAnswer) -> None:
        job = self._jobs.get(answer.number)
        if job is not None and self._clock() < job.passes:
            self._held.append(answer)
        elif job is not None:
            del self._jobs[answer.number]
            if self.breaker.answered():
                self._emit("remote.answers_again")
            job.done(answer.done)
        elif (job := self._late.pop(answer.number, None)) is not None:
            self._free += job.slots

    def _look_at_the_time(self) -> None:
        now = self._clock()
        for number, job in list(self._jobs.items()):
            if now >= job.until:
                self._late[number] = self._jobs.pop(number)
                job.late()
                self.counts["late"] += 1
                if self.breaker.missed(now):
                    self._emit("remote.does_not_answer", seconds=round(now - job.began, 3))
        held, self._held = self._held, []
        for answer in held:
            self._answered(answer)
        for name, fetch in list(self._wanted.items()):
            if now >= fetch.until:
                del self._wanted[name]
                self._settle(fetch.readings, ReadOutcome.LATE)
        for run in [run for run in self._runs if now >= run.until]:
            self._runs.remove(run)
            self._give_up(run, TOO_LATE)
        stuck = any(now >= job.began + JOB_SECONDS for job in self._late.values())
        if stuck or (self._engine is not None and not self.ready and now >= self._open_until):
            self._lose_engine("it does not answer, and is begun anew")

    # ---- find ----

    def _find(self, finding: RunSearch) -> None:
        chain, shape = finding.chain, self.shape
        ends = tails(chain.depth, chain.keys, shape, MOST_TAILS)
        lost = self.rumours.first_lost(self._objects(chain, ends[-1] if ends else -1), self._clock())
        ends = [end for end in ends if end < lost]
        names = [self.names.name(chain.namespace, chain.keys[end]) for end in ends]
        self.counts["lookups"] += bool(names)

        def found(there: Sequence[bool]) -> None:
            count = there.index(False) if False in there else len(there)
            for end in ends[:count]:
                self.rumours.is_there(chain.namespace, chain.keys[end])
            pages = ends[count - 1] + 1 if count else 0
            self.counts["found_pages"] += pages
            if pages and self._probe is not None:
                self._probe.found()
            self._found.append(partial(finding.done, [self._place(chain, at) for at in range(pages)]))

        def late() -> None:
            self.counts["lookups_late"] += 1
            self._found.append(partial(finding.done, []))

        asks = bool(names) and self.ready and self.breaker.closed
        if not asks or not self.ask("exists", names, (), finding.until, found, late):
            self._found.append(partial(finding.done, []))

    def _place(self, chain: Chain, at: int) -> RemotePlace:
        depth = chain.depth + at + 1
        last = chain.keys[self.shape.last_of(depth) - chain.depth - 1]
        return RemotePlace(self.names.name(chain.namespace, last), (depth - 1) % self.shape.pages)

    def _objects(self, chain: Chain, end: int) -> list[tuple[int, str]]:
        """The objects up to the one that ends there: the first index in the chain that each has, and its name."""
        if not self.rumours.any_lost:
            return []
        first = self.shape.last_of(chain.depth + 1) - chain.depth - 1
        lasts = range(first, end + 1, self.shape.pages)
        return [(last, self.names.name(chain.namespace, chain.keys[last])) for last in lasts]

    # ---- read ----

    def _want(self, reading: WantedPage) -> None:
        name = reading.place.name
        arrived = self._arrived.get(name)
        fetch = self._fetching.get(name) or self._wanted.get(name)
        if arrived is not None:
            self._arrived.move_to_end(name)
            self._serve(reading, arrived)
        elif fetch is not None:
            fetch.readings.append(reading)
        elif not self.ready or not self.breaker.closed:
            self._settle([reading], ReadOutcome.CANCELLED)
        else:
            self._wanted[name] = _Fetch(reading, *parse_name(name))

    def take_slots(self, count: int) -> list[int]:
        """Up to so many; what arrived longest ago makes room."""
        while len(self._free) < count and self._arrived:
            self._free.append(self._arrived.popitem(last=False)[1].slot)
        return [self._free.pop() for _ in range(min(count, len(self._free)))]

    def free_slots(self, slots: Sequence[int]) -> None:
        """The engine is done with them."""
        self._free += slots

    def slot(self, number: int) -> np.ndarray:
        """Its bytes: uint8 [stride]."""
        assert self._engine is not None
        memory: np.ndarray = self._engine.memory[number]
        return memory

    def _fetch(self) -> None:
        """Ask for what is wanted, as far as there are slots."""
        while self._wanted and self._reads_under_way < MOST_READS:
            slots = self.take_slots(min(self._together(), len(self._wanted)))
            if not slots:
                return
            fetches = [self._wanted.popitem(last=False)[1] for _ in slots]
            self._ask_for(fetches, slots)

    def _together(self) -> int:
        """Objects that are asked for in one job."""
        if self._throttle is None:
            return OBJECTS_TOGETHER
        some = int(TOGETHER_SECONDS * self._throttle.bytes_per_second / self.shape.stride)
        return max(1, min(OBJECTS_TOGETHER, some))

    def _ask_for(self, fetches: Sequence[_Fetch], slots: Sequence[int]) -> None:
        assert self._engine is not None
        began = self._clock()
        for slot in slots:
            blank(self._engine.memory[slot])

        def done(came: Sequence[bool]) -> None:
            self._reads_under_way -= 1
            self._fetch()  # first: the engine goes on while what has come is copied and verified
            nbytes = 0
            for fetch, slot, there in zip(fetches, slots, came, strict=True):
                nbytes += self._come(fetch, slot) if there else self._absent(fetch, slot)
            if nbytes:
                pages = nbytes // self.shape.page_bytes
                self.links["remote-host"].count(pages, nbytes, self._clock() - began)

        def late() -> None:
            self._reads_under_way -= 1
            for fetch in fetches:
                self._fail(fetch, ReadOutcome.LATE if self._engine is not None else ReadOutcome.CANCELLED)

        self._reads_under_way += 1
        for fetch in fetches:
            self._fetching[fetch.name] = fetch
        if not self.ask("get", [one.name for one in fetches], slots, min(one.until for one in fetches), done, late):
            self._free += slots
            late()

    def _settle(self, readings: Sequence[WantedPage], outcome: ReadOutcome) -> None:
        self._ended += [partial(one.read.done, outcome) for one in readings]

    def _fail(self, fetch: _Fetch, outcome: ReadOutcome) -> None:
        self._fetching.pop(fetch.name, None)
        self._settle(fetch.readings, outcome)

    def _absent(self, fetch: _Fetch, slot: int) -> int:
        self._free.append(slot)
        self.counts["absent"] += 1
        self.rumours.is_gone(fetch.name, self._clock())
        self._fail(fetch, ReadOutcome.ABSENT)
        return 0

    def _come(self, fetch: _Fetch, slot: int) -> int:
        """Bytes of pages that have come."""
        assert self._engine is not None
        memory = self._engine.memory[slot]
        header = unwrap(memory, self.shape, fetch.namespace, fetch.key)
        if isinstance(header, ReadOutcome):
            self._free.append(slot)
            self._bad(fetch.name)
            self._fail(fetch, header)
            return 0
        del self._fetching[fetch.name]
        arrived = self._arrived[fetch.name] = _Arrived(slot, header)
        if self._probe is not None:
            self._probe.read()
        for reading in fetch.readings:
            self._serve(reading, arrived)
        return self.shape.pages * self.shape.page_bytes

    def _serve(self, reading: WantedPage, arrived: _Arrived) -> None:
        """Copy a page to where it is wanted, and verify it there, where nobody else writes."""
        assert self._engine is not None
        read, index = reading.read, reading.place.at
        into = read.into[: self.shape.page_bytes]
        outcome = ReadOutcome.OK
        if read.record.length != self.shape.page_bytes:
            outcome = ReadOutcome.LENGTH
        elif self.names.key(read.record.key) != arrived.header.keys[index]:
            outcome = ReadOutcome.KEY
        else:
            into[:] = self.shape.page(self._engine.memory[arrived.slot], index)
            if page_digest(into) != arrived.header.digests[index]:
                outcome = ReadOutcome.CHECKSUM
        if outcome is not ReadOutcome.OK:
            self._bad(reading.place.name)
        self._settle([reading], outcome)

    def _bad(self, name: str) -> None:
        self.counts["bad"] += 1
        self.rumours.is_bad(name)

    # ---- write ----

    def _write(self) -> None:
        while self._runs and self._writing < MOST_RUNS and self.breaker.closed:
            run = self._runs.popleft()
            self._writing += 1
            self._go_on_with(run)

    def _ends_of(self, run: _Run) -> list[Write]:
        """The last page of each object."""
        return list(run.writes[self.shape.pages - 1 :: self.shape.pages])

    def _go_on_with(self, run: _Run) -> None:
        """Ask whether it is there; write what is not, and its last object when all others are there."""
        record, shape = run.writes[-1].record, self.shape
        if not run.asked:
            run.asked = True
            names = [self.names.name(one.record.namespace, one.record.key) for one in self._ends_of(run)]
            if not self.rumours.any_lost or self.rumours.first_lost(list(enumerate(names)), self._clock()) >= len(
                names
            ):
                self._ask_engine(run, "exists", [names[-1]], (), 0, lambda there: self._may_be_there(run, there[0]))
                return
        if run.at == len(run.writes):
            self.rumours.is_there(record.namespace, record.key)
            self._writing -= 1
            return
        objects = (len(run.writes) - run.at) // shape.pages
        slots = self.take_slots(min(OBJECTS_TOGETHER, max(1, objects - 1)))
        if not slots:
            self._stop(run, "no arrival memory is free")
            return
        names = []
        for slot, first in zip(slots, range(run.at, len(run.writes), shape.pages), strict=False):
            writes = run.writes[first : first + shape.pages]
            if not self._pack(slot, writes):
                self._free += slots
                self._stop(run, DAMAGED)
                return
            names.append(self.names.name(record.namespace, writes[-1].record.key))
        self._ask_engine(
            run, "put", names, slots, len(slots) * shape.pages, lambda taken: self._taken(run, slots, taken)
        )

    def _ask_engine(
        self,
        run: _Run,
        verb: Verb,
        names: Sequence[str],
        slots: Sequence[int],
        pages: int,
        done: Callable[[Sequence[bool]], None],
    ) -> None:
        began = self._clock()

        def answered(there: Sequence[bool]) -> None:
            if pages and all(there):
                self.links["host-remote"].count(pages, pages * self.shape.page_bytes, self._clock() - began)
            done(there)

        def late() -> None:
            self._stop(run, TOO_LATE if self._engine is not None else AWAY)

        if not self.ask(verb, names, slots, run.until, answered, late):
            self._free += slots
            self._stop(run, AWAY)

    def _may_be_there(self, run: _Run, there: bool) -> None:
        if there:
            self._written(run, len(run.writes))
        self._go_on_with(run)

    def _taken(self, run: _Run, slots: Sequence[int], taken: Sequence[bool]) -> None:
        self._free += slots
        if not all(taken):
            self._stop(run, NOT_TAKEN)
            return
        self._written(run, run.at + len(slots) * self.shape.pages)
        self._go_on_with(run)

    def _written(self, run: _Run, end: int) -> None:
        """The pages up to this one are there."""
        for write in run.writes[run.at : end]:
            self._ended.append(partial(write.done, Written(None, write.digest or b""), ""))
        run.at = end

    def _stop(self, run: _Run, reason: str) -> None:
        self._writing -= 1
        self._give_up(run, reason)

    def _give_up(self, run: _Run, reason: str) -> None:
        for write in run.writes[run.at :]:
            damaged = reason == DAMAGED and not self._sound(write)
            self._ended.append(partial(write.done, None, NOT_TAKEN if reason == DAMAGED and not damaged else reason))

    def _sound(self, write: Write) -> bool:
        """Whether its bytes are those that came in."""
        return self._fingerprint(write.data[: self.shape.page_bytes]) == write.digest

    def _pack(self, slot: int, writes: Sequence[Write]) -> bool:
        """Put pages into a slot as an object; False where one of them is damaged."""
        assert self._engine is not None
        memory, digests = self._engine.memory[slot], []
        for index, write in enumerate(writes):
            page = self.shape.page(memory, index)
            page[:] = write.data[: self.shape.page_bytes]
            if self._fingerprint(page) != write.digest:
                return False
            digests.append(page_digest(page))
        record = writes[-1].record
        keys = tuple(self.names.key(write.record.key) for write in writes)
        space = self.names.namespace(record.namespace)
        wrap(memory, ObjectHeader(space, record.depth, self.shape.page_bytes, keys, tuple(digests)))
        return True


class _Event(NamedTuple):
    """What a life of the engine has told."""

    life: int
    event: EngineEvent
