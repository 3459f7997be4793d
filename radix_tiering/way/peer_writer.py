"""Pages on their way from host memory to memory that other servers lend, and what happens when it is taken back.

Which pages: those that are worth most by `PeerOrder`. While there is room every page is; then one that is worth more
than the least of those there takes its place. Nobody waits for a copy to be made.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator

from ..base.errand_thread import ErrandThread
from ..base.events import EventLog
from ..base.runner import Runner
from ..figures.counters import TierCounters
from ..lending.leases import LeaseKey
from ..table.held_page import HostState, Page, PeerCopy
from ..table.page_table import PageTable
from ..tiers.host.host_tier import HostTier
from ..tiers.peer_memory import PeerMemory

#: Copies that may be under way together.
COPIES_IN_FLIGHT = 16
#: Pages that wait at most; those that would be too many are offered again when they are used again.
QUEUED_PAGES = 4096
#: Pages handled in one hold of the page table's lock.
STEP_PAGES = 64
#: What is wanted beyond the pages that memory holds now: room for those to come.
HEADROOM = 1.25


class PeerWriter:
    """Callers hold the page table's lock unless said otherwise."""

    def __init__(
        self,
        table: PageTable,
        host: HostTier,
        peer: PeerMemory,
        *,
        runner: Runner,
        counters: TierCounters,
        events: EventLog,
        most_bytes: int | None,
        save: Callable[[Page, Callable[[bool], None]], bool],
    ) -> None:
        """`most_bytes`: what is borrowed at most; None: no limit. `save`: see `Promotions.save`."""
        self._table = table
        self._host = host
        self._peer = peer
        self._counters = counters
        self._events = events
        self._most_bytes = math.inf if most_bytes is None else most_bytes
        self._save_page = save
        self._wanted = 0
        self._queue: deque[Page] = deque()
        self._queued: set[Page] = set()
        self._in_flight = 0
        self._saving: dict[LeaseKey, int] = {}  # recalled leases: pages that are being saved from them
        self._idle = runner.condition(table.lock)

    @property
    def backlog(self) -> int:
        """Pages that wait, and copies under way."""
        return len(self._queue) + self._in_flight

    def offer(self, page: Page) -> None:
        """Make a copy of `page` in lent memory, if it is worth it when its turn comes."""
        if page.peer is None and not page.sharing and page not in self._queued and len(self._queue) < QUEUED_PAGES:
            self._queue.append(page)
            self._queued.add(page)
            self._adjust()
            self.pump()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no copy is under way in either direction; False on timeout."""
        return self._idle.wait_for(lambda: not self._in_flight and not self._saving, timeout)

    def clear(self) -> None:
        """Forget what is queued."""
        self._queue.clear()
        self._queued.clear()

    def recall(self, key: LeaseKey) -> None:
        """The lease is to be returned: save to host memory what would be lost, as far as there is room, hottest first.

        For another thread, without the lock, since it takes a while.
        """
        with self._table.lock:
            self._saving[key] = 1  # this call's own share
            pages = self._table.peer_copies.under(key)
        pages.sort(key=lambda page: (-page.last_use, page.depth))
        saved = self._leave(pages, lambda page: self._save(page, key))
        self._events.emit("borrowed.recalled", donor=key.donor, lease=key.lease, pages=len(pages), saving=saved)
        with self._table.lock:
            self._saved(key)

    def end(self, key: LeaseKey) -> None:
        """Nothing under the lease can be read any more. For another thread, without the lock."""
        with self._table.lock:
            pages = self._table.peer_copies.under(key)
        self._leave(pages, lambda page: False)
        if pages:
            self._events.emit("borrowed.ended", donor=key.donor, lease=key.lease, pages=len(pages))
        with self._table.lock:
            self._saving.pop(key, None)
            self._idle.notify_all()

    def _leave(self, pages: list[Page], save: Callable[[Page], bool]) -> int:
        """Give up the copies of `pages`; how many are being saved."""
        saved = 0
        for start in range(0, len(pages), STEP_PAGES):
            with self._table.lock:
                for page in pages[start : start + STEP_PAGES]:
                    if page.peer is not None and not page.dropped:
                        saved += save(page)
                        self._table.peer_copies.end(page)
        return saved

    def _save(self, page: Page, key: LeaseKey) -> bool:
        """Read a page that is nowhere else into host memory; False if there is no room for it that is worth less."""
        saving = self._save_page(page, lambda saved: self._saved(key))
        self._saving[key] += saving
        return saving

    def _saved(self, key: LeaseKey) -> None:
        """One less to wait for before the lease is returned."""
        if key in self._saving:
            self._saving[key] -= 1
            if not self._saving[key]:
                del self._saving[key]
                self._idle.notify_all()
                self._peer.give_up(key)

    def _adjust(self) -> None:
        """Say how much is wanted: what memory holds now, and some more."""
        pages = self._table.resident_pages + self._table.peer_copies.pages
        wanted = int(min(self._most_bytes, pages * self._host.geometry.page_bytes * HEADROOM))
        if not self._wanted / 2 <= wanted <= self._wanted:
            # With room to grow, so that not every page changes it.
            self._wanted = int(min(self._most_bytes, wanted * HEADROOM))
            self._peer.want(self._wanted)

    def pump(self) -> None:
        """Start copies while there are pages and there is memory to put them in."""
        if not self._peer.capacity_bytes:
            return
        while self._queue and self._in_flight < COPIES_IN_FLIGHT:
            page = self._queue.popleft()
            self._queued.discard(page)
            self._start(page)

    def _start(self, page: Page) -> None:
        if page.dropped or page.peer is not None or page.sharing or page.host is not HostState.RESIDENT:
            return
        if page.digest is None:
            return  # nobody could tell later whether its bytes are right
        place = self._peer.reserve()
        if place is None and self._table.peer_copies.make_room_for(page) and not page.dropped:
            place = self._peer.reserve()
        if place is None:
            return  # it is worth no more than what is there
        copy = PeerCopy(place, page.digest, self._table.flushes)
        self._table.peer_copies.begin_sharing(page)
        self._in_flight += 1
        try:
            self._peer.write(place, self._host.page(page.slot), self._completion(page, copy), digest=page.digest)
        except RuntimeError:  # it was closed meanwhile
            self._in_flight -= 1
            self._table.peer_copies.end_sharing(page, copy, made=False)

    def _completion(self, page: Page, copy: PeerCopy) -> Callable[[bool, str], None]:
        def done(made: bool, reason: str) -> None:
            with self._table.lock:
                self._in_flight -= 1
                if not self._table.peer_copies.end_sharing(page, copy, made=made):
                    self._counters.refuse("lease ended" if made else reason)
                self.pump()
                self._idle.notify_all()

        return done


class PeerEvents:
    """What a stack does when leases begin, are recalled and end. On the peer memory's own thread."""

    def __init__(self, table: PageTable, errands: ErrandThread, writer: PeerWriter) -> None:
        self._table = table
        self._errands = errands
        self._writer = writer

    def lease_began(self) -> None:
        """Offer what host memory holds, most recent first, in steps."""
        self._errands.start(self._offer_all())

    def lease_recalled(self, key: LeaseKey, until: float) -> None:
        self._writer.recall(key)

    def lease_ended(self, key: LeaseKey) -> None:
        self._writer.end(key)

    def _offer_all(self) -> Generator[None, None, int]:
        table = self._table
        with table.lock:
            self._writer.pump()
        pages = [page for page in table.in_memory() if page.host is HostState.RESIDENT and page.peer is None]
        pages.sort(key=lambda page: (-page.last_use, page.depth))
        for start in range(0, len(pages), STEP_PAGES):
            with table.lock:
                for page in pages[start : start + STEP_PAGES]:
                    if not page.dropped and page.host is HostState.RESIDENT:
                        self._writer.offer(page)
            yield
        return len(pages)
