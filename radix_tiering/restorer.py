"""Bringing requests' pages up to host memory, before they are admitted or while the device computes the rest.

A restore begins when its request arrives, which may be long before there is room for it on the device. So that a long
queue does not pin all of host memory, one that nobody has asked for yet (`poll`) starts only while less than half of
it is pinned; and the deadline counts from the first `poll`, since only from then on somebody waits.

Where the device can compute beside it (`Restore.can_compute`), nobody waits for what is faster computed: `poll` says so
by what both cost, and whoever drives the device asks for each next `step`, and says what it has taken.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from swift_tiers.radix_tiering.counters import LinkCounters, RestoreSnapshot, TierCounters
from swift_tiers.radix_tiering.events import EventLog
from swift_tiers.radix_tiering.held_page import HostState, Page
from swift_tiers.radix_tiering.host_tier import HostTier
from swift_tiers.radix_tiering.page_reads import PageReads, Waiter
from swift_tiers.radix_tiering.page_table import PageTable
from swift_tiers.radix_tiering.peer_memory import PeerMemory
from swift_tiers.radix_tiering.peer_writer import PeerWriter
from swift_tiers.radix_tiering.promotion import DROPPED, Promotions, Source
from swift_tiers.radix_tiering.request_restore import Readiness, Restore, RestoreState
from swift_tiers.radix_tiering.restore.flight import Step, Unit
from swift_tiers.radix_tiering.restore.planner import HERE, Planner
from swift_tiers.radix_tiering.ssd import ReadOutcome, StripeSet
from swift_tiers.radix_tiering.write_behind import WriteBehind

#: Share of host memory, less what operators keep there, that restores may pin for requests that cannot be admitted yet.
EARLY_SHARE = 0.5
#: Pages handled in one hold of the page table's lock: bounds how long another thread waits for it.
PAGES_PER_HOLD = 64
#: A waiting request is planned for anew after so long, seconds.
REPLAN_SECONDS = 0.01
#: ... or after so many times what planning took, where that is longer: very long prefixes of very small pages.
PLANNING_SHARE = 50
#: Within so long of its estimate nothing counts as late, seconds: threads wake up when they do.
SLACK_SECONDS = 0.05


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
        planner: Planner,
        reads: PageReads,
        behind: float,
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
        self._page_tokens = host.geometry.tokens
        self._deadline_seconds = deadline_seconds
        self._verify = verify
        self._checksum = fingerprint
        self._planner = planner
        self._reads = reads
        self.behind = behind  # may be changed at any time
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._deferred: deque[Restore] = deque()
        self._promotions: Promotions[Waiter] = Promotions(
            table, host, stripes, peer, host_counters=host_counters, ssd_counters=ssd_counters,
            peer_counters=peer_counters, link=link, events=events, clock=clock, settled=self._promoted,
        )  # fmt: skip
        reads.promotions = self._promotions
        self._counts = dict.fromkeys(RestoreSnapshot.__struct_fields__, 0)
        self._thread = threading.Thread(target=self._run, name="swift-restore", daemon=True)
        self._thread.start()

    # ---- any thread ----

    def begin(self, keys: Sequence[bytes], prefix_keys: Sequence[bytes] = (), *, can_compute: bool = False) -> Restore:
        """Start to bring up `keys`, a chain of pages; returns at once. Counts a use of `prefix_keys` too.

        `can_compute`: the device could compute a part of them meanwhile.
        """
        restore = Restore(keys, prefix_keys, self._clock(), page_tokens=self._page_tokens, can_compute=can_compute)
        self._jobs.put(lambda: self._start(restore))
        return restore

    def change_deadline(self, seconds: float) -> None:
        """How long those who begin to wait from now on will wait."""
        self._deadline_seconds = seconds

    def nothing(self, keys: Sequence[bytes], prefix_keys: Sequence[bytes] = (), why: str = "") -> Restore:
        """A restore of `keys` where nothing is held, or, if `why` says so, wanted: ready now, with no page. Counts the
        misses and the uses."""
        restore = Restore(keys, prefix_keys, self._clock(), page_tokens=self._page_tokens, why=why)
        restore.ended = restore.started
        restore.complete = True
        restore.state = RestoreState.READY
        self._jobs.put(lambda: self._miss(restore))
        return restore

    def poll(self, restore: Restore) -> Readiness:
        """What the request may do now. Past its deadline it is no longer kept waiting: it goes on with what has come
        up, or computes what is missing."""
        now = self._clock()
        if restore.state in (RestoreState.READY, RestoreState.CANCELLED):
            return self._readiness_of_settled(restore)
        if restore.asked is None:
            restore.asked = now
            restore.story.waited_for(now)
            restore.deadline = now + self._deadline_seconds
            self._jobs.put(lambda: self._start(restore))  # in case it had been deferred
        if restore.can_compute and restore.complete:
            with self._table.lock:
                return self._compute_or_wait(restore, now)
        if now < restore.deadline:
            return Readiness.WAIT
        with self._table.lock:
            if restore.state in (RestoreState.WAITING, RestoreState.RUNNING):
                self._end(restore, "expired")
                waited = self._clock() - restore.started
                self._events.emit("restore.expired", pages=len(restore.keys), seconds=round(waited, 3))
                self._finish(restore)
        return Readiness.READY

    def release(self, restore: Restore) -> None:
        """The request has its pages on the device, or ended: nothing is pinned for it any more. Idempotent."""
        with self._table.lock:
            if restore.released:
                return
            restore.released = True
            self._goes_on(restore)
            self._reads.remove(restore)
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
            restore.story.copy_seconds += seconds

    # ---- while the device computes; the thread that drives it ----

    def step(self, restore: Restore, front: int) -> Step:
        """What the device should do next for `restore`, of whose pages it has the first `front`.

        What it says stays possible until the next call of this, of `take` or of `poll`. It holds (`end == jump`) while
        it would compute what is about to arrive. Nothing is waited for without bound:
        what takes longer than `restore.behind` times its estimate is computed.
        """
        with self._table.lock:
            flight = restore.flight
            flight.computed()
            flight.has(front)
            flight.reserve(0)
            step = self._next_step(restore)
            flight.reserve(step.end)
            self._reads.pump()
            return step

    def take(self, restore: Restore, step: Step) -> None:
        """The device copies and computes as `step` says; see `Flight.take`."""
        with self._table.lock:
            restore.flight.take(step)
            restore.computing = True
            self._goes_on(restore)
            restore.story.computed(step.jump, step.end)
            restore.computed_pages += step.end - step.jump
            self._reads.batch.set_computing(restore, True)
            self._reads.pump()

    def present(self, restore: Restore, front: int) -> int:
        """How many pages from the start can be copied to the device now, which has the first `front` of them."""
        with self._table.lock:
            restore.flight.has(front)
            return restore.flight.step(1).jump

    def split(self, restore: Restore) -> None:
        """The device has computed or taken every page of it, or is about to. What it took stays pinned until it is
        released."""
        with self._table.lock:
            self._reads.remove(restore)
            restore.story.taken(self._clock())
            if restore.state is RestoreState.RUNNING:
                self._end(restore, "split")
                restore.pages = len(restore.claimed)
                restore.state = RestoreState.READY

    # ---- any thread ----

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
            if restore.asked is None and not self._may_start_early(len(restore.keys)):
                self._deferred.append(restore)
                return
            restore.state = RestoreState.RUNNING
            self._counts["started"] += 1
            now = self._table.tick()
        self._use(restore.prefix_keys, now, restore.reach)
        try:
            self._claim(restore, now)
        finally:
            with self._table.lock:
                restore.complete = True
                if restore.state is RestoreState.RUNNING:
                    self._reads.add(restore)
                    self._plan(restore)
                    self._reads.pump()
        try:
            if self._verify:
                self._verify_resident(restore)
        finally:
            with self._table.lock:
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
        """Pin the chain as far as it goes."""
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
            if restore.state is RestoreState.RUNNING:
                restore.story.found([source.value for source in restore.sources])
            on_ssd, at_peers = restore.sources.count(Source.SSD), restore.sources.count(Source.PEER)
            self._count_misses(len(restore.keys) - found, on_ssd, at_peers)

    def _claim_page(self, restore: Restore, page: Page, now: int) -> bool:
        unit = len(restore.claimed)
        if page.host is HostState.RESIDENT:
            source, under_way = Source.HOST, True
        elif (joined := self._promotions.join(page, (restore, unit, None))) is not None:
            source, under_way = joined, True
        elif page.saved:
            source, under_way = Source.PEER if page.peer is not None else Source.SSD, False
        else:
            return False
        self._table.pin(page)
        restore.claimed.append(page)
        restore.sources.append(source)
        restore.flight.append(source.value)
        if under_way:
            restore.flight.take_load(range(unit, unit + 1))
        if source is Source.HOST and not self._verify:
            restore.flight.arrived(unit)
        self._touch(page, now, restore.reach)
        return True

    def _verify_resident(self, restore: Restore) -> None:
        """Check the bytes of the pages that were in host memory already; they are pinned, so no lock is needed."""
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

    # ---- lock held ----

    def _promoted(self, waiter: Waiter, source: Source, failure: str) -> None:
        """A page that was on its way up is there, or will not come."""
        restore, unit, asked = waiter
        if unit < len(restore.sources):
            restore.sources[unit] = source
        if asked is not None:
            self._reads.answered(asked, 0 if failure else self._host.geometry.page_bytes)
        if not failure:
            restore.story.arrived(source.value, self._clock())
        self._settle(restore, unit, source, failure)
        self._reads.pump()
        self._finish_if_settled(restore)

    def _settle(self, restore: Restore, unit: int, source: Source, failure: str) -> None:
        if not failure:
            restore.flight.arrived(unit)
            return
        if restore.state is RestoreState.RUNNING and restore.flight[unit] is Unit.LOADING:
            restore.story.lost(source.value, failure)
        restore.flight.failed(unit)

    def _finish_if_settled(self, restore: Restore) -> None:
        if restore.state is RestoreState.RUNNING and not restore.computing and restore.settled:
            whole = restore.usable == len(restore.claimed) and not restore.short
            self._end(restore, "completed" if whole else "cut_short")
            self._finish(restore)

    def _end(self, restore: Restore, outcome: str) -> None:
        if restore.state is RestoreState.WAITING:
            self._counts["started"] += 1  # the worker has not come to it: without this, more would end than begin
        self._counts[outcome] += 1
        restore.outcome = outcome
        restore.ended = self._clock()
        if outcome == "completed":
            restore.story.ready(restore.ended)
        if outcome != "cancelled":
            self._tell_lost(restore)

    def _tell_lost(self, restore: Restore) -> None:
        """Pages that were found, and that a source did not bring."""
        waited = round(self._clock() - restore.started, 3)
        for where, pages in restore.story.lost_pages.items():
            source, _, reason = where.partition(": ")
            self._counts["lost_pages"] += pages
            self._events.emit("restore.pages_lost", source=source, pages=pages, seconds=waited, reason=reason)

    def _finish(self, restore: Restore) -> None:
        """READY: keep the pages that arrived, from the start of the chain; let the others go, unless the device can
        compute what is missing between them."""
        usable = restore.usable
        if not restore.complete:  # its time was up before its chain was claimed
            restore.story.found([source.value for source in restore.sources])
        self._reads.remove(restore)
        if not restore.can_compute or restore.outcome == "expired":
            for unit, page in enumerate(restore.claimed[usable:], usable):
                self._table.unpin(page)
                restore.flight.failed(unit)
            del restore.claimed[usable:], restore.sources[usable:]
        restore.slots = restore.host_slots(0, usable)
        restore.pages = usable
        restore.state = RestoreState.READY

    def _readiness_of_settled(self, restore: Restore) -> Readiness:
        holes = restore.can_compute and len(restore.claimed) > restore.pages and restore.outcome != "expired"
        return Readiness.COMPUTE if holes else Readiness.READY

    def _plan(self, restore: Restore) -> None:
        """Decide, by where its pages are now."""
        flight, now = restore.flight, self._clock()
        if not restore.can_compute:
            flight.steer(len(flight))  # front to back: what has come up when the deadline passes can be used
            return
        front = flight.step(1).jump
        decision = self._planner.decide(len(restore.prefix_keys) + front, flight.whereabouts(front, HERE))
        if restore.decision is None and decision.plan is not None:
            restore.estimate = decision.plan.seconds
        restore.decision = decision
        restore.story.decided(decision, front)
        restore.replan = now + max(REPLAN_SECONDS, PLANNING_SHARE * (self._clock() - now))
        flight.steer(min(front + decision.lead, len(flight)) if decision.lead else 0, self._planner.island)
        # From now on: the request will be admitted as soon as there is room.
        self._reads.batch.set_computing(restore, decision.compute)

    def _compute_or_wait(self, restore: Restore, now: float) -> Readiness:
        if restore.state is not RestoreState.RUNNING:
            return self._readiness_of_settled(restore)
        if not restore.late and now >= restore.replan:
            self._plan(restore)
        decision = restore.decision
        assert decision is not None or restore.late, "planned for when its chain was complete"
        if not restore.late and not (decision is not None and decision.compute):
            assert restore.asked is not None
            waited = now - restore.asked
            if restore.estimate is not None and waited > self.behind * restore.estimate + SLACK_SECONDS:
                self._fell_behind(restore, restore.flight.absent, "loading takes longer than estimated")
            elif now >= restore.deadline:
                self._fell_behind(restore, restore.flight.absent, "its deadline passed")
            else:
                return Readiness.WAIT
            restore.flight.steer(0, self._planner.island)
            self._reads.batch.set_computing(restore, True)
        restore.flight.reserve(0)  # whoever asks again has not taken the last step
        step = self._next_step(restore)
        return Readiness.COMPUTE if step.end > step.jump else Readiness.WAIT

    def _next_step(self, restore: Restore) -> Step:
        flight, batch, most = restore.flight, self._reads.batch, self._planner.chunk
        step = batch.next_step(restore, most) if restore in batch else flight.step(most)
        if step.end > step.jump or step.jump == len(flight):
            self._goes_on(restore)
        elif self._held_too_long(restore):
            pages = flight.abandon_loading()
            for source in list(flight.sources()):
                pages += flight.abandon_source(source)
            self._fell_behind(restore, pages, "a page that the device waited for did not come in time")
            step = flight.step(most)
        return step

    def _held_too_long(self, restore: Restore) -> bool:
        now = self._clock()
        if restore.held is None:
            restore.held = now
            restore.story.holds(now)
        expected = self._reads.expected_seconds(restore)
        limit = self._deadline_seconds if expected is None else self.behind * expected + SLACK_SECONDS
        return now - restore.held > limit

    def _goes_on(self, restore: Restore) -> None:
        if restore.held is not None:
            restore.held = None
            restore.story.goes_on(self._clock())

    def _fell_behind(self, restore: Restore, pages: int, reason: str) -> None:
        restore.late = reason
        restore.story.fell_behind(reason, pages)
        self._counts["late"] += 1
        waited = self._clock() - restore.started
        self._events.emit("restore.behind", pages=pages, seconds=round(waited, 3), reason=reason)
