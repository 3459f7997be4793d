"""Restores of several requests side by side: whom each source serves (CacheFlow, section 3.3, Algorithm 1).

One device computes one chunk at a time, in the order in which whoever drives it admits requests. Each source serves the
oldest request that needs something from it, which is what first tokens want where the device computes the oldest first.
Or it serves the request that has most recomputation left, looked at anew for every pick, since loading for it saves
most, as Algorithm 1 does. A request that has been passed over `patience` times by a source is served before that, so
that none starves.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from .flight import Flight, Step, Unit

Request = TypeVar("Request")

#: Picks that a source may give to others before a request that waits for it gets one.
PATIENCE = 16
#: A source that has brought nothing for so long, seconds, is asked for a few units though computing seems sooner: what
#: it takes is known from what it brought, and a device that was slow for a while would be left out for ever.
AGAIN_SECONDS = 10.0


class Pick(NamedTuple, Generic[Request]):
    """Neighbouring units of one request that a source is to load."""

    request: Request
    units: range


class Forward(NamedTuple):
    """What one forward over units of a request takes, in seconds."""

    seconds: Callable[[int, int], float]  # over units `[a, b)`
    at_worst: Callable[[int, int], float]  # likewise, as far as anybody can say
    #: What is saved if it is one over the last so many units of the request: what follows those joins it, as far as
    #: there is room, and takes fewer forwards of its own.
    joined: Callable[[int], float] = lambda units: 0.0


class _Flowing(NamedTuple):
    """What a source has under way."""

    since: float  # when the last unit came, or, if it rested, when it was asked
    latency: float  # seconds after that until the next begins to come


class Member:
    """A request of the batch."""

    __slots__ = (
        "compute_seconds", "computing_since", "flight", "forward", "granule", "latency_seconds", "passed_over", "start",
        "unit_seconds",
    )  # fmt: skip

    def __init__(
        self,
        flight: Flight,
        compute_seconds: Callable[[int, int], float] | None,
        unit_seconds: Callable[[str], float | None],
        forward: Forward | None,
        latency_seconds: Callable[[str], float],
        granule: Callable[[str], int],
        start: int,
    ) -> None:
        self.flight = flight
        self.start = start
        self.granule = granule
        self.latency_seconds = latency_seconds
        self.forward = forward
        if forward is None and compute_seconds is not None:
            self.forward = Forward(compute_seconds, compute_seconds)
        self.compute_seconds = compute_seconds
        self.unit_seconds = unit_seconds
        self.computing_since: float | None = None  # the device works on it: when its chunk began
        self.passed_over: dict[str, int] = {}  # by source: picks given to others while it waited

    @property
    def recomputation_left(self) -> float:
        """What loading could still save: seconds of computing, or units where the cost of computing is not known."""
        absent = self.flight.absent
        if self.compute_seconds is None or not absent:
            return float(absent)
        first, end = self.flight.absent_span
        return self.compute_seconds(first, end) * absent / (end - first)

    def begins(self, source: str, unit: int) -> int:
        """The first of the units that come with this one from `source`; below 0 where that is before the request's."""
        return unit - (self.start + unit) % self.granule(source)

    def beside(self, unit: int) -> tuple[str, float]:
        """Of what is loaded from this unit on: its source, and the seconds for what comes along that is not wanted."""
        source = self.flight.source(unit) if unit < len(self.flight) else None
        if source is None or self.flight[unit] is not Unit.ABSENT:
            return "", 0.0
        return source, (unit - self.begins(source, unit)) * (self.unit_seconds(source) or 0.0)

    def next_load(self, source: str, most: int) -> range:
        """As `Flight.next_load`, in whole granules, where that leaves any."""
        units = self.flight.next_load(source, most)
        return units if units.start < self.flight.lead else self.whole(units, source) or units

    def whole(self, units: range, source: str) -> range:
        """Without those at the start that come with others before them."""
        return units[-(self.start + units.start) % self.granule(source) :]

    def _computed_in(self, left: Callable[[str], float], now: float) -> Callable[[int], float]:
        """In how many seconds a unit before which nothing more arrives is computed: by a forward of its own behind the
        one that is under way, which has been begun and takes no more, or behind the lead when that has come."""
        compute, flight, since = self.compute_seconds, self.flight, self.computing_since
        assert compute is not None, "asked where computing has a known cost"
        assert since is not None, "and the device computes"
        front = flight.front
        began = front - flight.computing
        under_way = compute(began, front)
        wait = under_way - min(now - since, under_way)
        if front < flight.lead:
            wait = max(wait, *(left(source) for source in flight.awaited(front, flight.lead)), 0.0)
            front = flight.lead
        return lambda unit: wait + compute(front, unit + 1)

    def _comes_in(self, unit: int, left: Callable[[str], float]) -> float:
        """Seconds until its source has brought an absent unit, which it loads behind all that follow it."""
        source = self.flight.source(unit)
        each = None if source is None else self.unit_seconds(source)
        if source is None or each is None:
            return math.inf
        units = self.flight.absent_from(source, max(0, self.begins(source, unit)))
        return max(left(source), self.latency_seconds(source)) + each * units

    def _fewest(self, units: range, left: Callable[[str], float], sooner_than: Callable[[int], float]) -> int:
        """How many units, of which these are the last, have to come for it to be sooner: what lies alone between units
        that are computed is computed with them, unless it is worth a jump and one forward more."""
        flight, behind = self.flight, units.stop
        if behind == len(flight) or flight[behind] is not Unit.ABSENT:
            return 1
        return 1 if self._comes_in(behind, left) < sooner_than(behind) else flight.island

    def worth_loading(self, units: range, source: str, left: Callable[[str], float], now: float) -> range:
        """The last of these units, as far as they would arrive sooner than the compute pointer gets there; `left`:
        seconds for which a source has still to load others."""
        if self.computing_since is None or self.compute_seconds is None:
            return units  # nobody computes them meanwhile, as far as is known
        if units.start < self.flight.lead:
            return units  # nor these: the device waits for them
        each = self.unit_seconds(source)
        if each is None:
            return units
        sooner_than = self._computed_in(left, now)
        before = max(left(source), self.latency_seconds(source))

        def comes_sooner(first: int) -> bool:
            """Whether the units from this one on, and what comes with it, are there before all of that is computed."""
            behind = min(self.begins(source, first) + self.granule(source), units.stop)
            arrives = before + (units.stop - self.begins(source, first)) * each
            return arrives < sooner_than(max(self.flight.front, behind - 1))

        if not comes_sooner(max(0, units.stop - self._fewest(units, left, sooner_than))):
            return range(0)
        while units and not comes_sooner(units.start):
            units = self.whole(units[1:], source)
        return units


