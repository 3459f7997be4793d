"""Threads that hang: in a call to a device, a driver or a file system that does not return, or at a lock that nobody
gives back. A thread that hangs tells nobody, and what others see of it is that something takes long.

So one thread looks at all others of ours, and at SGLang's scheduler where that is in code of ours: at where they are,
and at how often the kernel has had them wait and go on. Who does that, or computes, is alive, however long it takes.
Who has been at one place for some looks without either hangs, but for places where threads wait for work. Looks are
counted, not seconds: a process that was stopped comes back to the look that it was at.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import sglang

import swift_tiers.radix_tiering.stack
from swift_tiers.radix_tiering.base import poller, runner
from swift_tiers.radix_tiering.base.repeats import FaultLogger

logger = logging.getLogger(__name__)

#: Seconds between two looks, and so many looks without a step are a hang.
LOOK_SECONDS, LOOKS = 2.0, 5
#: What our threads' names begin with.
PREFIXES = ("swift-", "ssd-")
SCHEDULER = "scheduler"

_OURS = str(Path(swift_tiers.radix_tiering.stack.__file__).parents[1])
_SGLANG = str(Path(sglang.__file__).parent)
#: Where threads wait for work, by file; and of ours that wait in a call of their own, by file and function.
_WAITING = {threading.__file__, poller.__file__, runner.__file__}
_WAITING_IN = {("child_engine.py", "_hear"), ("zmq_wire.py", "wait")}


@dataclass
class _Seen:
    """A thread, as it was when it last took a step."""

    name: str
    steps: int  # how often it has waited, or had to, by then
    looks: int = 0  # since

    @property
    def hangs(self) -> bool:
        """Which has been told, too."""
        return self.looks >= LOOKS


class HangWatch:
    """Made on SGLang's scheduler thread. `look` is for one thread."""

    def __init__(self, stack: Any) -> None:
        """`stack`: the tiers', whose `hung_threads` is kept up to date."""
        self._stack = stack
        self._scheduler = threading.get_ident()
        self._seen: dict[int, _Seen] = {}
        self._stop = threading.Event()
        self._fault_logger = FaultLogger(logger)
        self._thread = threading.Thread(target=self._run, name="swift-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                self._fault_logger.exception("swift-tiers: threads could not be looked at")

    def look(self) -> None:
        """Once at all of them."""
        frames, seen = sys._current_frames(), {}
        for thread in threading.enumerate():
            frame, number = frames.get(thread.ident or 0), thread.native_id
            name = SCHEDULER if thread.ident == self._scheduler else thread.name
            if frame is None or number is None or not (name == SCHEDULER or name.startswith(PREFIXES)):
                continue
            seen[number] = self._look_at(self._seen.get(number), name, number, frame)
        self._seen = seen
        self._stack.hung_threads = sum(one.hangs for one in seen.values())

    def _look_at(self, before: _Seen | None, name: str, number: int, frame: FrameType) -> _Seen:
        steps = _steps(number)
        place = _place(frame, of_sglang=name == SCHEDULER)
        if before is None or before.name != name or place is None or steps is None or steps != before.steps:
            if before is not None and before.hangs:
                self._stack.events.emit("thread.goes_on", thread=before.name)
                logger.warning("swift-tiers: the thread %s, which hung, goes on", before.name)
            return _Seen(name, -1 if steps is None else steps)
        before.looks += 1
        if before.looks == LOOKS:
            seconds = LOOKS * LOOK_SECONDS
            self._stack.events.emit("thread.hangs", thread=name, seconds=seconds, at=_words(place))
            logger.error(
                "swift-tiers: the thread %s has been at %s for %.0f s:\n%s",
                name,
                _words(place),
                seconds,
                "".join(traceback.format_stack(frame)),
            )
        return before


def _steps(number: int) -> int | None:
    """How often a thread has waited and gone on, or been made to, by the kernel's count; None while it computes, or
    could, or where the kernel does not say."""
    try:
        said = dict(
            line.split(":\t", 1) for line in Path(f"/proc/self/task/{number}/status").read_text().splitlines() if line
        )
        if said["State"].startswith("R"):
            return None
        return int(said["voluntary_ctxt_switches"]) + int(said["nonvoluntary_ctxt_switches"])
    except (OSError, KeyError, ValueError):
        return None


def _place(frame: FrameType, *, of_sglang: bool) -> FrameType | None:
    """The innermost frame of ours; None where the thread waits for work, or, of one `of_sglang`, is in SGLang's own
    code or what that calls."""
    at: FrameType | None = frame
    while at is not None and not at.f_code.co_filename.startswith(_OURS):
        if at.f_code.co_filename.startswith(_SGLANG):
            return None
        at = at.f_back
    if of_sglang or at is None:
        return at
    code = at.f_code
    waits = frame.f_code.co_filename in _WAITING or (Path(code.co_filename).name, code.co_name) in _WAITING_IN
    return None if waits else at


def _words(frame: FrameType) -> str:
    """`way/loads.py:123 in _copy`."""
    code = frame.f_code
    return f"{Path(code.co_filename).relative_to(_OURS)}:{frame.f_lineno} in {code.co_name}"
