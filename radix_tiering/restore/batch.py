"""Restores of several requests side by side: whom each source serves (CacheFlow, section 3.3, Algorithm 1).

One device computes one chunk at a time, in the order in which whoever drives it admits requests. Each source serves the
request that has most recomputation left, looked at anew for every pick, since loading for it saves most. A request
that has been passed over `patience` times by a source is served before that, so that none starves. Or it serves the
oldest request that needs something from it, which is what first tokens want where the device computes the oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from swift_tiers.radix_tiering.restore.flight import Flight, Step, Unit

Request = TypeVar("Request")

#: Picks that a source may give to others before a request that waits for it gets one.
PATIENCE = 16


class Pick(NamedTuple, Generic[Request]):
    """Neighbouring units of one request that a source is to load."""

    request: Request
    units: range


class Forward(NamedTuple):
    """What one forward over units of a request takes, in seconds."""

    seconds: Callable[[int, int], float]  # over units `[a, b)`
    at_worst: Callable[[int, int], float]  # likewise, as far as anybody can say
    fixed: float  # of any, whatever it computes


class Member:
    """A request of the batch."""

    __slots__ = ("compute_seconds", "computing_since", "flight", "forward", "passed_over", "unit_seconds")

    def __init__(
        self,
        flight: Flight,
        compute_seconds: Callable[[int, int], float] | None,
        unit_seconds: Callable[[str], float | None],
        forward: Forward | None,
    ) -> None:
        self.flight = flight
        self.forward = forward
        if forward is None and compute_seconds is not None:
            self.forward = Forward(compute_seconds, compute_seconds, 0.0)
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

    def worth_loading(self, units: range, source: str, before: int, now: float) -> range:
        """The last of these units, as far as they would arrive sooner than the compute pointer gets there; `before`:
        units that the source has still to load first."""
        if self.computing_since is None or self.compute_seconds is None:
            return units  # nobody computes them meanwhile, as far as is known
        if units.start < self.flight.lead:
            return units  # nor these: the device waits for them
        each = self.unit_seconds(source)
        if each is None:
            return units
        behind = self.flight.front
        began = behind - self.flight.computing
        passed = min(now - self.computing_since, self.compute_seconds(began, behind))
        while units and (before + len(units)) * each >= self.compute_seconds(began, units.start + 1) - passed:
            units = units[1:]
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
    ) -> None:
        """`compute_seconds(a, b)`: what computing units `[a, b)` takes; `unit_seconds(source)`: what loading one takes,
        None where that is not known; `forward`: what one forward takes, where that is another cost.

        Raises ValueError for a request that is here already.
        """
        if request in self._members:
            raise ValueError(f"request {request} is being restored already")
        self._members[request] = Member(flight, compute_seconds, unit_seconds, forward)

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

    def next_step(self, request: Request, most: int, free_in: float = 0.0) -> Step:
        """What the device should do next for `request`: as `Flight.step`, but it computes no more than the sources
        leave to it meanwhile.

        Where they can bring all that is left of the batch sooner than a whole step is computed, the step ends where
        both would be done at the same time. Otherwise the sources would rest while the last chunk is computed, which
        for a prefix of few chunks is a good part of the whole. But a step that leaves anything to them is followed by
        one forward more, and one that leaves little was hardly worth a forward: where computing all of it, or waiting
        for all of it, is as soon done, the device does that, and likewise where what doing both would save is less
        than what costs leave open. It never waits where nothing is on its way. Costs that are not known leave the step
        as it is. `free_in`: seconds for which the device has something to do already.
        """
        member = self._members[request]
        step = member.flight.step(most)
        loading = self._loading_left(member, step)
        if step.end == step.jump or member.forward is None or loading is None:
            return step
        jump, span, forward = step.jump, step.end - step.jump, member.forward
        if loading[-1] >= free_in + forward.seconds(jump, step.end):
            return step
        last = step.end == len(member.flight)  # what follows joins a forward that gets so far

        def done(seconds: Callable[[int, int], float], units: int) -> float:
            joins = forward.fixed if last and units == span else 0.0
            computing = seconds(jump, jump + units) if units else 0.0
            return max(free_in + computing, loading[units]) - joins

        without = [unit for unit in range(jump, step.end) if member.flight.source(unit) is None]
        waits = not without and any(self._under_way.values())
        least = without[-1] + 1 - jump if without else int(not waits)
        units = min(range(least, span + 1), key=lambda count: done(forward.seconds, count))
        one_way = [least, span] if without or waits else [span]
        if any(done(forward.at_worst, units) >= done(forward.at_worst, count) for count in one_way):
            units = min(one_way, key=lambda count: done(forward.seconds, count))
        return Step(jump, jump + units)

    def _loading_left(self, member: Member, step: Step) -> list[float] | None:
        """Seconds until the sources have brought all that is left of the batch if the device computes the first 0, 1,
        … units of `step`; None where a source's cost is not known."""
        seconds: dict[str, float] = {}
        under_way = ((member, source, units) for source, units in self._under_way.items() if units)
        absent = (
            (one, source, one.flight.absent_from(source))
            for one in self._members.values()
            for source in one.flight.sources()
        )
        for one, source, units in chain(under_way, absent):
            each = one.unit_seconds(source)
            if each is None:
                return None
            seconds[source] = seconds.get(source, 0.0) + units * each
        left = [max(seconds.values(), default=0.0)]
        for unit in range(step.jump, step.end):
            origin = member.flight.source(unit)
            if origin is not None and member.flight[unit] == Unit.ABSENT:
                seconds[origin] -= member.unit_seconds(origin) or 0.0
            left.append(max(seconds.values(), default=0.0))
        return left

    def next_load(self, source: str, most: int = 1) -> Pick[Request] | None:
        """What `source` is to load next, taken; None if nobody needs anything from it. `answered` is to follow for
        every unit of it."""
        now = self._clock()
        waiting: dict[Request, range] = {}
        for request, member in self._members.items():
            units = member.flight.next_load(source, most)
            if units and (units := member.worth_loading(units, source, self.under_way(source), now)):
                waiting[request] = units
        if not waiting:
            return None
        chosen = self.choose(waiting, source)
        for request in waiting:
            passed = self._members[request].passed_over
            passed[source] = 0 if request == chosen else passed.get(source, 0) + 1
        units = waiting[chosen]
        self._members[chosen].flight.take_load(units)
        self._under_way[source] = self.under_way(source) + len(units)
        return Pick(chosen, units)

    def choose(self, waiting: Mapping[Request, range], source: str) -> Request:
        """Whom `source` serves, of those for whom it could load these units; at least one, the oldest first."""
        if self.by_age:
            return next(iter(waiting))
        members = self._members
        starving = [one for one in waiting if members[one].passed_over.get(source, 0) >= self._patience]
        if starving:
            return max(starving, key=lambda one: members[one].passed_over[source])
        # The oldest wins a draw.
        return max(waiting, key=lambda one: members[one].recomputation_left)

    def answered(self, source: str) -> None:
        """A unit that `source` was told to load has come, or will not: once for each, whoever still waits for it."""
        self._under_way[source] -= 1
