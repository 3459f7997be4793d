"""The way from the engine: how much of a chain is there, and its pages.

find:  asked --(answer)--> told             read:  wanted --(slot)--> asked --(answer)--> verified --> told
         '--(deadline)--> told: nothing               '--------------(deadline)--> told: late
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ...base.page import page_digest
from ...figures.counters import LinkCounters
from ..tier import Chain, Read, ReadOutcome
from .arrivals import ArrivedObject
from .engine import leading
from .line import EngineLine
from .objects import ObjectNames, ObjectShape, blank, parse_name, tails, unwrap
from .probe import CostProbe
from .rumours import Rumours, RunKey

#: Objects asked for in one job, and as many as that where they come soon: an engine that hangs costs one job, whole.
OBJECTS_TOGETHER, MOST_TOGETHER = 4, 8
#: How soon that is, seconds. By `remote.throttle` not even the first so many may take longer, or they come one by one.
#: Who computes the front of a prefix meanwhile meets what has come.
TOGETHER_SECONDS = 0.05
#: Jobs that may be under way.
MOST_READS = 2
#: Runs that are asked for in one question. Where all of them are there, another one, within the same deadline, is for
#: what follows.
MOST_TAILS = 512


class RemotePlace(NamedTuple):
    """Where a page may be."""

    name: str  # of its object
    at: int  # which one it is there
    run: RunKey  # the one that it is of


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


def _together(objects: int, seconds: float) -> int:
    """How many objects to ask for in one job, where so many took so long. No fewer for being slow: what takes long may
    be the way there and back."""
    soon = int(objects * TOGETHER_SECONDS / seconds) if seconds > 0 else MOST_TOGETHER
    return max(OBJECTS_TOGETHER, min(MOST_TOGETHER, soon))


class _Fetch:
    """An object that is wanted."""

    __slots__ = ("key", "name", "namespace", "readings", "run", "until")

    def __init__(self, first: WantedPage) -> None:
        self.name = first.place.name
        self.namespace, self.key = parse_name(self.name)  # as they are called outside
        self.readings = [first]
        self.run = first.place.run
        self.until = first.until


class ObjectReads:
    """Used by the tier's thread alone. Who asked is told by what it puts into the lists that it was given."""

    def __init__(
        self,
        line: EngineLine,
        shape: ObjectShape,
        names: ObjectNames,
        rumours: Rumours,
        *,
        clock: Callable[[], float],
        fingerprint: Callable[[np.ndarray], bytes],
        probe: CostProbe | None,
        told: Callable[[int, float], None],
        found: list[Callable[[], None]],
        ended: list[Callable[[], None]],
    ) -> None:
        """`found`, `ended`: what tells who has searched, and who has read. `fingerprint`: the checksum of a page in
        host memory. `probe`: told what was found and read. `told(bytes, seconds)`: of reads that nobody has learnt
        from, since nothing came of them, what they take at least."""
        self.counts = dict.fromkeys(("lookups", "lookups_late", "found_pages", "absent", "bad"), 0)
        self.link = LinkCounters()
        self._line = line
        self._shape = shape
        self._names = names
        self._rumours = rumours
        self._clock = clock
        self._fingerprint = fingerprint
        self._probe = probe
        self._told = told
        self._found = found
        self._ended = ended
        self._wanted: OrderedDict[str, _Fetch] = OrderedDict()  # no slot yet
        self._fetching: dict[str, _Fetch] = {}
        self._under_way = 0
        self._together = OBJECTS_TOGETHER

    # ---- find ----

    def find(self, finding: RunSearch) -> None:
        """Ask how much is there; the answer is nothing where nothing is asked."""
        chain = finding.chain
        self._search(finding, tails(chain.depth, chain.keys, self._shape), 0)

    def _search(self, finding: RunSearch, ends: Sequence[int], known: int) -> None:
        """Ask for the next runs of a chain, which end at `ends`; so many of them are there as far as is known."""
        chain = finding.chain
        some = ends[known : known + MOST_TAILS]
        if self._rumours.any_lost:
            lost = self._rumours.first_lost(self._objects(chain, some[-1] if some else -1), self._clock())
            some = [end for end in some if end < lost]
        names = [self._names.name(chain.namespace, chain.keys[end]) for end in some]
        self.counts["lookups"] += bool(names)
        asked = self._clock()

        def found(there: Sequence[bool]) -> None:
            count = leading(there)
            for end in some[:count]:
                self._rumours.is_there(RunKey(chain.namespace, chain.keys[end]))
            for end in some[count:]:
                self._rumours.is_not_there(RunKey(chain.namespace, chain.keys[end]))
            now = self._clock()
            # There has to be time for one like this: an engine that answers in time is not to be blamed for being late.
            if count == MOST_TAILS and 2 * now - asked <= finding.until:
                self._search(finding, ends, known + count)
            else:
                self._tell_found(finding, ends[: known + count])

        def late() -> None:
            self.counts["lookups_late"] += 1
            self._tell_found(finding, ends[:known])

        # Where this thread itself took too long, the engine is not to blame.
        asks = bool(names) and self._line.open and self._clock() < finding.until
        if not asks or not self._line.ask("exists", names, (), finding.until, found, late):
            self._tell_found(finding, ends[:known])

    def _tell_found(self, finding: RunSearch, ends: Sequence[int]) -> None:
        """The runs that end there are all that is there, as far as is known."""
        pages = ends[-1] + 1 if ends else 0
        self.counts["found_pages"] += pages
        if pages and self._probe is not None:
            self._probe.found()
        self._found.append(partial(finding.done, self._places(finding.chain, pages)))

    def _places(self, chain: Chain, pages: int) -> list[RemotePlace]:
        """Of the chain's first so many pages, which end with an object. The first ones may be in the middle of one."""
        each, run = self._shape.pages, self._shape.run
        names = [name for _, name in self._objects(chain, pages - 1)]
        runs = [RunKey(chain.namespace, chain.keys[end]) for end in tails(chain.depth, chain.keys[:pages], self._shape)]
        objects_before, runs_before = chain.depth // each, chain.depth // run
        return [
            RemotePlace(names[at // each - objects_before], at % each, runs[at // run - runs_before])
            for at in range(chain.depth, chain.depth + pages)
        ]

    def _objects(self, chain: Chain, end: int) -> list[tuple[int, str]]:
        """The objects up to the one that ends there: the index in the chain of the last page of each, and its name."""
        first = self._shape.last_of(chain.depth + 1) - chain.depth - 1
        lasts = range(first, end + 1, self._shape.pages)
        return [(last, self._names.name(chain.namespace, chain.keys[last])) for last in lasts]

    # ---- read ----

    def want(self, reading: WantedPage) -> None:
        """Serve it from what has arrived, or ask for its object when there is a slot."""
        name = reading.place.name
        arrived = self._line.slots.arrived(name)
        fetch = self._fetching.get(name) or self._wanted.get(name)
        if arrived is not None:
            self._serve(reading, arrived)
        elif fetch is not None:
            fetch.readings.append(reading)
        elif not self._line.open:
            self._settle([reading], ReadOutcome.CANCELLED)
        else:
            self._wanted[name] = _Fetch(reading)

    def go_on(self) -> None:
        """Ask for what is wanted, as far as there are slots; nobody waits for it where nothing is asked for a while."""
        if not self._line.open:
            self._cancel_wanted()
        while self._wanted and self._under_way < MOST_READS:
            together = self._line.objects_within(TOGETHER_SECONDS, self._together)
            slots = self._line.slots.take(min(together, len(self._wanted)))
            if not slots:
                return
            fetches = [self._wanted.popitem(last=False)[1] for _ in slots]
            self._ask_for(fetches, slots)

    def look_at_the_time(self, now: float) -> None:
        """What waited too long for a slot is told so."""
        for name, fetch in list(self._wanted.items()):
            if now >= fetch.until:
                del self._wanted[name]
                self._settle(fetch.readings, ReadOutcome.LATE)

    def due(self) -> list[float]:
        """When there is something to do for `look_at_the_time`."""
        return [fetch.until for fetch in self._wanted.values()]

    def end(self) -> None:
        """The engine's life has ended, and what it was asked was answered: so is what waits."""
        self._cancel_wanted()
        self._fetching.clear()
        self._under_way = 0

    def _cancel_wanted(self) -> None:
        for fetch in self._wanted.values():
            self._settle(fetch.readings, ReadOutcome.CANCELLED)
        self._wanted.clear()

    def _ask_for(self, fetches: Sequence[_Fetch], slots: Sequence[int]) -> None:
        line, began = self._line, self._clock()
        for slot in slots:
            blank(line.slots[slot])

        def done(came: Sequence[bool]) -> None:
            self._under_way -= 1
            if not any(came):
                self._tell_slow(len(slots), began)
            self._together = _together(len(slots), self._clock() - began)
            self.go_on()  # first: the engine goes on while what has come is copied and verified
            nbytes = 0
            for fetch, slot, there in zip(fetches, slots, came, strict=True):
                nbytes += self._come(fetch, slot) if there else self._absent(fetch, slot)
            if nbytes:
                self.link.count(nbytes // self._shape.page_bytes, nbytes, self._clock() - began)

        def late() -> None:
            self._under_way -= 1
            self._tell_slow(len(slots), began)
            self._together = OBJECTS_TOGETHER
            for fetch in fetches:
                self._fail(fetch, ReadOutcome.LATE if line.alive else ReadOutcome.CANCELLED)

        self._under_way += 1
        for fetch in fetches:
            self._fetching[fetch.name] = fetch
        if not line.ask("get", [one.name for one in fetches], slots, min(one.until for one in fetches), done, late):
            line.slots.give_back(slots)
            late()

    def _tell_slow(self, objects: int, began: float) -> None:
        """A read has brought nothing. One that took long for that takes so long at least; what failed at once, or was
        asked for too late to be in time, says nothing of it."""
        took = self._clock() - began
        if self._line.alive and took > self._line.slow_seconds(objects):
            self._told(objects * self._shape.pages * self._shape.page_bytes, took)

    def _settle(self, readings: Sequence[WantedPage], outcome: ReadOutcome) -> None:
        self._ended += [partial(one.read.done, outcome) for one in readings]

    def _fail(self, fetch: _Fetch, outcome: ReadOutcome) -> None:
        self._fetching.pop(fetch.name, None)
        self._settle(fetch.readings, outcome)

    def _absent(self, fetch: _Fetch, slot: int) -> int:
        self._line.slots.give_back([slot])
        self.counts["absent"] += 1
        self._rumours.is_gone(fetch.name, fetch.run, self._clock())
        self._fail(fetch, ReadOutcome.ABSENT)
        return 0

    def _come(self, fetch: _Fetch, slot: int) -> int:
        """Bytes of pages that have come."""
        slots = self._line.slots
        header = unwrap(slots[slot], self._shape, fetch.namespace, fetch.key)
        if isinstance(header, ReadOutcome):
            slots.give_back([slot])
            self._bad(fetch.name)
            self._fail(fetch, header)
            return 0
        del self._fetching[fetch.name]
        arrived = slots.keep(fetch.name, slot, header)
        if self._probe is not None:
            self._probe.read()
        for reading in fetch.readings:
            self._serve(reading, arrived)
        return self._shape.pages * self._shape.page_bytes

    def _serve(self, reading: WantedPage, arrived: ArrivedObject) -> None:
        """Copy a page to where it is wanted, and verify it there, where nobody else writes."""
        read, index = reading.read, reading.place.at
        into = read.into[: self._shape.page_bytes]
        outcome = ReadOutcome.OK
        if read.record.length != self._shape.page_bytes:
            outcome = ReadOutcome.LENGTH
        elif self._names.key(read.record.key) != arrived.header.keys[index]:
            outcome = ReadOutcome.KEY
        else:
            into[:] = self._shape.page(self._line.slots[arrived.slot], index)
            digest = page_digest(into)
            if digest != arrived.header.digests[index]:
                outcome = ReadOutcome.CHECKSUM
            else:
                # By this the page is verified from now on: a hint says that it is there, and no more.
                read.copy.digest = digest if self._fingerprint is page_digest else self._fingerprint(into)
        if outcome is not ReadOutcome.OK:
            self._bad(reading.place.name)
        self._settle([reading], outcome)

    def _bad(self, name: str) -> None:
        self.counts["bad"] += 1
        self._rumours.is_bad(name)
