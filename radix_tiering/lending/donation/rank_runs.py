"""What is out of one rank's pool, where the ranks of a server lend together: the same runs on all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from typing import Protocol

from ...base.errors import SwiftTiersError
from ..leases.effects import BorrowerJoined, BorrowerLeft, DonorEffect, Reclaimed
from ..leases.messages import Party
from ..leases.runs import RunState
from ..leases.sharing import elastic_unit
from .extents import PoolLayout, Span
from .fenced import Copying, Fence, FencedRuns, ReturningRuns, ReturnsAwaited
from .gathering import PagePool
from .lender import Lending


class PoolsDifferError(SwiftTiersError):
    """Ranks have not as much free as each other any more, or cannot do what the first one has done."""


class RankLending(Lending, Protocol):
    """What ranks that lend together want of a `LeaseService` with a donor beyond `Lending`."""

    def to_withdraw(self, wanted_bytes: int) -> list[int]: ...
    def withdraw_runs(self, runs: Collection[int]) -> None: ...
    def unused(self) -> list[int]: ...


class Word(IntEnum):
    """What the leading rank has every rank do."""

    ARRANGE = 0  # span_pages
    EVICT = 1  # pages, kept
    TAKE = 2  # spans, found by the leading rank
    PUT_BACK = 3  # names of spans
    STOCK = 4  # run, names of spans
    WITHDRAW = 5  # runs
    LIMIT = 6  # bytes, or -1
    MEASURE = 7  # bytes of a run


class RankRuns:
    """Does to one rank's pool and donor what is done to all ranks'.

    Ranks call a span by the same name, a number, wherever it lies in each one's pool: only how much is free has to be
    equal. A run that has come back here stays out of the pool until it is back on every rank. Scheduler's thread.
    """

    def __init__(
        self,
        pool: PagePool,
        layout: PoolLayout,
        lending: RankLending,
        effects: deque[DonorEffect],
        *,
        fence: Fence,
        copying: Copying,
    ) -> None:
        """See `Lender`."""
        self.pool = pool
        self.layout = layout
        self.lending = lending
        self._effects = effects
        #: Spans by their names, by runs; `_loose`: of no run.
        self.runs: dict[int, dict[int, Span]] = {}
        self._loose: dict[int, Span] = {}
        self._last_name = 0
        #: Runs that every rank has been told to take back.
        self.coming: set[int] = set()
        self._returning = ReturningRuns(copying)  # reclaimed by the leases; a copy there may be under way yet
        self._back: set[int] = set()
        self._awaited = ReturnsAwaited()
        self._units: dict[Party, int] = {}  # bytes, of each borrower
        self._leaving = FencedRuns(fence)
        #: Bytes of a run, as runs are cut now; 0: none are.
        self.run_bytes = 0

    # ---- what this rank knows by itself ----

    def hear(self) -> None:
        """Take in what the leases have told, and offer what no forward uses any more."""
        reclaimed: list[int] = []
        while self._effects:
            effect = self._effects.popleft()
            if isinstance(effect, Reclaimed):
                reclaimed.append(effect.run)
            elif isinstance(effect, BorrowerJoined):
                self._units[effect.borrower] = effect.unit_bytes
            elif isinstance(effect, BorrowerLeft):
                self._units.pop(effect.borrower, None)
        self._returning.add(reclaimed)
        self._back.update(self._returning.take_over())
        for run in self._leaving.take_passed():
            self.lending.fenced(run)

    def unit(self, most_bytes: int) -> int:
        """The unit that suits this rank's borrowers, bytes, without those with whom it would be larger than what may be
        lent; 0 without borrowers."""
        common = self.layout.page_bytes if self._units else 0
        for unit in self._units.values():
            larger = elastic_unit(common, unit)
            common = larger if larger <= most_bytes else common
        return common

    @property
    def idle_bytes(self) -> int:
        """At borrowers' disposal, and not lent."""
        return self.lending.bytes_in(RunState.FREE, RunState.FENCING)

    @property
    def needed_bytes(self) -> int:
        """What borrowers would like beyond that; below 0 where it is more than they like."""
        return self.lending.wanted_bytes(self.run_bytes) - self.idle_bytes if self.run_bytes else 0

    @property
    def pages(self) -> int:
        """Out of the pool."""
        return sum(span.pages for spans in (self._loose, *self.runs.values()) for span in spans.values())

    @property
    def back(self) -> set[int]:
        """Runs that borrowers have no more, and that nothing is copied to."""
        return self._back

    def returned_bytes(self, now: float) -> int:
        """Of these, and of runs that a copy is under way to, for as long as they may be expected back on every rank.
        `now`: seconds."""
        runs = self._awaited.soon(self._back.union(self._returning), now)
        return self.layout.page_bytes * sum(span.pages for run in runs for span in self.runs.get(run, {}).values())

    def is_back(self, run: int) -> bool:
        """Whether this rank does not wait for the run."""
        return run in self._back or run not in self.runs

    # ---- what is done on every rank ----

    def do(self, word: Word, values: Sequence[int]) -> None:
        """As the leading rank has. Raises PoolsDifferError, or whatever the pool raises."""
        match word:
            case Word.ARRANGE:
                self.pool.arrange(values[0])
            case Word.EVICT:
                self.pool.evict(values[0], kept=bool(values[1]))
            case Word.TAKE:
                self.take(values[0], values[1])
            case Word.PUT_BACK:
                self.put_back(values)
            case Word.STOCK:
                self.stock(values[0], values[1:])
            case Word.WITHDRAW:
                self.withdraw(values)
            case Word.LIMIT:
                self.lending.set_limit(None if values[0] < 0 else values[0])
            case Word.MEASURE:
                self.run_bytes = values[0]

    def take(self, spans: int, found: int | None = None) -> dict[int, Span]:
        """Take spans out of the pool, as many as the leading rank has `found`; None: it is this one."""
        taken = self.pool.take(spans)
        found = len(taken) if found is None else found
        if len(taken) > found:
            self.pool.put_back(taken[found:])
        names = range(self._last_name + 1, self._last_name + 1 + found)
        self._last_name += found
        named = dict(zip(names, taken, strict=False))
        self._loose |= named
        if len(taken) < found:
            raise PoolsDifferError(f"{len(taken)} spans are free together, {found} on the first rank")
        return named

    def put_back(self, names: Collection[int]) -> None:
        """Spans of no run are the pool's again."""
        missing = [name for name in names if name not in self._loose]
        if missing:
            raise PoolsDifferError(f"spans {missing} are not here, or of a run that is not back")
        self.pool.put_back([self._loose.pop(name) for name in names])

    def stock(self, run: int, names: Collection[int]) -> None:
        """Make a run of these spans. Where that cannot be, it has come back already."""
        spans = {name: self._loose.pop(name) for name in names if name in self._loose}
        self.runs[run] = spans
        if len(spans) < len(names):
            self._back.add(run)
            raise PoolsDifferError(f"{len(spans)} spans of run {run} are there, {len(names)} on the first rank")
        try:
            self.lending.stock(run, self.layout.extents(spans.values()))
        except BaseException:
            self._back.add(run)
            raise
        self._leaving.add([run])

    def withdraw(self, runs: Iterable[int]) -> None:
        """Have these back."""
        here = [run for run in runs if run in self.runs]
        self.coming.update(here)
        self.lending.withdraw_runs(here)

    def end(self, runs: Iterable[int]) -> None:
        """Every rank has these back: their spans can be put back."""
        for run in runs:
            self._loose |= self.runs.pop(run, {})
            self.coming.discard(run)
            self._back.discard(run)
