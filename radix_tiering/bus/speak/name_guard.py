"""Two servers of one name on one Redis: they overwrite each other's state, and both obey what is meant for one."""

from __future__ import annotations

import logging

from ...base.events import EventLog
from ..redis.batch import RedisBatch

logger = logging.getLogger(__name__)


class NameGuard:
    """Looks at who has written `info`, which only this process should. For the rank that speaks for its server."""

    def __init__(self, key: str, server: str, host: str, pid: int, events: EventLog) -> None:
        """`key`: of this server's `info`."""
        self._key = key
        self._server = server
        self._own = [host, str(pid)]
        self._events = events
        self._seen: list[str | None] | None = None

    def ask(self, batch: RedisBatch) -> None:
        """To be added before what writes `info` anew, and only once this process has written it."""
        batch.add("HMGET", self._key, "host", "pid", reply=self._look)

    def _look(self, found: list[str | None]) -> None:
        if None in found or found in (self._own, self._seen):
            return
        self._seen = found
        host, pid = found
        logger.error(
            "swift-tiers: another server, process %s on %s, is called %s on the bus too: "
            "give each a bus.server of its own",
            pid,
            host,
            self._server,
        )
        self._events.emit("bus.name_taken", host=host, pid=pid)
