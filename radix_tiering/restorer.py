"""Bringing a request's pages up to host memory before the request is admitted.

A `Restore` is one request's claim on a chain of pages:

    WAITING --(worker takes it)--> RUNNING --(all pages settled)--> READY
       |                              |---(deadline passed)------> READY, with what has come up so far
       '----------(cancel)------------'--(cancel)----------------> CANCELLED

While it is RUNNING or READY its pages are pinned. READY is final until `release`: `pages` pages from the start of the
chain lie in host memory, verified, and cannot leave. Nothing is promised before that.

A restore begins when its request arrives, which may be long before there is room for it on the device. So that a long
queue does not pin all of host memory, one that nobody has asked for yet (`poll`) starts only while less than half of
it is pinned; and the deadline counts from the first `poll`, since only from then on somebody waits.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

import numpy as np

from swift_tiers.radix_tiering.counters import LinkCounters, RestoreSnapshot, TierCounters
from swift_tiers.radix_tiering.events import EventLog
from swift_tiers.radix_tiering.held_page import HostState, Page
from swift_tiers.radix_tiering.host_tier import HostTier
from swift_tiers.radix_tiering.page_table import PageTable
from swift_tiers.radix_tiering.peer_memory import PeerMemory
from swift_tiers.radix_tiering.peer_writer import PeerWriter
from swift_tiers.radix_tiering.promotion import Promotions, Source
from swift_tiers.radix_tiering.ssd import StripeSet
from swift_tiers.radix_tiering.write_behind import WriteBehind

#: Share of host memory, less what operators keep there, that restores may pin for requests that cannot be admitted yet.
EARLY_SHARE = 0.5
#: Pages handled in one hold of the page table's lock: bounds how long another thread waits for it.
PAGES_PER_HOLD = 64


class RestoreState(Enum):
    WAITING = auto()
    RUNNING = auto()
    READY = auto()
    CANCELLED = auto()


class Restore:
    """One request's claim on a chain of pages. Made and changed by `Restorer`; `state` and `pages` may be read
    by any thread."""

    __slots__ = (
        "arrived",
        "asked_for",
        "claimed",
        "deadline",
        "ended",
        "keys",
        "outcome",
        "pages",
        "prefix_keys",
        "released",
        "settled",
        "short",
        "slots",
        "sources",
        "started",
        "state",
        "unsettled",
    )

    def __init__(self, keys: Sequence[bytes], prefix_keys: Sequence[bytes], started: float) -> None:
        self.keys = keys  # the chain to bring up
        self.prefix_keys = prefix_keys  # pages before it, which the device has: used, not moved
        self.started = started
        self.deadline = float("inf")  # until somebody waits
        self.asked_for = False
        self.state = RestoreState.WAITING
        self.outcome = ""  # how it ended, by the name that `RestoreSnapshot` counts it under; empty: nothing was held
        self.ended: float | None = None
        self.claimed: list[Page] = []  # pinned
        self.sources: list[Source] = []
        self.settled: list[bool] = []  # per claimed page: its fate is known
        self.arrived: list[bool] = []  # per claimed page: in host memory and verified
        self.unsettled = 0
        self.short = False  # a page was found that could not be claimed
        self.pages = 0  # final when READY
        self.slots: np.ndarray = np.empty(0, dtype=np.int64)  # host slots of those pages
        self.released = False

    @property
    def reach(self) -> int:
        """Whole pages of its request, as far as known."""
        return len(self.prefix_keys) + len(self.keys)


class Restorer:
    """Runs restores on one worker thread ("swift-restore"); SSD reads complete on the stripe set's thread."""

    def __init__(
        self,
        namespace: bytes,
        table: PageTable,
        host: HostTier,
        stripes: StripeSet | None,
        writer: WriteBehind | None,
        sharer: PeerWriter | None,
        *,
        host_counters: TierCounters,
        ssd_counters: TierCounters,
        peer: PeerMemory | None,
        peer_counters: TierCounters,
        link: LinkCounters,
        events: EventLog,
        clock: Callable[[], float],
        deadline_seconds: float,
        verify: bool,
        fingerprint: Callable[[np.ndarray], bytes],
    ) -> None:
        self.namespace = namespace
        self._table = table
        self._host = host
        self._stripes = stripes
        self._writer = writer
        self._sharer = sharer
        self._host_counters = host_counters
        self._ssd_counters = ssd_counters
        self._peer = peer
        self._peer_counters = peer_counters
        self._events = events
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._verify = verify
        self._checksum = fingerprint
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._deferred: deque[Restore] = deque()
        self._promotions: Promotions[tuple[Restore, int]] = Promotions(
            table, host, stripes, peer, host_counters=host_counters, ssd_counters=ssd_counters,
            peer_counters=peer_counters, link=link, events=events, clock=clock, settled=self._promoted,
        )  # fmt: skip
        self._counts = dict.fromkeys(RestoreSnapshot.__struct_fields__, 0)
        self._thread = threading.Thread(target=self._run, name="swift-restore", daemon=True)
        self._thread.start()

    # ---- any thread ----

    def begin(self, keys: Sequence[bytes], prefix_keys: Sequence[bytes] = ()) -> Restore:
        """Start to bring up `keys`, a chain of pages; returns at once. Counts a use of `prefix_keys` too."""
        restore = Restore(keys, prefix_keys, self._clock())
        self._jobs.put(lambda: self._start(restore))
        return restore

    def change_deadline(self, seconds: float) -> None:
        """How long those who begin to wait from now on will wait."""
        self._deadline_seconds = seconds

    def nothing(self, keys: Sequence[bytes], prefix_keys: Sequence[bytes] = ()) -> Restore:
        """A restore of `keys` where nothing is held: ready now, with no page. Counts the misses and the uses."""
        restore = Restore(keys, prefix_keys, self._clock())
        restore.ended = restore.started
        restore.state = RestoreState.READY
        self._jobs.put(lambda: self._miss(restore))
        return restore

    def poll(self, restore: Restore) -> bool:
        """Whether `restore` is settled; past its deadline it settles here, with what has come up."""
        if restore.state in (RestoreState.READY, RestoreState.CANCELLED):
            return True
        if not restore.asked_for:
            restore.asked_for = True
            restore.deadline = self._clock() + self._deadline_seconds
            self._jobs.put(lambda: self._start(restore))  # in case it had been deferred
        if self._clock() < restore.deadline:
            return False
        with self._table.lock:
            if restore.state in (RestoreState.WAITING, RestoreState.RUNNING):
                self._end(restore, "expired")
                waited = self._clock() - restore.started
                self._events.emit("restore.expired", pages=len(restore.keys), seconds=round(waited, 3))
                self._finish(restore)
        return True

    def release(self, restore: Restore) -> None:
        """The request has its pages on the device, or ended: nothing is pinned for it any more. Idempotent."""
        with self._table.lock:
            if restore.released:
                return
            restore.released = True
            if restore.state in (RestoreState.WAITING, RestoreState.RUNNING):
                self._end(restore, "cancelled")
                restore.state = RestoreState.CANCELLED
            claimed, restore.claimed = restore.claimed, []
        if claimed:
            self._jobs.put(lambda: self._give_back(claimed))

    def count_load(self, restore: Restore, first: int, pages: int, seconds: float, *, failed: bool) -> None:
        """Account for a copy of `pages` pages, from the restore's page `first` (from 0), to the device."""
        with self._table.lock:
            if failed:
                self._counts["failed_loads"] += 1
                self._events.emit("load.failed", pages=pages)
                return
            served = restore.sources[first : first + pages]
            by_source = {source: served.count(source) for source in Source}
            length = restore.claimed[0].length if restore.claimed else 0
            self._host_counters.hits += by_source[Source.HOST]
            self._ssd_counters.hits += by_source[Source.SSD]
            self._peer_counters.hits += by_source[Source.PEER]
            self._host_counters.bytes_read += pages * length
            self._host_counters.read_latency.observe(seconds)

    def snapshot(self) -> RestoreSnapshot:
        return RestoreSnapshot(**self._counts)

    def close(self) -> None:
        """Finish queued jobs and end the worker."""
        self._jobs.put(None)
        self._thread.join()

    def flush(self) -> None:
        """Wait until every job queued so far has run."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # ---- the worker ----

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - the worker must outlive any one request
                self._events.emit("restore.error", error=repr(error))

    def _start(self, restore: Restore) -> None:
        with self._table.lock:
            if restore.state is not RestoreState.WAITING:
                return
            if not restore.asked_for and not self._may_start_early(len(restore.keys)):
                self._deferred.append(restore)
                return
            restore.state = RestoreState.RUNNING
            restore.unsettled = 1  # the worker's own share: not settled while the chain is still being claimed
            self._counts["started"] += 1
            now = self._table.tick()
        try:
            self._use(restore.prefix_keys, now, restore.reach)
            self._claim(restore, now)
            if self._verify:
                self._verify_resident(restore)
        finally:
            with self._table.lock:
                restore.unsettled -= 1
                self._finish_if_settled(restore)

    def _may_start_early(self, pages: int) -> bool:
        kept = self._table.operator_pins.kept_pages
        return self._table.pinned_pages - kept + pages <= (self._host.limit_slots - kept) * EARLY_SHARE

    def abandon(self, page: Page) -> bool:
        """See `Promotions.abandon`. Lock held."""
        return self._promotions.abandon(page)

    def _give_back(self, claimed: Sequence[Page]) -> None:
        """Unpin, then go on with the restores that were put off for want of room, in their order."""
        for start in range(0, len(claimed), PAGES_PER_HOLD):
            with self._table.lock:
                for page in claimed[start : start + PAGES_PER_HOLD]:
                    self._table.unpin(page)
        with self._table.lock:
            waiting, self._deferred = self._deferred, deque()
        for restore in waiting:
            self._start(restore)

    def _miss(self, restore: Restore) -> None:
        with self._table.lock:
            now = self._table.tick()
            self._count_misses(len(restore.keys), 0, 0)
        self._use(restore.prefix_keys, now, restore.reach)

    def _count_misses(self, nowhere: int, on_ssd: int, at_peers: int) -> None:
        self._host_counters.misses += nowhere + on_ssd + at_peers
        self._ssd_counters.misses += nowhere if self._stripes is not None else 0
        self._peer_counters.misses += nowhere + on_ssd if self._peer is not None else 0

    def _use(self, keys: Sequence[bytes], now: int, reach: int) -> None:
        """Count a use of pages that the device has."""
        for start in range(0, len(keys), PAGES_PER_HOLD):
            with self._table.lock:
                for key in keys[start : start + PAGES_PER_HOLD]:
                    if (page := self._table.find(self.namespace, key)) is not None:
                        self._touch(page, now, reach)

    def _touch(self, page: Page, now: int, reach: int) -> None:
        self._table.use(page, now, reach)
        if page.host is HostState.RESIDENT:
            if self._writer is not None and page.stored is None:
                self._writer.offer(page)
            if self._sharer is not None:
                self._sharer.offer(page)

    def _claim(self, restore: Restore, now: int) -> None:
        """Pin the chain as far as it goes, and start reading what is on ssd."""
        found = 0
        for start in range(0, len(restore.keys), PAGES_PER_HOLD):
            batch = restore.keys[start : start + PAGES_PER_HOLD]
            with self._table.lock:
                if restore.state is not RestoreState.RUNNING:
                    return
                taken = 0
                for key in batch:
                    page = self._table.find(self.namespace, key)
                    if page is None or not self._claim_page(restore, page, now):
                        break
                    taken += 1
            found += taken
            if taken < len(batch):
                break
        with self._table.lock:
            on_ssd, at_peers = restore.sources.count(Source.SSD), restore.sources.count(Source.PEER)
            self._count_misses(len(restore.keys) - found, on_ssd, at_peers)

    def _claim_page(self, restore: Restore, page: Page, now: int) -> bool:
        index = len(restore.claimed)
        if page.host is HostState.RESIDENT:
            self._table.pin(page)
            self._add_claim(restore, page, Source.HOST, settled=not self._verify)
        elif (source := self._promotions.join(page, (restore, index))) is not None:
            self._table.pin(page)
            self._add_claim(restore, page, source, settled=False)
        elif page.saved:
            self._table.pin(page)
            source = self._promotions.begin(page, (restore, index))
            if source is None:
                self._table.unpin(page)
                restore.short = True
                return False
            self._add_claim(restore, page, source, settled=False)
        else:
            return False
        self._touch(page, now, restore.reach)
        return True

    def _add_claim(self, restore: Restore, page: Page, source: Source, *, settled: bool) -> None:
        restore.claimed.append(page)
        restore.sources.append(source)
        restore.settled.append(settled)
        restore.arrived.append(settled)
        if not settled:
            restore.unsettled += 1

    def _verify_resident(self, restore: Restore) -> None:
        """Check the bytes of the pages that were in host memory already; they are pinned, so no lock is needed."""
        with self._table.lock:
            resident = [
                (index, page)
                for index, page in enumerate(restore.claimed)
                if restore.sources[index] is Source.HOST and restore.state is RestoreState.RUNNING
            ]
        for index, page in resident:
            expected, digest = page.digest, self._checksum(self._host.page(page.slot))
            with self._table.lock:
                if restore.state is not RestoreState.RUNNING:
                    return  # no longer pinned: the slot may hold another page by now
                if expected is None:
                    # Came up from ssd, where its units were verified; this is the first look at it in memory.
                    page.digest = digest
                elif digest != expected and not page.dropped:
                    self._host_counters.checksum_failures += 1
                    self._events.emit("page.corrupt", tier="host", key=page.key.hex(), slot=page.slot)
                    self._table.drop(page)
                self._settle(restore, index, arrived=not page.dropped)

    def _promoted(self, waiter: tuple[Restore, int], source: Source, arrived: bool) -> None:
        """A page that was on its way up is there, or will not come. Lock held."""
        restore, index = waiter
        if index < len(restore.sources):
            restore.sources[index] = source
        self._settle(restore, index, arrived=arrived)
        self._finish_if_settled(restore)

    def _settle(self, restore: Restore, index: int, *, arrived: bool) -> None:
        if not restore.settled[index]:
            restore.settled[index] = True
            restore.arrived[index] = arrived
            restore.unsettled -= 1

    def _finish_if_settled(self, restore: Restore) -> None:
        if restore.state is RestoreState.RUNNING and restore.unsettled <= 0:
            self._end(restore, "completed" if all(restore.arrived) and not restore.short else "cut_short")
            self._finish(restore)

    def _end(self, restore: Restore, outcome: str) -> None:
        if restore.state is RestoreState.WAITING:
            self._counts["started"] += 1  # the worker has not come to it: without this, more would end than begin
        self._counts[outcome] += 1
        restore.outcome = outcome
        restore.ended = self._clock()

    def _finish(self, restore: Restore) -> None:
        """READY: keep the pages that arrived, from the start of the chain; let the others go."""
        usable = 0
        while usable < len(restore.claimed) and restore.arrived[usable] and not restore.claimed[usable].dropped:
            usable += 1
        for page in restore.claimed[usable:]:
            self._table.unpin(page)
        del restore.claimed[usable:], restore.sources[usable:]
        restore.slots = np.fromiter((page.slot for page in restore.claimed), dtype=np.int64, count=usable)
        restore.pages = usable
        restore.state = RestoreState.READY
