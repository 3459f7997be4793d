"""Runs checks in a child process, so that one that hangs or crashes costs its own line and nothing else.

A thread would not do: a driver may hang with the interpreter's lock held, a dead mount holds its thread beyond the end
of the program, and a crash takes the process. The child is forked, runs the checks in order, so that they share slow
imports, and sends each finding as a line of JSON. When it does not answer in time it is killed and the next child goes
on behind the check that it was stuck in.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

import msgspec

from .finding import Check, Finding, wrong

#: Seconds between two calls of `waiting`.
POLL_SECONDS = 0.5
#: Seconds that a killed child is given to disappear. One that is stuck in a device ends when the device answers.
_GONE_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def run_checks(
    checks: Sequence[Check], waiting: Callable[[int, float], None] = lambda index, seconds: None
) -> Iterator[Finding]:
    """The finding of each check, in order. `waiting(index, seconds)` is called while check `index` takes its time.

    For a process that has not started an accelerator: the checks run in forks of it.
    """
    child: _Child | None = None
    try:
        for index, check in enumerate(checks):
            if child is None:
                child = _Child(checks[index:])
            finding = child.receive(check.seconds, partial(waiting, index))
            if finding is None:
                finding = child.explain(check)
                child.end()
                child = None
            yield finding
    finally:
        if child is not None:
            child.end()


class _Child:
    """One forked process that works through `checks`."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._pipe, write = os.pipe()
        self._received = b""
        self._closed = False  # it has ended by itself
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _work(checks, write)
        os.close(write)

    def receive(self, seconds: float, waiting: Callable[[float], None]) -> Finding | None:
        """The next finding; None if none came within `seconds` or the child has ended."""
        start = time.monotonic()
        while b"\n" not in self._received:
            left = start + seconds - time.monotonic()
            if left <= 0:
                return None
            if not select.select([self._pipe], [], [], min(left, POLL_SECONDS))[0]:
                waiting(time.monotonic() - start)
                continue
            piece = os.read(self._pipe, 65536)
            if not piece:
                self._closed = True
                return None
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return msgspec.json.decode(line, type=Finding)

    def explain(self, check: Check) -> Finding:
        """Why there is no finding of `check`."""
        if not self._closed:
            return wrong(
                f"no answer within {check.seconds:g} s",
                "look at what is behind it (`dmesg`, the mount, the network, the driver), then run doctor again",
            )
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = 0
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return wrong(f"check failed: its process {how}", "look at `dmesg` for the cause, then run doctor again")

    def end(self) -> None:
        """Kill it and what it has started. Never waits for longer than `_GONE_SECONDS`."""
        os.close(self._pipe)
        if not self._pid:
            return
        for kill in (os.killpg, os.kill):  # the group may not be there yet
            try:
                kill(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + _GONE_SECONDS
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.005)


def _work(checks: Sequence[Check], write: int) -> NoReturn:
    """The child's whole life."""
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is the parent's business, and `end` reaches what a check has started
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # What SGLang and torch say while they are imported would go through the table.
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until the end
        for check in checks:
            _send(write, msgspec.json.encode(_run(check)) + b"\n")
        code = 0
    finally:
        os._exit(code)


def _send(write: int, line: bytes) -> None:
    while line:
        line = line[os.write(write, line) :]


def _run(check: Check) -> Finding:
    try:
        return check.run()
    except BaseException as error:  # noqa: BLE001 - whatever it is (SystemExit of an import too), it is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = " ".join(str(error).split())
        return wrong(
            f"check failed: {type(error).__name__}: {detail} ({os.path.basename(where.filename)}:{where.lineno})",
            "run doctor again; if it stays, report this line",
        )
