"""What a restore takes hold of: the chain of its pages, as far as it is held, pinned; and which of them are sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..base.events import EventLog
from ..table.held_page import HOST, Page
from ..table.page_table import PageTable
from ..tiers.host.host_tier import HostTier
from ..tiers.tier import ReadOutcome
from .mover import Mover
from .nearest_copy import NearestCopy
from .page_reads import Waiter
from .reads import DROPPED, Reads
from .request_restore import Restore, RestoreState

#: Pages handled in one hold of the page table's lock: bounds how long another thread waits for it.
PAGES_PER_HOLD = 64


class Claims:
    """On the restorer's worker. Takes the page table's lock itself, for few pages at a time."""

    def __init__(
        self,
        namespace: bytes,
        table: PageTable,
        host: HostTier,
        movers: Sequence[Mover],
        reads: Reads[Waiter],
        *,
        events: EventLog,
        verify: bool,
        fingerprint: Callable[[np.ndarray], bytes],
        settle: Callable[[Restore, int, int, str], None],
        nearest: Callable[[], NearestCopy],
    ) -> None:
        """`movers`: what is offered the pages that are used. `settle(restore, unit, tier, failure)` is told under the
        lock of each page that is verified, or not sound. `nearest()`: what chooses for one chain between a page's
        copies; called under the lock."""
        self.namespace = namespace  # may be changed at any time
        self._table = table
        self._host = host
        self._movers = movers
        self._reads = reads
        self._events = events
        self._verify = verify
        self._checksum = fingerprint
        self._settle = settle
        self._nearest = nearest

    def count_misses(self, wanted: int, sources: Sequence[int] = ()) -> None:
        """Of so many pages those of `sources` were found, each in its tier: every other tier that comes before that
        one lacks it. Lock held."""
        for copies in self._table.of:
            wanted -= sources.count(copies.number)
            copies.counters.misses += wanted

    def use(self, keys: Sequence[bytes], now: int, reach: int) -> None:
        """Count a use of pages that the device has."""
        for start in range(0, len(keys), PAGES_PER_HOLD):
            with self._table.lock:
                for key in keys[start : start + PAGES_PER_HOLD]:
                    if (page := self._table.settled(self.namespace, key)) is not None:
                        self._touch(page, now, reach)

    def _touch(self, page: Page, now: int, reach: int) -> None:
        self._table.use(page, now, reach)
        if page.resident:
            for mover in self._movers:
                if page.copies[mover.number] is None:
                    mover.offer(page)

    def claim(self, restore: Restore, now: int) -> None:
        """Pin the chain as far as it goes."""
        found: list[int] = []  # the tiers of the pages that there are
        with self._table.lock:
            nearest = self._nearest()
        for start in range(0, len(restore.keys), PAGES_PER_HOLD):
            batch = restore.keys[start : start + PAGES_PER_HOLD]
            with self._table.lock:
                if restore.state is not RestoreState.RUNNING:
                    return
                for key in batch:
                    page = self._table.settled(self.namespace, key)
                    if page is None or not self._claim_page(restore, page, now, nearest):
                        break
                    found.append(restore.sources[-1])
            if len(found) < start + len(batch):
                break
        with self._table.lock:
            if restore.state is RestoreState.RUNNING:
                restore.story.found(restore.by_source())
            self.count_misses(len(restore.keys), found)

    def _claim_page(self, restore: Restore, page: Page, now: int, nearest: NearestCopy) -> bool:
        unit = len(restore.claimed)
        there = False
        if page.resident:
            source, under_way, there = HOST, True, not self._verify
        elif page.landing >= 0:
            # What a page lands from is the nearest tier that has it; once it has left there, nobody knows.
            below = range(HOST + 1, len(page.copies))
            source, under_way, there = next(filter(page.whole_in, below), below[-1]), True, True
        elif (joined := self._reads.join(page, (restore, unit, None))) is not None:
            source, under_way = joined, True
        elif page.saved:
            source, under_way = nearest.choose(page), False
        else:
            return False
        self._table.pin(page)
        restore.claimed.append(page)
        restore.sources.append(source)
        restore.flight.append(restore.tiers[source])
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
                if restore.sources[unit] == HOST and restore.state is RestoreState.RUNNING
            ]
        for unit, page in resident:
            expected, digest = page.digest, self._checksum(self._host.page(page.slot))
            with self._table.lock:
                if restore.state is not RestoreState.RUNNING:
                    return  # no longer pinned: the slot may hold another page by now
                failure = DROPPED if page.dropped else ""
                if expected is None:
                    # Came up from ssd, where its units were verified; this is the first look at it in memory.
                    page.learn_digest(digest)
                elif digest != expected and not page.dropped:
                    self._table.of[HOST].counters.checksum_failures += 1
                    self._events.emit("page.corrupt", tier="host", key=page.key.hex(), slot=page.slot)
                    self._table.drop(page)
                    failure = ReadOutcome.CHECKSUM.value
                self._settle(restore, unit, HOST, failure)
