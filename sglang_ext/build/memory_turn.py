"""Servers of one user that start at once on a machine measure and take their host memory one after the other.

Each takes a share of what is free. If all of them measured before the first had taken its share, they would take more
together than there is, and the kernel would kill one. So whoever measures has the lock on a file, and keeps it until
the memory is resident. It lies in the directory of the bus and of leases, which the servers of a user share; the kernel
takes the lock back from a process that ends.

Ranks of one server come in turn as well, and all take as much as the first of them has found: a prefix is restored as
far as every rank has it. That is noted in the file until the last one has taken its part, and whoever measures
meanwhile leaves it out of what is free.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.private_directory import open_private_directory
from swift_tiers.radix_tiering.base.runner import THREADS, Runner
from swift_tiers.radix_tiering.bus.redis.redis_server import socket_path

logger = logging.getLogger(__name__)

#: How long a start waits for others: memory is resident at some GB a second, and one that hangs must not end a start.
TURN_SECONDS = 60.0
#: How often it looks whether the lock is free.
_LOOK_SECONDS = 0.05
#: For how long what a server's other ranks have yet to take is left to them: they come within their turns, or not at
#: all.
_NOTED_SECONDS = 3 * TURN_SECONDS
_FILE = "host-memory.lock"
_FILE_BYTES = 1 << 20


class _Share(msgspec.Struct, frozen=True):
    """What a server takes of which some ranks have not come yet."""

    server: str
    size: int  # of each rank, bytes
    left: int  # ranks that have yet to come
    noted: float  # when the last one came, by the machine's monotonic clock


class MemoryTurn:
    """The turn of one rank: a context in which it finds its size by `size`, and takes it. Nothing that ranks wait for
    each other in belongs there."""

    def __init__(self, directory: str | None, server: str, ranks: int, runner: Runner = THREADS) -> None:
        """`directory`: `bus.directory`. `server`: what all ranks of one start, and no other server, are given; so many
        `ranks` of it are on this machine. Does nothing yet."""
        self._directory = directory
        self._server = server
        self._ranks = ranks
        self._runner = runner
        self._file: int | None = None
        self._locked = False

    def __enter__(self) -> MemoryTurn:
        """Waits for others, a minute at most, and goes on without a lock where it cannot have one."""
        try:
            self._file = _open_file(socket_path(self._directory).parent)
            self._locked = self._wait(self._file)
        except (ConfigError, OSError) as error:
            logger.info("swift-tiers: host memory is taken without regard to other servers that start: %s", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            # Closing would leave it to a process that was forked meanwhile, for as long as that lives.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
        self._file, self._locked = None, False

    def size(self, measure: Callable[[int], int]) -> int:
        """What this rank takes, bytes: as the first of its server found, or what `measure` finds where so many bytes of
        what is free are others'."""
        now, found = self._runner.monotonic(), self._read()
        # In the future is what was noted before the machine was started anew.
        shares = [share for share in found if 0 <= now - share.noted < _NOTED_SECONDS]
        own = next((share for share in shares if share.server == self._server), None)
        others = [share for share in shares if share.server != self._server]
        size = own.size if own is not None else measure(sum(share.size * share.left for share in others))
        left = (own.left if own is not None else self._ranks) - 1
        self._write([*others, _Share(self._server, size, left, now)] if left > 0 else others)
        return size

    def _wait(self, file: int) -> bool:
        """Whether the lock could be had."""
        until = self._runner.monotonic() + TURN_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if self._runner.monotonic() >= until:
                    logger.warning(
                        "swift-tiers: others have been taking host memory for %.0f s: going on beside them",
                        TURN_SECONDS,
                    )
                    return False
            self._runner.sleep(_LOOK_SECONDS)

    def _read(self) -> list[_Share]:
        """What was noted; nothing where it cannot be read: then each measures for itself."""
        if self._file is None:
            return []
        try:
            return msgspec.json.decode(os.pread(self._file, _FILE_BYTES, 0), type=list[_Share])
        except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
            return []  # new, or of a process that was killed while it wrote

    def _write(self, shares: list[_Share]) -> None:
        if self._file is None or not self._locked:
            return
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, msgspec.json.encode(shares), 0)
        except OSError as error:
            logger.info("swift-tiers: other ranks are not told how much host memory to take: %s", error)


def _open_file(directory: Path) -> int:
    """Raises ConfigError or OSError where there is no directory of this user alone, and none can be made."""
    folder = open_private_directory(directory, "bus.directory", create=True)
    try:
        return os.open(_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
