"""What a durable tier has kept over a restart comes back into the page table, behind what is served.

    OPENING --what it has is known--> TAKING --in arrays--> ENTERING, newest chains first --> FILLED

Until a page is entered it is a miss. Until all are, nothing is written to the tier: the table would have the newest
ones leave for it, as it does not know the others yet. What is to be written waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from enum import Enum

import numpy as np

from ..base.events import EventLog
from ..base.page import HELD_TOGETHER, HeldPages
from ..base.runner import Runner
from ..table.newest_first import newest_first
from ..table.page_table import PageTable
from ..table.tier_copies import Part
from .down import Mover
from .sweeps import ENTERED_TOGETHER, shed

logger = logging.getLogger(__name__)

#: Why the writes of a mover wait.
INDEX = "the index is being read"


class Stage(Enum):
    OPENING = "opening"  # ends early where the tier is closed
    TAKING = "taking"
    ENTERING = "entering"
    FILLED = "filled"
    UNOPENED = "cannot be opened"
    LOST = "what it has cannot be read"


class Filling:
    """One tier's. The page table's lock guards everything but `steps`."""

    def __init__(self, table: PageTable, mover: Mover, *, runner: Runner, events: EventLog) -> None:
        """Nothing is written by `mover` until `steps` have ended."""
        self.stage = Stage.OPENING
        #: Pages known and not entered yet; 1 until it is known how many.
        self.unread = 1
        self._table = table
        self._mover = mover
        self._tier = mover.tier
        self._events = events
        self._kept: list[tuple[HeldPages, np.ndarray, int]] = []  # pages, their order, how many of them are entered
        self._flushed: set[bytes] = set()  # namespaces: what was kept of them is not entered
        self._gone: set[Part] = set()
        self._to_flush = False  # the tier has to be told of a flush, and is not open yet
        self._ending = False
        self._moved_on = runner.condition(table.lock)
        self._clock = runner.monotonic
        mover.waits_for.add(INDEX)

    def steps(self, register: Callable[[], None]) -> Generator[None, None, int]:
        """All of it; how many pages were entered. `register`: has the tier know the namespace that is served."""
        try:
            self._tier.open()
        except Exception as error:
            if self._ending:
                return 0  # it was closed meanwhile, and is as it was
            self._give_up(Stage.UNOPENED, error)
            raise
        try:
            return (yield from self._fill(register))
        except Exception as error:
            self._give_up(Stage.LOST, error)
            raise

    def _give_up(self, stage: Stage, error: Exception) -> None:
        """Nothing more of it is entered, and nothing is written to it."""
        self._events.emit(f"{self._tier.name}.not_opened", reason=str(error) or repr(error))
        with self._table.lock:
            if stage is Stage.LOST:  # one that is not open takes nothing, and says why
                self._mover.enabled = False
            self._mover.clear()
            self._to_flush, self.unread = False, 0
            self._move_on(stage)

    def _fill(self, register: Callable[[], None]) -> Generator[None, None, int]:
        """Of a tier that is open."""
        with self._table.lock:
            if self._ending:
                return 0
            self._move_on(Stage.TAKING)
        for event, facts in self._tier.opened():
            self._events.emit(event, **facts)
        kept = [(held, newest_first(held)) for held in self._tier.recover()]
        kept.sort(key=lambda one: int(one[0].order.max(initial=0)))
        with self._table.lock:
            self._kept = [(held, order, 0) for held, order in kept]
            found = self.unread = sum(len(held.places) for held, _ in kept)
            flushed = list(self._flushed)
            self._move_on(Stage.ENTERING)
        yield
        for namespace in flushed:
            durable = self._tier.flush(namespace)
            self._events.emit("tiers.flushed", host=False, ssd=True, durable=durable)
        with self._table.lock:
            self._to_flush = False
            self._moved_on.notify_all()
        register()
        newest = max((int(held.order.max()) for held, _ in kept if len(held.order)), default=0)
        unreachable = 0
        while self._kept:
            with self._table.lock:
                unreachable += self._enter_some(newest)
            yield
        yield from shed(self._table)  # an operator may have capped the tier meanwhile
        for _ in range(0, self._mover.backlog, ENTERED_TOGETHER):
            with self._table.lock:
                self._mover.trim(ENTERED_TOGETHER)  # in one go it would take as long as many have waited
            yield
        with self._table.lock:
            self._move_on(Stage.FILLED)
            self._mover.waits_for.discard(INDEX)
            self._mover.pump()
        logger.info("swift-tiers: %d pages found again on %s, of whatever model", found - unreachable, self._tier.name)
        self._events.emit(f"{self._tier.name}.recovered", pages=found - unreachable, unreachable=unreachable)
        return found - unreachable

    def _enter_some(self, newest: int) -> int:
        """Enter the next ones; how many are out of reach, or not wanted any more. Their places are given back."""
        held, order, done = self._kept.pop()
        which = order[done : done + ENTERED_TOGETHER]
        if held.namespace in self._flushed:
            looked_at, lost = len(which), held.places[which]
        else:
            looked_at, lost = self._enter(held, which, held.order[which] - newest)
        if done + looked_at < len(order):
            self._kept.append((held, order, done + looked_at))
        self.unread -= looked_at
        self._tier.release(lost.tolist())
        return len(lost)

    def _enter(self, held: HeldPages, which: np.ndarray, times: np.ndarray) -> tuple[int, np.ndarray]:
        """As `PageTable.recover`; what lies on a part that has gone is out of reach, and with it what follows it."""
        places, tier = held.places[which], self._mover.number
        if not self._gone:
            return self._table.recover(held._replace(keys=held.keys[which], places=places), tier, times)
        gone = np.array([any(self._tier.uses(place, part) for part in self._gone) for place in places.tolist()], bool)
        there = np.flatnonzero(~gone)
        some = held._replace(keys=held.keys[which[there]], places=places[there])
        looked_at, lost = self._table.recover(some, tier, times[there])
        end = int(there[looked_at]) if looked_at < len(there) else len(which)
        return end, np.concatenate([lost, places[:end][gone[:end]]])

    def _move_on(self, stage: Stage) -> None:
        self.stage = stage
        self._moved_on.notify_all()

    # ---- meanwhile ----

    def flush(self, namespace: bytes) -> bool:
        """What the tier has of a namespace is not entered any more. Whether the tier has to be told now: before it is
        open it cannot be, and is told then."""
        if self.stage is not Stage.FILLED:
            self._flushed.add(namespace)
        self._to_flush |= not self.opened and self.stage is not Stage.UNOPENED
        return self.opened

    def lose(self, part: Part) -> None:
        """What lies on this part is not entered any more."""
        if self.stage is not Stage.FILLED:
            self._gone.add(part)

    @property
    def opened(self) -> bool:
        """Whether the tier knows what it has."""
        return self.stage in (Stage.ENTERING, Stage.FILLED, Stage.LOST)

    # ---- the end ----

    def end(self, timeout: float) -> bool:
        """Go on no further; `steps` end with the step they are in, but what was flushed is written down first, so that
        the next start does not find it. False where it is not known, after so many seconds, what the tier has: the next
        start has to look."""
        until = self._clock() + timeout
        self._moved_on.wait_for(lambda: not self._to_flush, timeout)
        self._ending = True
        left = max(0.0, until - self._clock())
        return bool(self._moved_on.wait_for(lambda: self.stage is not Stage.TAKING, left)) and self.stage not in (
            Stage.UNOPENED,
            Stage.LOST,
        )

    def rest(self) -> Iterator[HeldPages]:
        """What is not entered yet. Once `steps` have ended."""
        for held, order, done in self._kept:
            if held.namespace in self._flushed:
                continue
            for start in range(done, len(order), HELD_TOGETHER):
                which = order[start : start + HELD_TOGETHER]
                yield HeldPages(
                    held.namespace, held.length, held.keys[which], held.depths[which], held.places[which],
                    held.order[which],
                )  # fmt: skip
