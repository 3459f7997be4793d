"""Writing behind: pages on their way from host memory to the SSD tier.

Parents are written before their children, each page at most once, a bounded number at a time; the rest waits in a
queue without holding anything, so a page that leaves host memory meanwhile is simply not written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..base.events import EventLog
from ..base.runner import Runner
from ..figures.counters import LinkCounters, TierCounters
from ..table.held_page import HostState, Page
from ..table.page_table import PageTable
from ..table.policy import AdmissionPolicy
from ..tiers.host.host_tier import HostTier
from ..tiers.ssd import Placement, StoredPage, StripeSet

#: Pages whose writes may be in flight together: enough to keep every device busy, few enough that reads pass.
WRITES_IN_FLIGHT = 16
#: Why a page is refused while every device is out of service, or gets no new pages.
NO_DEVICE = "no device takes pages"
#: Pages that may leave the ssd tier for one that enters it: bounds how long the page table is locked.
EVICTIONS_PER_WRITE = 64


class WriteBehind:
    """Admits pages to the stripe set and writes them. Callers hold the page table's lock unless said otherwise."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        stripes: StripeSet,
        admission: AdmissionPolicy,
        counters: TierCounters,
        events: EventLog,
        *,
        host_counters: TierCounters,
        link: LinkCounters,
        runner: Runner,
        verify: bool,
        stored: Callable[[Page], None] = lambda page: None,
    ) -> None:
        """`stored` is told of each page that has been written."""
        self._table = table
        self._host = host
        self._stripes = stripes
        self.admission = admission  # may be replaced
        self._counters = counters
        self._events = events
        self._host_counters = host_counters
        self._link = link
        self._clock = runner.monotonic
        self._verify = verify
        self._stored = stored
        self.enabled = True  # False: nothing is taken in
        self.paused = False  # True: what is taken in waits
        self._queue: deque[Page] = deque()
        self._queued: set[Page] = set()
        self._in_flight = 0
        self._idle = runner.condition(table.lock)

    @property
    def backlog(self) -> int:
        """Pages admitted and not yet written."""
        return len(self._queued) + self._in_flight

    def offer(self, page: Page) -> None:
        """Write `page`, and what of its prefix is not stored yet, if the admission policy wants it."""
        if self.enabled and page.stored is None and not page.writing and self.admission.admits(page):
            self.enqueue(page)

    def enqueue(self, page: Page) -> None:
        """Write `page` and what of its prefix is not stored yet."""
        if not self._stripes.capacity_units:
            self._counters.refuse(NO_DEVICE)  # its whole prefix need not be looked at
            return
        chain = []
        current: Page | None = page
        # What is queued or being written has its own prefix queued, being written or stored.
        while current is not None and current.stored is None and current not in self._queued and not current.writing:
            chain.append(current)
            current = current.parent
        for unsaved in reversed(chain):
            self._queue.append(unsaved)
            self._queued.add(unsaved)
        self.pump()

    def pump(self) -> None:
        """Start writes while there are pages and room in flight."""
        while self._queue and not self.paused and self._in_flight < WRITES_IN_FLIGHT:
            page = self._queue.popleft()
            self._queued.discard(page)
            self._start(page)
        if not self.backlog:
            self._idle.notify_all()

    def clear(self) -> None:
        """Forget what is queued; what is in flight completes."""
        self._queue.clear()
        self._queued.clear()
        self.pump()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until everything admitted is written; False on timeout."""
        return self._idle.wait_for(lambda: not self.backlog, timeout)

    def _start(self, page: Page) -> None:
        if page.dropped or page.stored is not None or page.writing or page.host is not HostState.RESIDENT:
            return
        if page.parent is not None and page.parent.stored is None and not page.parent.writing:
            self._counters.refuse("prefix not on ssd")
            return
        placement = self._place(page)
        if placement is None:
            self._counters.refuse("full" if self._stripes.capacity_units else NO_DEVICE)
            return
        self._in_flight += 1
        self._table.begin_write(page)
        try:
            self._stripes.write(page.record, placement, self._host.block_run(page.slot), self._completion(page))
        except (ValueError, RuntimeError) as error:
            self._in_flight -= 1
            self._stripes.release(placement)
            self._table.end_write(page, None)
            self._counters.refuse("write failed")
            self._events.emit("ssd.write_failed", key=page.key.hex(), reason=str(error))

    def _place(self, page: Page) -> Placement | None:
        """A place for `page`, made by evicting if need be; None if that would take too much, or nothing takes pages."""
        size = self._table.size_on_ssd(page.length)
        limit = self._table.ssd_limit
        for tried in range(EVICTIONS_PER_WRITE):
            if self._table.ssd_may_take(size) and (placement := self._stripes.reserve(page.length)) is not None:
                return placement
            if not tried and ((limit is not None and size > limit) or not self._fits(page)):
                return None
            victim = self._table.ssd_victim(page.last_use)
            if victim is None:
                return None
            self._table.evict_stored(victim)
        return None

    def _fits(self, page: Page) -> bool:
        """Whether the devices that take new pages have room for `page`, whatever were to leave."""
        return self._stripes.units(page.length) <= self._stripes.capacity_units

    def _completion(self, page: Page) -> Callable[[StoredPage | None, str], None]:
        started, slot = self._clock(), page.slot

        def done(stored: StoredPage | None, reason: str) -> None:
            # The checksum of what was written: were the bytes still the page's?
            intact = stored is None or not self._verify or page.digest in (None, stored.digest)
            with self._table.lock:
                self._in_flight -= 1
                if stored is not None:
                    self._link.count(1, page.length, self._clock() - started)
                usable = stored is not None and intact and not page.dropped and self._reachable(page)
                self._table.end_write(page, stored if usable else None)
                if stored is None:
                    self._failed(page, reason)
                elif usable:
                    self._counters.bytes_written += page.length
                    self._stored(page)
                else:
                    self._stripes.release(stored.placement)
                if not intact:
                    self._host_counters.checksum_failures += 1
                    self._events.emit("page.corrupt", tier="host", key=page.key.hex(), slot=slot)
                    if not page.dropped:
                        self._table.drop(page)
                self.pump()

        return done

    @staticmethod
    def _reachable(page: Page) -> bool:
        """Whether a restart would find the prefix of `page` on ssd, once the writes in flight are done."""
        return page.parent is None or page.parent.stored is not None or page.parent.writing

    def _failed(self, page: Page, reason: str) -> None:
        self._counters.refuse("write failed")
        self._events.emit("ssd.write_failed", key=page.key.hex(), reason=reason)
        # A failed write has taken its device out of service, so trying again ends at the latest when no device is left.
        if not page.dropped and page.host is HostState.RESIDENT:
            self.offer(page)
