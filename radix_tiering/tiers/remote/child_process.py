"""The process that an engine lives in, begun here or met: ranks of a server that are on one machine have one.

Nobody is told who begins it. The name of a socket can be bound once: who binds it begins the process, which alone
listens there from then on, and the others connect. When the process dies the name is free, and the next one begins the
same way. It has one slab for all of them, of which each sees what is its own.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec
import numpy as np

from ...base.memory import shared_array
from ...base.starter import Starter
from .messages import MOST_BYTES, Begin, FromChild, LetIn, peer_user, widen

#: How long a process that was killed is waited for, seconds: a guard, the kernel takes no longer.
KILL_SECONDS = 10.0
#: How long one that has been begun elsewhere may take until it listens, seconds, and between two looks.
MEET_SECONDS, LOOK_SECONDS = 5.0, 0.05
#: Characters of a socket's name.
_NAME = 32


class ChildMeeting(NamedTuple):
    """What ranks have in common that share a process."""

    key: str  # of theirs alone
    places: int  # how many they are

    @classmethod
    def of_siblings(cls, places: int) -> ChildMeeting:
        """Of the processes that have been started by the one that started this one."""
        # Two containers may share the network, and count processes alike.
        return cls(f"{os.getuid()} {Starter.of_this_process().key}", places)

    def address(self, begin: bytes) -> str:
        """Of the socket, in the abstract namespace; another one for each of what is to be begun."""
        digest = hashlib.blake2b(f"{self.key} {self.places} ".encode() + begin).hexdigest()
        return f"\0swift-remote-{digest[:_NAME]}"


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

    def __init__(self, begin: Begin, places: int = 1, listener: socket.socket | None = None) -> None:
        """`listener`: where other ranks of the `places` connect. Raises OSError where no process or memory is to be
        had."""
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
                passed = [other.fileno(), memory, *([listener.fileno()] if listener is not None else [])]
                words = [os.getpid(), places, *passed]
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "swift_tiers.radix_tiering.tiers.remote.child", *map(str, words)],
                    pass_fds=passed,
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

    def how_it_ended(self) -> str:
        """Once it has."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with {code}"


class MetProcess:
    """Begun by another rank; whoever has lost patience with it may kill it all the same."""

    def __init__(self, begin: bytes, address: str) -> None:
        """`begin`: a `Begin`, encoded. Raises OSError where nobody listens at `address`, or lets this one in."""
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closed_on_error(self.connection):
            widen(self.connection)
            self.connection.settimeout(MEET_SECONDS)
            self.connection.connect(address)
            if peer_user(self.connection) != os.getuid():
                raise PermissionError(f"another user listens at {address[1:]}")
            self.connection.send(begin)
            raw, passed, _, _ = socket.recv_fds(self.connection, MOST_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
            said = msgspec.msgpack.decode(raw, type=FromChild) if raw else None
            if not isinstance(said, LetIn) or len(passed) != 2:
                for descriptor in passed:
                    os.close(descriptor)
                raise ConnectionError(getattr(said, "reason", "it ends"))
            self.connection.settimeout(None)
        memory, self._process = passed
        #: This rank's slots: uint8 [slots, stride].
        self.memory = _slots(memory, msgspec.msgpack.decode(begin, type=Begin), os.fstat(memory).st_size, said.place)
        os.close(memory)
        self.pid = said.pid
        self._lock = threading.Lock()

    def kill(self) -> None:
        """As of `OwnProcess`; of all ranks that have it."""
        with self._lock:
            if self._process < 0:
                return
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
                select.select([self._process], [], [], KILL_SECONDS)
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
    encoded = msgspec.msgpack.encode(begin)
    address, until = meeting.address(encoded), time.monotonic() + MEET_SECONDS
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                listener.listen(meeting.places)
                return OwnProcess(begin, meeting.places, listener)
        try:
            return MetProcess(encoded, address)
        except OSError:  # it does not listen yet, or is ending
            if time.monotonic() > until:
                raise
        time.sleep(LOOK_SECONDS)
