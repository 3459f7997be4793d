"""Pages on their way up, from the tiers beneath; each is read once for all who wait.

They come up to host memory, or, straight from other servers' devices or by GPUDirect Storage, to landing memory. What
one tier does not bring is asked of the next that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from ..base.events import EventLog
from ..table.held_page import Page
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


class Reads(Generic[Waiter]):
    """Used under the page table's lock. `settled(waiter, tier, failure)` is called under it, once for each waiter, on
    the thread of whoever has read; `tier`: the number of the one it came from; `failure` is empty where the page is
    there, else why it is not."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        tiers: Sequence[Tier],
        *,
        events: EventLog,
        clock: Callable[[], float],
        settled: Callable[[Waiter, int, str], None],
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
        self._saving: dict[Page, int] = {}  # see `save`: on their way as long as they are in it, from this tier

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
        begun = []
        reads: dict[int, list[tuple[Page, Read]]] = {}
        for page, waiter in wanted:
            # In time for the answer, which needs the lock that is held here.
            self._waiting[page] = [waiter]
            started = self._begin(page, first, reads)
            begun.append(started)
            if not started:
                del self._waiting[page]
        for tier, batch in reads.items():
            self._ask(tier, batch)
        return [started and page in self._waiting for started, (page, _) in zip(begun, wanted, strict=True)]

    def _begin(self, page: Page, first: int, reads: dict[int, list[tuple[Page, Read]]]) -> bool:
        ways = self._ways(page, first)
        if not ways:
            return False
        assert not page.in_host, "somebody else fills its slot, and could be joined"
        if self._land(page, ways[0]):
            return True
        slot = self._table.take_slot(None)
        if slot is None:
            self._table.of[HOST].counters.refuse("no room for promotion")
            return False
        self._table.begin(page, HOST, slot)
        reads.setdefault(ways[0], []).append((page, self._read(page, ways[0])))
        return True

    def _ways(self, page: Page, first: int = HOST) -> list[int]:
        """The tiers that have `page`, in the order in which they are asked."""
        ways = [tier for tier in self._tiers if page.whole_in(tier)]
        return sorted(ways, key=lambda tier: tier != first)

    def _ask(self, tier: int, batch: Sequence[tuple[Page, Read]]) -> None:
        """Read pages from one tier; what it does not take is asked of the next."""
        try:
            self._tiers[tier].read([read for _, read in batch])
        except RuntimeError:  # it was closed meanwhile
            for page, _ in batch:
                del self._on_its_way[page]
                if not self._ask_another(page, without=tier):
                    self._waiting.pop(page)
                    self._table.end(page, HOST, whole=False)

    def _ask_another(self, page: Page, without: int) -> bool:
        """Read a page that has its host slot from another tier than this one; False if none has it."""
        for tier in self._ways(page):
            if tier != without:
                read = self._read(page, tier)
                try:
                    self._tiers[tier].read([read])
                except RuntimeError:
                    del self._on_its_way[page]
                else:
                    return True
        return False

    def _read(self, page: Page, tier: int) -> Read:
        copy = page.copy_in(tier)
        assert copy is not None
        self._on_its_way[page] = _OnItsWay(tier, copy)
        return Read(page.record, copy, self._host.block_run(page.slot), self._done(page, tier, copy))

    def _done(self, page: Page, tier: int, copy: Copy) -> Callable[[ReadOutcome], None]:
        started = self._clock()

        def done(outcome: ReadOutcome) -> None:
            complete = outcome is ReadOutcome.OK and not page.dropped
            if outcome is not ReadOutcome.OK and not page.dropped:
                self._lost(page, tier, copy, outcome)
                if self._ask_another(page, without=tier):
                    return
            # The tier has verified the bytes against this checksum.
            self._table.end(page, HOST, whole=complete, digest=copy.digest)
            if complete:
                self._arrived(page, tier, self._clock() - started)
                self.learn(page)
            self._tell(page, tier, "" if complete else _failure(outcome))

        return done

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
        elif outcome is not ReadOutcome.CANCELLED:
            self._events.emit("page.unreadable", tier=copies.name, key=page.key.hex(), reason=outcome.value)
        now = page.copy_in(tier)
        same = now is not None and now.place == copy.place
        if same and not (outcome is ReadOutcome.CANCELLED and copies.durable):
            self._table.lose(page, tier)

    def _tell(self, page: Page, tier: int, failure: str) -> None:
        """Whoever waits for it waits no longer; but for those who join while it is being saved."""
        self._on_its_way.pop(page, None)
        for waiter in self._waiting.pop(page, ()):
            self._settled(waiter, tier, failure)
        if page in self._saving:
            self._waiting.setdefault(page, [])

    def abandon(self, tier: int, part: Part) -> None:
        """A part has gone, and may never answer: whoever waits for a page that is being read from it goes on without.

        The slot stays taken until the read really ends: until then the device may still write to it.
        """
        uses = self._tiers[tier].uses
        for page in [page for page, (of, copy) in self._on_its_way.items() if of == tier and uses(copy.place, part)]:
            self._table.drop(page)
            self._tell(page, tier, ReadOutcome.DEVICE_GONE.value)

    # ---- to save it from a part that is leaving ----

    def save(self, page: Page, tier: int, ended: Callable[[bool], None]) -> bool:
        """Bring a page that this tier alone has to host memory, before the part it lies on is returned. False where
        there is no room that is worth less. Else `ended(saved)` follows, under the lock; until then `join` finds the
        page."""
        copy = page.copy_in(tier)
        if copy is None or not copy.whole or page.in_host or page.elsewhere(tier):
            return False
        # Pinned first: making room must not take it along.
        self._table.pin(page)
        slot = self._table.take_slot(None if page.kept else page.last_use)
        if slot is not None:
            self._table.begin(page, HOST, slot)
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
            ended(complete)

        try:
            self._tiers[tier].read([Read(page.record, copy, self._host.block_run(slot), done, saving=True)])
        except RuntimeError:  # it was closed meanwhile
            self._table.end(page, HOST, whole=False)
            return False
        self._saving[page] = tier
        self._waiting.setdefault(page, [])
        return True

    # ---- to landing memory ----

    def _land(self, page: Page, tier: int) -> bool:
        """Have it copied to the device without passing through host memory, if that is possible. From a tier that is
        not near only where it would push others out of host memory: as long as there is room, it comes up to that,
        where it stays."""
        copy, landing, source = page.copy_in(tier), self._landing, self._tiers[tier]
        if landing is None or copy is None:
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
        try:
            if self._tiers[tier].land(page.record, copy, done):
                return True
        except RuntimeError:  # it was closed meanwhile
            pass
        del self._on_its_way[page]
        self._table.unpin(page)
        return False

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

    def learn(self, page: Page) -> None:
        """Have it known, from host memory, by what the device can tell that it has this page, where a tier needs to."""
        learning = [(tier, source) for tier, source in self._tiers.items() if source.lands_by_digest]
        if not learning or not page.resident or page.digest is None:
            return
        for tier, source in learning:
            copy = page.copy_in(tier)
            if copy is not None and copy.whole and not source.learnt(copy):
                self._table.pin(page)
                if not source.learn(copy, self._host.page(page.slot), lambda: self._table.unpin(page)):
                    self._table.unpin(page)


def _failure(outcome: ReadOutcome) -> str:
    """Why a page that was read is not there."""
    return DROPPED if outcome is ReadOutcome.OK else outcome.value
