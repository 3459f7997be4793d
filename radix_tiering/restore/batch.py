"""Restores of several requests side by side: whom each source serves (CacheFlow, section 3.3, Algorithm 1).

One device computes one chunk at a time, in the order in which whoever drives it admits requests. Each source serves the
request that has most recomputation left, looked at anew for every pick, since loading for it saves most. A request
that has been passed over `patience` times by a source is served before that, so that none starves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from swift_tiers.radix_tiering.restore.flight import Flight

Request = TypeVar("Request")

#: Picks that a source may give to others before a request that waits for it gets one.
PATIENCE = 16


class Pick(NamedTuple, Generic[Request]):
    """Neighbouring units of one request that a source is to load."""

    request: Request
    units: range


class Member:
    """A request of the batch."""

    __slots__ = ("compute_seconds", "computing", "flight", "passed_over", "unit_seconds")

    def __init__(
        self,
        flight: Flight,
        compute_seconds: Callable[[int, int], float] | None,
        unit_seconds: Callable[[str], float | None],
    ) -> None:
        self.flight = flight
        self.compute_seconds = compute_seconds
        self.unit_seconds = unit_seconds
        self.computing = False  # the device works on it, chunk after chunk
        self.passed_over: dict[str, int] = {}  # by source: picks given to others while it waited

    @property
    def recomputation_left(self) -> float:
        """What loading could still save: seconds of computing, or units where the cost of computing is not known."""
        absent = self.flight.absent
        if self.compute_seconds is None or not absent:
            return float(absent)
        first, end = self.flight.absent_span
        return self.compute_seconds(first, end) * absent / (end - first)

    def worth_loading(self, units: range, source: str, before: int) -> bool:
        """Whether it would arrive sooner than the compute pointer gets there; `before`: units that the source has
        still to load first."""
        if not self.computing or self.compute_seconds is None:
            return True  # nobody computes it meanwhile, as far as is known
        each = self.unit_seconds(source)
        if each is None:
            return True
        behind = self.flight.front
        # The chunk under way counts as just begun: too much by half a chunk on the average.
        reached = self.compute_seconds(behind - self.flight.computing, units.stop)
        return (before + len(units)) * each < reached


class Batch(Generic[Request]):
    """All restores under way, in order of arrival. Pure and deterministic; not thread-safe.

    Both the executor and the simulator ask it what to load next.
    """

    def __init__(self, patience: int = PATIENCE) -> None:
        if patience < 1:
            raise ValueError(f"patience of {patience} picks would serve nobody by need")
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
    ) -> None:
        """`compute_seconds(a, b)`: what computing units `[a, b)` takes; `unit_seconds(source)`: what loading one takes,
        None where that is not known.

        Raises ValueError for a request that is here already.
        """
        if request in self._members:
            raise ValueError(f"request {request} is being restored already")
        self._members[request] = Member(flight, compute_seconds, unit_seconds)

    def remove(self, request: Request) -> None:
        """It is done, or was aborted. Unknown ones are left alone."""
        self._members.pop(request, None)

    def flight(self, request: Request) -> Flight:
        return self._members[request].flight

    def set_computing(self, request: Request, computing: bool) -> None:
        """Whether the device works on it. Unknown requests are left alone."""
        if (member := self._members.get(request)) is not None:
            member.computing = computing

    def requests(self) -> Iterable[Request]:
        return self._members

    def under_way(self, source: str) -> int:
        """Units that a source has been told to load and has not answered for."""
        return self._under_way.get(source, 0)

    def next_load(self, source: str, most: int = 1) -> Pick[Request] | None:
        """What `source` is to load next, taken; None if nobody needs anything from it. `answered` is to follow for
        every unit of it."""
        waiting: dict[Request, range] = {}
        for request, member in self._members.items():
            units = member.flight.next_load(source, most)
            if units and member.worth_loading(units, source, self.under_way(source)):
                waiting[request] = units
        if not waiting:
            return None
        members = self._members
        starving = [one for one in waiting if members[one].passed_over.get(source, 0) >= self._patience]
        if starving:
            chosen = max(starving, key=lambda one: members[one].passed_over[source])
        else:
            # The oldest wins a draw.
            chosen = max(waiting, key=lambda one: members[one].recomputation_left)
        for request in waiting:
            passed = members[request].passed_over
            passed[source] = 0 if request == chosen else passed.get(source, 0) + 1
        units = waiting[chosen]
        members[chosen].flight.take_load(units)
        self._under_way[source] = self.under_way(source) + len(units)
        return Pick(chosen, units)

    def answered(self, source: str) -> None:
        """A unit that `source` was told to load has come, or will not: once for each, whoever still waits for it."""
        self._under_way[source] -= 1
