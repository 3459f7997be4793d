"""A stream that others write to this server: every entry is taken once, from the first look on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..contract.schema import entry_parts, is_used_up
from ..redis.batch import RedisBatch

logger = logging.getLogger(__name__)

Entry = tuple[str, dict[str, str]]

_BEGINNING = "0-0"


class Inbox:
    """One thread."""

    def __init__(
        self, key: str, most: int, *, remembers: int = 1, former: Callable[[list[Entry]], None] = lambda entries: None
    ) -> None:
        """`most`: entries that are taken at a time. `former` is told, at the first look, the newest that are there, so
        many as it `remembers`: they are for others, and may be read again where the stream is read from its
        beginning."""
        self._key = key
        self._most = most
        self._remembers = remembers
        self._former = former
        self._position: str | None = None  # the last entry that was read, or that was there before the first look
        self._entries: list[Entry] = []

    def place(self, batch: RedisBatch) -> None:
        """To be done after every connecting, and before the first `ask`. Where a stream has begun anew, because Redis
        was emptied and its clock is behind the one before, reading does so too."""
        most = self._remembers if self._position is None else 1
        batch.add("XREVRANGE", self._key, "+", "-", "COUNT", most, reply=self._placed)

    def ask(self, batch: RedisBatch) -> None:
        """Get what is new. Waits for nothing."""
        if self._position is not None and is_used_up(self._position):
            logger.warning("swift-tiers: %s is begun anew: an entry in it has an id that none can follow", self._key)
            batch.add("UNLINK", self._key)
            self._position = _BEGINNING
        if self._position is not None:
            words = ("COUNT", self._most, "STREAMS", self._key, self._position)
            batch.add("XREAD", *words, reply=self._read)

    def take(self) -> list[Entry]:
        """What has been read, oldest first."""
        entries, self._entries = self._entries, []
        return entries

    def _placed(self, newest: list[Entry]) -> None:
        last = newest[0][0] if newest else _BEGINNING
        if self._position is None:
            self._position = last
            self._former([(entry, fields or {}) for entry, fields in newest])
        elif entry_parts(last) < entry_parts(self._position):
            self._position = _BEGINNING

    def _read(self, streams: list[tuple[str, list[Any]]]) -> None:
        for _, entries in streams:
            self._entries += [(entry, fields or {}) for entry, fields in entries]
            self._position = entries[-1][0]
