"""What a restore takes hold of: the chain of its pages, as far as it is held, pinned; and which of them are sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..base.events import EventLog
from ..figures.counters import TierCounters
from ..table.held_page import HostState, Page
from ..table.page_table import PageTable
from ..tiers.host.host_tier import HostTier
from ..tiers.ssd import ReadOutcome
from .nearest_copy import NearestCopy
from .page_reads import Waiter
from .peer_writer import PeerWriter
from .promotion import DROPPED, Promotions, Source
from .request_restore import Restore, RestoreState
from .write_behind import WriteBehind

#: Pages handled in one hold of the page table's lock: bounds how long another thread waits for it.
PAGES_PER_HOLD = 64


class Claims:
    """On the restorer's worker. Takes the page table's lock itself, for few pages at a time."""

    def __init__(
        self,
        namespace: bytes,
        table: PageTable,
        host: HostTier,
        writer: WriteBehind | None,
        sharer: PeerWriter | None,
        promotions: Promotions[Waiter],
        *,
        host_counters: TierCounters,
        ssd_counters: TierCounters | None,
        peer_counters: TierCounters | None,
        events: EventLog,
        verify: bool,
        fingerprint: Callable[[np.ndarray], bytes],
        settle: Callable[[Restore, int, Source, str], None],
        nearest: Callable[[], NearestCopy],
    ) -> None:
        """`ssd_counters`, `peer_counters`: None where there is no such tier. `settle(restore, unit, source, failure)`
        is told under the lock of each page that is verified, or not sound. `nearest()`: what chooses for one chain
        between a page's copies; called under the lock."""
        self.namespace = namespace  # may be changed at any time
        self._table = table
        self._host = host
        self._writer = writer
        self._sharer = sharer
        self._promotions = promotions
        self._host_counters = host_counters
        self._ssd_counters = ssd_counters
        self._peer_counters = peer_counters
        self._events = events
        self._verify = verify
        self._checksum = fingerprint
        self._settle = settle
        self._nearest = nearest

    def count_misses(self, nowhere: int, on_ssd: int, at_peers: int) -> None:
        """Of pages that host memory lacks. Lock held."""
        self._host_counters.misses += nowhere + on_ssd + at_peers
        if self._ssd_counters is not None:
            self._ssd_counters.misses += nowhere
        if self._peer_counters is not None:
            self._peer_counters.misses += nowhere + on_ssd

    def use(self, keys: Sequence[bytes], now: int, reach: int) -> None:
        """Count a use of pages that the device has."""
        for start in range(0, len(keys), PAGES_PER_HOLD):
            with self._table.lock:
                for key in keys[start : start + PAGES_PER_HOLD]:
                    if (page := self._table.settled(self.namespace, key)) is not None:
                        self._touch(page, now, reach)

    def _touch(self, page: Page, now: int, reach: int) -> None:
        self._table.use(page, now, reach)
        if page.host is HostState.RESIDENT:
            if self._writer is not None and page.stored is None:
                self._writer.offer(page)
            if self._sharer is not None:
                self._sharer.offer(page)

    def claim(self, restore: Restore, now: int) -> None:
        """Pin the chain as far as it goes."""
        found = 0
        with self._table.lock:
            nearest = self._nearest()
        for start in range(0, len(restore.keys), PAGES_PER_HOLD):
            batch = restore.keys[start : start + PAGES_PER_HOLD]
            with self._table.lock:
                if restore.state is not RestoreState.RUNNING:
                    return
                taken = 0
                for key in batch:
                    page = self._table.settled(self.namespace, key)
                    if page is None or not self._claim_page(restore, page, now, nearest):
                        break
                    taken += 1
            found += taken
            if taken < len(batch):
                break
        with self._table.lock:
            if restore.state is RestoreState.RUNNING:
                restore.story.found(restore.by_source())
            on_ssd, at_peers = restore.sources.count(Source.SSD), restore.sources.count(Source.PEER)
            self.count_misses(len(restore.keys) - found, on_ssd, at_peers)

    def _claim_page(self, restore: Restore, page: Page, now: int, nearest: NearestCopy) -> bool:
        unit = len(restore.claimed)
        there = False
        if page.host is HostState.RESIDENT:
            source, under_way, there = Source.HOST, True, not self._verify
        elif page.landing >= 0:
            # By the rule that decides what a page lands from.
            source, under_way, there = Source.PEER if page.peer is not None else Source.SSD, True, True
        elif (joined := self._promotions.join(page, (restore, unit, None))) is not None:
            source, under_way = joined, True
        elif page.saved:
            source, under_way = nearest.choose(page), False
        else:
            return False
        self._table.pin(page)
        restore.claimed.append(page)
        restore.sources.append(source)
        restore.flight.append(source.value)
        if under_way:
            restore.flight.take_load(range(unit, unit + 1))
        if there:
            restore.flight.arrived(unit)
        self._touch(page, now, restore.reach)
        return True

    def verify_resident(self, restore: Restore) -> None:
        """Check the bytes of the pages that were in host memory already; they are pinned, so no lock is needed."""
        if not self._verify:
            return
        with self._table.lock:
            resident = [
                (unit, page)
                for unit, page in enumerate(restore.claimed)
                if restore.sources[unit] is Source.HOST and restore.state is RestoreState.RUNNING
            ]
        for unit, page in resident:
            expected, digest = page.digest, self._checksum(self._host.page(page.slot))
            with self._table.lock:
                if restore.state is not RestoreState.RUNNING:
                    return  # no longer pinned: the slot may hold another page by now
                failure = DROPPED if page.dropped else ""
                if expected is None:
                    # Came up from ssd, where its units were verified; this is the first look at it in memory.
                    page.digest = digest
                elif digest != expected and not page.dropped:
                    self._host_counters.checksum_failures += 1
                    self._events.emit("page.corrupt", tier="host", key=page.key.hex(), slot=page.slot)
                    self._table.drop(page)
                    failure = ReadOutcome.CHECKSUM.value
                self._settle(restore, unit, Source.HOST, failure)
