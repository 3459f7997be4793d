"""Reads into host memory for the restores under way: what each source reads next, and how much at a time.

A source has only so much under way as keeps it busy, so that whoever needs it most is served next: see
`restore/batch.py`. What it takes is told to the costs that plans are made with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..restore.batch import Batch
from ..restore.plan import Strategy
from ..restore.planner import Planner
from ..table.held_page import HostState, Page
from ..tiers.peer_memory import PeerMemory
from .nearest_copy import NearestCopy
from .promotion import DROPPED, Promotions, Source
from .request_restore import Restore

#: What a source has under way takes it about so long, seconds: a restore waits no longer for a page that it needs.
WINDOW_SECONDS = 0.05
#: A source is asked for this part of what it may have under way at a time.
PICKS = 4
#: Pages over which the time of a source is taken, or as many as come in so long, seconds: one that turns slow is to be
#: known for it before a restore has waited for eight of its pages.
SAMPLE_PAGES = 8
SAMPLE_SECONDS = 0.1

#: Who waits for a page: its restore, its number there, and the source that has been asked on behalf of it; None where
#: the page was on its way already.
Waiter = tuple[Restore, int, Source | None]


class LearnsCosts(Protocol):
    """Learns what loading takes, and whole restores; `LiveCosts` is one."""

    def loaded(self, source: str, nbytes: int, seconds: float) -> None: ...

    def restored_together(self, estimated_seconds: float, real_seconds: float) -> None: ...

    def restored_by_loading(self) -> None: ...


class Channel:
    """The time that one source was busy, and for what."""

    __slots__ = ("nbytes", "pages", "since")

    def __init__(self) -> None:
        self.since: float | None = None  # busy since, or since the last sample
        self.pages = 0
        self.nbytes = 0


class PageReads:
    """Used under the page table's lock."""

    def __init__(
        self, planner: Planner, costs: LearnsCosts, clock: Callable[[], float], *, by_age: bool = False
    ) -> None:
        """`by_age`: see `Batch`."""
        self._planner = planner
        self._costs = costs
        self._clock = clock
        self.batch: Batch[Restore] = Batch(clock=clock, by_age=by_age)
        self._channels = {Source.PEER: Channel(), Source.SSD: Channel()}
        self.promotions: Promotions[Waiter] | None = None  # set by the restorer, which is told what has come
        #: Set by it, too: told of restores of which a page was found to be there, or lost, when its turn came.
        self.changed: Callable[[Restore], None] = lambda restore: None
        self._changed: list[Restore] = []

    def add(self, restore: Restore) -> None:
        """Read what `restore` lacks, in its turn, from the next `pump` on."""
        self.batch.add(
            restore,
            restore.flight,
            self._planner.compute_seconds(len(restore.prefix_keys)),
            self._planner.page_seconds,
            self._planner.forward(len(restore.prefix_keys), restore.behind),
            self._planner.latency_seconds,
        )

    def nearest(self, peer: PeerMemory | None) -> NearestCopy:
        """What chooses between copies of the pages of one restore."""
        return NearestCopy(
            peer, lambda: self._planner.page_seconds(Source.SSD.value), self.batch.under_way(Source.SSD.value)
        )

    def remove(self, restore: Restore) -> None:
        """Read nothing more for it."""
        self.batch.remove(restore)

    def ended(self, restore: Restore) -> None:
        """What it took is told to the costs, if something was expected of it when it began."""
        if restore.estimate is None:
            return
        story = restore.story.told()
        if story.strategy == Strategy.LOAD.value:
            self._costs.restored_by_loading()
        elif story.strategy != Strategy.TOKEN_WISE.value or story.late or story.lost_pages:
            return
        elif story.waited_seconds is not None:
            self._costs.restored_together(restore.estimate, story.waited_seconds)

    def pump(self) -> None:
        """Give the sources what to do."""
        for source, channel in self._channels.items():
            window = self._window(source)
            most = max(1, window // PICKS)
            while self.batch.under_way(source.value) < window:
                pick = self.batch.next_load(source.value, most)
                if pick is None:
                    break
                now = self._clock()
                channel.since = now if channel.since is None else channel.since
                pick.request.story.asked(source.value, now)
                for unit in pick.units:
                    self._begin(pick.request, unit, source)
        changed, self._changed = self._changed, []
        for restore in changed:
            self.changed(restore)

    def answered(self, source: Source, nbytes: int) -> None:
        """A page that `source` was asked for has come (`nbytes` of it), or will not (0)."""
        self.batch.answered(source.value)
        channel = self._channels[source]
        channel.pages += nbytes > 0
        channel.nbytes += nbytes
        idle, now = not self.batch.under_way(source.value), self._clock()
        if channel.since is None:
            return
        if idle or channel.pages >= SAMPLE_PAGES or (channel.pages and now - channel.since >= SAMPLE_SECONDS):
            if channel.nbytes:
                self._costs.loaded(source.value, channel.nbytes, now - channel.since)
            channel.since = None if idle else now
            channel.pages = channel.nbytes = 0

    def expected_seconds(self) -> float | None:
        """How long what is under way may take, on its slowest source; None if that is not known."""
        seconds = 0.0
        for source in self._channels:
            under_way = self.batch.under_way(source.value)
            if under_way:
                each = self._planner.page_seconds(source.value)
                if each is None:
                    return None
                seconds = max(seconds, under_way * each)
        return seconds

    def left_seconds(self, restore: Restore) -> float | None:
        """How long what is under way, and what `restore` lacks beside it, may take; None if that is not known."""
        seconds = 0.0
        for source in self._channels:
            pages = self.batch.under_way(source.value) + restore.flight.absent_from(source.value)
            each = self._planner.page_seconds(source.value)
            if pages and each is None:
                return None
            seconds = max(seconds, pages * (each or 0.0))
        return seconds

    def _window(self, source: Source) -> int:
        """Pages that `source` may have under way: a chunk at most, and two at least, one of them to be next."""
        each = self._planner.page_seconds(source.value)
        return max(2, min(self._planner.chunk, int(WINDOW_SECONDS / each) if each else self._planner.chunk))

    def _begin(self, restore: Restore, unit: int, source: Source) -> None:
        page = restore.claimed[unit]
        assert self.promotions is not None
        if page.host is HostState.RESIDENT or page.landing >= 0:
            # Another restore has brought it up meanwhile; it was verified on its way.
            restore.flight.arrived(unit)
            self._changed.append(restore)
            self.answered(source, 0)
        elif self.promotions.join(page, (restore, unit, None)) is not None:
            self.answered(source, 0)
        elif self._promote(page, (restore, unit, source), source) is None:
            restore.story.lost(source.value, DROPPED if page.dropped else "no room in host memory")
            restore.short = True
            self._changed.append(restore)
            restore.flight.failed(unit)
            self.answered(source, 0)

    def _promote(self, page: Page, waiter: Waiter, source: Source) -> Source | None:
        assert self.promotions is not None
        return None if page.dropped else self.promotions.begin(page, waiter, source)
