"""What would take its caller too long, done one after the other on a thread of its own.

An errand is a generator that returns its outcome. What it does between two yields is short; after each, others have
their turn at the locks that it took.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator

from .errors import SwiftTiersError
from .runner import Lock, Runner, Thread

logger = logging.getLogger(__name__)

Errand = Generator[None, None, object]
#: Gets what the errand returned, as text, or why it was not carried out. Called once, on any thread.
Answer = Callable[[str | SwiftTiersError], None]

#: After each step, seconds: a lock that is taken again at once may never reach those who wait for it.
PAUSE = 0.0002
ENDING = "the server is ending"


class _Job:
    """An errand and whom to tell."""

    def __init__(self, errand: Errand, answer: Answer, lock: Lock) -> None:
        self.errand = errand
        self._answer: Answer | None = answer
        self._lock = lock

    def answer(self, outcome: str | SwiftTiersError) -> None:
        """The first one counts: an errand that hangs may come back after its end has been told."""
        with self._lock:
            answer, self._answer = self._answer, None
        if answer is None:
            return
        try:
            answer(outcome)
        except Exception:
            logger.exception("swift-tiers: whoever waited for an errand raised")


class ErrandThread:
    """Any thread may use it. The thread starts with the first errand."""

    def __init__(self, runner: Runner, name: str = "swift-errand") -> None:
        self._runner = runner
        self._name = name
        self._wake = runner.condition()
        self._jobs: deque[_Job] = deque()
        self._under_way: _Job | None = None
        self._ending = False
        self._thread: Thread | None = None

    def start(self, errand: Errand, answer: Answer = lambda outcome: None) -> None:
        """Carry `errand` out when those before it are done; returns at once. An error it raises becomes its answer."""
        job = _Job(errand, answer, self._runner.lock())
        with self._wake:
            if not self._ending:
                self._jobs.append(job)
                if self._thread is None:
                    self._thread = self._runner.thread(self._run, self._name)
                    self._thread.start()
                self._wake.notify_all()
                return
        job.answer(SwiftTiersError(ENDING))

    def wait_idle(self, timeout: float) -> bool:
        """Wait until there is nothing left to do; False on timeout."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._jobs and self._under_way is None, timeout)

    def close(self, timeout: float) -> None:
        """End the errand under way after its step, begin no other, and tell everybody who waits. Idempotent.

        A step that has not ended after `timeout` seconds is left to itself.
        """
        with self._wake:
            self._ending = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
        with self._wake:
            left = [job for job in (self._under_way, *self._jobs) if job is not None]
            self._jobs.clear()
        for job in left:
            job.answer(SwiftTiersError(ENDING))

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._ending:
                    self._wake.wait()
                if self._ending:
                    return
                self._under_way = job = self._jobs.popleft()
            job.answer(self._carry_out(job.errand))
            with self._wake:
                self._under_way = None
                self._wake.notify_all()

    def _carry_out(self, errand: Errand) -> str | SwiftTiersError:
        try:
            while not self._ending:
                next(errand)
                self._runner.sleep(PAUSE)
            return SwiftTiersError(ENDING)
        except StopIteration as end:
            return str(end.value)
        except SwiftTiersError as error:
            return error
        except Exception as error:
            logger.exception("swift-tiers: an errand failed")
            return SwiftTiersError(f"internal error: {error!r}")
        finally:
            errand.close()
