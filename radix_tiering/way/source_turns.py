"""Reads into host memory for the restores under way: what each source reads next, and how much at a time.

A source has only so much under way as keeps it busy, so that whoever needs it most is served next: see
`restore/batch.py`. What it takes is told to the costs that plans are made with. Of a page that several tiers have the
nearest one's copy is read, but not while that tier sets a pace by which a farther one is sooner done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

from ..restore.batch import Batch
from ..restore.flight import Unit
from ..restore.plan import Strategy
from ..restore.planner import NOTHING_OWED, Owed, Planner
from ..table.held_page import Page
from ..table.tier_copies import HOST
from ..tiers.tier import Tier
from .draining import Draining
from .reads import DROPPED, Reads
from .request_restore import Restore

#: What a source has under way takes it about so long, seconds: a restore waits no longer for a page that it needs.
WINDOW_SECONDS = 0.05
#: A source is asked for this part of what it may have under way at a time.
PICKS = 4
#: Pages over which the time of a source is taken, or as many as come in so long, seconds: one that turns slow is to be
#: known for it before a restore has waited for eight of its pages.
SAMPLE_PAGES = 8
SAMPLE_SECONDS = 0.1

#: A restore that waited for its turn on the device for more than this part of its estimate says nothing of that.
TURN_SHARE = 0.1

#: Who waits for a page: its restore, the page's number there, and the number of the tier that was asked on behalf of
#: it; None where the page was on its way already.
Waiter = tuple[Restore, int, int | None]


class LearnsCosts(Protocol):
    """Learns what loading takes, and whole restores; `LiveCosts` is one."""

    def loaded(self, source: str, nbytes: int, seconds: float, *, begun: bool = True) -> None: ...

    def restored_together(self, estimated_seconds: float, real_seconds: float | None) -> None: ...

    def restored_by_one(self) -> None: ...


class Channel:
    """The time that one source was busy, and for what."""

    __slots__ = ("begun", "nbytes", "pages", "since")

    def __init__(self) -> None:
        self.since: float | None = None  # busy since, or since the last sample
        self.begun = True  # the former
        self.pages = 0
        self.nbytes = 0


class NearestCopy:
    """For the pages of one restore, one after the other: what it has chosen for them counts for the next. So a tier
    with a pace and the one behind it are both kept busy, each with as many pages as it can bring meanwhile.

    Decided by what a tier allows just now, not by what reads took: a donor that has become idle is asked again at
    once. Used under the page table's lock.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        page_seconds: Callable[[str], float | None],
        under_way: Callable[[str], int],
    ) -> None:
        """`tiers`: those beneath host memory, the nearest one first. `page_seconds(tier)`: of one page, None where that
        is not known; `under_way(tier)`: pages that it is to bring first."""
        self._tiers = tiers
        self._page_seconds = page_seconds
        self._chosen = [under_way(tier.name) for tier in tiers]
        self._in_lane: Counter[tuple[int, Hashable]] = Counter()
        self._expected: set[Page] = set()

    def expect(self, pages: Iterable[Page]) -> None:
        """Of these pages, for which is to be chosen next, those that one tier alone has count for it from now on."""
        if len(self._tiers) == 1:
            return  # there is nothing to choose
        for page in pages:
            having = self._having(page)
            if len(having) == 1 and page not in self._expected:
                self._expected.add(page)
                self._count(page, having[0])

    def choose(self, page: Page) -> int:
        """The number of the tier that a page is to be read from, which is in one of them."""
        if len(self._tiers) == 1:
            return HOST + 1
        having = self._having(page)
        at = having[0]
        if page in self._expected and len(having) == 1:
            return HOST + 1 + at
        for farther in having[1:]:
            each = self._page_seconds(self._tiers[farther].name)
            if each is None or self._paced(page, at) <= (self._chosen[farther] + 1) * each:
                break
            at = farther
        self._count(page, at)
        return HOST + 1 + at

    def _having(self, page: Page) -> list[int]:
        return [at for at in range(len(self._tiers)) if page.whole_in(HOST + 1 + at)]

    def _count(self, page: Page, at: int) -> None:
        self._chosen[at] += 1
        self._in_lane[at, self._lane(page, at)] += 1

    def _lane(self, page: Page, at: int) -> Hashable:
        return self._tiers[at].lane(page.place_in(HOST + 1 + at))

    def _paced(self, page: Page, at: int) -> float:
        """How long the pace of this tier, if it sets one, has this page wait."""
        lane = self._lane(page, at)
        return self._tiers[at].paced_seconds(lane, self._in_lane[at, lane] + 1)


