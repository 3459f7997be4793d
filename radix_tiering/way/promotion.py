"""Pages on their way up, from other servers' memory or from ssd; each is read once for all who wait.

They come up to host memory, or, straight from other servers' devices or by GPUDirect Storage, to landing memory."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from ..base.events import EventLog
from ..figures.counters import LinkCounters, TierCounters
from ..table.held_page import HostState, Page, PeerCopy
from ..table.page_table import PageTable
from ..tiers.host.host_tier import HostTier
from ..tiers.host.landing import LandingSlots
from ..tiers.peer_memory import PeerMemory
from ..tiers.ssd import ReadOutcome, StoredPage, StripeSet
from ..tiers.ssd.direct_reads import DirectReads

Waiter = TypeVar("Waiter")
#: Told (outcome, slot of landing memory).
LandDone = Callable[[ReadOutcome, int], None]

#: Why a page is not there although nothing failed: a flush, an operator, the end of what came before it.
DROPPED = "dropped meanwhile"


class Source(Enum):
    """Where a page was found."""

    PEER = "peer"
    HOST = "host"
    SSD = "ssd"


class Promotions(Generic[Waiter]):
    """Used under the page table's lock. `settled(waiter, source, failure)` is called under it, once for each waiter,
    on the thread of whoever has read; `failure` is empty where the page is there, else why it is not."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        stripes: StripeSet | None,
        peer: PeerMemory | None,
        *,
        host_counters: TierCounters,
        ssd_counters: TierCounters,
        peer_counters: TierCounters,
        link: LinkCounters,
        events: EventLog,
        clock: Callable[[], float],
        settled: Callable[[Waiter, Source, str], None],
        landing: LandingSlots | None = None,
        direct: DirectReads | None = None,
    ) -> None:
        """`landing`: None: nothing ever lands. `direct`: reads from the devices of `stripes` to it."""
        self._table = table
        self._host = host
        self._stripes = stripes
        self._peer = peer
        self._host_counters = host_counters
        self._counters = {Source.PEER: peer_counters, Source.SSD: ssd_counters}
        self._link = link
        self._events = events
        self._clock = clock
        self._settled = settled
        self._landing = landing
        self._direct = direct
        self._waiting: dict[Page, list[Waiter]] = {}
        self._sources: dict[Page, Source] = {}
        self._from_ssd: dict[Page, StoredPage] = {}  # what is being read of those that come from there
        self._saving: set[Page] = set()  # see `save`: on their way as long as they are in it

    def join(self, page: Page, waiter: Waiter) -> Source | None:
        """Wait with the others for `page`; None if it is not on its way."""
        waiters = self._waiting.get(page)
        if waiters is None:
            return None
        waiters.append(waiter)
        return self._sources[page]

    def begin(self, page: Page, waiter: Waiter, first: Source = Source.PEER) -> Source | None:
        """Start to read `page`, which the caller has pinned, into a place of its own; None if that cannot be.

        `first`: the source to ask first, of those that have it.
        """
        at_peer = first is Source.PEER or page.stored is None
        if self._landing is not None and ((at_peer and self._land_from_peer(page)) or self._land_from_ssd(page)):
            self._waiting[page] = [waiter]
            return self._sources[page]
        slot = self._table.take_slot(None)
        if slot is None:
            self._host_counters.refuse("no room for promotion")
            return None
        self._table.begin_fill(page, slot)
        # In time for the answer, which needs the lock that is held here.
        self._waiting[page] = [waiter]
        ways = (self._read_from_peer, self._read_from_ssd)
        if any(read(page) for read in (ways if at_peer else reversed(ways))):
            return self._sources[page]
        del self._waiting[page]
        self._table.end_fill(page, complete=False)
        return None

    def save(self, page: Page, ended: Callable[[bool], None]) -> bool:
        """Bring a page that lent memory alone has to host memory, before its lease is returned. False where there is
        no room that is worth less. Else `ended(saved)` follows, under the lock; until then `join` finds the page."""
        copy, peer = page.peer, self._peer
        if copy is None or peer is None or page.host is not HostState.NONE or page.stored is not None:
            return False
        # Pinned first: making room must not take it along.
        self._table.pin(page)
        slot = self._table.take_slot(None if page.kept else page.last_use)
        if slot is not None:
            self._table.begin_fill(page, slot)
        self._table.unpin(page)
        if slot is None:
            return False

        def done(outcome: ReadOutcome) -> None:
            with self._table.lock:
                complete = outcome is ReadOutcome.OK and not page.dropped
                self._table.end_fill(page, complete=complete, digest=copy.digest)
                if complete:
                    self._counters[Source.PEER].bytes_read += page.length
                self._saving.discard(page)
                self._tell(page, "" if complete else _failure(outcome))
                ended(complete)

        try:
            peer.read(copy.place, self._host.page(slot), copy.digest, done, demote=True)
        except RuntimeError:  # it was closed meanwhile
            self._table.end_fill(page, complete=False)
            return False
        self._saving.add(page)
        self._on_its_way(page)
        return True

    def _on_its_way(self, page: Page) -> None:
        """Let whoever wants a page that is being saved wait for it."""
        self._waiting.setdefault(page, [])
        self._sources.setdefault(page, Source.PEER)

    def abandon(self, device: int) -> None:
        """`device` has gone, and may never answer: whoever waits for a page that is being read from it goes on without.

        The slot stays taken until the read really ends: until then the device may still write to it.
        """
        for page in [page for page, stored in self._from_ssd.items() if stored.uses(device)]:
            self._table.drop(page)
            self._tell(page, ReadOutcome.DEVICE_GONE.value)

    def _tell(self, page: Page, failure: str) -> None:
        source = self._sources.pop(page, Source.SSD)
        self._from_ssd.pop(page, None)
        for waiter in self._waiting.pop(page, ()):
            self._settled(waiter, source, failure)
        if page in self._saving:
            self._on_its_way(page)

    def _read_from_ssd(self, page: Page) -> bool:
        if page.stored is None or self._stripes is None:
            return False
        try:
            self._stripes.read(page.stored, self._host.block_run(page.slot), self._ssd_done(page))
        except RuntimeError:  # the stripe set was closed meanwhile
            return False
        self._sources[page] = Source.SSD
        self._from_ssd[page] = page.stored
        return True

    def _read_from_peer(self, page: Page) -> bool:
        if page.peer is None or self._peer is None:
            return False
        place, digest, _ = page.peer
        try:
            self._peer.read(place, self._host.page(page.slot), digest, self._peer_done(page, digest))
        except RuntimeError:  # it was closed meanwhile
            return False
        self._sources[page] = Source.PEER
        self._from_ssd.pop(page, None)  # it was tried before
        return True

    # ---- to landing memory ----

    def _land_from_peer(self, page: Page) -> bool:
        """Have it copied from device to device, if that is possible."""
        peer, copy = self._peer, page.peer
        if peer is None or copy is None:
            return False
        return self._land(
            page,
            Source.PEER,
            lambda done: peer.land(copy.place, done),
            lambda outcome: self._lost_at_peer(page, copy, outcome),
        )

    def _land_from_ssd(self, page: Page) -> bool:
        """Have it read straight to the device, if that is possible and it would only push others out of host memory.
        As long as there is room in that, it comes up there, where it stays."""
        direct, stored, digest = self._direct, page.stored, page.device_digest
        if direct is None or stored is None or digest is None or page.peer is not None or self._host.free_slots:
            return False

        def lost(outcome: ReadOutcome) -> None:
            self._from_ssd.pop(page, None)
            page.device_digest = None  # it is read to host memory now, and learnt anew if it is sound there

        landing = self._land(page, Source.SSD, lambda done: direct.read(stored, digest, done), lost)
        if landing:
            self._from_ssd[page] = stored
        return landing

    def _land(
        self, page: Page, source: Source, begin: Callable[[LandDone], bool], lost: Callable[[ReadOutcome], None]
    ) -> bool:
        """`begin(done)` asks for the page, or does not; `lost(outcome)`: it did not come."""
        assert self._landing is not None
        landing, started = self._landing, self._clock()

        def done(outcome: ReadOutcome, slot: int) -> None:
            with self._table.lock:
                complete = outcome is ReadOutcome.OK and not page.dropped
                if complete:
                    self._table.land(page, slot)
                    self._arrived(page, source, self._clock() - started)
                elif outcome is ReadOutcome.OK:
                    landing.give_back(slot)
                elif not page.dropped:
                    lost(outcome)
                    if self._fill_from_ssd(page) or page in self._saving:
                        self._table.unpin(page)
                        return
                self._tell(page, "" if complete else _failure(outcome))
                self._table.unpin(page)

        # In time for the answer, and until then whoever waits may stop waiting.
        self._table.pin(page)
        self._sources[page] = source
        try:
            if begin(done):
                return True
        except RuntimeError:  # it was closed meanwhile
            pass
        del self._sources[page]
        self._table.unpin(page)
        return False

    def learn(self, page: Page) -> None:
        """Have it known by what the device can tell that it has this page, which is on ssd, from host memory."""
        direct = self._direct
        if direct is None or page.host is not HostState.RESIDENT or page.digest is None or page.device_digest:
            return

        def done(digest: bytes | None) -> None:
            with self._table.lock:
                page.device_digest = digest
                self._table.unpin(page)

        self._table.pin(page)
        if not direct.learn(self._host.page(page.slot), page.digest, done):
            self._table.unpin(page)

    def _fill_from_ssd(self, page: Page) -> bool:
        """Read it into host memory, now that it did not land."""
        if page.dropped or page.stored is None or page.host is not HostState.NONE:
            return False  # gone; or being saved from a lease that is to be returned
        if (slot := self._table.take_slot(None)) is None:
            return False
        self._table.begin_fill(page, slot)
        if self._read_from_ssd(page):
            return True
        self._table.end_fill(page, complete=False)
        return False

    def _arrived(self, page: Page, source: Source, seconds: float) -> None:
        self._counters[source].bytes_read += page.length
        self._counters[source].read_latency.observe(seconds)

    def _ssd_done(self, page: Page) -> Callable[[ReadOutcome], None]:
        started = self._clock()

        def done(outcome: ReadOutcome) -> None:
            with self._table.lock:
                complete = outcome is ReadOutcome.OK and not page.dropped
                if outcome is not ReadOutcome.OK and not page.dropped:
                    self._lost_on_ssd(page, outcome)
                    if self._read_from_peer(page):
                        return
                # The stripe set has verified the bytes against this checksum.
                digest = page.stored.digest if page.stored is not None else None
                self._table.end_fill(page, complete=complete, digest=digest)
                if complete:
                    seconds = self._clock() - started
                    self._arrived(page, Source.SSD, seconds)
                    self._link.count(1, page.length, seconds)
                    self.learn(page)
                self._tell(page, "" if complete else _failure(outcome))

        return done

    def _peer_done(self, page: Page, digest: bytes) -> Callable[[ReadOutcome], None]:
        started, copy = self._clock(), page.peer

        def done(outcome: ReadOutcome) -> None:
            with self._table.lock:
                complete = outcome is ReadOutcome.OK and not page.dropped
                if outcome is not ReadOutcome.OK and not page.dropped:
                    self._lost_at_peer(page, copy, outcome)
                    if self._read_from_ssd(page):
                        return
                self._table.end_fill(page, complete=complete, digest=digest)
                if complete:
                    self._arrived(page, Source.PEER, self._clock() - started)
                self._tell(page, "" if complete else _failure(outcome))

        return done

    def _lost_at_peer(self, page: Page, copy: PeerCopy | None, outcome: ReadOutcome) -> None:
        if outcome is not ReadOutcome.CANCELLED:
            self._counters[Source.PEER].checksum_failures += 1
            self._events.emit("page.corrupt", tier="peer", key=page.key.hex(), reason=outcome.value)
        if page.peer is copy:
            self._table.peer_copies.end(page)

    def _lost_on_ssd(self, page: Page, outcome: ReadOutcome) -> None:
        """What is on ssd cannot be used: a miss, for ever."""
        if outcome.corrupt:
            self._counters[Source.SSD].checksum_failures += 1
            self._events.emit("page.corrupt", tier="ssd", key=page.key.hex(), reason=outcome.value)
        elif outcome is not ReadOutcome.CANCELLED:
            self._events.emit("page.unreadable", tier="ssd", key=page.key.hex(), reason=outcome.value)
        if outcome is not ReadOutcome.CANCELLED:
            self._table.detach_stored(page)


def _failure(outcome: ReadOutcome) -> str:
    """Why a page that was read is not there."""
    return DROPPED if outcome is ReadOutcome.OK else outcome.value
