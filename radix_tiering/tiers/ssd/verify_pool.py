"""Threads that verify units beside the I/O thread, for devices that are faster than one thread can compute checksums.

xxh3-128 of a large buffer runs without the interpreter lock, so it overlaps with everything else; what remains per
unit is the price of handing it over. Therefore units go over in lists, and a handful is not worth it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...base.runner import Runner
from ..tier import ReadOutcome
from .layout import SlotPlace
from .transfers import PageRead, verify_unit

logger = logging.getLogger(__name__)


class ReadUnit(NamedTuple):
    """A unit that has been read and not yet been verified."""

    transfer: PageRead
    number: int
    device: int
    place: SlotPlace
    block: bytes  # its header
    payload: np.ndarray

    def verify(self, unit_bytes: int) -> ReadOutcome:
        return verify_unit(
            self.transfer.stored,
            self.number,
            self.transfer.namespace_id,
            unit_bytes,
            self.place,
            self.block,
            self.payload,
        )


class VerifyPool:
    """Used by the I/O thread alone; `ready` is called on a pool thread when there are new `results`."""

    #: Fewer units than this are verified sooner by whoever has them.
    WORTH = 3

    def __init__(self, threads: int, ready: Callable[[], None], runner: Runner) -> None:
        self._ready = ready
        self._jobs = runner.queue()  # of (units, unit bytes), and None at the end
        self.results: deque[tuple[ReadUnit, ReadOutcome]] = deque()
        self._threads = [runner.thread(self._run, f"ssd-verify-{number}") for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def verify(self, units: Sequence[ReadUnit], unit_bytes: int) -> None:
        """Verify all, spread over the threads; each comes back in `results`."""
        share = -(-len(units) // len(self._threads))
        for start in range(0, len(units), share):
            self._jobs.put((units[start : start + share], unit_bytes))

    def close(self) -> None:
        """End the threads once they have done what they were given."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            units: Sequence[ReadUnit]
            units, unit_bytes = job
            for unit in units:
                try:
                    outcome = unit.verify(unit_bytes)
                except Exception:
                    # What cannot be verified is not served.
                    logger.exception("verifying a unit failed")
                    outcome = ReadOutcome.CHECKSUM
                self.results.append((unit, outcome))
            self._ready()
