"""The child that an engine lives in: `python -m ...child OWNER_PID SOCKET MEMORY`, the latter two descriptors.

It imports the driver, opens the engine, and does what it is asked on a few threads: a read that hangs delays neither
questions nor writes. It ends with its owner, however that ends.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from .engine import Driver, EngineJob, OpenDriver, Verb
from .messages import MOST_BYTES, Begin, Failed, JobDone, Ready

PR_SET_PDEATHSIG = 1
#: Threads for each verb.
LANES: dict[Verb, int] = {"exists": 1, "get": 2, "put": 1}
#: Characters of an error that are told.
REASON = 300

logger = logging.getLogger(__name__)


class _Child:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._lanes = {verb: ThreadPoolExecutor(count, f"swift-{verb}") for verb, count in LANES.items()}

    def say(self, message: Ready | JobDone | Failed) -> None:
        with self._lock:
            self._connection.send(msgspec.msgpack.encode(message))

    def serve(self, driver: Driver) -> None:
        self.say(Ready())
        decoder = msgspec.msgpack.Decoder(EngineJob)
        while raw := self._connection.recv(MOST_BYTES):
            job = decoder.decode(raw)
            self._lanes[job.verb].submit(self._do, driver, job)

    def _do(self, driver: Driver, job: EngineJob) -> None:
        try:
            done = self._ask(driver, job)
        except Exception as error:  # noqa: BLE001 - the engine's, whatever it is: a miss
            logger.warning("swift-tiers: remote: %s of %d objects: %r", job.verb, len(job.names), error)
            done = ()
        answers = [bool(one) for one in done][: len(job.names)]
        self.say(JobDone(job.number, answers + [False] * (len(job.names) - len(answers))))

    @staticmethod
    def _ask(driver: Driver, job: EngineJob) -> Sequence[bool]:
        if job.verb == "exists":
            return [True] * driver.exists(job.names)
        return (driver.get if job.verb == "get" else driver.put)(job.names, job.slots)


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


def main(owner: int, connected: int, memory: int) -> None:
    _end_with(owner)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=connected)
    child = _Child(connection)
    raw = connection.recv(MOST_BYTES)
    if not raw:
        os._exit(0)
    begin = msgspec.msgpack.decode(raw, type=Begin)
    size = begin.slots * begin.stride
    slots = np.frombuffer(mmap.mmap(memory, size), np.uint8).reshape(begin.slots, begin.stride)
    try:
        module, _, name = begin.driver.partition(":")
        open_driver: OpenDriver = getattr(importlib.import_module(module), name)
        driver = open_driver(begin.engine, begin.options, slots)
    except BaseException as error:
        logger.exception("swift-tiers: remote: %s cannot be opened", begin.engine)
        child.say(Failed(f"{_first_cause(error)!r}: {begin.engine} cannot be opened: {error}"[:REASON]))
        os._exit(1)
    child.serve(driver)
    # Not in order: what the driver does at its end may hang, and its threads too.
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