class Batch(Generic[Request]):
    """All restores under way, in order of arrival. Pure and deterministic; not thread-safe.

    Both the executor and the simulator ask it what to load next.
    """

    def __init__(
        self, clock: Callable[[], float] = lambda: 0.0, patience: int = PATIENCE, *, by_age: bool = False
    ) -> None:
        """`clock`, seconds, tells how far a chunk has come. Without one it counts as just begun, and the sources load
        some of what the device would have computed sooner. `by_age`: sources serve the oldest request first."""
        if patience < 1:
            raise ValueError(f"patience of {patience} picks would serve nobody by need")
        self.by_age = by_age  # may be changed at any time
        self._clock = clock
        self._patience = patience
        self._members: dict[Request, Member] = {}
        self._under_way: dict[str, int] = {}
        self._flowing: dict[str, _Flowing] = {}
        self._pick: dict[str, int] = {}  # by source: units of its newest pick, at most

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request: Request) -> bool:
        return request in self._members

    def add(
        self,
        request: Request,
        flight: Flight,
        compute_seconds: Callable[[int, int], float] | None = None,
        unit_seconds: Callable[[str], float | None] = lambda source: None,
        forward: Forward | None = None,
        latency_seconds: Callable[[str], float] = lambda source: 0.0,
        granule: Callable[[str], int] = lambda source: 1,
        start: int = 0,
    ) -> None:
        """`compute_seconds(a, b)`: what computing units `[a, b)` takes; `unit_seconds(source)`: what loading one among
        many takes, None where that is not known, and `latency_seconds(source)` until the first begins to come;
        `forward`: what one forward takes, where that is another cost. `granule(source)`: units that come from it
        together, the first of them at a multiple of that; `start`: the number of the first unit, so counted.

        Raises ValueError for a request that is here already.
        """
        if request in self._members:
            raise ValueError(f"request {request} is being restored already")
        self._members[request] = Member(flight, compute_seconds, unit_seconds, forward, latency_seconds, granule, start)

    def remove(self, request: Request) -> None:
        """It is done, or was aborted. Unknown ones are left alone."""
        self._members.pop(request, None)

    def flight(self, request: Request) -> Flight:
        return self._members[request].flight

    def set_computing(self, request: Request, computing: bool) -> None:
        """Whether the device works on it; said anew when a chunk begins. Unknown requests are left alone."""
        if (member := self._members.get(request)) is not None:
            member.computing_since = self._clock() if computing else None

    def requests(self) -> Iterable[Request]:
        return self._members

    def under_way(self, source: str) -> int:
        """Units that a source has been told to load and has not answered for."""
        return self._under_way.get(source, 0)

    def queued(self, request: Request, source: str, own: int | None = None) -> int:
        """Units that `source` is still to begin to load for others before it has brought so many absent ones of
        `request`, all of them if None; 0 if there are none, or the request is unknown."""
        member = self._members.get(request)
        return 0 if member is None or len(self._members) == 1 else self._queued(member, source, own)

    def _queued(self, member: Member, source: str, own: int | None = None) -> int:
        """Who has most recomputation left is served until others have as much, and all of them in turn then: whoever
        lacks less waits for all of it, but for no more than `patience` picks before each of its own."""
        lacks, pick, units = member.flight.absent_from(source), self._pick.get(source, 1), 0
        picks = -(-(lacks if own is None else min(own, lacks)) // pick)
        most = math.inf if self.by_age and picks else picks * self._patience * pick
        for other in self._members.values():
            if units >= most or (self.by_age and other is member):
                break  # those behind it are younger
            if other is not member:
                units += other.flight.absent_from(source)
        return int(min(units, most))

    def next_step(self, request: Request, most: int, free_in: float = 0.0) -> Step:
        """What the device should do next for `request`: as `Flight.step`, but it computes no more than the sources
        leave to it meanwhile.

        Where they can bring all that is left of the batch sooner than a whole step is computed, the step ends where
        both would be done at the same time. Otherwise the sources would rest while the last chunk is computed, which
        for a prefix of few chunks is a good part of the whole. But a step that leaves anything to them is followed by
        one forward more, and one that leaves little was hardly worth a forward: where computing all of it, or waiting
        for all of it, is as soon done, the device does that, and likewise where what doing both would save is less
        than what costs leave open. It never waits where nothing is on its way. A step that computes all that is left,
        or begins to where that takes several forwards, may compute what has arrived or is on its way, too, where that
        is sooner than to wait, or than a jump and one forward more: whoever takes it abandons what is on its way
        (`Flight.abandon_loading`). Costs that are not known leave the step as it is. `free_in`: seconds for which the
        device has something to do already.
        """
        member = self._members[request]
        step = member.flight.step(most)
        loading = self._loading_left(member, step)
        if step.jump == len(member.flight) or member.forward is None or loading is None:
            return step
        cut = self._cut(member, member.forward, step, loading, free_in)
        return self._all_of_it(member, member.forward, cut, most, free_in)

    def _cut(self, member: Member, forward: Forward, step: Step, loading: np.ndarray, free_in: float) -> Step:
        """As much of `step` as the sources leave to the device; `loading` as of `_loading_left`."""
        jump, span = step.jump, step.end - step.jump
        if not span or loading[-1] >= free_in + forward.seconds(jump, step.end):
            return step
        # What follows joins a forward that gets to the end.
        saved = forward.joined(span) if step.end == len(member.flight) else 0.0

        def computed(seconds: Callable[[int, int], float], units: int) -> float:
            return free_in + (seconds(jump, jump + units) if units else 0.0)

        def done(seconds: Callable[[int, int], float], units: int) -> float:
            return max(computed(seconds, units), float(loading[units])) - (saved if units == span else 0.0)

        without = member.flight.computed_before(jump, step.end) - jump
        waits = not without and any(self._under_way.values())
        least = without or int(not waits)
        # More units take longer to compute, so of all numbers only those count with which loading takes less than with
        # any fewer; and of these the best lies where computing begins to take longer than loading.
        left = loading[least:]
        fewer = least + np.flatnonzero(np.append(True, left[1:] < np.minimum.accumulate(left)[:-1]))
        at = bisect_left(fewer, True, key=lambda units: computed(forward.seconds, units) >= loading[units])
        near = [*fewer[max(0, at - 1) : at + 1].tolist(), span]
        units = min(near, key=lambda count: done(forward.seconds, count))
        one_way = [least, span] if without or waits else [span]
        if any(done(forward.at_worst, units) >= done(forward.at_worst, count) for count in one_way):
            units = min(one_way, key=lambda count: done(forward.seconds, count))
        return Step(jump, jump + units)

    def _all_of_it(self, member: Member, forward: Forward, step: Step, most: int, free_in: float) -> Step:
        """`step`; or, where the first token comes sooner so, one that computes all that is missing, by as many forwards
        as that takes, so that it is not waited for, and one that goes on to the end, whatever has arrived: what follows
        joins it, and takes no forward of its own."""
        flight, end = member.flight, len(member.flight)
        if step.end == end or step.jump < flight.lead:
            return step
        loading = self._own_left(member, step)

        def first_token(seconds: Callable[[int, int], float], units: int) -> float:
            begun = range(step.jump, units, most)  # where each forward begins
            saved = forward.joined(units - begun[-1]) if units == end and begun else 0.0
            return free_in + sum(seconds(first, min(first + most, units)) for first in begun) - saved

        def is_sooner(units: int) -> bool:
            return all(
                first_token(seconds, units) < max(loading, first_token(seconds, step.end))
                for seconds in (forward.seconds, forward.at_worst)
            )

        further = [units for units in (flight.missing_end, end) if units > step.end and is_sooner(units)]
        best = min(further, key=lambda units: first_token(forward.seconds, units), default=step.end)
        return Step(step.jump, min(best, step.jump + most))

    def _loading_left(self, member: Member, step: Step) -> np.ndarray | None:
        """Seconds until the sources have brought all that is left of the batch if the device computes the first 0, 1,
        … units of `step`; None where a source's cost is not known."""
        seconds: dict[str, float] = {}
        for source, under_way in self._under_way.items():
            if under_way:
                if member.unit_seconds(source) is None:
                    return None
                seconds[source] = self._left(member, source)
        absent: dict[str, int] = {}
        for one in self._members.values():
            for source in one.flight.sources():
                each, units = one.unit_seconds(source), one.flight.absent_from(source)
                if each is None:
                    return None
                seconds[source] = seconds.get(source, one.latency_seconds(source)) + units * each
                absent[source] = absent.get(source, 0) + units
        left = np.zeros(step.end + 1 - step.jump)
        for source, all_of_it in seconds.items():
            each = member.unit_seconds(source) or 0.0
            wanted = member.flight.wanted(source, step.jump, step.end + 1)
            brings = np.subtract.accumulate(np.append(all_of_it, np.where(wanted[:-1], each, 0.0)))
            if absent.get(source) and not self.under_way(source):
                brings[np.append(0, wanted[:-1].cumsum()) == absent[source]] = 0.0
            # What comes along with the first one that is wanted, and is not.
            beside = (member.start + np.arange(step.jump, step.end + 1)) % member.granule(source) * each
            left = np.maximum(left, brings + np.where(wanted, beside, 0.0))
        return left

    def _own_left(self, member: Member, step: Step) -> float:
        """Seconds until the sources have brought what `member` itself needs of them behind `step`."""
        flight, seconds = member.flight, 0.0
        loading = flight.awaited(step.end, len(flight))
        split, beside = member.beside(step.end)
        for source in {*flight.sources(), *loading}:
            units = flight.absent_from(source, step.end)
            before = self._left(member, source) if source in loading else member.latency_seconds(source)
            before += beside if source == split else 0.0
            if units or source in loading:
                all_units = units + self._queued(member, source, units)
                seconds = max(seconds, before + all_units * (member.unit_seconds(source) or 0.0))
        return seconds

    def next_load(
        self, source: str, most: int = 1, room: Callable[[Request], int] | None = None
    ) -> Pick[Request] | None:
        """What `source` is to load next, taken; None if nobody needs anything from it. `answered` is to follow for
        every unit of it. `room(request)`: units that may be loaded for it now; None: `most`, for everybody."""
        now = self._clock()
        self._pick[source] = most

        def allowed(request: Request) -> int:
            return most if room is None else min(most, room(request))

        waiting = [request for request, member in self._members.items() if member.flight.lacks(source)]
        # What may be loaded is worked out for the first of them alone, mostly: there may be many.
        for request in self._in_turn(waiting, source):
            member = self._members[request]
            units = member.next_load(source, allowed(request))
            if units and (units := member.worth_loading(units, source, partial(self._left, member), now)):
                break
        else:
            again = self._tried_again(waiting, source, allowed, now)
            if again is None:
                return None
            request, units = again
            member = self._members[request]
        for one in waiting:
            passed = self._members[one].passed_over
            passed[source] = 0 if one == request else passed.get(source, 0) + 1
        member.flight.take_load(units)
        if not self.under_way(source):
            self._flowing[source] = _Flowing(now, member.latency_seconds(source))
        self._under_way[source] = self.under_way(source) + len(units)
        return Pick(request, units)

    def _tried_again(
        self, waiting: list[Request], source: str, allowed: Callable[[Request], int], now: float
    ) -> tuple[Request, range] | None:
        """What is loaded from a source that has brought nothing for a while, because computing seemed sooner: only that
        tells whether it is as slow as it was. Nobody waits for it, as it is not expected in time: the device has
        something to compute before, and what it costs is known, as it is of whole granules."""
        if self.under_way(source) or source not in self._flowing or now - self._flowing[source].since < AGAIN_SECONDS:
            return None
        for request in waiting:
            member = self._members[request]
            units = member.next_load(source, allowed(request))
            units = member.whole(range(max(units.start, member.flight.front + 1), units.stop), source)
            if units:
                return request, units
        return None

    def _in_turn(self, waiting: list[Request], source: str) -> list[Request]:
        """Those who lack something from `source`, the oldest first, in the order in which it serves them."""
        if self.by_age or len(waiting) < 2:
            return waiting

        def before(request: Request) -> tuple[int, float]:
            member = self._members[request]
            passed = member.passed_over.get(source, 0)
            return (passed, 0.0) if passed >= self._patience else (0, member.recomputation_left)

        return sorted(waiting, key=before, reverse=True)  # of those that are alike the oldest stays first

    def answered(self, source: str, units: int = 1) -> None:
        """So many units that `source` was told to load have come, or will not: each once, whoever still waits."""
        self._under_way[source] -= units
        self._flowing[source] = _Flowing(self._clock(), 0.0)

    def _left(self, member: Member, source: str) -> float:
        """Seconds until a source has brought what it has under way, by what loading takes for `member`; 0 where that is
        not known."""
        units, each = self.under_way(source), member.unit_seconds(source)
        if not units or each is None:
            return 0.0
        since, latency = self._flowing[source]
        next_ones = min(units, member.granule(source))
        return max(latency + units * each - (self._clock() - since), (units - next_ones) * each)
