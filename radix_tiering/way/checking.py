"""Checksums of pages in host memory, computed beside everything else: on threads "swift-check", many in a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..base.repeats import FaultLogger
from ..base.runner import Runner
from ..tiers.host.host_tier import HostTier

logger = logging.getLogger(__name__)

#: Pages, and bytes of them, that are looked at in one call: the first are known soon, and whoever was cancelled
#: meanwhile is not waited for long.
PAGES_TOGETHER, BYTES_TOGETHER = 64, 32 << 20

#: Told the checksums of pages, in their order; None: they could not be computed.
ChecksDone = Callable[[Sequence[bytes] | None], None]


class _Look(NamedTuple):
    slots: Sequence[int]
    done: ChecksDone


class Checkers:
    """Any thread may ask. Every question is answered once, on a thread of these, which holds no lock."""

    def __init__(self, host: HostTier, checksum_unit: int | None, threads: int, runner: Runner) -> None:
        """`checksum_unit`: see `Tier`."""
        self._host = host
        self._checksum_unit = checksum_unit
        self._runner = runner
        self._fault_logger = FaultLogger(logger)
        self._jobs = runner.queue()  # of `_Look`, and None at the end
        self._unanswered = 0
        self._idle = runner.condition()
        #: Pages that should be asked for together.
        self.together = max(1, min(PAGES_TOGETHER, BYTES_TOGETHER // host.geometry.page_bytes))
        self._threads = [runner.thread(self._run, f"swift-check-{number}") for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def check(self, slots: Sequence[int], done: ChecksDone) -> None:
        """Compute the checksums of the pages in these slots, which the caller keeps."""
        with self._idle:
            self._unanswered += 1
        self._jobs.put(_Look(slots, done))

    def checksums(self, slots: Sequence[int]) -> list[bytes]:
        """Of the pages in these slots, which the caller keeps: by the caller and all threads, a part each. Raises
        RuntimeError where they cannot be computed."""
        answers = self._runner.queue()
        step = -(-len(slots) // (1 + len(self._threads))) or 1
        own, *parts = [slots[start : start + step] for start in range(0, len(slots), step)] or [[]]
        for number, part in enumerate(parts):
            self.check(part, lambda digests, number=number: answers.put((number, digests)))  # type: ignore[misc]
        try:
            found = self._computed(own)
        finally:
            others = dict(answers.get() for _ in parts)  # the caller gives its slots up with what is raised
        for number in range(len(parts)):
            if others[number] is None:
                raise RuntimeError("checksums of pages in host memory could not be computed")
            found += others[number]
        return found

    def _computed(self, slots: Sequence[int]) -> list[bytes]:
        return self._host.checksums(slots, self._checksum_unit)

    def wait_idle(self) -> None:
        """Wait until nothing is left to be answered."""
        with self._idle:
            self._idle.wait_for(lambda: not self._unanswered)

    def close(self, timeout: float | None = None) -> None:
        """End the threads once they have answered everything; those that have not after `timeout` seconds are left to
        themselves. What is asked from now on is not answered."""
        for _ in self._threads:
            self._jobs.put(None)
        until = None if timeout is None else self._runner.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - self._runner.monotonic()))

    def _run(self) -> None:
        while (look := self._jobs.get()) is not None:
            digests = None
            try:
                digests = self._computed(look.slots)
            except Exception:
                self._fault_logger.exception("swift-tiers: checksums of pages in host memory could not be computed")
            try:
                look.done(digests)
            except Exception:
                self._fault_logger.exception("swift-tiers: whoever asked for checksums of pages raised")
            with self._idle:
                self._unanswered -= 1
                if not self._unanswered:
                    self._idle.notify_all()
