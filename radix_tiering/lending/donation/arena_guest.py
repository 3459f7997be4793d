"""One connection of a borrower to a donor's arena socket."""

from __future__ import annotations

import socket
from collections import deque

from ...base.poller import READABLE, WRITABLE
from ..leases.messages import Extents, Party
from .arena import AttachedArena, ExportedArena
from .arena_messages import (
    MAX_STORES,
    Paced,
    Store,
    Stored,
    StoresDone,
    encode,
)
from .arena_socket import send
from .device_arena import AttachedDevice
from .extents import CutRun
from .pace import MovePace

#: Stores of one borrower that wait here. What it sends beyond waits in the socket, and then with the borrower.
MAX_WAITING = 256
#: Runs whose cut is remembered: leases come and go, and a cut costs as much as the run has extents.
_CUTS = 1024


class Guest:
    """What the server keeps for a connection. Used by the server's thread alone."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.descriptor = connection.fileno()
        self.since = now
        self.party: Party | None = None  # until it has said who it is
        self.page_bytes = 0
        self.staging: AttachedArena | None = None
        self.outgoing: AttachedDevice | None = None  # once it has offered it, and this donor's device reaches it
        self.pace = MovePace(None)
        self.stores: deque[Store] = deque()
        self.answers: deque[Stored] = deque()
        self.closed = False
        self._locked_for: ExportedArena | None = None  # whose copies from the staging memory are faster so
        self._blocked = False
        self._told_share: float | None = None
        self._cuts: dict[int, CutRun] = {}

    def begin(
        self, party: Party, page_bytes: int, staging: AttachedArena, pace: MovePace, arena: ExportedArena
    ) -> None:
        """It has said who it is. `arena`: where its pages are going to be copied."""
        self.party, self.page_bytes, self.staging, self.pace = party, page_bytes, staging, pace
        if arena.lock(staging.array):
            self._locked_for = arena

    @property
    def may_ask(self) -> bool:
        """Whether more is read from it."""
        return len(self.stores) < MAX_WAITING

    @property
    def has_work(self) -> bool:
        """Whether a store waits, and the answer to it could: who does not take answers gets nothing stored."""
        return bool(self.stores) and len(self.answers) < MAX_WAITING

    def next_stores(self, most_pulled: int) -> list[Store]:
        """What is stored next, together: one page of its staging memory, or several of its outgoing memory."""
        some = [self.stores.popleft()]
        while some[0].outgoing and self.stores and self.stores[0].outgoing and len(some) < most_pulled:
            some.append(self.stores.popleft())
        return some

    @property
    def interest(self) -> int:
        """What is to be waited for; the end of the connection is told in any case."""
        return (READABLE if self.may_ask else 0) | (WRITABLE if self._blocked else 0)

    def cut(self, lease: int, extents: Extents) -> CutRun | None:
        """The slots of a lease; None where it holds no page of this borrower's."""
        run = self._cuts.get(lease)
        if run is None:
            try:
                run = CutRun(extents, self.page_bytes)
            except ValueError:
                return None
            while len(self._cuts) >= _CUTS:
                del self._cuts[next(iter(self._cuts))]
            self._cuts[lease] = run
        return run

    def allow(self, share: float | None) -> None:
        """How much of the time its stores may cost here, and what it moves may cost itself; told with the answers."""
        self.pace.share = share

    def say(self, packet: bytes, descriptor: int | None = None) -> None:
        """Send a first packet, which a new connection has room for. Raises OSError."""
        send(self.connection, packet, descriptor)

    def flush(self) -> None:
        """Send what is allowed, if that has changed, and the answers that wait, as far as they are taken. Raises
        OSError where the connection is broken."""
        self._blocked = False
        try:
            if self.pace.share != self._told_share:
                send(self.connection, encode(Paced(self.pace.share)))
                self._told_share = self.pace.share
            while self.answers:
                part = tuple(self.answers)[:MAX_STORES]
                send(self.connection, encode(StoresDone(part)))
                for _ in part:
                    self.answers.popleft()
        except BlockingIOError:
            self._blocked = True

    def close(self) -> None:
        """Idempotent."""
        self.closed = True
        self.connection.close()
        self.stores.clear()
        if self.staging is not None:
            if self._locked_for is not None:
                self._locked_for.unlock(self.staging.array)
                self._locked_for = None
            self.staging.close()
        if self.outgoing is not None:
            self.outgoing.close()
