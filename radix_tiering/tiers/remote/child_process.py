"""The process that an engine lives in, begun here or met: ranks of a server that are on one machine have one.

Nobody is told who begins it. They have a socket and a lock beside it, in a directory of this user alone. Whoever has
the lock begins the process, which alone holds it and listens there from then on, and the others connect. When the
process dies the lock is free, and the next one begins the same way. It has one slab for all of them, of which each sees
what is its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from ...base.errors import ConfigError
from ...base.memory import shared_array
from ...base.private_directory import LEASE_DIRECTORY, open_private_directory
from ...base.starter import Starter
from .messages import MOST_BYTES, Begin, FromChild, LetIn, peer_user, widen

logger = logging.getLogger(__name__)

#: How long a process that was killed is waited for, seconds: a guard, the kernel takes no longer.
KILL_SECONDS = 10.0
#: How long one that has been begun elsewhere may take until it listens, seconds, and between two looks.
MEET_SECONDS, LOOK_SECONDS = 5.0, 0.05
#: What names of sockets and of locks begin and end with, and characters between.
_PREFIX, _SOCKET, _LOCK, _NAME = "remote-", ".sock", ".lock", 32


class ChildMeeting(NamedTuple):
    """What ranks have in common that share a process."""

    key: str  # of theirs alone
    places: int  # how many they are
    directory: Path  # of this user alone, where they meet; made where it is not there

    @classmethod
    def of_siblings(cls, places: int, directory: Path) -> ChildMeeting:
        """Of the processes that have been started by the one that started this one."""
        # Two containers may share the directory, and count processes alike.
        return cls(f"{os.getuid()} {Starter.of_this_process().key}", places, directory)

    def name(self, begin: bytes) -> str:
        """Of the socket and the lock, without what they end with; another one for each of what is to be begun."""
        digest = hashlib.blake2b(f"{self.key} {self.places} ".encode() + begin).hexdigest()
        return f"{_PREFIX}{digest[:_NAME]}"


class Door(NamedTuple):
    """What whoever begins a process for others hands on to it, and closes."""

    listener: socket.socket
    lock: int  # held as long as anybody has it open


@contextmanager
def closed_on_error(connection: socket.socket) -> Iterator[None]:
    """Closes it where what follows fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


class OwnProcess:
    """Begun by this one, and ends with it."""

    def __init__(self, begin: Begin, places: int = 1, door: Door | None = None, directory: Path | None = None) -> None:
        """`door`: where other ranks of the `places` come in, and the `directory` that it is in. Raises OSError where no
        process or memory is to be had."""
        self._directory = directory
        memory = os.memfd_create("swift-remote", os.MFD_CLOEXEC)
        size = places * begin.slots * begin.stride
        try:
            os.ftruncate(memory, size)
            #: This rank's slots: uint8 [slots, stride].
            self.memory = _slots(memory, begin, size, 0)
            self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other, closed_on_error(self.connection):
                widen(self.connection)
                widen(other)
                passed = [other.fileno(), memory, *([door.listener.fileno()] if door is not None else [])]
                words = [os.getpid(), places, *passed]
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "swift_tiers.radix_tiering.tiers.remote.child", *map(str, words)],
                    pass_fds=passed if door is None else [*passed, door.lock],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        finally:
            os.close(memory)
        self.pid = self._process.pid
        with closed_on_error(self.connection):
            try:
                self.connection.send(msgspec.msgpack.encode(begin))
            except OSError:  # it has ended already
                self.kill()
                raise

    def kill(self) -> None:
        """A stopped one, too. When this returns it writes nowhere any more, but for one that hangs in the kernel, which
        goes when that lets it: what it may write to is used by nobody else. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_SECONDS)
        if self._directory is not None:
            with suppress(ConfigError, OSError), _opened(self._directory, create=False) as directory:
                _remove_left(directory)

    def how_it_ended(self) -> str:
        """Once it has."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with {code}"


