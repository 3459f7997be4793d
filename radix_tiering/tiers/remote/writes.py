"""The way to the engine: runs of pages, each as objects in order, the last one when all others are there.

waits --> how much is there? --(not all)--> others taken --> last one taken --> written
  |           ^   '--(all)--> written          '--(refused, late, damaged)--> given up
  '--(it was, but is doubted)--> is the last one? --(yes)--> written
              '---(no)---'
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...base.page import page_digest
from ...figures.counters import LinkCounters
from ..tier import DAMAGED, Write, Written
from .engine import Verb, leading
from .line import AWAY, EngineLine
from .objects import ObjectHeader, ObjectNames, ObjectShape, wrap
from .rumours import Rumours, RunKey

#: Objects written in one job, and bytes, where that is more than one: an engine that hangs costs one job, whole, and
#: whoever asks what is there waits while they are copied and verified, a millisecond or two.
OBJECTS_TOGETHER, BYTES_TOGETHER = 8, 8 << 20
#: Objects asked for in one question: those of requests, which hardly wait, wait behind it.
NAMES_TOGETHER = 4
#: Runs that may be under way.
MOST_RUNS = 2
#: How long a job of a run may take, and a run may wait while nothing is being written, seconds.
WRITE_SECONDS = 5.0
TOO_LATE, NOT_TAKEN = "not in time", "the engine refused it"


class _Run:
    """A run of pages that is being written."""

    __slots__ = ("added", "asked", "at", "writes")

    def __init__(self, writes: Sequence[Write], added: float) -> None:
        self.writes = writes
        self.added = added  # when it came
        self.asked = False  # what is there already
        self.at = 0  # pages that are there now


class ObjectWrites:
    """Used by the tier's thread alone. Who writes is told by what it puts into the list that it was given."""

    def __init__(
        self,
        line: EngineLine,
        shape: ObjectShape,
        names: ObjectNames,
        rumours: Rumours,
        *,
        clock: Callable[[], float],
        fingerprint: Callable[[np.ndarray], bytes],
        ended: list[Callable[[], None]],
    ) -> None:
        """`fingerprint`: the checksum of a page, as the stack has it. `ended`: what tells who writes."""
        self.link = LinkCounters()
        self._line = line
        self._shape = shape
        self._names = names
        self._rumours = rumours
        self._clock = clock
        self._fingerprint = fingerprint
        self._ended = ended
        self._runs: deque[_Run] = deque()  # that wait
        self._under_way = 0
        self._idle_since = 0.0  # when the last one ended
        # How much is written at a time: less where it was late, until it is soon done.
        self._together, self._runs_together = OBJECTS_TOGETHER, MOST_RUNS

    def add(self, writes: Sequence[Write]) -> None:
        """A run is to be written."""
        self._runs.append(_Run(writes, self._clock()))

    def go_on(self) -> None:
        """Begin with what waits. The engine can be asked."""
        while self._runs and self._under_way < self._runs_together and self._line.takes:
            run = self._runs.popleft()
            self._under_way += 1
            self._go_on_with(run)

    def look_at_the_time(self, now: float) -> None:
        """What waited too long is given up, but not behind others that are being written."""
        if self._under_way:
            return
        for run in [run for run in self._runs if now >= self._waits_until(run)]:
            self._runs.remove(run)
            self._give_up(run, TOO_LATE)

    def _waits_until(self, run: _Run) -> float:
        return max(run.added, self._idle_since) + WRITE_SECONDS

    def due(self) -> list[float]:
        """When there is something to do for `look_at_the_time`."""
        return [] if self._under_way else [self._waits_until(run) for run in self._runs]

    def end(self, why: str) -> None:
        """The engine's life has ended, and what it was asked was answered: so is what waits."""
        for run in self._runs:
            self._give_up(run, why)
        self._runs.clear()
        self._under_way = 0

    def _go_on_with(self, run: _Run) -> None:
        """Ask how much is there; write from there on, and its last object when all others are there."""
        shape, slots = self._shape, self._line.slots
        if not run.asked:
            run.asked = True
            names = [self._name(one) for one in run.writes[shape.pages - 1 :: shape.pages]]
            if self._rumours.first_lost(list(enumerate(names)), self._clock()) >= len(names):
                self._ask_what_is_there(run, names)
                return
        if run.at == len(run.writes):
            self._rumours.is_there(self._key(run))
            self._one_less()
            return
        objects = (len(run.writes) - run.at) // shape.pages
        most = max(1, min(self._together, BYTES_TOGETHER // shape.stride, objects - 1))
        taken = slots.take(most)
        if not taken:
            self._stop(run, "no arrival memory is free")
            return
        names = []
        for slot, first in zip(taken, range(run.at, len(run.writes), shape.pages), strict=False):
            writes = run.writes[first : first + shape.pages]
            if not self._pack(slots[slot], writes):
                slots.give_back(taken)
                self._stop(run, DAMAGED)
                return
            names.append(self._name(writes[-1]))
        self._ask(run, "put", names, taken, len(taken) * shape.pages, lambda done: self._taken(run, taken, done))

    def _ask_what_is_there(self, run: _Run, names: Sequence[str]) -> None:
        """All of its objects: engines drop one and keep the next, and the last one says nothing of those before it. But
        only the last one, by which others find it, where all were there not long ago: there may be many such runs."""

        def still(there: Sequence[bool]) -> None:
            if there[0]:
                self._rumours.is_still_there(self._key(run))
                self._written(run, len(run.writes))
                self._one_less()
            else:
                self._ask_for_names(run, names, 0)

        if self._rumours.doubts(self._key(run)):
            self._ask(run, "exists", names[-1:], (), 0, still)
        else:
            self._ask_for_names(run, names, 0)

    def _ask_for_names(self, run: _Run, names: Sequence[str], first: int) -> None:
        """From this one on, a few at a time, until one is missing."""
        some = names[first : first + NAMES_TOGETHER]

        def found(there: Sequence[bool]) -> None:
            count = first + leading(there)
            if count == first + len(some) < len(names):
                self._ask_for_names(run, names, count)
            else:
                self._written(run, count * self._shape.pages)
                self._go_on_with(run)

        self._ask(run, "exists", some, (), 0, found)

    @staticmethod
    def _key(run: _Run) -> RunKey:
        last = run.writes[-1].record
        return RunKey(last.namespace, last.key)

    def _name(self, last: Write) -> str:
        """Of the object that ends with this page."""
        return self._names.name(last.record.namespace, last.record.key)

    def _ask(
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
                self.link.count(pages, pages * self._shape.page_bytes, self._clock() - began)
                self._faster(len(slots), self._clock() - began)
            done(there)

        def late() -> None:
            if slots:
                self._slower()
            self._stop(run, TOO_LATE if self._line.alive else AWAY)

        if not self._line.ask(verb, names, slots, began + WRITE_SECONDS, answered, late):
            self._line.slots.give_back(slots)
            self._stop(run, AWAY)

    def _taken(self, run: _Run, slots: Sequence[int], taken: Sequence[bool]) -> None:
        self._line.slots.give_back(slots)
        if not all(taken):
            self._stop(run, NOT_TAKEN)
            return
        self._written(run, run.at + len(slots) * self._shape.pages)
        self._go_on_with(run)

    def _written(self, run: _Run, end: int) -> None:
        """The pages up to this one are there."""
        for write in run.writes[run.at : end]:
            self._ended.append(partial(write.done, Written(None, write.digest or b""), ""))
        run.at = end

    def _slower(self) -> None:
        """A job was late."""
        self._together, self._runs_together = max(1, self._together // 2), 1

    def _faster(self, objects: int, seconds: float) -> None:
        """A job of so many objects was done in so long: twice as much is asked of it where that takes half the time
        that it may."""
        if 2 * self._together * seconds / objects > WRITE_SECONDS / 2:
            return
        if self._together == OBJECTS_TOGETHER:
            self._runs_together = MOST_RUNS
        self._together = min(OBJECTS_TOGETHER, 2 * self._together)

    def _stop(self, run: _Run, reason: str) -> None:
        self._one_less()
        self._give_up(run, reason)

    def _one_less(self) -> None:
        """Under way."""
        self._under_way -= 1
        self._idle_since = self._clock()

    def _give_up(self, run: _Run, reason: str) -> None:
        for write in run.writes[run.at :]:
            damaged = reason == DAMAGED and not self._sound(write)
            self._ended.append(partial(write.done, None, NOT_TAKEN if reason == DAMAGED and not damaged else reason))

    def _sound(self, write: Write) -> bool:
        """Whether its bytes are those that came in."""
        return self._fingerprint(write.data[: self._shape.page_bytes]) == write.digest

    def _pack(self, slot: np.ndarray, writes: Sequence[Write]) -> bool:
        """Put pages into a slot, uint8 [stride], as an object; False where one of them is damaged."""
        digests = []
        for index, write in enumerate(writes):
            page = write.data[: self._shape.page_bytes]
            fingerprint = self._fingerprint(page)
            if fingerprint != write.digest:
                return False
            self._shape.page(slot, index)[:] = page  # while it is in the cache
            digests.append(fingerprint if self._fingerprint is page_digest else page_digest(page))
        record = writes[-1].record
        keys = tuple(self._names.key(write.record.key) for write in writes)
        space = self._names.namespace(record.namespace)
        wrap(slot, ObjectHeader(space, record.depth, self._shape.page_bytes, keys, tuple(digests)))
        return True
