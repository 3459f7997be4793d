"""Servers that are gone: which of them said so, which vanished, and which were lost together with their Redis."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.contract.schema import SERVER_TTL, STATE_TTL_LOWEST
from swift_tiers.radix_tiering.bus.contract.views import ServerState, ServerView, Snapshot

#: Seconds that a server which ends in order is silent at most before it is off the bus.
SILENT = 2.0
#: A Redis that has lost what it knew hears of servers that run again within so many seconds.
RETURN = 5.0
#: The bus knows a server for so long after its last word, seconds, give or take a publishing.
KNOWN = SERVER_TTL - 10.0


class Going(Enum):
    """How a server went."""

    UNKNOWN = "nobody looked then"
    STOPPED = "it took its leave"
    VANISHED = "it did not"
    AWAITED = "the bus began anew, and has not heard of it yet"
    MISSED = "the bus began anew without it"


class Departure(NamedTuple):
    """A server that is gone, and what others had of it when it was last seen."""

    going: Going
    server: ServerView  # as it was seen last
    seen: float  # when that was
    lent_bytes: int = 0
    borrowers: tuple[str, ...] = ()


class Departures:
    """Looks at snapshots in the order in which they come. One thread at a time.

    A server that ends in order takes what it says off the bus at once. What one that died has said stays there for a
    while, with an old heartbeat: who is gone and was not seen so may have ended either way. The bus knows of both for
    an hour; who is not even known any more before that, and was seen, was lost with a Redis that began anew.
    """

    def __init__(self) -> None:
        self._alive: dict[str, tuple[ServerState, float]] = {}  # as they were seen last, and when
        self._gone: dict[str, Departure] = {}
        self._unknown_since: dict[str, float] = {}  # those that the bus knows nothing of any more

    def observe(self, snapshot: Snapshot) -> dict[str, Departure]:
        """Those that are gone now."""
        found: dict[str, Departure] = {}
        now = snapshot.time
        for state in snapshot.servers:
            name = state.server.server
            if state.server.alive:
                self._alive[name] = state, now
            else:
                found[name] = self._gone.get(name) or self._departure(name, state.server, now)
        here = {state.server.server for state in snapshot.servers}
        found |= self._missed(here, now)
        self._gone = found
        return found

    def _missed(self, here: set[str], now: float) -> dict[str, Departure]:
        """Those that the bus has forgotten before their time."""
        former = {name: one for name, one in self._gone.items() if one.going in (Going.VANISHED, Going.MISSED)}
        former |= {name: _of(Going.AWAITED, state, seen) for name, (state, seen) in self._alive.items()}
        found = {}
        for name, departure in former.items():
            if name in here or now - departure.seen > KNOWN:
                continue
            since = self._unknown_since.setdefault(name, now)
            back = now - since < RETURN and departure.going is Going.AWAITED
            found[name] = departure if back else departure._replace(going=Going.MISSED)
        self._alive = {name: one for name, one in self._alive.items() if name in here or name in found}
        self._unknown_since = {name: since for name, since in self._unknown_since.items() if name in found}
        return found

    def _departure(self, name: str, server: ServerView, now: float) -> Departure:
        age = server.age_seconds
        if name not in self._alive or age is None:
            return Departure(Going.UNKNOWN, server, now)
        former, seen = self._alive.pop(name)
        if age < STATE_TTL_LOWEST:
            going = Going.STOPPED
        else:
            going = Going.VANISHED if seen - (now - age) > SILENT else Going.UNKNOWN
        return _of(going, former, seen)


def _of(going: Going, state: ServerState, seen: float) -> Departure:
    ranks = [rank.rank for rank in state.ranks if rank.rank is not None]
    borrowers = {borrower for rank in ranks for borrower in rank.lends_to}
    lent = sum(rank.lent_bytes or 0 for rank in ranks)
    return Departure(going, state.server, seen, lent, tuple(sorted(borrowers)))
