"""Servers that are gone: which of them said so, and which vanished."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.schema import STATE_TTL_LOWEST
from swift_tiers.radix_tiering.bus.views import ServerState, Snapshot

#: Seconds that a server which ends in order is silent at most before it is off the bus.
SILENT = 2.0


class Going(Enum):
    """How a server went."""

    UNKNOWN = "nobody looked then"
    STOPPED = "it took its leave"
    VANISHED = "it did not"


class Departure(NamedTuple):
    """A server that is gone, and what others had of it when it was last seen."""

    going: Going
    lent_bytes: int = 0
    borrowers: tuple[str, ...] = ()


class Departures:
    """Looks at snapshots in the order in which they come. One thread at a time.

    A server that ends in order takes what it says off the bus at once. What one that died has said stays there for a
    while, with an old heartbeat: who is gone and was not seen so may have ended either way.
    """

    def __init__(self) -> None:
        self._alive: dict[str, tuple[ServerState, float]] = {}  # as they were seen last, and when
        self._gone: dict[str, Departure] = {}

    def observe(self, snapshot: Snapshot) -> dict[str, Departure]:
        """Those that are gone now."""
        found: dict[str, Departure] = {}
        for state in snapshot.servers:
            name = state.server.server
            if state.server.alive:
                self._alive[name] = state, snapshot.time
            else:
                found[name] = self._gone.get(name) or self._departure(name, state.server.age_seconds, snapshot.time)
        self._gone = found
        return found

    def _departure(self, name: str, age: float | None, now: float) -> Departure:
        if name not in self._alive or age is None:
            return Departure(Going.UNKNOWN)
        former, seen = self._alive.pop(name)
        if age < STATE_TTL_LOWEST:
            going = Going.STOPPED
        else:
            going = Going.VANISHED if seen - (now - age) > SILENT else Going.UNKNOWN
        ranks = [rank.rank for rank in former.ranks if rank.rank is not None]
        borrowers = {borrower for rank in ranks for borrower in rank.lends_to}
        return Departure(going, sum(rank.lent_bytes or 0 for rank in ranks), tuple(sorted(borrowers)))