class SourceTurns:
    """Used under the page table's lock."""

    def __init__(
        self,
        planner: Planner,
        costs: LearnsCosts,
        clock: Callable[[], float],
        tiers: Sequence[Tier],
        *,
        by_age: bool = False,
    ) -> None:
        """`tiers`: those beneath host memory, the nearest first. `by_age`: see `Batch`."""
        self._planner = planner
        self._costs = costs
        self._clock = clock
        self.batch: Batch[Restore] = Batch(clock=clock, by_age=by_age)
        self._tiers = tiers
        self._channels = {tier.name: Channel() for tier in tiers}
        self._numbers = {tier.name: number for number, tier in enumerate(tiers, HOST + 1)}
        self.reads: Reads[Waiter] | None = None  # set by the restorer, which is told what has come
        self.draining: Draining | None = None  # likewise
        #: Set by it, too: told of restores of which a page was found to be there, or lost, when its turn came.
        self.changed: Callable[[Restore], None] = lambda restore: None
        self._changed: list[Restore] = []

    def add(self, restore: Restore) -> None:
        """Read what `restore` lacks, in its turn, from the next `pump` on."""
        self.batch.add(
            restore,
            restore.flight,
            self._planner.compute_seconds(len(restore.prefix_keys), lambda: self._planner.most(restore.decision)),
            self._planner.page_seconds,
            self._planner.forward(len(restore.prefix_keys), restore.tokens_behind),
            self._planner.latency_seconds,
            lambda source: self._tiers[self._numbers[source] - HOST - 1].granule if source in self._numbers else 1,
            len(restore.prefix_keys),
        )

    def nearest(self) -> NearestCopy:
        """What chooses between copies of the pages of one restore."""
        return NearestCopy(self._tiers, self._planner.page_seconds, self.batch.under_way)

    def remove(self, restore: Restore) -> None:
        """Read nothing more for it."""
        self.batch.remove(restore)

    def ended(self, restore: Restore) -> None:
        """What it took is told to the costs, if something was expected of it when it began. One that was to do both,
        and waited for its turn on the device meanwhile, or did not need it, says nothing of what both take."""
        if restore.estimate is None:
            return
        story = restore.story.told()
        if story.strategy != Strategy.TOKEN_WISE.value:
            self._costs.restored_by_one()
        elif (
            restore.computing_since is not None
            and restore.computing_since - restore.started <= TURN_SHARE * restore.estimate
        ):
            as_planned = not story.late and not story.lost_pages
            self._costs.restored_together(restore.estimate, story.waited_seconds if as_planned else None)

    def pump(self) -> None:
        """Give the sources what to do."""
        if not len(self.batch) and not self._changed:
            return
        for source, channel in self._channels.items():
            window = self._window(source)
            number = self._numbers[source]
            most = max(self._tiers[number - HOST - 1].granule, window // PICKS)
            room = self._room(number, most)
            while self.batch.under_way(source) < window:
                pick = self.batch.next_load(source, most, room)
                if pick is None:
                    break
                now = self._clock()
                if channel.since is None:
                    channel.since, channel.begun = now, True
                pick.request.story.asked(source, now)
                self._begin(pick.request, pick.units, source)
        changed, self._changed = self._changed, []
        for restore in changed:
            self.changed(restore)

    def answered(self, source: str, nbytes: Sequence[int]) -> None:
        """Pages that `source` was asked for have come (so many bytes of each), or will not (0)."""
        self.batch.answered(source, len(nbytes))
        channel = self._channels[source]
        channel.pages += sum(map(bool, nbytes))
        channel.nbytes += sum(nbytes)
        idle, now = not self.batch.under_way(source), self._clock()
        if channel.since is None:
            return
        if idle or channel.pages >= SAMPLE_PAGES or (channel.pages and now - channel.since >= SAMPLE_SECONDS):
            if channel.nbytes:
                self._costs.loaded(source, channel.nbytes, now - channel.since, begun=channel.begun)
            channel.since, channel.begun = None if idle else now, False
            channel.pages = channel.nbytes = 0

    def owed_seconds(self, restore: Restore) -> Owed:
        """What sources bring to others before they have brought all that `restore` lacks, as far as their costs are
        known."""
        if len(self.batch) < 2:
            return NOTHING_OWED
        owed = {}
        for source in restore.flight.sources():
            # Of what is on its way some is its own, from whichever source.
            others = max(0, self.batch.under_way(source) - restore.flight.loading)
            owed[source] = (others + self.batch.queued(restore, source)) * (self._planner.page_seconds(source) or 0.0)
        return owed

    def expected_seconds(self, restore: Restore) -> float | None:
        """How long it may take, on its slowest source, until what is under way has come, or, if nothing of `restore`
        is, until it is its turn; None if that is not known."""
        turn = 0 if restore.flight.loading else 1
        return self._slowest(lambda source: self.batch.queued(restore, source, turn))

    def left_seconds(self, restore: Restore) -> float | None:
        """How long what is under way, and what `restore` lacks beside it, may take, those who go before it among that;
        None if that is not known."""
        return self._slowest(lambda source: restore.flight.absent_from(source) + self.batch.queued(restore, source))

    def _slowest(self, beside: Callable[[str], int]) -> float | None:
        """How long what is under way takes, and so many pages `beside` it, on the slowest source; None if that is not
        known."""
        seconds = 0.0
        for source in self._channels:
            pages = self.batch.under_way(source) + beside(source)
            each = self._planner.page_seconds(source)
            if pages and each is None:
                return None
            seconds = max(seconds, pages * (each or 0.0))
        return seconds

    def _window(self, source: str) -> int:
        """Pages that `source` may have under way: a chunk at most, and two at least, one of them to be next."""
        each = self._planner.page_seconds(source)
        return max(2, min(self._planner.chunk, int(WINDOW_SECONDS / each) if each else self._planner.chunk))

    def _room(self, tier: int, most: int) -> Callable[[Restore], int]:
        """Of a restore: how many of its pages may be read from this tier now."""
        draining = self.draining
        assert draining is not None
        return lambda restore: draining.room(restore, tier, most)

    def _begin(self, restore: Restore, units: range, source: str) -> None:
        """Have units read that `source` has picked; what is there already, or on its way, is not asked for."""
        assert self.reads is not None
        number, wanted = self._numbers[source], []
        hints = self._tiers[number - HOST - 1].hints
        for unit in units:
            page = restore.claimed[unit]
            elsewhere = page.resident and unit in restore.also_here
            if page.landing >= 0 or (page.resident and not elsewhere):
                # Another restore has brought it up meanwhile; it was verified on its way.
                restore.flight.arrived(unit)
                self._changed.append(restore)
                self.answered(source, [0])
            elif self.reads.join(page, (restore, unit, None)) is not None:
                self.answered(source, [0])
            elif elsewhere:
                self._land(restore, unit, page, source)
            elif page.dropped:
                self._not_begun(restore, unit, source)
            elif hints and page.in_host:
                self._not_begun(restore, unit, source, "coming in from the device")
            else:
                wanted.append((page, (restore, unit, number)))
        for (_, (_, unit, _)), begun in zip(wanted, self.reads.begin(wanted, number), strict=True):
            if not begun:
                self._not_begun(restore, unit, source)

    def _land(self, restore: Restore, unit: int, page: Page, source: str) -> None:
        """Of a page that host memory has, too: it comes from there where it cannot land."""
        assert self.reads is not None
        number = self._numbers[source]
        if not page.whole_in(number) or not self.reads.land(page, (restore, unit, number), number):
            restore.come_from(HOST, range(unit, unit + 1), Unit.PRESENT)
            self._changed.append(restore)
            self.answered(source, [0])

    def _not_begun(self, restore: Restore, unit: int, source: str, why: str = "no room in host memory") -> None:
        dropped = restore.claimed[unit].dropped
        restore.story.lost(source, DROPPED if dropped else why)
        restore.short = True
        self._changed.append(restore)
        restore.flight.failed(unit)
        self.answered(source, [0])
