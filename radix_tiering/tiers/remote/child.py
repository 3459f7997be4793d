"""The child that an engine lives in: `python -m ...child OWNER_PID PLACES SOCKET MEMORY [LISTENER]`, the last three
descriptors.

It imports the driver, opens the engine, and does what it is asked on a few threads: a read that hangs delays neither
questions nor writes. It serves as many ranks as there are places, each with slots of its own. It ends with its owner,
however that ends.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from ...base.memory import collapse, shared_array
from .engine import Driver, EngineJob, OpenDriver, Verb
from .messages import MOST_BYTES, Begin, Failed, JobDone, LetIn, Ready, peer_user, widen

PR_SET_PDEATHSIG = 1
#: How long one that connects may take to say what it wants, and how long nobody is let in where that failed, seconds.
JOIN_SECONDS, REST_SECONDS = 5.0, 0.2
#: Threads for each verb and rank.
LANES: dict[Verb, int] = {"exists": 1, "get": 2, "put": 2}
#: Characters of an error that are told.
REASON = 300
#: Different errors that are logged: an engine may put an object's name into each.
MOST_REASONS = 50

logger = logging.getLogger(__name__)


class _Rank:
    """One that has the engine."""

    def __init__(self, connection: socket.socket, place: int, slots: int) -> None:
        self.connection = connection
        self.place = place
        self.first = place * slots  # of its slots
        self.users = 1  # of its place: who listens to it, and its jobs that are under way
        self._lock = threading.Lock()

    def say(self, message: Ready | JobDone | Failed) -> None:
        with self._lock, suppress(OSError):  # it has ended
            self.connection.send(msgspec.msgpack.encode(message))


class _Child:
    def __init__(self, begin: bytes, places: int, memory: int) -> None:
        self._begin = begin
        self._slots = msgspec.msgpack.decode(begin, type=Begin).slots
        self._places = places
        self._memory = memory
        self._lock = threading.Lock()
        self._ranks: dict[int, _Rank] = {}  # by place
        self._driver: Driver | None = None
        self._reasons: set[str] = set()  # that are in the log
        self._lanes = {
            verb: ThreadPoolExecutor(count * places, f"swift-{verb}", self._begin_lane, (verb,))
            for verb, count in LANES.items()
        }

    # ---- ranks ----

    def _free_place(self) -> int | None:
        with self._lock:
            return next((place for place in range(self._places) if place not in self._ranks), None)

    def add(self, connection: socket.socket, place: int) -> _Rank:
        """It has the slots of this place, which is free."""
        with self._lock:
            rank = self._ranks[place] = _Rank(connection, place, self._slots)
            if self._driver is not None:
                rank.say(Ready())
        return rank

    def _leave(self, rank: _Rank) -> None:
        """One user less. When nobody writes to its slots any more, another rank may have them."""
        with self._lock:
            rank.users -= 1
            if not rank.users:
                del self._ranks[rank.place]
                rank.connection.close()

    def welcome(self, listener: socket.socket) -> None:
        """Let those in that connect, as long as there are places, and serve each on a thread of its own."""
        process = os.pidfd_open(os.getpid())
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:  # no descriptor is free, as a rule
                self._log_once(f"no rank can be let in: {error}")
                time.sleep(REST_SECONDS)
                continue
            try:
                connection.settimeout(JOIN_SECONDS)
                reason, place = self._why_not(connection), self._free_place()
                if not reason and place is not None:
                    said = msgspec.msgpack.encode(LetIn(place, os.getpid()))
                    socket.send_fds(connection, [said], [self._memory, process])
                    connection.settimeout(None)
                    rank = self.add(connection, place)
                    try:
                        threading.Thread(target=self.serve, args=(rank,), daemon=True).start()
                    except RuntimeError:
                        self._leave(rank)
                        raise
                    continue
                reason = reason or f"its {self._places} places are taken"
                connection.send(msgspec.msgpack.encode(Failed(reason)))
            except (OSError, RuntimeError) as error:  # no thread can be started, either
                logger.warning("swift-tiers: remote: a rank could not be let in: %s", error)
            connection.close()

    def _why_not(self, connection: socket.socket) -> str:
        if peer_user(connection) != os.getuid():
            return "it is another user's"
        widen(connection)
        if connection.recv(MOST_BYTES) != self._begin:
            return "the engine was begun with something else"
        return ""

    def opened(self, driver: Driver) -> None:
        with self._lock:
            self._driver = driver
            for rank in self._ranks.values():
                rank.say(Ready())

    def failed(self, reason: str) -> None:
        with self._lock:
            for rank in self._ranks.values():
                rank.say(Failed(reason))

    # ---- jobs ----

    def _begin_lane(self, verb: Verb) -> None:
        """Where the engine's client waits by asking over and over, whoever has something to do comes first: the node on
        the same machine, and the forward. Not from a processor that nobody wants is anything taken."""
        assert self._driver is not None
        if verb != "exists" and self._driver.spins:
            with suppress(OSError):  # it may not: then it spins as others do
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    def serve(self, rank: _Rank) -> None:
        """Until the rank ends."""
        decoder = msgspec.msgpack.Decoder(EngineJob)
        try:
            with suppress(ConnectionError):
                while raw := rank.connection.recv(MOST_BYTES):
                    job = decoder.decode(raw)
                    with self._lock:
                        rank.users += 1
                    self._lanes[job.verb].submit(self._do, rank, job)
        finally:
            self._leave(rank)

    def _do(self, rank: _Rank, job: EngineJob) -> None:
        assert self._driver is not None
        answers, reason = list[bool](), ""
        try:
            done = self._ask(self._driver, job, [rank.first + slot for slot in job.slots])
            answers = [bool(one) for one in done][: len(job.names)]
        except Exception as error:  # noqa: BLE001 - the engine's, whatever it is: a miss
            reason = f"{job.verb}: {error!r}"[:REASON]
            self._log_once(reason)
        rank.say(JobDone(job.number, answers + [False] * (len(job.names) - len(answers)), reason))
        self._leave(rank)

    def _log_once(self, reason: str) -> None:
        """The same is not logged for every job: an engine that fails may be asked a hundred times a second."""
        with self._lock:
            if reason in self._reasons or len(self._reasons) >= MOST_REASONS:
                return
            self._reasons.add(reason)
        logger.warning("swift-tiers: remote: %s; the same is not logged again", reason)

    @staticmethod
    def _ask(driver: Driver, job: EngineJob, slots: Sequence[int]) -> Sequence[bool]:
        if job.verb == "exists":
            return [True] * driver.exists(job.names)
        return (driver.get if job.verb == "get" else driver.put)(job.names, slots)


def _first_cause(error: BaseException) -> BaseException:
    """What a driver's own words may hide."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _end_with(owner: int) -> None:
    """Be killed when the owner ends, though the driver hangs."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) or os.getppid() != owner:
        os._exit(1)


def main(owner: int, places: int, connected: int, memory: int, listener: int = -1) -> None:
    _end_with(owner)
    os.umask(0o077)  # engines of files make them for everybody to read
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=connected)
    raw = connection.recv(MOST_BYTES)
    if not raw:
        os._exit(0)
    begin = msgspec.msgpack.decode(raw, type=Begin)
    child = _Child(raw, places, memory)
    first = child.add(connection, 0)
    if listener >= 0:
        threading.Thread(target=child.welcome, args=(socket.socket(fileno=listener),), daemon=True).start()
    try:
        slots = shared_array(memory, places * begin.slots * begin.stride).reshape(-1, begin.stride)
        collapse(slots)  # all that passes is copied to here, and sent from here
        module, _, name = begin.driver.partition(":")
        open_driver: OpenDriver = getattr(importlib.import_module(module), name)
        child.opened(open_driver(begin.engine, begin.options, slots))
    except BaseException as error:
        cause = _first_cause(error)
        logger.error(
            "swift-tiers: remote: %s cannot be opened: %r; see remote.options, and what `swift-tiers doctor` says",
            begin.engine,
            cause,
        )
        logger.debug("swift-tiers: remote: %s cannot be opened", begin.engine, exc_info=True)
        child.failed(f"{cause!r}: {begin.engine} cannot be opened: {error}"[:REASON])
        os._exit(1)
    child.serve(first)
    # Not in order: what the driver does at its end may hang, and its threads too.
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
