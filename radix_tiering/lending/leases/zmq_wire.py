"""Letters over ZeroMQ: a donor's ROUTER socket, and a DEALER socket to each donor that a borrower talks to."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from ...base.errors import ConfigError
from ...base.poller import Waker
from ...base.private_directory import LEASE_DIRECTORY, open_private_directory
from .addresses import ipc_path, leave_path, take_path
from .effects import Send
from .messages import (
    MAX_LETTER_BYTES,
    GarbledError,
    Letter,
    Party,
    Reason,
    Refuse,
    VersionError,
    decode,
    encode,
)
from .wire import BorrowerGone, DonorGone, DonorRefuses, Event, FromBorrower, FromDonor, Wire

# ---- notices the end of other processes at once, by the kernel's word ----


class ProcessWatch:
    """Has a poller wake when a process has ended, with all its threads and open files.

    Not for processes in another PID namespace, which have no number here: their leases end by time.
    """

    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self._descriptors: dict[int, int] = {}  # by process

    def add(self, process: int) -> None:
        """Watch a process, if that can be done. Raises ProcessLookupError if it has ended already."""
        if process <= 0 or process in self._descriptors:
            return
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            raise
        except OSError:
            return  # a sandbox does not allow it
        self._descriptors[process] = descriptor
        self._poller.register(descriptor, zmq.POLLIN)

    def ended(self, ready: dict[object, int]) -> list[int]:
        """The processes that have ended, by what the poller says is ready. They are watched no more."""
        processes = [process for process, descriptor in self._descriptors.items() if descriptor in ready]
        for process in processes:
            self.drop(process)
        return processes

    def drop(self, process: int) -> None:
        descriptor = self._descriptors.pop(process, None)
        if descriptor is not None:
            self._poller.unregister(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        for process in list(self._descriptors):
            self.drop(process)


#: Letters that wait in either direction of one connection. What does not fit is dropped by its sender: the protocol
#: says everything again that matters, and what waits for long is not worth much.
QUEUED_LETTERS = 64
#: A frame beyond this ends its connection, before ZeroMQ has taken it all into memory.
MAX_FRAME_BYTES = 2 * MAX_LETTER_BYTES
#: Borrowers that a donor has ways to, the least recently heard forgotten first. More than may have sessions.
MAX_ROUTES = 256
#: Letters taken from one socket before the others get their turn.
_BATCH = 64
#: How long closing waits for the last letters to leave, milliseconds.
_LINGER_MS = 100
#: How soon, and at last how seldom, a connection is tried again, milliseconds.
_RECONNECT_MS, _RECONNECT_MAX_MS = 50, 1000

_Socket = zmq.Socket[bytes]


class _Route(NamedTuple):
    identity: bytes
    process: int  # at the other end, by the word of the kernel, not by its own


class Dealer:
    """The way to one donor."""

    def __init__(self, socket: _Socket) -> None:
        self.socket = socket
        self.party: Party | None = None  # who answered last

    def close(self) -> None:
        """For one that is not to be used after all."""
        self.socket.close(0)


class ZmqWire(Wire[Dealer]):
    """All sockets of one server."""

    def __init__(self) -> None:
        super().__init__()
        self._context: zmq.Context[_Socket] = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._watch = ProcessWatch(self._poller)
        self._parties: dict[int, set[BorrowerGone | DonorGone]] = {}  # by process: what to say when it has ended
        self._waker = Waker()
        self._poller.register(self._waker.descriptor, zmq.POLLIN)
        self._router: _Socket | None = None
        self._party: Party | None = None
        self._path: Path | None = None
        self._lock: int | None = None
        self._routes: OrderedDict[Party, _Route] = OrderedDict()
        self._dealers: dict[str, Dealer] = {}

    def listen(self, address: str, party: Party) -> None:
        path = ipc_path(address)
        os.close(open_private_directory(path.parent, LEASE_DIRECTORY, create=True))
        self._lock, self._path = take_path(path), path
        self._router = self._socket(zmq.ROUTER)
        # A letter to nobody is an error then, and counted, instead of lost without a word.
        self._router.router_mandatory = True
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{LEASE_DIRECTORY}: cannot listen at {address} ({error.strerror}); name another"
            ) from None
        os.chmod(path, 0o600)
        self._party = party
        self._poller.register(self._router, zmq.POLLIN)

    def dial(self, address: str) -> Dealer:
        path = ipc_path(address)
        os.close(open_private_directory(path.parent, LEASE_DIRECTORY, create=True))
        socket = self._socket(zmq.DEALER)
        # No letter waits for a donor that is not there: it would come too late to mean anything.
        socket.immediate = True
        socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS, _RECONNECT_MAX_MS
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ConfigError(f"{LEASE_DIRECTORY}: cannot use {address} ({error.strerror}); name another") from None
        return Dealer(socket)

    def add(self, donor: str, dealer: Dealer) -> None:
        self._drop(donor)  # it may have been left and joined again within one round
        self._dealers[donor] = dealer
        self._poller.register(dealer.socket, zmq.POLLIN)

    def keep(self, donors: Collection[str]) -> None:
        for donor in [name for name in self._dealers if name not in donors]:
            self._drop(donor)

    def _drop(self, donor: str) -> None:
        dealer = self._dealers.pop(donor, None)
        if dealer is not None:
            self._answers(dealer, None)
            self._poller.unregister(dealer.socket)
            dealer.socket.close()

    def send(self, send: Send) -> None:
        frames = [encode(send.letter)]
        socket: _Socket | None = None
        if isinstance(send.to, str):
            socket = self._dealers[send.to].socket if send.to in self._dealers else None
        elif send.to in self._routes:
            socket = self._router
            frames.insert(0, self._routes[send.to].identity)
        try:
            if socket is not None:
                socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:
            socket = None
        self.counters["sent" if socket is not None else "dropped"] += 1

    def forget(self, borrower: Party) -> None:
        self._routes.pop(borrower, None)
        self._unwatch(BorrowerGone(borrower))

    def wake(self) -> None:
        self._waker.set()

    def wait(self, seconds: float) -> list[Event]:
        ready = dict(self._poller.poll(math.ceil(max(0.0, seconds) * 1000)))
        if self._waker.descriptor in ready:
            self._waker.clear()
        events: list[Event] = []
        if self._router in ready:
            events += self._from_borrowers()
        for donor, dealer in self._dealers.items():
            if dealer.socket in ready:
                events += self._from_donor(donor, dealer)
        # Letters first: what a process said before its end is still true.
        for process in self._watch.ended(ready):
            for end in self._parties.pop(process, ()):
                events.append(end)
                if isinstance(end, BorrowerGone):
                    self._routes.pop(end.borrower, None)
        return events

    def close(self) -> None:
        self.keep(())
        if self._router is not None:
            self._router.close()
        self._watch.close()
        self._context.term()
        self._waker.close()
        if self._lock is not None and self._path is not None:
            leave_path(self._lock, self._path)

    def _socket(self, kind: int) -> _Socket:
        socket = self._context.socket(kind)
        socket.linger = _LINGER_MS
        socket.sndhwm = socket.rcvhwm = QUEUED_LETTERS
        socket.maxmsgsize = MAX_FRAME_BYTES
        return socket

    def _from_borrowers(self) -> Iterable[Event]:
        router = self._router
        assert router is not None
        for frames in _received(router):
            process = _process(frames[-1])
            try:
                letter = self._open(frames[1:], process)
            except VersionError:
                assert self._party is not None
                answer = encode(Letter(self._party, 0, Refuse(0, Reason.VERSION)))
                try:
                    router.send_multipart([frames[0].bytes, answer], zmq.NOBLOCK)
                except zmq.ZMQError:
                    self.counters["dropped"] += 1
                continue
            if letter is None or process is None:
                continue
            route = self._routes.get(letter.sender)
            if route is not None and route.process != process:
                self.counters["strangers"] += 1
                continue
            if not self._watched(process, BorrowerGone(letter.sender)):
                continue
            self._routes[letter.sender] = _Route(frames[0].bytes, process)
            self._routes.move_to_end(letter.sender)
            if len(self._routes) > MAX_ROUTES:
                self.forget(next(iter(self._routes)))
            yield FromBorrower(letter)

    def _from_donor(self, donor: str, dealer: Dealer) -> Iterable[Event]:
        for frames in _received(dealer.socket):
            process = _process(frames[-1])
            try:
                letter = self._open(frames, process)
            except VersionError as error:
                yield DonorRefuses(donor, str(error))
                continue
            if letter is None or process is None:
                continue
            if letter.sender.name != donor:
                self.counters["strangers"] += 1
                continue
            if letter.sender != dealer.party:
                self._answers(dealer, letter.sender)
            if self._watched(process, DonorGone(letter.sender)):
                yield FromDonor(letter)

    def _answers(self, dealer: Dealer, party: Party | None) -> None:
        """Another life of the donor answers: the end of the one before is no news any more."""
        if dealer.party is not None:
            self._unwatch(DonorGone(dealer.party))
        dealer.party = party

    def _open(self, frames: list[zmq.Frame], process: int | None) -> Letter | None:
        """The letter in these frames, or None and counted. Raises VersionError, counted as well."""
        if process is None:
            self.counters["strangers"] += 1
            return None
        if len(frames) != 1:
            self.counters["garbled"] += 1
            return None
        if len(frames[0]) > MAX_LETTER_BYTES:
            self.counters["oversized"] += 1
            return None
        try:
            letter = decode(frames[0].bytes)
        except GarbledError:
            self.counters["garbled"] += 1
            return None
        except VersionError:
            self.counters["other version"] += 1
            raise
        self.counters["received"] += 1
        return letter

    def _watched(self, process: int, end: BorrowerGone | DonorGone) -> bool:
        """Whether the sender's process still lives; from now on its end is an event."""
        try:
            self._watch.add(process)
        except ProcessLookupError:
            return False
        if process:  # 0: in another PID namespace
            self._parties.setdefault(process, set()).add(end)
        return True

    def _unwatch(self, end: BorrowerGone | DonorGone) -> None:
        for process, ends in list(self._parties.items()):
            ends.discard(end)
            if not ends:
                del self._parties[process]
                self._watch.drop(process)


def _received(socket: _Socket) -> Iterable[list[zmq.Frame]]:
    for _ in range(_BATCH):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return


def _process(frame: Any) -> int | None:
    """Who sent a frame, by the word of the kernel; None for another user."""
    try:
        words = str(frame.get("Peer-Address")).rsplit(":", 3)  # `localhost:UID:GID:PID`
    except zmq.ZMQError:
        return None
    return int(words[3]) if len(words) == 4 and words[1] == str(os.geteuid()) else None
