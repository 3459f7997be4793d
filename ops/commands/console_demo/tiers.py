"""The tiers of one simulated server: the product's page tables, write-behind and lent memory, without bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence

import numpy as np

from swift_tiers.radix_tiering.base.config import PolicyConfig
from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageGeometry, PageRecord
from swift_tiers.radix_tiering.base.runner import ThreadRunner
from swift_tiers.radix_tiering.base.slot_map import SlotState
from swift_tiers.radix_tiering.figures.counters import DEVICE_LINKS, LinkCounters, TierCounters
from swift_tiers.radix_tiering.lending.donation.extents import Span
from swift_tiers.radix_tiering.restore.planner import HERE
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import AdmitAlways, admission_policy, eviction_policy
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.table.use_times import UseTimes
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.tiers.peer import LentMemory
from swift_tiers.radix_tiering.tiers.tier import Tier
from swift_tiers.radix_tiering.way import sweeps
from swift_tiers.radix_tiering.way.down import Mover
from swift_tiers.radix_tiering.way.parts import AnswerBatch, Parts
from swift_tiers.radix_tiering.way.reads import Reads

from ...base.devices.clock import Clock
from ...base.devices.setup import SSD
from .stripes import DemoStripes

PEER = "peer"


class DemoPool(HostTier):
    """A device's pool of pages: slots that can also be taken in neighbouring spans, to lend them (`PagePool`)."""

    def __init__(self, geometry: PageGeometry, slots: int) -> None:
        super().__init__(geometry, slots * geometry.stride_bytes, allocate=_nothing)
        self.table: PageTable | None = None

    @property
    def pages(self) -> int:
        return self.slots

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def arrange(self, span_pages: int) -> None:
        self._span = span_pages

    def take(self, spans: int) -> list[Span]:
        free, length = set(self._free), self._span
        starts = range(0, self.slots - length + 1, length)
        found = [start for start in starts if all(slot in free for slot in range(start, start + length))][-spans:]
        taken = {slot for start in found for slot in range(start, start + length)}
        self._free = [slot for slot in self._free if slot not in taken]
        for slot in taken:
            self.mark(slot, SlotState.LENT)
        return [Span(start, length) for start in found]

    def put_back(self, spans: Collection[Span]) -> None:
        for span in spans:
            for slot in range(span.first, span.first + span.pages):
                self.free(slot)

    def evict(self, pages: int, *, kept: bool = False) -> None:
        assert self.table is not None
        before = self.limit_slots
        self.limit_slots = max(0, self.used_slots - pages)
        with self.table.lock:
            self.table.shed(pages)
        self.limit_slots = before


