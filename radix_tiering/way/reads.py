"""Pages on their way up, from the tiers beneath; each is read once for all who wait.

They come up to host memory, or, straight from other servers' devices or by GPUDirect Storage, to landing memory. What
one tier does not bring is asked of the next that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from ..base.events import EventLog
from ..base.page import PageRecord
from ..table.held_page import Page
from ..table.kernels import BATCH
from ..table.page_table import PageTable
from ..table.tier_copies import HOST, Copy, Part
from ..tiers.host.host_tier import HostTier
from ..tiers.host.landing import LandingSlots
from ..tiers.tier import LandDone, Read, ReadOutcome, Tier

Waiter = TypeVar("Waiter")

#: Why a page is not there although nothing failed: a flush, an operator, the end of what came before it.
DROPPED = "dropped meanwhile"


class _OnItsWay(NamedTuple):
    """A page that is being read."""

    tier: int  # it comes from
    copy: Copy  # there


class _Answered(NamedTuple):
    """A page that was read into host memory, or could not be."""

    page: Page
    tier: int
    copy: Copy
    started: float
    outcome: ReadOutcome


class WaitOver(NamedTuple, Generic[Waiter]):
    """What somebody is told who waits for a page."""

    waiter: Waiter
    tier: int  # the number of the one that it came from
    failure: str  # why it is not there; empty where it is


class Reads(Generic[Waiter]):
    """Used under the page table's lock. Under it `settled` is called, with each waiter once, on the thread of whoever
    has read."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        tiers: Sequence[Tier],
        *,
        events: EventLog,
        clock: Callable[[], float],
        settled: Callable[[Sequence[WaitOver[Waiter]]], None],
        landing: LandingSlots | None = None,
    ) -> None:
        """`tiers`: those of `table` beneath host memory. `landing`: None: nothing ever lands."""
        self._table = table
        self._host = host
        self._tiers = dict(enumerate(tiers, HOST + 1))
        self._events = events
        self._clock = clock
        self._settled = settled
        self._landing = landing
        self._waiting: dict[Page, list[Waiter]] = {}
        self._on_its_way: dict[Page, _OnItsWay] = {}
        self._answered: list[_Answered] = []  # of which nobody has been told yet
        self._saving: dict[Page, int] = {}  # see `save`: on their way as long as they are in it, from this tier
        self._saved_by_the_way: dict[Page, Callable[[], None]] = {}  # who is told when their read has ended

    @property
    def lands(self) -> bool:
        """Whether pages may be on their way without a slot of host memory."""
        return self._landing is not None

    def join(self, page: Page, waiter: Waiter) -> int | None:
        """Wait with the others for `page`, which comes from the tier of this number; None if it is not on its way."""
        waiters = self._waiting.get(page)
        if waiters is None:
            return None
        waiters.append(waiter)
        return self._comes_from(page)

    def _comes_from(self, page: Page) -> int:
        on_its_way = self._on_its_way.get(page)
        return self._saving[page] if on_its_way is None else on_its_way.tier

    def begin(self, wanted: Sequence[tuple[Page, Waiter]], first: int) -> list[bool]:
        """Start to read pages, which the caller has pinned, each into a place of its own; for each, whether that could
        be. Of the tiers that have a page, `first` is asked first, then the others in their order."""
        to_host: list[tuple[Page, int]] = []
        for page, waiter in wanted:
            ways = self._ways(page, first)
            if ways:
                # In time for the answer, which needs the lock that is held here.
                self._waiting[page] = [waiter]
                if not self._land(page, ways[0]):
                    assert not page.in_host, "somebody else fills its slot, and could be joined"
                    to_host.append((page, ways[0]))
        for start in range(0, len(to_host), BATCH):
            self._begin_to_host(to_host[start : start + BATCH])
        return [page in self._waiting for page, _ in wanted]

    def land(self, page: Page, waiter: Waiter, tier: int) -> bool:
        """Have a page land from this tier that host memory has, too, and that nobody waits for; False where it cannot.
        If it does not come, it is said to have come from host memory."""
        self._waiting[page] = [waiter]
        if self._land(page, tier):
            return True
        del self._waiting[page]
        return False

    def _begin_to_host(self, pages: Sequence[tuple[Page, int]]) -> None:
        """Read pages from these tiers into host memory, as far as it has room."""
        slots = self._table.take_slots(len(pages), None)
        for page, _ in pages[len(slots) :]:
            del self._waiting[page]
            self._table.of[HOST].counters.refuse("no room for promotion")
        some = [page for page, _ in pages[: len(slots)]]
        if not some:
            return
        self._table.begin_all(some, HOST, slots)
        now, reads = self._clock(), dict[int, list[tuple[Page, Read]]]()
        for (page, tier), record, slot in zip(pages, self._table.records(some), slots, strict=False):
            reads.setdefault(tier, []).append((page, self._read(page, tier, record, slot, now)))
        for tier, batch in reads.items():
            self._ask(tier, batch)

    def _ways(self, page: Page, first: int = HOST) -> list[int]:
        """The tiers that have `page`, in the order in which they are asked."""
        ways = [tier for tier in self._tiers if page.whole_in(tier)]
        return sorted(ways, key=lambda tier: tier != first) if len(ways) > 1 else ways

    def _ask(self, tier: int, batch: Sequence[tuple[Page, Read]]) -> None:
        """Read pages from one tier; what it does not take is asked of the next."""
        try:
            self._tiers[tier].read([read for _, read in batch])
        except (ValueError, RuntimeError):  # it takes none now
            for page, _ in batch:
                del self._on_its_way[page]
                if not self._ask_another(page, without=tier):
                    self._waiting.pop(page)
                    self._table.end(page, HOST, whole=False)

    def _ask_another(self, page: Page, without: int) -> bool:
        """Read a page that has its host slot from another tier than this one; False if none has it."""
        for tier in self._ways(page):
            if tier != without:
                read = self._read(page, tier, page.record, page.slot, self._clock())
                try:
                    self._tiers[tier].read([read])
                except (ValueError, RuntimeError):  # it takes none now
                    del self._on_its_way[page]
                else:
                    return True
        return False

    def _read(self, page: Page, tier: int, record: PageRecord, slot: int, now: float) -> Read:
        """Of a page that has begun to come to this slot of host memory."""
        copy = page.copy_in(tier)
        assert copy is not None
        self._on_its_way[page] = _OnItsWay(tier, copy)

        def done(outcome: ReadOutcome) -> None:
            self._answered.append(_Answered(page, tier, copy, now, outcome))

        return Read(record, copy, self._host.block_run(slot), done)

    def settle(self) -> None:
        """Account for pages that were read into host memory: for many at once, as they mostly have come. At the end of
        every batch of answers."""
        answered, self._answered = self._answered, []
        come: list[_Answered] = []
        for one in answered:
            if one.outcome is ReadOutcome.OK and not one.page.dropped:
                come.append(one)
            else:
                self._settle_come(come)
                come = []
                self._settle_otherwise(one)
        self._settle_come(come)

    def _settle_come(self, come: Sequence[_Answered]) -> None:
        now = self._clock()
        for start in range(0, len(come), BATCH):
            some = come[start : start + BATCH]
            pages = [one.page for one in some]
            # The tiers have verified the bytes against these checksums.
            self._table.end_all(pages, HOST, whole=True, digests=[one.copy.digest for one in some])
            for one in some:
                self._arrived(one.page, one.tier, now - one.started)
            self._table.forget_hints(self._table.hinted(pages))
            self.learn(pages)
            if self._saved_by_the_way:
                for page in pages:
                    self._end_save(page)
            self._settled([told for one in some for told in self._told(one.page, one.tier, "")])

    def _settle_otherwise(self, one: _Answered) -> None:
        """It could not be read, or has left meanwhile."""
        page = one.page
        self._end_save(page)
        if one.outcome is not ReadOutcome.OK and not page.dropped:
            self._lost(page, one.tier, one.copy, one.outcome)
            if self._ask_another(page, without=one.tier):
                return
        self._table.end(page, HOST, whole=False)
        self._tell(page, one.tier, _failure(one.outcome))

    def _arrived(self, page: Page, tier: int, seconds: float) -> None:
        counters = self._table.of[tier].counters
        counters.bytes_read += page.length
        counters.read_latency.observe(seconds)

    def _lost(self, page: Page, tier: int, copy: Copy, outcome: ReadOutcome) -> None:
        """What lies there cannot be used: a miss, for ever, unless only the read was cancelled."""
        copies = self._table.of[tier]
        if outcome.corrupt:
            copies.counters.checksum_failures += 1
            self._events.emit("page.corrupt", tier=copies.name, key=page.key.hex(), reason=outcome.value)
        elif not outcome.expected:
            self._events.emit("page.unreadable", tier=copies.name, key=page.key.hex(), reason=outcome.value)
        now = page.copy_in(tier)
        same = now is not None and now.place == copy.place
        if same and not (outcome is ReadOutcome.CANCELLED and copies.durable):
            self._table.lose(page, tier)

    def _tell(self, page: Page, tier: int, failure: str) -> None:
        """Whoever waits for it waits no longer; but for those who join while it is being saved."""
        self._settled(self._told(page, tier, failure))

    def _told(self, page: Page, tier: int, failure: str) -> list[WaitOver[Waiter]]:
        """What those are to be told who wait for it, which nobody does from now on."""
        self._on_its_way.pop(page, None)
        waiters = self._waiting.pop(page, ())
        if page in self._saving:
            self._waiting.setdefault(page, [])
        return [WaitOver(waiter, tier, failure) for waiter in waiters]

    def abandon(self, tier: int, part: Part) -> None:
        """A part has gone, and may never answer: whoever waits for a page that is being read from it goes on without.

        The slot stays taken until the read really ends: until then the device may still write to it.
        """
        uses = self._tiers[tier].uses
        for page in [page for page, (of, copy) in self._on_its_way.items() if of == tier and uses(copy.place, part)]:
            self._table.drop(page)
            self._tell(page, tier, ReadOutcome.DEVICE_GONE.value)

    # ---- to save it from a part that is leaving ----

    def save(self, page: Page, tier: int, ended: Callable[[], None]) -> bool:
        """Bring a page that this tier alone has to host memory, before the part it lies on is returned, if it is not
        coming from there already. False where there is no room that is worth less. Else `ended()` follows, under the
        lock, whether it was saved or not; until then `join` finds the page."""
        copy = page.copy_in(tier)
        if copy is None or not copy.whole or page.elsewhere(tier):
            return False
        if page.in_host:
            comes = page in self._on_its_way and self._on_its_way[page].tier == tier
            if comes:
                self._saved_by_the_way[page] = ended
            return comes
        # Pinned first: making room must not take it along.
        self._table.pin(page)
        try:
            slot = self._table.take_slot(None if page.kept else page.last_use)
            if slot is not None:
                self._table.begin(page, HOST, slot)
        finally:
            self._table.unpin(page)
        if slot is None:
            return False

        def done(outcome: ReadOutcome) -> None:
            complete = outcome is ReadOutcome.OK and not page.dropped
            self._table.end(page, HOST, whole=complete, digest=copy.digest)
            if complete:
                self._table.of[tier].counters.bytes_read += page.length
            self._saving.pop(page, None)
            self._tell(page, tier, "" if complete else _failure(outcome))
            ended()

        try:
            self._tiers[tier].read([Read(page.record, copy, self._host.block_run(slot), done, saving=True)])
        except (ValueError, RuntimeError):  # it takes none now
            self._table.end(page, HOST, whole=False)
            return False
        self._saving[page] = tier
        self._waiting.setdefault(page, [])
        return True

    def _end_save(self, page: Page) -> None:
        """It was read for somebody else, and was to be saved by that."""
        ended = self._saved_by_the_way.pop(page, None)
        if ended is not None:
            ended()

    # ---- to landing memory ----

    def _land(self, page: Page, tier: int) -> bool:
        """Have it copied to the device without passing through host memory, if that is possible. From a tier that is
        not near only where it would push others out of host memory: as long as there is room, it comes up to that,
        where it stays."""
        landing, source = self._landing, self._tiers[tier]
        if landing is None or (copy := page.copy_in(tier)) is None:
            return False
        if not source.near and (self._host.free_slots or any(self._tiers[one].near for one in self._ways(page))):
            return False
        started = self._clock()

        def done(outcome: ReadOutcome, slot: int) -> None:
            complete = outcome is ReadOutcome.OK and not page.dropped
            if complete:
                self._table.land(page, slot)
                self._arrived(page, tier, self._clock() - started)
            elif outcome is ReadOutcome.OK:
                landing.give_back(slot)
            elif not page.dropped:
                if source.learnt(copy):
                    # It is read to host memory now, and learnt anew if it is sound there.
                    source.unlearn(copy)
                else:
                    self._lost(page, tier, copy, outcome)
                if page.resident:
                    self._tell(page, HOST, "")
                    self._table.unpin(page)
                    return
                if self._fill(page) or page in self._saving:
                    self._table.unpin(page)
                    return
            self._tell(page, tier, "" if complete else _failure(outcome))
            self._table.unpin(page)

        return self._start_landing(page, tier, copy, done)

    def _start_landing(self, page: Page, tier: int, copy: Copy, done: LandDone) -> bool:
        # In time for the answer, and until then whoever waits may stop waiting.
        self._table.pin(page)
        self._on_its_way[page] = _OnItsWay(tier, copy)
        lands = False
        try:
            lands = self._tiers[tier].land(page.record, copy, done)
        except (ValueError, RuntimeError):  # it takes none now
            pass
        finally:
            if not lands:
                del self._on_its_way[page]
                self._table.unpin(page)
        return lands

    def _fill(self, page: Page) -> bool:
        """Read it into host memory, now that it did not land."""
        if page.dropped or page.in_host or not self._ways(page):
            return False  # gone; or being saved from a part that is to be returned
        if (slot := self._table.take_slot(None)) is None:
            return False
        self._table.begin(page, HOST, slot)
        if self._ask_another(page, without=HOST):
            return True
        self._table.end(page, HOST, whole=False)
        return False

    def learn(self, pages: Iterable[Page]) -> None:
        """Have it known, from host memory, by what the device can tell that it has these pages, where a tier needs
        to."""
        learning = [(tier, source) for tier, source in self._tiers.items() if source.lands_by_digest]
        if learning:
            for page in pages:
                self._learn(page, learning)

    def _learn(self, page: Page, learning: Sequence[tuple[int, Tier]]) -> None:
        if not page.resident or page.digest is None:
            return
        for tier, source in learning:
            copy = page.copy_in(tier)
            if copy is not None and copy.whole and not source.learnt(copy):
                self._table.pin(page)
                learns = False
                try:
                    learns = source.learn(copy, self._host.page(page.slot), lambda: self._table.unpin(page))
                finally:
                    if not learns:
                        self._table.unpin(page)


def _failure(outcome: ReadOutcome) -> str:
    """Why a page that was read is not there."""
    return DROPPED if outcome is ReadOutcome.OK else outcome.value
