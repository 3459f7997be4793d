"""The memory that a donor has put at others' disposal, run by run, and how much of it is where."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from .messages import Extents, Party


class RunState(Enum):
    """Where a run is, from `Donor.stock` until it is reclaimed."""

    FENCING = "fencing"  # something here may still use its bytes
    FREE = "free"  # it can be lent
    LENT = "lent"  # a borrower may use it
    RECALLED = "recalled"  # a borrower may use it, and has been asked to return it


class HeldRun(NamedTuple):
    """What a borrower holds by a lease."""

    number: int
    extents: Extents


class LentRun:
    """A list of extents that is lent, and comes back, as one."""

    def __init__(self, number: int, extents: Extents) -> None:
        self.number = number
        self.extents = extents
        self.bytes = sum(extent.length for extent in extents)
        self.state = RunState.FENCING
        # While it is lent:
        self.borrower: Party | None = None
        self.lease = 0
        self.nonce = 0  # of the request it was granted to; 0 once it is renewed
        self.deadline = math.inf
        self.recall_until = math.inf
        self.recall_again = math.inf
        self.pinned = False  # recalled last


class RunTable:
    """All runs. What is asked for each message costs as much as there are different sizes, not as there are runs."""

    def __init__(self) -> None:
        self._runs: dict[RunState, dict[int, LentRun]] = {state: {} for state in RunState}
        self._bytes = dict.fromkeys(RunState, 0)
        self._free: dict[int, dict[int, LentRun]] = {}  # by bytes of a run, then by its number

    def add(self, run: LentRun) -> None:
        self._enter(run)

    def remove(self, run: LentRun) -> None:
        self._leave(run)

    def move(self, run: LentRun, state: RunState) -> None:
        self._leave(run)
        run.state = state
        self._enter(run)

    def get(self, number: int, state: RunState) -> LentRun | None:
        """The run of this number, if it is in this state."""
        return self._runs[state].get(number)

    def find(self, number: int) -> LentRun | None:
        """The run of this number, whatever its state."""
        return next((runs[number] for runs in self._runs.values() if number in runs), None)

    def all_in(self, *states: RunState) -> Iterator[LentRun]:
        """The runs in these states, the first ones first; not to be moved meanwhile."""
        for state in states:
            yield from self._runs[state].values()

    def bytes_in(self, *states: RunState) -> int:
        return sum(self._bytes[state] for state in states)

    def fitting_bytes(self, page_bytes: int) -> int:
        """Bytes of the free runs that are whole pages of this size."""
        return sum(size * len(runs) for size, runs in self._free.items() if size % page_bytes == 0)

    def fitting(self, page_bytes: int) -> Iterator[LentRun]:
        """The free runs that are whole pages of this size."""
        for size, runs in self._free.items():
            if size % page_bytes == 0:
                yield from runs.values()

    def _enter(self, run: LentRun) -> None:
        self._runs[run.state][run.number] = run
        self._bytes[run.state] += run.bytes
        if run.state is RunState.FREE:
            self._free.setdefault(run.bytes, {})[run.number] = run

    def _leave(self, run: LentRun) -> None:
        del self._runs[run.state][run.number]
        self._bytes[run.state] -= run.bytes
        if run.state is RunState.FREE:
            same = self._free[run.bytes]
            del same[run.number]
            if not same:
                del self._free[run.bytes]