class DemoClaim:
    """What one request found and holds, from its arrival until its end."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self.keys = keys  # of the whole pages of its prompt
        self.device: list[Page] = []  # on the device, pinned; from the front
        self.sources: list[str] = []  # of those behind them that are below
        self.below: list[Page] = []  # pinned
        self.filling: list[Page] = []  # of these, those that come up to host memory
        self.slots: list[int] = []  # of the device, for the pages that it lacks


class DemoTiers:
    """`claim` when a request arrives, `settle` when its prompt is computed, `finish` when it ends."""

    def __init__(
        self,
        clock: Clock,
        geometry: PageGeometry,
        namespace: bytes,
        events: EventLog,
        *,
        device_pages: int,
        host_pages: int,
        stripes: DemoStripes | None,
        peer: LentMemory | None,
        copy_seconds: Callable[[int], float],
    ) -> None:
        """`copy_seconds`: how long copying so many bytes between device and host memory takes."""
        self.policy = policy = PolicyConfig()
        self.geometry = geometry
        self.digest = namespace
        self.clock = lambda: clock.now
        self.use_times = UseTimes()
        self.stripes = stripes
        self._copy_seconds = copy_seconds
        runner = ThreadRunner(lambda: clock.now)
        self.pool = DemoPool(geometry, device_pages)
        self.device = PageTable(self.pool, eviction_policy(policy), runner=runner)
        self.pool.table = self.device
        self.host = HostTier(geometry, host_pages * geometry.stride_bytes, allocate=_nothing)
        below: list[Tier] = [tier for tier in (peer, stripes) if tier is not None]
        self.tiers = {tier.name: tier for tier in below}
        self.table = PageTable(self.host, eviction_policy(policy), below, runner=runner)
        ssd_links = ("host-ssd", "ssd-host") if stripes is not None else ()
        self.links = {name: LinkCounters() for name in (*DEVICE_LINKS, *ssd_links)}
        self.movers = {
            tier.name: Mover(
                self.table,
                self.host,
                tier,
                runner=runner,
                events=events,
                admission=admission_policy(policy, geometry.tokens) if tier.durable else AdmitAlways(),
                verify=False,
            )
            for tier in below
        }
        reads: Reads[DemoClaim] = Reads(
            self.table,
            self.host,
            below,
            events=events,
            clock=lambda: clock.now,
            settled=lambda claim, tier, failure: None,
        )

        def start(errand: Generator[None, None, int]) -> None:
            clock.after(0.0, lambda: _drain(errand))

        self.parts = {}
        for name, mover in self.movers.items():
            answers = AnswerBatch(self.table.lock, (mover.pump,))
            mover.tier.answer_within(answers)
            self.parts[name] = Parts(self.table, mover, reads, answers, runner=runner, start=start, events=events)

    @property
    def backlog(self) -> int:
        """Pages admitted to ssd and not yet written."""
        return sum(mover.backlog for mover in self.movers.values() if mover.copies.durable)

    def counters(self, tier: str) -> TierCounters:
        """Of a tier below the device."""
        return self.table.named(tier).counters

    @property
    def device_counters(self) -> TierCounters:
        return self.device.of[HOST].counters

    # ---- requests ----

    def claim(self, keys: Sequence[bytes]) -> DemoClaim:
        """What there is of a prompt of these pages."""
        claim = DemoClaim(tuple(keys))
        with self.device.lock:
            now = self.device.tick()
            for key in keys:
                page = self.device.find(self.digest, key)
                if page is None:
                    break
                self.device.use(page, now, len(keys))
                self.device.pin(page)
                claim.device.append(page)
        there = len(claim.device)
        self.device_counters.hits += there
        self.device_counters.misses += len(keys) - there
        names = [copies.name for copies in self.table.of]
        with self.table.lock:
            now = self.table.tick()
            for at, key in enumerate(keys):
                page = self.table.find(self.digest, key)
                if at < there:
                    if page is not None:
                        self.table.use(page, now, len(keys))
                    continue
                source = _source(page, names)
                if page is None or source is None:
                    break
                claim.sources.append(source)
                self._pin(claim, page, now, len(keys))
        self._count(claim, len(keys) - there)
        return claim

    def seat(self, claim: DemoClaim) -> None:
        """Its turn has come: room on the device for what it lacks there, as far as there is any."""
        with self.device.lock:
            while len(claim.slots) < len(claim.keys) - len(claim.device):
                slot = self.device.take_slot(None)
                if slot is None:
                    return
                claim.slots.append(slot)

    def _count(self, claim: DemoClaim, asked: int) -> None:
        for copies in self.table.of:
            hits = claim.sources.count(copies.name)
            copies.counters.hits += hits
            copies.counters.misses += asked - hits
            asked -= hits

    def _pin(self, claim: DemoClaim, page: Page, now: int, reach: int) -> None:
        self.table.use(page, now, reach)
        self.table.pin(page)
        claim.below.append(page)
        if not page.in_host:
            slot = self.table.take_slot(None)
            if slot is not None:
                self.table.begin(page, HOST, slot)
                claim.filling.append(page)

    def loaded(self, claim: DemoClaim, source: str, at: int, seconds: float) -> None:
        """Page `at` behind those on the device has come up from there, and took so long."""
        self.counters(source).bytes_read += self.geometry.page_bytes
        if source == SSD:
            self.links["ssd-host"].count(1, self.geometry.page_bytes, seconds)
        page = claim.below[at]
        if page in claim.filling:
            claim.filling.remove(page)
            with self.table.lock:
                self.table.end(page, HOST, whole=True, digest=digest_of(page.key))

    def settle(self, claim: DemoClaim, copied: int) -> None:
        """The whole prompt is on the device, `copied` pages of it from host memory; what is new goes down."""
        if copied:
            nbytes = copied * self.geometry.page_bytes
            self.links["host-device"].count(copied, nbytes, self._copy_seconds(nbytes))
            self.counters(HERE).bytes_read += nbytes
        with self.table.lock:
            for page in claim.filling:
                self.table.end(page, HOST, whole=True, digest=digest_of(page.key))
            for page in claim.below:
                self.table.unpin(page)
        claim.filling, claim.below = [], []
        slots = iter(claim.slots)
        with self.device.lock:
            now = self.device.tick()
            for at in range(len(claim.device), len(claim.keys)):
                if not self._land(claim, at, next(slots, None), now):
                    break
            for slot in slots:
                self.pool.free(slot)
        claim.slots = []
        self._put(claim.keys)

    def _land(self, claim: DemoClaim, at: int, slot: int | None, now: int) -> bool:
        """A page is in the device's tree, pinned for this request; somebody else may have been faster."""
        page = self.device.find(self.digest, claim.keys[at])
        if page is not None:
            if slot is not None:
                self.pool.free(slot)
        else:
            page = None if slot is None else self.device.enter(self._record(claim.keys, at), now)
            if page is None or slot is None:
                if slot is not None:
                    self.pool.free(slot)
                return False
            self.device.begin(page, HOST, slot)
            self.device.end(page, HOST, whole=True)
        self.device.pin(page)
        claim.device.append(page)
        return True

    def finish(self, claim: DemoClaim, answer: Sequence[bytes]) -> None:
        """It has ended; these pages of its answer are whole, and are kept."""
        keys = (*claim.keys, *answer)
        with self.device.lock:
            now = self.device.tick()
            for at in range(len(claim.keys), len(keys)):
                slot = self.device.take_slot(now) if at - 1 < len(claim.device) else None
                page = None if slot is None else self.device.enter(self._record(keys, at), now)
                if page is None or slot is None:
                    if slot is not None:
                        self.pool.free(slot)
                    break
                self.device.begin(page, HOST, slot)
                self.device.end(page, HOST, whole=True)
            for page in claim.device:
                self.device.unpin(page)
        claim.device = []
        self._put(keys)

    def drop(self, claim: DemoClaim) -> None:
        """The server ends: nothing more is said of it."""
        claim.device, claim.below, claim.filling, claim.slots = [], [], [], []

    def _put(self, keys: Sequence[bytes]) -> None:
        """Take in to host memory what is not below the device yet, and offer it further."""
        entered = []
        with self.table.lock:
            now = self.table.tick()
            for at, key in enumerate(keys):
                page = self.table.find(self.digest, key)
                if page is not None:
                    self.table.refresh(page, now)
                    continue
                slot = self.table.take_slot(now)
                page = None if slot is None else self.table.enter(self._record(keys, at), now)
                if page is None or slot is None:
                    if slot is not None:
                        self.host.free(slot)
                    self.counters(HERE).refuse("no room beside its own prefix", len(keys) - at)
                    break
                self.table.begin(page, HOST, slot)
                self.table.end(page, HOST, whole=True, digest=digest_of(key))
                entered.append(page)
            for mover in self.movers.values():
                mover.offer(entered)
        if entered:
            nbytes = len(entered) * self.geometry.page_bytes
            self.links["device-host"].count(len(entered), nbytes, self._copy_seconds(nbytes))
            self.device_counters.bytes_read += nbytes

    def device_gone(self, number: int) -> int:
        """A device of the stripe set is out: pages with a part there lose that copy; how many."""
        lost, ssd = 0, self.table.named(SSD).number
        with self.table.lock:
            for page in self.table.listed():
                copy = page.copy_in(ssd)
                if copy is not None and copy.whole and copy.place.uses(number):
                    lost += self.table.lose(page, ssd)
        return lost

    def flush(self, *, everywhere: bool) -> int:
        """Forget the pages below the device, in memory or in every tier; how many."""
        with self.table.lock:
            for mover in self.movers.values():
                mover.clear()
        steps = sweeps.drop_namespace(self.table, self.digest) if everywhere else sweeps.empty_memory(self.table)
        return sweeps.run(steps)

    def change_policy(self, policy: PolicyConfig) -> None:
        """From now on pages are evicted, and admitted to ssd, by this one."""
        self.policy = policy
        with self.table.lock:
            self.table.change_eviction(eviction_policy(policy))
            if SSD in self.movers:
                self.movers[SSD].admission = admission_policy(policy, self.geometry.tokens)

    def shed(self) -> int:
        """What tiers hold beyond their limits leaves."""
        with self.table.lock:
            return self.table.shed(1 << 30)

    def _record(self, keys: Sequence[bytes], at: int) -> PageRecord:
        parent = keys[at - 1] if at else ROOT_KEY
        return PageRecord(keys[at], parent, self.digest, at + 1, self.geometry.page_bytes)


def digest_of(key: bytes) -> bytes:
    """The checksum of a page that has no bytes."""
    return key[-16:]


def _source(page: Page | None, names: Sequence[str]) -> str | None:
    if page is None:
        return None
    if page.in_host:
        return HERE
    return next((names[tier] for tier in range(HOST + 1, len(names)) if page.whole_in(tier)), None)


def _drain(errand: Generator[None, None, int]) -> None:
    sweeps.run(errand)


def _nothing(nbytes: int) -> np.ndarray:
    """A slab without memory: every byte is the same one."""
    return np.broadcast_to(np.zeros(1, dtype=np.uint8), (nbytes,))
