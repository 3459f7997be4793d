"""Two servers of one name on one Redis: who began last has the name, and the other says and obeys nothing meanwhile."""

from __future__ import annotations

import logging

from ...base.errors import shorten
from ...base.events import EventLog
from ..contract.schema import Keys
from ..redis.batch import RedisBatch

logger = logging.getLogger(__name__)


class NameGuard:
    """Looks at who has written this rank's `rank`, which only this process should, and whether the server that the name
    is of has this rank: another one may have fewer. One thread.

    Who begins writes over what it finds there: mostly somebody has left it who was killed. Who finds later that another
    life has done so yields, so that the state on the bus is of one server, and one server obeys what is meant for it.
    Hosts and processes do not tell two servers apart: containers of one image have the same. Once the other is gone,
    with its state, the name is free.
    """

    def __init__(self, keys: Keys, server: str, rank: str, life: str, events: EventLog, *, leader: bool) -> None:
        """`life`: which no other process has. The `leader` tells of it, for all ranks."""
        self.taken = False  # by another server, which obeys in our place
        self._info = keys.of("info", server=server)
        self._key = keys.of("rank", server=server, rank=rank)
        self._rank = rank
        self._server = server
        self._life = life
        self._events = events
        self._leader = leader
        self._host: str | None = None
        self._ranks: list[str] = []  # of the server that has the name; none while that is not known
        self._seen: list[str | None] | None = None

    def ask(self, batch: RedisBatch) -> None:
        """To be answered before anything is written, and only once this process has written its state."""
        batch.add("HMGET", self._info, "host", "ranks", reply=self._hear_server)
        batch.add("HMGET", self._key, "life", "pid", reply=self._look)

    def _hear_server(self, found: list[str | None]) -> None:
        host, ranks = found
        self._host = None if host is None else shorten(host)
        self._ranks = ranks.split(",") if ranks else []

    def _look(self, found: list[str | None]) -> None:
        life, pid = found
        others = pid is not None and life != self._life  # other releases tell no life
        self.taken = others or (bool(self._ranks) and self._rank not in self._ranks)
        if not self.taken or found == self._seen:
            return
        self._seen = found
        if not self._leader:
            return
        pid = None if pid is None else shorten(pid)
        logger.error(
            "swift-tiers: another server, process %s on %s, is called %s on the bus too, and obeys in place of this "
            "one: give each a bus.server of its own",
            pid,
            self._host,
            self._server,
        )
        self._events.emit("bus.name_taken", host=self._host, pid=pid)
