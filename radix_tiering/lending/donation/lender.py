"""Lends what a server's pool does not need, and takes it back when it does: between the pool and the lease protocol."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from ..leases.effects import BorrowerJoined, BorrowerLeft, DonorEffect, Reclaimed
from ..leases.messages import MAX_EXTENTS, Extent, Party
from ..leases.runs import RunState
from ..leases.sharing import elastic_unit
from .extents import PoolLayout, RunShape, Span, run_shape
from .fenced import Copying, Fence, FencedRuns, ReturningRuns, ReturnsAwaited
from .gathering import Gathering, PagePool
from .sizing import ElasticSizer, pages_for

logger = logging.getLogger(__name__)

#: Between two looks at what the server itself needs, seconds; an arriving request is looked at at once.
LOOK_SECONDS = 0.05
#: Between two attempts to lend more, seconds. One that has more to evict goes on at the next look.
LEND_SECONDS = 0.25
#: The same after one that found too few neighbouring pages: it has looked through the whole free list.
SCATTERED_SECONDS = 2.0
#: Runs that one attempt lends at most: it is the scheduler's thread that waits.
MAX_RUNS_AT_ONCE = 64


class Lending(Protocol):
    """What the lender wants of a `LeaseService` with a donor."""

    def stock(self, run: int, extents: Collection[Extent]) -> None: ...
    def fenced(self, run: int) -> None: ...
    def withdraw(self, wanted_bytes: int) -> None: ...
    def withdraw_unused(self) -> None: ...
    def set_limit(self, limit_bytes: int | None) -> None: ...
    def wanted_bytes(self, run_bytes: int) -> int: ...
    def bytes_in(self, *states: RunState) -> int: ...


class Sized(NamedTuple):
    """A decision to lend another amount (SwiftCache, Algorithm 1), and what it was made from; all in bytes."""

    decision: str  # "grow": lend more, "shrink": take back
    peak_bytes: int  # that the server's own requests needed at most, within the window
    kept_bytes: int  # of cached prefixes that no request uses, and that are kept
    free_bytes: int  # of its pool, that nobody has
    from_bytes: int  # lent before
    to_bytes: int  # to be lent


class Lender:
    """Keeps as many pages lent as `sizer` says, borrowers want, and lie together.

    What is out of the pool is in exactly one run, from `stock` until nothing is copied there any more after the effect
    `Reclaimed`. Pages that requests use are never taken: only free ones are, and those that the pool frees by evicting.
    While nobody borrows, the pool is as if there were no lender.

    For the scheduler's thread, but for `effects` and `rest`. `tick` is to be called once in each scheduling round: it
    costs a few comparisons when there is nothing to do.
    """

    def __init__(
        self,
        pool: PagePool,
        sizer: ElasticSizer,
        layout: PoolLayout,
        lending: Lending,
        effects: deque[DonorEffect],
        *,
        demand: Callable[[], int],
        fence: Fence,
        copying: Copying,
        kept: Callable[[], int] = lambda: 0,
        taken_back: Callable[[int, float], None] = lambda pages, seconds: None,
        sized: Callable[[Sized], None] = lambda sized: None,
    ) -> None:
        """`effects`: where the lease service puts what it tells (`on_donor=effects.append`).
        `demand`: the tokens that running and waiting requests need together, now.
        `kept`: the tokens of cached prefixes that no request uses, and that count as needed all the same, now.
        `fence`: called when pages have left the pool, for what this server computes with them.
        `copying`: see `ArenaServer.copying`; asked when pages have come back. A copy that never ends keeps its runs out
        of the pool, and nobody waiting: others are taken back in their place.
        `sized`: told when it is decided to lend another amount.
        `taken_back`: told how many pages borrowers had to give back for this server's requests, and how many seconds
        after they were missing.
        """
        self._pool = pool
        self._sizer = sizer
        self._layout = layout
        self._lending = lending
        self._effects = effects
        self._demand = demand
        self._kept = kept
        self._bound = sizer.most_lent
        self._units: dict[Party, int] = {}  # bytes, of each borrower
        self._shape: RunShape | None = None
        self._runs: dict[int, list[Span]] = {}
        self._last_run = 0
        self._gathering: Gathering | None = None  # an attempt to lend that goes on
        self._leaving = FencedRuns(fence)
        self._returning = ReturningRuns(copying)
        self._awaited = ReturnsAwaited()
        self._now = -math.inf  # of the last tick
        self._look_at = self._lend_at = -math.inf
        self._missing = False  # memory, when it was last looked at
        self._owed = 0  # pages that borrowers are to give back for requests
        self._owed_in_all = 0
        self._owed_since = 0.0
        self._taken_back = taken_back
        self._sized = sized
        self._aim: int | None = None  # pages that are to be left to borrowers, while some are taken back
        #: The largest demand of the window, bytes, as of the last look. Any thread may read it.
        self.peak_bytes = 0
        self._kept_bytes = 0
        self._refused = self._rest = self._closed = False

    # ---- the scheduler's thread ----

    @property
    def window_seconds(self) -> float:
        """Over which the largest demand counts."""
        return self._sizer.window_seconds

    @property
    def lent_pages(self) -> int:
        """Pages out of the pool: lent, on their way back, or at borrowers' disposal."""
        return self._sizer.lent

    def tick(self, now: float) -> None:
        """Take in what has come back, take back what is needed, lend what is not. `now`: seconds, monotonic."""
        self._now = now
        if self._effects or self._returning:
            self._take_in(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(now)
        for run in self._leaving.take_passed():
            self._lending.fenced(run)

    def retreat(self, now: float) -> None:
        """A tick has failed: have everything back, without a look at who needs it. Whoever waits for memory that is
        lent would wait for ever, should the next ticks fail as well."""
        self._gathering = None
        self._lending.withdraw(self._sizer.lent * self._layout.page_bytes)
        self._take_in(now)

    def arrived(self) -> None:
        """A request has arrived: the next tick looks at what is needed."""
        self._look_at = -math.inf

    def refused(self) -> None:
        """The scheduler found no room for a request since the last tick. If it should have, by what was reckoned, then
        that was too little, and everything is taken back."""
        if self._sizer.lent and not self._missing:
            self._refused = True
            self._look_at = -math.inf

    def cap(self, limit_bytes: int | None) -> None:
        """Lend at most so many bytes from now on, and take back what is beyond; None: as the configuration says."""
        pages = self._sizer.total_pages if limit_bytes is None else limit_bytes // self._layout.page_bytes
        self._sizer.most_lent = min(self._bound, pages)
        self._withdraw(self._sizer.lent - self._sizer.most_lent)
        self._lending.set_limit(limit_bytes)

    def close(self) -> None:
        """Lend nothing more. Idempotent."""
        self._closed = True

    # ---- any thread ----

    def rest(self) -> None:
        """Somebody else has recalled leases: lend nothing before a window has passed."""
        self._rest = True

    # ---- what the leases tell ----

    def _take_in(self, now: float) -> None:
        back: list[int] = []
        joined = False
        while self._effects:
            effect = self._effects.popleft()
            if isinstance(effect, Reclaimed):
                back.append(effect.run)
            elif isinstance(effect, BorrowerJoined):
                self._units[effect.borrower] = effect.unit_bytes
                joined = True
            elif isinstance(effect, BorrowerLeft):
                self._units.pop(effect.borrower, None)
                joined = True
        self._returning.add(back)
        spans = [span for run in self._returning.take_over() for span in self._runs.pop(run)]
        if spans:
            self._pool.put_back(spans)
            pages = sum(span.pages for span in spans)
            self._sizer.came_back(pages)
            self._count_owed(pages, now)
        if joined:
            self._arrange(now)

    def _count_owed(self, pages: int, now: float) -> None:
        if self._owed:
            self._owed = max(0, self._owed - pages)
            if not self._owed:
                self._taken_back(self._owed_in_all, now - self._owed_since)

    def _arrange(self, now: float) -> None:
        """Borrowers have come or gone: cut the pool as they need it."""
        shape = self._common_shape() if self._units else None
        if shape == self._shape:
            return
        self._shape = shape
        self._gathering = None
        self._sizer.unit_pages = 1 if shape is None else shape.pages
        self._pool.arrange(0 if shape is None else shape.span_pages)
        # What is at borrowers' disposal was cut for others.
        self._lending.withdraw_unused()
        self._take_in(now)
        self._lend_at = -math.inf

    def _common_shape(self) -> RunShape:
        """A shape that suits every borrower: whole units of each. Those who come last get nothing if their pages and
        the others' have no common unit that the pool could lend."""
        page_bytes, pool_pages = self._layout.page_bytes, self._pool.pages
        common, most_bytes = page_bytes, self._bound * page_bytes
        best = run_shape(self._layout, 1, pool_pages)
        for party, unit in self._units.items():
            larger = elastic_unit(common, unit)
            # Looked at first: to find the shape of a unit takes as long as it has pages, and others say how many.
            shape = run_shape(self._layout, larger // page_bytes, pool_pages) if larger <= most_bytes else None
            if shape and shape.pages <= self._bound and shape.spans * len(self._layout.planes) <= MAX_EXTENTS:
                common, best = larger, shape
            else:
                logger.warning(
                    "swift-tiers: nothing can be lent to %s: together with the pages of others, its pages have no "
                    "common unit below the %d bytes that may be lent",
                    party.name,
                    most_bytes,
                )
        return best

    # ---- sizing ----

    def _look(self, now: float) -> None:
        if self._rest:
            self._rest = False
            self._sizer.rest(now)
        tokens = self._sizer.total_pages * self._sizer.page_tokens if self._refused else self._demand()
        self._refused = False
        kept = self._kept()
        pages = self._sizer.demand(tokens, now, kept)
        self._kept_bytes = self._bytes_of(kept)
        self.peak_bytes = self._bytes_of(self._sizer.peak_tokens(now))
        self._missing = pages > 0
        if not pages:
            self._owed = 0
            self._aim = None
        if pages:
            self._gathering = None
            # Asked at every look until they are there; what is on its way counts.
            if self._aim is None or self._sizer.lent - pages < self._aim:
                self._aim = self._sizer.lent - pages
                self._tell("shrink", self._sizer.lent, self._aim)
            self._withdraw(pages)
            lent = self._sizer.lent
            self._take_in(now)  # what was not lent is back already
            self._owe(pages - (lent - self._sizer.lent), now)
        elif self._shape is not None and now >= self._lend_at and not self._closed:
            self._lend_at = now + LEND_SECONDS
            self._lend(self._shape, now)

    def _withdraw(self, pages: int) -> None:
        """Have so many back. Those that a copy is under way to are as good as back, unless it does not end."""
        soon = self._awaited.soon(self._returning, self._now)
        pages -= sum(span.pages for run in soon for span in self._runs[run])
        if pages > 0:
            self._lending.withdraw(pages * self._layout.page_bytes)

    def _owe(self, pages: int, now: float) -> None:
        """So many are missing still, which borrowers have."""
        if pages > 0 and not self._owed:
            self._owed_since, self._owed_in_all = now, 0
        self._owed_in_all += max(0, pages - self._owed)
        self._owed = max(0, pages)

    def _lend(self, shape: RunShape, now: float) -> None:
        run_bytes = shape.pages * self._layout.page_bytes
        wanted = self._lending.wanted_bytes(run_bytes)
        idle = self._lending.bytes_in(RunState.FREE, RunState.FENCING)
        if idle and not wanted:
            self._lending.withdraw_unused()
            self._take_in(now)
        more = -(-max(0, wanted - idle) // run_bytes)
        runs = min(more, self._sizer.spare(now) // shape.pages, MAX_RUNS_AT_ONCE) if more else 0
        gathering, self._gathering = self._gathering, None
        if not runs:
            return
        if gathering is None:
            gathering = Gathering(self._pool, runs * shape.pages)
        runs = min(runs, gathering.pages // shape.pages)
        spans = gathering.look(runs * shape.spans, shape.span_pages, self._sizer.promised_pages)
        missing = runs * shape.spans - len(spans)
        before = self._sizer.lent
        try:
            for _ in range(len(spans) // shape.spans):
                self._stock([spans.pop() for _ in range(shape.spans)])
        finally:
            if spans:
                self._pool.put_back(spans)
        if not gathering.is_over:
            gathering.gave(self._sizer.lent - before)
            self._gathering, self._lend_at = gathering, now + LOOK_SECONDS  # not sooner where requests arrive
        elif missing:
            self._lend_at = now + SCATTERED_SECONDS
        if self._sizer.lent > before:
            self._tell("grow", before, self._sizer.lent)

    def _tell(self, decision: str, before: int, after: int) -> None:
        page = self._layout.page_bytes
        free = self._pool.free_pages * page
        self._sized(Sized(decision, self.peak_bytes, self._kept_bytes, free, before * page, after * page))

    def _bytes_of(self, tokens: int) -> int:
        return pages_for(tokens, self._sizer.page_tokens) * self._layout.page_bytes

    def _stock(self, spans: list[Span]) -> None:
        self._last_run += 1
        try:
            self._lending.stock(self._last_run, self._layout.extents(spans))
        except BaseException:
            self._pool.put_back(spans)
            raise
        self._runs[self._last_run] = spans
        self._sizer.gave(sum(span.pages for span in spans))
        self._leaving.add([self._last_run])
