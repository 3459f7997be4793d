"""The tier stack of one rank: memory of other servers, host memory, and beneath it the SSDs, behind one door.

The engine knows nothing of SGLang and of devices: it takes pages in (`begin_put`, `commit_put`), brings chains of
pages up (`restore`), and says what it holds (`probe`, `snapshot`). Whoever drives it copies the bytes between the
device and the host slots that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from .base.config import TiersConfig
from .base.errand_thread import ErrandThread
from .base.errors import SwiftTiersError
from .base.events import EventLog
from .base.page import ROOT_KEY, Namespace, PageRecord, page_digest
from .base.runner import THREADS, Runner
from .figures.counters import (
    DEVICE_LINKS,
    SSD_LINKS,
    LinkCounters,
    PageFacts,
    StackSnapshot,
    TierCounters,
)
from .lending.leases.hand import LeaseHand
from .restore.live import LiveCosts
from .restore.planner import Planner
from .table.held_page import Page
from .table.page_table import PageTable
from .table.policy import admission_policy, eviction_policy
from .table.use_times import UseTimes
from .tiers.host.host_tier import HostTier
from .tiers.host.landing import LandingSlots
from .tiers.peer_memory import PeerMemory
from .tiers.ssd import StoredPage
from .tiers.ssd.direct_reads import DirectReads
from .tiers.ssd.ssd_tier import SsdTier
from .way import sweeps
from .way.observing import page_facts, take_snapshot
from .way.page_reads import PageReads
from .way.peer_writer import PeerEvents, PeerWriter
from .way.request_restore import NOBODY_COMPUTES_LAYERS, Restore
from .way.restorer import Restorer
from .way.write_behind import WriteBehind

#: With write-back, pages that would be lost next are written once less than this share of host memory is safe to use.
WRITE_BACK_RESERVE = 0.25
#: Pages that write-back looks at in one step: bounds how long the page table is locked.
WRITE_BACK_STEP = 64
#: Why pages are refused that came of weights which are gone.
WEIGHTS_CHANGED = "the weights changed"
#: How long the end of a stack waits for one step of what an operator has commanded.
ERRAND_SECONDS = 5.0


class Put(NamedTuple):
    """Pages on their way into host memory: `pages[i]`, the `indices[i]`-th of the offered ones, goes to `slots[i]`."""

    pages: list[Page]
    indices: list[int]
    slots: list[int]
    refused: int  # offered pages that are neither held nor taken in


class Flushed(NamedTuple):
    """What a flush has done."""

    pages: int  # that have left a tier
    durable: bool  # whether no crash brings them back


class TierStack:
    """See the module. Every method may be called from any thread."""

    def __init__(
        self,
        namespace: Namespace,
        config: TiersConfig,
        host: HostTier,
        ssd: SsdTier | None = None,
        peer: PeerMemory | None = None,
        *,
        events: EventLog | None = None,
        runner: Runner = THREADS,
        costs: LiveCosts | None = None,
        landing: LandingSlots | None = None,
        direct: DirectReads | None = None,
    ) -> None:
        """`landing`: where pages of `peer` land, if any do, and those that `direct` reads from `ssd`."""
        self.namespace = namespace
        self.config = config
        self.host = host
        self.ssd = ssd
        self.peer = peer
        self.landing = landing
        self.direct = direct
        #: For operators, where this server lends or borrows; set by whoever made it so.
        self.lease_hand: LeaseHand | None = None
        #: Told who lends, by lease name with the address, where somebody wants to know; on the publisher's thread.
        self.on_neighbours: Callable[[Mapping[str, str]], None] | None = None
        self.stripes = stripes = ssd.stripes if ssd is not None else None
        self.events = events or EventLog(runner.time, runner=runner)
        self.host_counters = TierCounters()
        self.ssd_counters = TierCounters()
        self.peer_counters = TierCounters()
        self.links = {name: LinkCounters() for name in (*DEVICE_LINKS, *(SSD_LINKS if ssd is not None else ()))}
        if direct is not None:
            self.links["ssd-device"] = direct.link
        self.runner = runner
        self.clock = runner.monotonic
        self.use_times = UseTimes()  # as of snapshots
        self.errands = ErrandThread(runner)
        self.closed = False
        self.table = PageTable(
            host,
            eviction_policy(config.policy),
            runner=runner,
            host_counters=self.host_counters,
            ssd_counters=self.ssd_counters,
            release_stored=self._release_stored,
            size_on_ssd=ssd.size_of if ssd is not None else None,
            peer_counters=self.peer_counters,
            release_peer=peer.release if peer is not None else lambda place: None,
            release_landing=landing.give_back if landing is not None else lambda slot: None,
            pin_lost=self._pin_lost,
            too_much=self._too_much,
            clean=lambda: self.errands.start(sweeps.clean(self.table)),
        )
        self.digest = namespace.digest()  # scopes the keys
        # As the stripe set makes it, where there is one: what it computes for a write then also says whether the bytes
        # were still the page's.
        self._fingerprint = ssd.fingerprint if ssd is not None else page_digest
        self.writer: WriteBehind | None = None
        if ssd is not None and stripes is not None:
            admission = admission_policy(config.policy, namespace.geometry.tokens)
            self.writer = WriteBehind(
                self.table,
                host,
                stripes,
                admission,
                self.ssd_counters,
                self.events,
                host_counters=self.host_counters,
                link=self.links["host-ssd"],
                runner=runner,
                verify=config.host.verify,
                stored=lambda page: self.restorer.learn(page),
            )
            self._register_namespace(namespace)
            self._recover(stripes.recovered)
        self.sharer: PeerWriter | None = None
        if peer is not None:
            self.sharer = PeerWriter(
                self.table,
                host,
                peer,
                runner=runner,
                counters=self.peer_counters,
                events=self.events,
                most_bytes=config.peer.borrow_limit,
                save=lambda page, ended: self.restorer.save(page, ended),
            )
        geometry, restoring = namespace.geometry, config.restore
        #: What recomputing and loading cost, as far as is known: from a profile, or learnt.
        self.costs = costs or LiveCosts(runner=runner)
        self.planner = Planner(
            self.costs,
            page_tokens=geometry.tokens,
            page_bytes=geometry.page_bytes,
            layers=geometry.layers,
            choice=restoring.strategy,
            chunk_tokens=restoring.chunk,
        )
        self.restorer = Restorer(
            self.digest,
            self.table,
            host,
            stripes,
            self.writer,
            self.sharer,
            host_counters=self.host_counters,
            ssd_counters=self.ssd_counters,
            peer=peer,
            peer_counters=self.peer_counters,
            link=self.links.get("ssd-host", LinkCounters()),
            events=self.events,
            runner=runner,
            deadline_seconds=float(config.policy.restore_deadline),
            verify=config.host.verify,
            fingerprint=self._fingerprint,
            planner=self.planner,
            reads=PageReads(self.planner, self.costs, self.clock, by_age=restoring.loads == "by-age"),
            behind=restoring.behind,
            landing=landing,
            direct=direct,
        )
        if peer is not None and self.sharer is not None:
            peer.watch(PeerEvents(self.table, self.errands, self.sharer))
        if ssd is not None:
            ssd.watch(self._device_out)
            for device in ssd.snapshot()[1]:
                if not device.in_service:
                    self.events.emit("device.left_out", device=device.path, reason=device.reason)

    # ---- down ----

    def tick(self) -> int:
        """A new logical time, for all steps of one long put."""
        with self.table.lock:
            return self.table.tick()

    def begin_put(
        self, keys: Sequence[bytes], parent: bytes, depth: int, now: int | None = None, namespace: bytes | None = None
    ) -> Put:
        """Take slots for the pages of a chain that are not held yet.

        `keys` follow each other in one sequence, the first one after page `parent` (ROOT_KEY for none), at position
        `depth` (from 1). The caller fills the slots, then calls `commit_put` or `abort_put`; until then the pages are
        invisible. Pages whose prefix is not held, or for which there is no room, are refused together with all
        behind them; and all of them where they are of another `namespace` (its digest) than the one served now.
        """
        put = Put([], [], [], 0)
        length = self.host.geometry.page_bytes
        with self.table.lock:
            if namespace is not None and namespace != self.digest:
                self.host_counters.refuse(WEIGHTS_CHANGED, len(keys))
                return put._replace(refused=len(keys))
            now = self.table.tick() if now is None else now
            anchor = self.table.settled(self.digest, parent)
            if anchor is not None:
                self.table.refresh(anchor, now)
                # Nothing may evict the prefix between here and the first child's entry.
                self.table.pin(anchor)
            for index, key in enumerate(keys):
                page = self.table.settled(self.digest, key)
                if page is None:
                    previous = keys[index - 1] if index else parent
                    record = PageRecord(key, previous, self.digest, depth + index, length)
                    page = self._take_in(record, now)
                    if page is None:
                        put = put._replace(refused=len(keys) - index)
                        break
                    put.pages.append(page)
                    put.indices.append(index)
                    put.slots.append(page.slot)
                else:
                    self.table.refresh(page, now)
            if anchor is not None:
                self.table.unpin(anchor)
        return put

    def digests(self, put: Put) -> list[bytes]:
        """The checksums of the slots of `put`, once they are filled."""
        return [self._fingerprint(self.host.page(slot)) for slot in put.slots]

    def commit_put(self, put: Put, digests: Sequence[bytes] | None = None) -> None:
        """The slots are filled: publish the pages. `digests` are their checksums, computed here if not given."""
        if digests is None:
            digests = self.digests(put)
        with self.table.lock:
            for page, digest in zip(put.pages, digests, strict=True):
                self.table.end_fill(page, complete=True, digest=digest)
            if self.writer is not None and self.config.policy.write == "through":
                for page in put.pages:
                    if not page.dropped:
                        self.writer.offer(page)
            if self.sharer is not None:
                for page in put.pages:
                    if not page.dropped:
                        self.sharer.offer(page)
            self._write_back()

    def abort_put(self, put: Put) -> None:
        """The slots could not be filled: forget the pages."""
        with self.table.lock:
            for page in reversed(put.pages):
                self.table.end_fill(page, complete=False)

    def refuse_stale(self, pages: int) -> None:
        """So many pages that the device offers are not taken in: they may come of weights that are gone."""
        with self.table.lock:
            self.host_counters.refuse(WEIGHTS_CHANGED, pages)

    # ---- up ----

    def probe(self, keys: Sequence[bytes]) -> int:
        """How many pages from the start of `keys` are held somewhere: a hint, taken without waiting for anything."""
        found = 0
        for key in keys:
            page = self.table.find(self.digest, key)
            if page is None or not self.table.holds(page):
                break
            found += 1
        return found

    def restore(
        self,
        keys: Sequence[bytes],
        prefix_keys: Sequence[bytes] = (),
        *,
        can_compute: bool = False,
        no_layers: str = NOBODY_COMPUTES_LAYERS,
    ) -> Restore:
        """Start to bring up the chain `keys`; see `Restore` and `Restorer.begin`. Returns at once.

        `prefix_keys` are the pages before it, which the device has: they count as used. If nothing of `keys` is held,
        the answer is ready at once.
        """
        if self.config.restore.strategy == "recompute":
            return self.restorer.nothing(keys, prefix_keys, why="restore.strategy is recompute")
        if self.probe(keys[:1]):
            return self.restorer.begin(keys, prefix_keys, can_compute=can_compute, no_layers=no_layers)
        return self.restorer.nothing(keys, prefix_keys)

    # ---- steering ----

    def flush(self, *, host: bool, ssd: bool) -> None:
        """Empty tiers: `host`, and what other servers lend, of all pages, with `ssd` every tier of this namespace's.
        Pinned pages go when their requests are done."""
        sweeps.run(self.flush_steps(host=host, ssd=ssd))

    def flush_soon(self, *, host: bool, ssd: bool) -> None:
        """As `flush`, for whoever cannot wait until pages have left: none of them is found any more when this returns.
        Waits for the devices to write that down, where `ssd` is to be emptied."""
        steps = self.flush_steps(host=host, ssd=ssd)
        try:
            next(steps)
        except StopIteration:
            return
        self.errands.start(steps)

    def flush_steps(self, *, host: bool, ssd: bool) -> Generator[None, None, Flushed]:
        """`flush`, step by step. From the first one on nothing is found; it waits for the devices.

        What was written until then of a page that comes in meanwhile may be flushed: a miss.
        """
        digest, pages = self.digest, 0
        with self.table.lock:
            if self.writer is not None:
                self.writer.clear()
            if self.sharer is not None:
                self.sharer.clear()
            if ssd:
                pages = self.table.forget_namespace(digest)
            elif host:
                self.table.forget_memory()
        durable = not ssd or self.stripes is None or self.stripes.flush_namespace(digest)
        yield
        if ssd:
            yield from sweeps.clean(self.table)
        elif host:
            pages = yield from sweeps.settle_memory(self.table)
        self.events.emit("tiers.flushed", host=host, ssd=ssd, durable=durable)
        return Flushed(pages, durable)

    def change_namespace(self, namespace: Namespace) -> None:
        """The model's weights changed: from now on no page that came before is found.

        Old pages on ssd stay, since the old weights may come back, and are evicted like any others. Waits for no
        device: new pages go to ssd once the devices know their namespace.
        """
        digest, before = namespace.digest(), self.digest
        with self.table.lock:
            if self.writer is not None:
                self.writer.clear()
                self.writer.enabled = self.writer.paused = True
            self.namespace = namespace
            self.digest = digest
            self.restorer.namespace = digest
            self.table.forget_memory()
            pinned = [page for page in self.table.operator_pins.pinned if before != digest]
        self.errands.start(self._leave_behind(pinned))
        on_ssd = self._register_soon(namespace)
        if self.stripes is not None and before != digest:
            self.stripes.retire_namespace(before)
        self.events.emit("namespace.changed", namespace=digest.hex(), on_ssd=on_ssd)

    def _leave_behind(self, pinned: Sequence[Page]) -> Generator[None, None, int]:
        """After a change of namespace: memory is for pages of the new one."""
        for page in pinned:
            # Nobody could take such a pin back: no page of the old weights is found by its key.
            if (yield from sweeps.let_go(self.table, page)):
                self.events.emit("prefix.unpinned", page=page.key.hex(), reason="the weights changed")
        return (yield from sweeps.settle_memory(self.table))

    def wait_written(self, timeout: float) -> bool:
        """Wait until everything admitted to ssd is written; False on timeout."""
        if self.writer is None:
            return True
        with self.table.lock:
            return self.writer.wait_idle(timeout)

    def close(self, timeout: float = 30.0) -> None:
        """Write what is admitted (at most `timeout` seconds), save the index, release everything. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.errands.close(min(timeout, ERRAND_SECONDS))
        self.restorer.close()
        if self.peer is not None:
            self.peer.close()
        if self.direct is not None:
            self.direct.close()
        if self.ssd is None or self.writer is None:
            return
        sweeps.run(sweeps.clean(self.table))
        sweeps.run(sweeps.offer(self.table, self.writer, self.table.in_memory()))
        with self.table.lock:
            if not self.writer.wait_idle(timeout):
                self.events.emit("ssd.not_all_written", pages=self.writer.backlog)
                self.writer.clear()
        # Nobody changes pages any more, but for a device that goes out.
        stored = [stored for page in self.table.listed() if (stored := page.stored) is not None]
        self.ssd.close(stored, timeout)

    def snapshot(self) -> StackSnapshot:
        """Everything that is counted, at one moment."""
        return take_snapshot(self)

    def page_facts(self, key: bytes) -> PageFacts | None:
        """Where a page of this namespace is; None if no whole copy of it is held."""
        return page_facts(self, key)

    # ---- inside ----

    def _take_in(self, record: PageRecord, now: int) -> Page | None:
        if record.parent != ROOT_KEY and self.table.find(record.namespace, record.parent) is None:
            self.host_counters.refuse("prefix not held")
            return None
        slot = self.table.take_slot(now)
        if slot is None:
            self.host_counters.refuse("full")
            return None
        page = self.table.enter(record, now)
        assert page is not None, "the parent of a put is pinned or being filled"
        self.table.begin_fill(page, slot)
        return page

    def _write_back(self) -> None:
        """With write-back: save the pages that leave host memory next, before their room is needed."""
        if self.writer is None or self.config.policy.write != "back":
            return
        reserve = max(1, int(self.host.limit_slots * WRITE_BACK_RESERVE))
        if self.host.free_slots < reserve:
            count = min(reserve - self.host.free_slots, WRITE_BACK_STEP)
            for page in self.table.coldest_unsaved(count):
                self.writer.offer(page)

    def _release_stored(self, stored: StoredPage) -> None:
        if self.stripes is not None:
            self.stripes.release(stored.placement)

    def _pin_lost(self, page: Page) -> None:
        self.events.emit("prefix.unpinned", page=page.key.hex(), reason="the page was flushed, dropped or lost")

    def _too_much(self) -> None:
        self.errands.start(sweeps.shed(self.table))

    def _register_namespace(self, namespace: Namespace, done: Callable[[bool], None] | None = None) -> None:
        assert self.stripes is not None
        text = msgspec.json.encode(namespace, order="sorted").decode()
        self.stripes.register_namespace(namespace.digest(), text, done)

    def _register_soon(self, namespace: Namespace) -> bool:
        """Go on writing once the devices know `namespace`. False where the stripe set cannot take another one now, or
        there is none: its pages stay in host memory alone."""
        writer, digest = self.writer, namespace.digest()
        if writer is None:
            return False

        def registered(durable: bool) -> None:
            """On the stripe set's thread."""
            if not durable:
                self.events.emit("ssd.namespace_refused", reason="no device is left")
            self._resume_writing(digest, durable)

        try:
            self._register_namespace(namespace, registered)
        except (SwiftTiersError, RuntimeError) as error:
            self.events.emit("ssd.namespace_refused", reason=str(error))
            self._resume_writing(digest, False)
            return False
        return True

    def _resume_writing(self, digest: bytes, enabled: bool) -> None:
        with self.table.lock:
            if self.writer is not None and self.digest == digest:  # else another has come since, and waits for its own
                self.writer.enabled, self.writer.paused = enabled, False
                if enabled:
                    self.writer.pump()
                else:
                    self.writer.clear()

    def _recover(self, recovered: Iterable[StoredPage]) -> None:
        """Enter what the devices hold, parents first; a page whose prefix is gone is given back at once.

        Recency does not survive a restart, the order of writing does: it stands in for it.
        """
        assert self.stripes is not None
        unreachable = 0
        pages = sorted(recovered, key=lambda stored: (stored.record.depth, stored.generation))
        newest = max((stored.generation for stored in pages), default=0)
        for start in range(0, len(pages), sweeps.STEP_PAGES):
            with self.table.lock:
                for stored in pages[start : start + sweeps.STEP_PAGES]:
                    if self.table.recover(stored, now=stored.generation - newest) is None:
                        unreachable += 1
                        self.stripes.release(stored.placement)
        self.events.emit("ssd.recovered", pages=len(pages) - unreachable, unreachable=unreachable)

    def _device_out(self, device: int, reason: str, lost: Iterable[StoredPage]) -> None:
        """A device left service, with every page that has a part on it: none of them is promised from now on. On the
        stripe set's thread."""
        assert self.ssd is not None
        with self.table.lock:
            self.table.device_gone(device)
            self.restorer.abandon(device)
        path = self.ssd.paths[device]
        self.events.emit("device.out", device=path, reason=reason)
        self.errands.start(self._forget_device(device, path, lost))

    def _forget_device(self, device: int, path: str, lost: Iterable[StoredPage]) -> Generator[None, None, int]:
        """Its copies are given up; what memory still has of them is written again, to the devices that are left."""
        pages, staying = 0, []
        for batch in sweeps.batches(lost):
            with self.table.lock:
                for stored in batch:
                    page = self.table.find(stored.record.namespace, stored.record.key)
                    if page is None or (page.stored is not None and page.stored.generation != stored.generation):
                        continue
                    if self.table.detach_stored(page):
                        staying.append(page)
            pages += len(batch)
            yield
        with self.table.lock:
            self.table.device_forgotten(device)
        if self.writer is not None:
            yield from sweeps.offer(self.table, self.writer, staying)
        self.events.emit("device.pages_lost", device=path, pages=pages)
        return pages
