"""One reader of the bus for all threads of a console."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swift_tiers.radix_tiering.base.errors import RedisFaultError
from swift_tiers.radix_tiering.bus.hear.reader import BusReader


class CommonReader:
    """The reader is opened when it is first used, and anew after a fault of Redis. Any thread.

    The last thread that uses a reader closes it: a command that waits for its outcome keeps its connection, also where
    another thread finds meanwhile that Redis has failed.
    """

    def __init__(self, open_reader: Callable[[], BusReader]) -> None:
        """`open_reader` raises BusError or ConfigError where it cannot."""
        self._open = open_reader
        self._lock = threading.Lock()
        self._current: BusReader | None = None  # that the next use gets
        self._users: dict[BusReader, int] = {}

    @contextmanager
    def use(self) -> Iterator[BusReader]:
        """The reader. After a RedisFaultError within, the next use gets another one."""
        reader = self._begin()
        failed = False
        try:
            yield reader
        except RedisFaultError:
            failed = True
            raise
        finally:
            self._end(reader, failed)

    def close(self) -> None:
        """A reader that is still used is closed by who uses it."""
        with self._lock:
            reader, self._current = self._current, None
            idle = reader if reader not in self._users else None
        if idle is not None:
            idle.close()

    def _begin(self) -> BusReader:
        with self._lock:
            if self._current is None:
                self._current = self._open()
            self._users[self._current] = self._users.get(self._current, 0) + 1
            return self._current

    def _end(self, reader: BusReader, failed: bool) -> None:
        with self._lock:
            if failed and self._current is reader:
                self._current = None
            self._users[reader] -= 1
            if not self._users[reader]:
                del self._users[reader]
            unwanted = reader not in self._users and self._current is not reader
        if unwanted:
            reader.close()
