"""Servers of one user that start at once on a machine measure and take their host memory one after the other.

Each takes a share of what is free. If all of them measured before the first had taken its share, they would take more
together than there is, and the kernel would kill one. So whoever measures has the lock on a file, and keeps it until
the memory is resident. It lies in the directory of the bus and of leases, which the servers of a user share; the kernel
takes the lock back from a process that ends.

Ranks of one server come in turn as well, and all take as much as the first of them has found: a prefix is restored as
far as every rank has it. That is noted in the file until the last one has taken its part, and whoever measures
meanwhile leaves it out of what is free: of the machine's memory, and of the room under those limits that both are
under, since two containers may share the directory.

Notes are read and written under a lock of their own, which nobody has for longer than that. So they are right about who
has yet to come even where somebody hangs who has the turn, and others go on beside it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.private_directory import open_private_directory
from swift_tiers.radix_tiering.base.runner import THREADS, Runner
from swift_tiers.radix_tiering.base.starter import Starter
from swift_tiers.radix_tiering.base.usable_memory import MemoryClaim, memory_limits
from swift_tiers.radix_tiering.bus.redis.redis_server import socket_path

from .host_size import Coming

logger = logging.getLogger(__name__)

#: How long a start waits for others: memory is resident at some GB a second, and one that hangs must not end a start.
TURN_SECONDS = 60.0
#: How often it looks whether the lock is free.
_LOOK_SECONDS = 0.05
#: For how long what a server's other ranks have yet to take is left to them: they come within their turns, or not at
#: all.
_NOTED_SECONDS = 3 * TURN_SECONDS
#: For how long these ranks themselves go by the note: one that loads its model for longer has its part all the same.
_REMEMBERED_SECONDS = 10 * _NOTED_SECONDS
#: How long notes are waited for: a guard, they are read and written in less than a millisecond.
_NOTES_SECONDS = 5.0
_FILE = "host-memory.lock"
_FILE_BYTES = 1 << 20
_ROOT = Path("/")


class _Share(msgspec.Struct, frozen=True):
    """What a server takes of which some ranks have not come yet."""

    server: str
    size: int  # of each rank, bytes
    left: int  # ranks that have yet to come
    noted: float  # when the last one came, by the machine's monotonic clock
    starter: Starter  # of these ranks
    groups: frozenset[str]  # see `MemoryClaim`

    @property
    def claim(self) -> MemoryClaim:
        return MemoryClaim(self.size * self.left, self.groups)


class MemoryTurn:
    """The turn of one rank: a context in which it finds its size by `size`, and takes it. Nothing that ranks wait for
    each other in belongs there."""

    def __init__(
        self,
        directory: str | None,
        server: str,
        ranks: int,
        runner: Runner = THREADS,
        *,
        starter: Starter | None = None,
        root: Path = _ROOT,
    ) -> None:
        """`directory`: `bus.directory`. `server`: what all ranks of one server are given, and no other of the same
        `starter` is (unset: this process's parent); so many `ranks` of it are on this machine. `root`: see
        `usable_memory`. Does nothing yet."""
        self._directory = directory
        self._starter = Starter.of_this_process() if starter is None else starter
        # A server that is started anew, in its next container perhaps, must not find what was noted for the old one.
        self._server = f"{server} {self._starter.key}"
        self._ranks = ranks
        self._runner = runner
        self._root = root
        self._file: int | None = None

    def __enter__(self) -> MemoryTurn:
        """Waits for others, a minute at most, and goes on without a lock where it cannot have one."""
        try:
            self._file = _open_file(socket_path(self._directory).parent)
            self._wait(self._file)
        except (ConfigError, OSError) as error:
            logger.info("swift-tiers: host memory is taken without regard to other servers that start: %s", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a file system without locks
                # Closing would leave it to a process that was forked meanwhile, for as long as that lives.
                fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
        self._file = None

    def size(self, measure: Callable[[Coming], int]) -> int:
        """What this rank takes, bytes: what `measure` says, which is told who has yet to take memory."""
        with self._notes() as noted:
            now, shares = self._runner.monotonic(), self._read() if noted else []
            # In the future is what was noted before the machine was started anew.
            shares = [share for share in shares if 0 <= now - share.noted < _REMEMBERED_SECONDS]
            own = next((share for share in shares if share.server == self._server), None)
            others = [share for share in shares if share.server != self._server and not share.starter.has_ended()]
            fresh = tuple(share.claim for share in others if now - share.noted < _NOTED_SECONDS)
            # Where nothing can be noted, each takes itself for the first: then it answers for its own part alone.
            noted = noted and self._write(shares if own is not None else others)
            come = own.left if own is not None else self._ranks
            size = measure(Coming(come if noted else 1, None if own is None else own.size, fresh))
            if noted:
                groups = frozenset(limit.group for limit in memory_limits(self._root))
                share = _Share(self._server, size, come - 1, now, self._starter, groups)
                self._write([*others, share] if share.left > 0 else others)
            return size

    @contextmanager
    def _notes(self) -> Iterator[bool]:
        """A time in which nobody else reads notes or writes them; False where there are none to be had."""
        file, until = self._file, self._runner.monotonic() + _NOTES_SECONDS
        while file is not None:
            try:
                # Of another kind than the turn's: the two do not know each other, and this one is none that a process
                # which is forked meanwhile would keep.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN) or self._runner.monotonic() >= until:
                    logger.info("swift-tiers: what other ranks take cannot be read: %s", error)
                    file = None
                    break
            self._runner.sleep(_LOOK_SECONDS)
        try:
            yield file is not None
        finally:
            if file is not None:
                fcntl.lockf(file, fcntl.LOCK_UN)

    def _wait(self, file: int) -> None:
        """For the turn, a minute at most."""
        until = self._runner.monotonic() + TURN_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._runner.monotonic() >= until:
                    logger.warning(
                        "swift-tiers: others have been taking host memory for %.0f s: going on beside them",
                        TURN_SECONDS,
                    )
                    return
            self._runner.sleep(_LOOK_SECONDS)

    def _read(self) -> list[_Share]:
        """What was noted; nothing where it cannot be read: then each measures for itself."""
        if self._file is None:
            return []
        try:
            return msgspec.json.decode(os.pread(self._file, _FILE_BYTES, 0), type=list[_Share])
        except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
            return []  # new, or of a process that was killed while it wrote

    def _write(self, shares: list[_Share]) -> bool:
        """Whether it could be written."""
        if self._file is None:
            return False
        try:
            os.ftruncate(self._file, os.pwrite(self._file, msgspec.json.encode(shares), 0))
        except OSError as error:
            logger.info("swift-tiers: other ranks are not told how much host memory to take: %s", error)
            return False
        return True


def _open_file(directory: Path) -> int:
    """Raises ConfigError or OSError where there is no directory of this user alone, and none can be made."""
    folder = open_private_directory(directory, "bus.directory", create=True)
    try:
        return os.open(_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