class MetProcess:
    """Begun by another rank; whoever has lost patience with it may kill it all the same."""

    def __init__(self, begin: bytes, path: str) -> None:
        """`begin`: a `Begin`, encoded. Raises OSError where nobody listens at `path`, or lets this one in."""
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closed_on_error(self.connection), ExitStack() as descriptors:
            widen(self.connection)
            self.connection.settimeout(MEET_SECONDS)
            self.connection.connect(path)
            if peer_user(self.connection) != os.getuid():
                raise PermissionError("another user listens there")
            self.connection.send(begin)
            raw, passed, _, _ = socket.recv_fds(self.connection, MOST_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
            for descriptor in passed:
                descriptors.callback(os.close, descriptor)
            said = msgspec.msgpack.decode(raw, type=FromChild) if raw else None
            if not isinstance(said, LetIn) or len(passed) != 2:
                raise ConnectionError(getattr(said, "reason", "it ends"))
            self.connection.settimeout(None)
            memory, process = passed
            size = os.fstat(memory).st_size
            #: This rank's slots: uint8 [slots, stride].
            self.memory = _slots(memory, msgspec.msgpack.decode(begin, type=Begin), size, said.place)
            self._process = os.dup(process)
        self.pid = said.pid
        self._lock = threading.Lock()

    def kill(self) -> None:
        """As of `OwnProcess`; of all ranks that have it."""
        with self._lock:
            if self._process < 0:
                return
            try:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._process, signal.SIGKILL)
                    ended = select.poll()  # which takes a descriptor of any number
                    ended.register(self._process, select.POLLIN)
                    ended.poll(1e3 * KILL_SECONDS)
            finally:
                os.close(self._process)
                self._process = -1

    def how_it_ended(self) -> str:
        """Nobody but its parent knows."""
        return "its process, which another rank began, has ended"


def _slots(memory: int, begin: Begin, size: int, place: int) -> np.ndarray:
    whole = shared_array(memory, size).reshape(-1, begin.stride)
    return whole[place * begin.slots :][: begin.slots]


def begin_or_meet(begin: Begin, meeting: ChildMeeting | None) -> OwnProcess | MetProcess:
    """The process of an engine: of this rank's own without `meeting`, or else the one of all that meet. Raises OSError
    where there is none to be had; may wait for a few seconds."""
    if meeting is None:
        return OwnProcess(begin)
    try:
        with _opened(meeting.directory, create=True) as directory:
            return _begin_or_meet(begin, meeting, directory)
    except ConfigError as error:  # whoever else makes it first must not keep the store from us
        logger.warning("swift-tiers: remote: its ranks have a process each, which takes more memory: %s", error)
        return OwnProcess(begin)


def _begin_or_meet(begin: Begin, meeting: ChildMeeting, directory: int) -> OwnProcess | MetProcess:
    encoded = msgspec.msgpack.encode(begin)
    name, until = meeting.name(encoded), time.monotonic() + MEET_SECONDS
    while True:
        door = _open_door(directory, name, meeting)
        if door is not None:
            with door.listener:
                try:
                    return OwnProcess(begin, meeting.places, door, meeting.directory)
                finally:
                    os.close(door.lock)
        try:
            return MetProcess(encoded, _socket_path(directory, name))
        except OSError:  # it does not listen yet, or is ending
            if time.monotonic() > until:
                raise
        time.sleep(LOOK_SECONDS)


def _open_door(directory: int, name: str, meeting: ChildMeeting) -> Door | None:
    """None where another one has it. Raises ConfigError where the directory can have none."""
    try:
        _remove_left(directory)
        lock = _locked(directory, name)
        if lock is None:
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            _unlink(directory, f"{name}{_SOCKET}")
            listener.bind(_socket_path(directory, name))
            os.chmod(_socket_path(directory, name), 0o600)
            listener.listen(meeting.places)
        except BaseException:
            listener.close()
            os.close(lock)
            raise
    except OSError as error:
        where = f"{LEASE_DIRECTORY}: {meeting.directory}"
        raise ConfigError(f"{where} can have no socket ({error.strerror}); name another") from None
    return Door(listener, lock)


def _socket_path(directory: int, name: str) -> str:
    """Short enough for a socket, whatever the directory is called."""
    return f"/proc/self/fd/{directory}/{name}{_SOCKET}"


@contextmanager
def _opened(directory: Path, *, create: bool) -> Iterator[int]:
    """A descriptor of a directory of this user alone. Raises ConfigError where it is none."""
    opened = open_private_directory(directory, LEASE_DIRECTORY, create=create)
    try:
        yield opened
    finally:
        os.close(opened)


def _locked(directory: int, name: str) -> int | None:
    """A descriptor of the lock, which is held until all that were made of it are closed; None where somebody has it,
    or has just removed it. Raises OSError where there can be none."""
    lock = os.open(f"{name}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(f"{name}{_LOCK}", dir_fd=directory), os.fstat(lock)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _remove_left(directory: int) -> None:
    """What processes have left there that have ended: nobody else takes their names."""
    for file in os.listdir(f"/proc/self/fd/{directory}"):
        if not (file.startswith(_PREFIX) and file.endswith(_LOCK)):
            continue
        name = file.removesuffix(_LOCK)
        with suppress(OSError):
            if (lock := _locked(directory, name)) is not None:
                try:
                    _unlink(directory, f"{name}{_SOCKET}")
                    _unlink(directory, file)  # while it is held: who opens it then sees that it is not the one
                finally:
                    os.close(lock)


def _unlink(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
