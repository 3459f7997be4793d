"""The line to the engine: its lives one after another, what it is asked, and how long an answer is waited for.

    none --(its time)--> opening --(ready)--> asked --(gone, or stuck)--> none, for a while

The while is doubled each time, until a life has lasted for longer than the longest.

A slot that the engine was given is the engine's until it says that it is done with it, or is dead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...base.rest import Rest
from ...base.token_bucket import TokenBucket
from .arrivals import ArrivalMemory
from .breaker import FIRST_REST, MOST_REST, Asked, Breaker
from .engine import EngineAnswer, EngineEvent, EngineGone, EngineJob, EngineReady, OpenEngine, RemoteEngine, Verb
from .objects import ObjectShape, probe_name

#: How long a job may take before the child is given up, and one that writes, while all else is answered: seconds. To
#: begin anew takes the store from all ranks.
JOB_SECONDS, PUT_SECONDS = 10.0, 60.0
#: Before an engine is given up whoever has stood still himself, as a process that was paused, hears what it has to say
#: after all: seconds.
LAST_CHANCE = 1.0
#: How long an engine may take to be opened, and is left alone after it has gone, doubled each time; seconds.
OPEN_SECONDS, FIRST_PAUSE, MOST_PAUSE = 120.0, 1.0, 60.0
#: An object that nobody writes: whether it is there is asked to see whether anything is answered.
TRIAL = "st1-trial"
#: A read that brings nothing counts as not answered where it took so many times as long as the last one that brought
#: something, and so long at least, seconds: that an object was dropped is soon said.
SLOW, SLOW_SECONDS = 2.0, 0.1
AWAY = "the engine is away"


class LifeEvent(NamedTuple):
    """What a life of the engine has told."""

    life: int
    event: EngineEvent


class Emits(Protocol):
    """Where lives of the engine are told."""

    def __call__(self, event: str, **facts: object) -> None: ...


class _Job(NamedTuple):
    """What the engine was asked."""

    verb: Verb
    names: Sequence[str]
    slots: Sequence[int]
    began: float
    passes: float  # when its bytes may be there, by `remote.throttle`
    until: float
    done: Callable[[Sequence[bool]], None]  # what to do with the answer, if it comes in time; the slots are its
    late: Callable[[], None]  # if it does not


class EngineLine:
    """Used by the tier's thread alone, but for `open`, `ready` and `unopened`, which any may ask."""

    def __init__(
        self,
        shape: ObjectShape,
        open_engine: OpenEngine,
        *,
        told: Callable[[LifeEvent], None],
        ended: Callable[[str], None],
        emit: Emits,
        clock: Callable[[], float],
        trial_seconds: Mapping[Asked, float],
        throttle: TokenBucket | None,
    ) -> None:
        """`told`: takes what a life tells, on any thread, to where `heard` is called. `ended`: told why, when a life
        has ended and what it was asked is answered. `trial_seconds`: how soon an engine that did not answer questions,
        or reads, has to answer one, to be asked again. `throttle`: what lets bytes through, both ways."""
        self.ready = False  # the engine can be asked
        self.unopened = ""  # why the last life ended before it could be; empty: it did not
        self.breaker = Breaker()
        self.slots = ArrivalMemory()
        self.lives = 0  # that have begun
        self.late = 0  # jobs that were not answered in time
        self.errors = 0  # jobs that were, but with an error
        self._shape = shape
        self._open_engine = open_engine
        self._told = told
        self._ended = ended
        self._emit = emit
        self._clock = clock
        self._trial_seconds = trial_seconds
        self._throttle = throttle
        self._engine: RemoteEngine | None = None
        self._life = 0
        self._pause = FIRST_PAUSE
        self._opens_at = 0.0  # when the next life begins
        self._began = 0.0  # when the last one did
        self._open_until = 0.0  # by when it has to be ready
        self._last_chance: float | None = None  # when it is given up that was found stuck
        self._jobs: dict[int, _Job] = {}
        self._late: dict[int, _Job] = {}  # that nobody waits for any more
        self._held: list[EngineAnswer] = []  # whose bytes have not passed yet
        self._read = (1, 0.0)  # objects of the last read that brought something, and its seconds
        self._brought = ""  # an object that it brought
        self._tries = 0  # by reads
        self._troubles: set[str] = set()  # what has been told of why nothing is asked
        self._puts_rest = Rest(FIRST_REST, MOST_REST)  # after an error nothing is written for a while
        self._puts_late = 0  # that are still under way
        self._well_at = -math.inf  # when something else was answered well
        self._number = 0

    @property
    def open(self) -> bool:
        """Whether all may be asked. Any thread."""
        return self.ready and self.breaker.closed

    @property
    def takes(self) -> bool:
        """Whether it may be asked to take something. Any thread."""
        return self.open and not self._puts_late and self._puts_rest.is_over(self._clock())

    @property
    def alive(self) -> bool:
        """Whether there is an engine, ready or not."""
        return self._engine is not None

    def objects_within(self, seconds: float, most: int) -> int:
        """Objects that come within so many seconds by `remote.throttle`: one at least, `most` at most."""
        if self._throttle is None:
            return most
        return max(1, min(most, int(seconds * self._throttle.bytes_per_second / self._shape.stride)))

    def slow_seconds(self, objects: int) -> float:
        """A read of so many objects that takes longer than this, and brings nothing, has failed: seconds."""
        read, seconds = self._read
        return max(SLOW_SECONDS, SLOW * seconds * max(1.0, objects / read))

    def _object_to_try(self) -> str:
        """Two in turn: a node of the store that hangs may have one of them."""
        self._tries += 1
        return self._brought if self._brought and self._tries % 2 == 0 else probe_name(self._shape)

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
                passes = self._throttle.take(self._shape.stride, now)
        self._jobs[self._number] = _Job(verb, names, slots, now, passes, until, done, late)
        return True

    def heard(self, told: LifeEvent) -> None:
        """What a life has told; one that has ended is not listened to."""
        event = told.event
        if told.life != self._life:
            return
        if isinstance(event, EngineReady):
            self.ready, self.unopened = True, ""
            self._emit("remote.engine_ready", life=self._life)
        elif isinstance(event, EngineGone):
            self._lose(event.reason)
        else:
            self._answered(event)

    def _answered(self, answer: EngineAnswer) -> None:
        job = self._jobs.get(answer.number)
        if job is not None and self._clock() < job.passes:
            self._held.append(answer)
        elif job is not None:
            del self._jobs[answer.number]
            self._judge(job, answer)
            if answer.error and job.verb == "get" and not any(answer.done):
                # Nothing is known of what is there.
                self.slots.give_back(job.slots)
                job.late()
            else:
                job.done(answer.done)
        elif (job := self._late.pop(answer.number, None)) is not None:
            self.slots.give_back(job.slots)
            self._puts_late -= job.verb == "put"
            self._last_chance = None  # as long as some come that were late, more may

    def _judge(self, job: _Job, answer: EngineAnswer) -> None:
        """What an answer says of the engine. One that takes nothing may be read from all the same; whether it says why,
        as engines do not that find no room on their disk."""
        error = answer.error
        if job.verb == "put" and not any(answer.done):
            error = error or "put: it took nothing, and does not say why; its log may"
        if error:
            self.errors += 1
        if job.verb == "put":
            if error:
                self._rest_puts(error)
            else:
                self._puts_rest.went_well()
        elif error:
            self._missed(job.verb, "remote.fails", reason=error)
        elif job.verb == "get" and not any(answer.done):
            self._judge_empty(job)
        else:
            self._well_at = self._clock()
            if job.verb == "get":
                self._read = (len(job.slots), self._clock() - job.began)
                self._brought = job.names[list(answer.done).index(True)]
            if self.breaker.answered(job.verb):
                self._troubles.clear()
                self._emit("remote.answers_again")

    def _judge_empty(self, job: _Job) -> None:
        """A read has brought nothing: the objects were dropped, or cannot be got from where they lie, which shows by
        the time that it took."""
        took, passes = self._clock() - job.began, job.passes - job.began
        if took > passes + self.slow_seconds(len(job.slots)):
            self._missed("get", "remote.does_not_answer", seconds=round(took, 3))
        else:
            self.breaker.proved_nothing("get")

    def look_at_the_time(self, now: float) -> None:
        """Whose deadline is over is told so; what was held back has passed."""
        held_back = {answer.number: answer for answer in self._held}
        for number, job in list(self._jobs.items()):
            if now < job.until or (job.verb == "put" and number in held_back):
                continue  # nobody waits for what is written, but for the engine
            self._late[number] = self._jobs.pop(number)
            self._puts_late += job.verb == "put"
            job.late()
            self.late += 1
            if number in held_back:
                self._judge(job, held_back[number])  # the engine was in time, and the throttle late
            else:
                self._judge_late(job, round(now - job.began, 3))
        held, self._held = self._held, []
        for answer in held:
            self._answered(answer)

    def _judge_late(self, job: _Job, seconds: float) -> None:
        """What it says of the engine that it has not answered in time. One that writes slowly may be read from all the
        same: whether it answers questions is asked at once."""
        if job.verb == "put":
            self._rest_puts(f"put: it was not done within {seconds} s")
            if self.open:
                self._ask_whether_it_answers(self._clock())
        elif job.verb == "exists" or seconds > self._enough_seconds(len(job.slots)):
            self._missed(job.verb, "remote.does_not_answer", seconds=seconds)

    def _enough_seconds(self, objects: int) -> float:
        """A read of so many objects that had no more than this, since it waited for its turn, says nothing."""
        return min(self.slow_seconds(objects), self._trial_seconds["get"] / 2)

    def _rest_puts(self, reason: str) -> None:
        """Nothing is written for a while, which is told once."""
        if self._puts_rest.failed(self._clock()) == FIRST_REST:
            self._emit("remote.fails", reason=reason)

    def _missed(self, kind: Asked, trouble: str, **facts: object) -> None:
        """A question or a read was not answered in time, or not well. Where nothing is asked for that, it is told:
        once, though what is asked to find out whether it is over comes to the same."""
        if self.breaker.missed(kind, self._clock()) and trouble not in self._troubles:
            self._troubles.add(trouble)
            self._emit(trouble, **facts)

    # ---- lives ----

    def go_on(self, now: float) -> None:
        """End a life that is stuck, begin one, ask whether it answers again, as far as it is time for that."""
        stuck = self._stuck(now)
        if not stuck:
            self._last_chance = None
        elif self._last_chance is None:
            self._last_chance = now + LAST_CHANCE
        elif now >= self._last_chance:
            self._lose(stuck)
        if not self.alive and now >= self._opens_at:
            self._begin(now)
        tries_at = self.breaker.tries_at
        if self.ready and tries_at is not None and now >= tries_at:
            self._try(now)

    def _stuck(self, now: float) -> str:
        """Why the life is to be given up, if it has nothing to say; empty: it is not."""
        if any(now >= self._patience_ends(job) for job in self._late.values()):
            return "it does not answer, and is begun anew"
        if self.alive and not self.ready and now >= self._open_until:
            return f"it was not ready within {OPEN_SECONDS:.0f} s"
        return ""

    def _patience_ends(self, job: _Job) -> float:
        """When the life is given up for a job that is late."""
        only_puts_are_slow = job.verb == "put" and self._well_at >= job.until
        return job.began + (PUT_SECONDS if only_puts_are_slow else JOB_SECONDS)

    def due(self) -> list[float]:
        """When there is something to do for `look_at_the_time` or `go_on`."""
        held_back = {answer.number for answer in self._held}
        due = [self._jobs[number].passes for number in held_back]
        due += [job.until for number, job in self._jobs.items() if job.verb != "put" or number not in held_back]
        chance = self._last_chance
        due += [self._patience_ends(job) for job in self._late.values()] if chance is None else [chance]
        if not self.alive:
            due.append(self._opens_at)
        elif not self.ready:
            due.append(self._open_until if chance is None else chance)
        elif self.breaker.tries_at is not None:
            due.append(self.breaker.tries_at)
        return due

    def end(self, why: str) -> None:
        """All that it was asked is answered; what lies in arrival memory is thrown away."""
        engine, self._engine, self.ready = self._engine, None, False
        self._life += 1  # what it still has said is not heard
        if engine is not None:
            engine.end()
        jobs = list(self._jobs.values())
        self._jobs.clear()
        self._late.clear()
        self._puts_late = 0
        self._held.clear()
        self._last_chance = None
        for job in jobs:
            job.late()
        self.breaker.lost(self._clock())
        self._ended(why)
        self.slots.end()

    def _begin(self, now: float) -> None:
        self._life += 1
        self._began = now
        life = self._life
        try:
            engine = self._open_engine(lambda event: self._told(LifeEvent(life, event)))
        except Exception as error:  # noqa: BLE001 - no process, memory or thread to be had: tried again after a while
            self._not_opened(str(error) or repr(error))
            self._rest(now)
            return
        self.lives += 1
        self._engine, self._open_until = engine, now + OPEN_SECONDS
        self.slots.begin(engine.memory)

    def _lose(self, reason: str) -> None:
        """It goes; a new life begins after a while."""
        if self.ready:
            self._emit("remote.engine_gone", reason=reason)
        else:
            self._not_opened(reason)
        self.end(AWAY)
        self._rest(self._clock())

    def _not_opened(self, reason: str) -> None:
        """What is tried again and again is told once, while the reason stays the same."""
        was, self.unopened = self.unopened, reason
        if was != reason:
            self._emit("remote.cannot_be_opened", reason=reason)

    def _rest(self, now: float) -> None:
        if now - self._began > OPEN_SECONDS + MOST_PAUSE:
            self._pause = FIRST_PAUSE  # it served
        self._opens_at = now + self._pause
        self._pause = min(MOST_PAUSE, 2 * self._pause)

    def _try(self, now: float) -> None:
        """Whether it answers again what it did not: nobody waits for that."""
        kind = self.breaker.trial
        self.breaker.tries()
        asked = self._read_something(now) if kind == "get" else self._ask_whether_it_answers(now)
        if not asked:
            self.breaker.missed(kind, now)

    def _ask_whether_it_answers(self, now: float) -> bool:
        """Whether the engine has been asked."""
        return self.ask("exists", [TRIAL], (), now + self._trial_seconds["exists"], lambda there: None, lambda: None)

    def _read_something(self, now: float) -> bool:
        """Likewise; not without a slot: reads that it does not answer may have all of them."""
        slots = self.slots.take(1)
        until, give_back = now + self._trial_seconds["get"], lambda came: self.slots.give_back(slots)
        asked = bool(slots) and self.ask("get", [self._object_to_try()], slots, until, give_back, lambda: None)
        if not asked:
            self.slots.give_back(slots)
        return asked
