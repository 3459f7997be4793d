"""The page table: which pages the tier stack of one rank holds, where, and what may happen to them next.

Every change of a page's state is a method here, made under one lock, so that the rules hold at any moment:

1. *No page outlives its prefix.* A page is entered only if its parent is held (or it is a first page), and leaves
   only when no page behind it is held. A page that is lost (damaged, its device gone) takes its descendants along.
2. *The SSD tier is closed under prefixes by itself*, since it alone survives a restart: a page is written behind one
   that is there, or on its way. One that loses its copy there, and has another, is a gap until it is written again.
3. *A pinned page keeps its copies.* Pins count requests that are about to read the page, and writes from it. One that
   an operator pinned is not evicted either, nor is the path to it; but being flushed, dropped or lost ends such a pin.

States of the host copy: none -> FILLING (slot taken, bytes arriving) -> RESIDENT -> none. Of the SSD copy:
none -> writing -> stored -> none. Of the copy in lent memory: see `PeerCopies`.

No method takes longer because there are more pages. What would is begun by one (`drop`, `forget_namespace`,
`forget_memory`, `device_gone`), from which on nobody is told of what is to go, and ended in steps by others
(`clean_up`, `settle`), which somebody else calls.

A tier may be given a limit below its capacity. It takes nothing in beyond that. What it holds too much is evicted in
steps, by somebody else who calls `shed`; what is pinned then leaves when it no longer is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ..base.page import ROOT_KEY, PageRecord
from ..base.runner import Runner
from ..base.slot_map import SlotState
from ..figures.counters import DirectorySnapshot, TierCounters
from ..tiers.host.host_tier import HostTier
from ..tiers.peer_memory import PeerPlace
from ..tiers.ssd import StoredPage
from .directory import Directory
from .eviction import EvictionQueue
from .held_page import HostState, Page, host_slot_state
from .leaving import Leaving
from .operator_pins import OperatorPins
from .peer_copies import PeerCopies
from .policy import EvictionPolicy, HostOrder
from .rules import check_rules


class PageTable:
    """See the module. Callers hold `lock` around every method, except `find`, which needs none."""

    def __init__(
        self,
        host: HostTier,
        policy: EvictionPolicy,
        *,
        runner: Runner,
        host_counters: TierCounters,
        ssd_counters: TierCounters,
        release_stored: Callable[[StoredPage], None],
        size_on_ssd: Callable[[int], int] | None = None,
        peer_counters: TierCounters | None = None,
        release_peer: Callable[[PeerPlace], None] = lambda place: None,
        release_landing: Callable[[int], None] = lambda slot: None,
        pin_lost: Callable[[Page], None] = lambda page: None,
        too_much: Callable[[], None] = lambda: None,
        clean: Callable[[], None] | None = None,
    ) -> None:
        """`release_stored` gives the place of an ssd copy back; `size_on_ssd`: page length -> bytes it takes there;
        `release_peer` gives a place in lent memory back, `release_landing` a slot of landing memory;
        `pin_lost`: a page that an operator pinned has left; `too_much`: pages that a tier holds beyond its limit may
        leave now, and somebody should call `shed` until it finds none; `clean`: pages are leaving, and somebody should
        call `clean_up` until none is, which None does at once. All are called with the lock held."""
        self.lock = runner.lock()
        self.host = host
        self.host_counters = host_counters
        self.ssd_counters = ssd_counters
        self._release_stored = release_stored
        self._release_landing = release_landing
        self._too_much = too_much
        self._shed_asked_for = False
        self.size_on_ssd = size_on_ssd or (lambda length: length)
        self._spaces: dict[bytes, dict[bytes, Page]] = {}
        self._host_queue = EvictionQueue(HostOrder(policy), self._may_leave_host)
        self._ssd_queue = EvictionQueue(policy, self._may_leave_ssd)
        self._leaving = Leaving(self._drop_one, clean or self.clean_up)
        self._in_host: dict[Page, int] = {}  # pages with a slot, in order; what `flushes` was when they took it
        self.flushes = 0  # of memory
        self._emptying = False  # there may be copies in memory of before the last one
        self._gone: set[int] = set()  # devices that have copies yet, and do not give them
        self.gaps: set[Page] = set()  # without a copy on ssd, which pages behind them have
        self._time = 0
        self._directory = Directory()
        self.peer_copies = PeerCopies(self, peer_counters or TierCounters(), release_peer)
        self.operator_pins = OperatorPins(self._kept_changed, pin_lost)
        self.ssd_limit: int | None = None  # bytes that ssd copies may take, if an operator has said so
        self.writing_bytes = 0  # that ssd copies on their way take
        self.resident_pages = 0
        self.stored_pages = 0
        self.stored_bytes = 0  # that the ssd copies take
        self.pinned_pages = 0

    # ---- finding and entering ----

    def find(self, namespace: bytes, key: bytes) -> Page | None:
        """The page, or None. Safe without the lock as a hint: what it says may change at once."""
        space = self._spaces.get(namespace)
        page = space.get(key) if space is not None else None
        return None if page is None or self._leaving.hides(page) else page

    def settled(self, namespace: bytes, key: bytes) -> Page | None:
        """The page, with those copies only that count; see `settle`."""
        page = self.find(namespace, key)
        if page is not None and (self._gone or self._emptying):
            self.settle(page)
        return None if page is None or page.dropped else page

    def holds(self, page: Page) -> bool:
        """Whether `page` has a whole copy that counts. A hint, as `find`."""
        if not (self._gone or self._emptying):
            return page.complete
        stored, copy = page.stored, page.peer
        return (
            (stored is not None and not self._is_gone(stored))
            or (copy is not None and copy.flushes == self.flushes)
            or (page.host is HostState.RESIDENT and self._in_host.get(page) == self.flushes)
        )

    def keys_beginning(self, namespace: bytes, begin: bytes) -> list[bytes]:
        """The keys of its pages that begin with these bytes; takes as long as there are pages. Any thread, without the
        lock: each was there when it was looked at."""
        # To make a list of them is one step of the interpreter; to go through them is not.
        return [key for key in list(self._spaces.get(namespace, ())) if key.startswith(begin)]

    def tick(self) -> int:
        """A new logical time of use, later than all before."""
        self._time += 1
        return self._time

    @property
    def time(self) -> int:
        """The latest logical time of use."""
        return self._time

    def enter(self, record: PageRecord, now: int) -> Page | None:
        """A new page without copies; None if its parent is not held."""
        parent = None
        if record.parent != ROOT_KEY:
            parent = self.find(record.namespace, record.parent)
            if parent is None:
                return None
        page = Page(record, parent)
        page.last_use = now
        page.uses = 1
        if parent is not None:
            parent.children[page] = None
        space = self._spaces.setdefault(record.namespace, {})
        space.pop(record.key, None)  # one that is leaving: the new one comes after its own parent
        space[record.key] = page
        self._directory.enter(page)
        return page

    def recover(self, stored: StoredPage, now: int) -> Page | None:
        """Enter a page found on ssd at start; parents come before their children. None: unreachable."""
        page = self.find(stored.record.namespace, stored.record.key) or self.enter(stored.record, now)
        if page is None or page.stored is not None:
            return None
        page.recovered = True
        self.attach_stored(page, stored)
        return page

    def use(self, page: Page, now: int, reach: int = 0) -> None:
        """Count a use of `page` at logical time `now` by a request of `reach` whole pages.

        Requests interleave: a use at an earlier time than the last one counts, and sets no clock back.
        """
        if page.last_use != now:
            page.last_use = max(page.last_use, now)
            page.uses += 1
            page.reach = max(page.reach, reach)
            self.reconsider(page)

    def refresh(self, page: Page, now: int) -> None:
        """`page` and the prefix before it were written again or relied upon: as recent as `now`, but not a use."""
        current: Page | None = page
        while current is not None and current.last_use < now:
            current.last_use = now
            self.reconsider(current)
            current = current.parent

    # ---- pins ----

    def pin(self, page: Page) -> None:
        page.pins += 1
        if page.pins == 1:
            self._note_held(page)
        if page.pins == 1 and not page.keep and not page.kept_children:
            self.pinned_pages += 1
            self._host_queue.remove(page)
            self._ssd_queue.remove(page)
            self.peer_copies.pause(page)
            self._changed(page)

    def unpin(self, page: Page) -> None:
        page.pins -= 1
        if page.pins:
            return
        if page.landing >= 0:
            self._release_landing(page.landing - self.host.slots)
            page.landing = -1
        if not page.keep and not page.kept_children:
            self.pinned_pages -= 1
        if page.dropped:
            self._free_slot(page)
        else:
            self._note_held(page)
            self._changed(page)
            self.reconsider(page)
        if self._limited and self.over_limit and not self._shed_asked_for:
            self._shed_asked_for = True
            self._too_much()

    @property
    def pinned_in_host(self) -> int:
        """Pinned pages with a copy in host memory, or a slot there that is being filled for the first time."""
        return self.pinned_pages - self._directory.pinned_elsewhere

    @property
    def pinned_on_ssd(self) -> int:
        """Pinned pages with a copy on ssd."""
        return self._directory.pinned_on_ssd

    @property
    def pinned_at_peers(self) -> int:
        """Pinned pages with a copy in lent memory."""
        return self._directory.pinned_at_peers

    def _kept_changed(self, page: Page) -> None:
        if not page.pins:
            self.pinned_pages += 1 if page.kept else -1
        if not page.dropped:
            self._changed(page)
            self.reconsider(page)

    # ---- the host copy ----

    def take_slot(self, now: int | None) -> int | None:
        """A free host slot, made by evicting if needed; None if all pages are pinned, needed, or as recent as `now`.

        A page used at `now` is never the victim: a sequence longer than the tier must not evict its own beginning.
        With None, recency protects nothing: for a request that waits, and has pinned what it needs itself.
        """
        slot = self.host.allocate()
        if slot is None and self.host.used_slots <= self.host.limit_slots:
            victim = self.host_victim()
            if victim is not None and (now is None or victim.last_use < now):
                self._evict_from_host(victim)
                slot = self.host.allocate()
        return slot

    def host_victim(self) -> Page | None:
        """The page that leaves host memory next, or None if none may. There is one whenever a page is there and none
        is pinned."""
        return self._host_queue.peek()

    def _evict_from_host(self, victim: Page) -> None:
        self.host_counters.evictions += 1
        self._host_queue.remove(victim)
        self.evict_host(victim)

    def begin_fill(self, page: Page, slot: int) -> None:
        """`slot` now belongs to `page`, its bytes arriving; pinned until `end_fill`."""
        page.host = HostState.FILLING
        page.slot = slot
        self._in_host[page] = self.flushes
        self.host.mark(slot, host_slot_state(page))
        self.pin(page)

    def end_fill(self, page: Page, *, complete: bool, digest: bytes | None = None) -> None:
        """The bytes have arrived (or not): the copy becomes usable (or its slot free). Takes back `begin_fill`'s pin.

        A page that ends up with no copy at all is dropped.
        """
        if complete and not page.dropped:
            page.host = HostState.RESIDENT
            page.digest = digest
            self.resident_pages += 1
            self._changed(page)
            self.host_counters.bytes_written += page.length
        elif not page.dropped:
            self.host.free(page.slot)
            page.host, page.slot = HostState.NONE, -1
            del self._in_host[page]
            if not page.saved:
                self.drop(page)
        self.unpin(page)

    def land(self, page: Page, slot: int) -> None:
        """`page`, which is pinned, lies in a slot of landing memory, verified, until its last pin goes. Its place is
        told as one of host memory is, the slots there being numbered from where host memory's end."""
        assert page.pins
        assert page.landing < 0
        page.landing = self.host.slots + slot

    def evict_host(self, page: Page) -> bool:
        """Give up the host copy; without another copy the page and its descendants leave. False if there is no host
        copy, or it is pinned."""
        if not page.saved:
            self.drop(page)
            return True
        if page.host is not HostState.RESIDENT or page.pins:
            return False
        self._free_slot(page)
        self.reconsider(page)
        return True

    def forget_memory(self) -> None:
        """From now on no copy in memory counts that is there, and none that is on its way to it. To be given up by
        `settle`, all of `in_memory`; then `emptied`."""
        self.flushes += 1
        self._emptying = True

    def in_memory(self) -> list[Page]:
        """The pages with a copy in host memory or in lent memory, or on its way to the first. Any thread."""
        return [*self._in_host, *self.peer_copies.all_pages()]

    def emptied(self, flushes: int) -> None:
        """What there was in memory when `flushes` was this has been settled."""
        if flushes == self.flushes:
            self._emptying = False

    def settle(self, page: Page) -> bool:
        """Have `page` give up the copies that do not count any more: on devices that have gone, in memory that was
        emptied. What requests have pinned there, and is elsewhere, stays. Whether there was one."""
        lost = page.stored is not None and self._is_gone(page.stored)
        if lost:
            self.detach_stored(page)
        if self._emptying and page.peer is not None and page.peer.flushes < self.flushes:
            self.peer_copies.end(page)
            lost = True
        if self._emptying and not page.dropped and self._in_host.get(page, self.flushes) < self.flushes:
            lost = self.evict_host(page) or lost
        return lost

    def copies_changed(self, page: Page) -> None:
        """`page` has gained or lost a copy outside of host memory."""
        self._changed(page)
        self.reconsider(page)

    # ---- the ssd copy ----

    def begin_write(self, page: Page) -> None:
        """An ssd copy of `page` is being written; pinned until `end_write`."""
        page.writing = True
        self.writing_bytes += self.size_on_ssd(page.length)
        self.pin(page)

    def end_write(self, page: Page, stored: StoredPage | None) -> None:
        """The write has ended: `page` has a copy there, or none. Takes back `begin_write`'s pin."""
        page.writing = False
        self.writing_bytes -= self.size_on_ssd(page.length)
        if stored is not None:
            self.attach_stored(page, stored)
        elif page.stored_children and not page.dropped:
            self.gaps.add(page)  # they were written ahead of it
        self.unpin(page)

    def attach_stored(self, page: Page, stored: StoredPage) -> None:
        """`page` now has a complete copy on ssd."""
        page.stored = stored
        self.gaps.discard(page)
        self.stored_pages += 1
        self.stored_bytes += self.size_on_ssd(page.length)
        self._changed(page)
        if page.parent is not None:
            page.parent.stored_children += 1
        self.reconsider(page)
        if page.parent is not None:
            self.reconsider(page.parent)

    def detach_stored(self, page: Page) -> bool:
        """`page` loses its ssd copy; without another one it leaves, and all behind it. Those keep their copies if it
        stays: it is to be written again. False if it has left."""
        if page.stored is not None:
            self._forget_stored(page)
        if page.host is HostState.NONE and page.peer is None:
            self.drop(page)
        elif not page.dropped:
            if page.stored_children:
                self.gaps.add(page)
            self.reconsider(page)
        return not page.dropped

    def device_gone(self, device: int) -> None:
        """From now on no copy with a part on `device` counts. To be given up by `settle`; then `device_forgotten`."""
        self._gone.add(device)

    def device_forgotten(self, device: int) -> None:
        """No copy has a part on `device` any more."""
        self._gone.discard(device)

    def _is_gone(self, stored: StoredPage) -> bool:
        return any(stored.uses(device) for device in self._gone.copy())

    def ssd_victim(self, now: int) -> Page | None:
        """The page whose ssd copy should make room for one used at `now`, or None."""
        victim = self._ssd_queue.peek()
        return None if victim is None or victim.last_use >= now else victim

    def evict_stored(self, page: Page) -> None:
        """Give up the ssd copy of a victim; the page stays while it has a host copy."""
        self.ssd_counters.evictions += 1
        self.detach_stored(page)

    # ---- leaving ----

    def drop(self, page: Page) -> int:
        """`page` and what is behind it leave the table. Copies are freed, of most that are behind it by `clean_up`;
        pinned host slots with their last pin. How many have left already."""
        if page.dropped:
            return 0
        self._drop_one(page)
        return 1 + (self._leaving.behind(page) if page.children else 0)

    def forget_namespace(self, namespace: bytes) -> int:
        """All pages of `namespace` leave, as by `drop`; how many."""
        space = self._spaces.pop(namespace, {})
        pages = len(space)
        if space:
            self._leaving.whole(space)
        return pages

    def clean_up(self, count: float = math.inf) -> int:
        """Let up to `count` pages go that are hidden already; how many have gone."""
        return self._leaving.step(count)

    @property
    def leaving(self) -> bool:
        """Whether `clean_up` has something to do."""
        return self._leaving.pending

    # ---- limits ----

    @property
    def _limited(self) -> bool:
        return self.host.limit_slots < self.host.slots or self.ssd_limit is not None

    @property
    def over_limit(self) -> bool:
        """Whether a tier holds more than it may."""
        return self.host.used_slots > self.host.limit_slots or not self.ssd_may_take(0)

    def ssd_may_take(self, nbytes: int) -> bool:
        return self.ssd_limit is None or self.stored_bytes + self.writing_bytes + nbytes <= self.ssd_limit

    def shed(self, count: int) -> int:
        """Evict up to `count` pages of tiers that hold more than they may; how many that were."""
        evicted = 0
        while evicted < count:
            if self.host.used_slots > self.host.limit_slots and (victim := self.host_victim()) is not None:
                self._evict_from_host(victim)
            elif not self.ssd_may_take(0) and (victim := self._ssd_queue.peek()) is not None:
                self.evict_stored(victim)
            else:
                break
            evicted += 1
        if not evicted:
            self._shed_asked_for = False
        return evicted

    def change_eviction(self, policy: EvictionPolicy) -> None:
        """Pages get the place that `policy` gives them when they are used, or by `reconsider`."""
        self._host_queue.policy = HostOrder(policy)
        self._ssd_queue.policy = policy

    # ---- all pages ----

    @property
    def pages(self) -> int:
        """How many there are. Any thread."""
        return self._directory.pages

    def listed(self, namespace: bytes | None = None) -> list[Page]:
        """The pages there are, of one namespace or of all, each after the one it follows."""
        if namespace is not None:
            return list(self._spaces.get(namespace, {}).values())
        return [page for space in self._spaces.values() for page in list(space.values())]

    def all_pages(self) -> Iterable[Page]:
        for space in self._spaces.values():
            yield from space.values()

    def directory(self, namespace: bytes) -> DirectorySnapshot:
        """The summary of what is held, from the point of view of a server of `namespace`."""
        return self._directory.snapshot(len(self._spaces.get(namespace, ())))

    def coldest_unsaved(self, count: int) -> list[Page]:
        """Up to `count` pages that leave host memory next and would be lost by it."""
        return [page for page in self._host_queue.coldest(count) if not page.saved and not page.writing]

    # ---- rules ----

    def _may_leave_host(self, page: Page) -> bool:
        if page.pins or page.host is not HostState.RESIDENT or page.keep or page.kept_children or page.dropped:
            return False
        # What has no other copy takes along what is behind it, which may be in lent memory: as long as nothing there is
        # in host memory or wanted, nothing is lost that is worth more. The last page there can always leave.
        return page.saved or not page.held_children

    def _note_held(self, page: Page) -> None:
        """Tell the pages before `page` whether it, or what is behind it, is in host memory or pinned; as far up as
        that is new to them."""
        current = page
        while not current.dropped:
            held = current.host is not HostState.NONE or current.pins > 0 or current.held_children > 0
            if held == current.held:
                return
            current.held = held
            parent = current.parent
            if parent is None:
                return
            parent.held_children += 1 if held else -1
            if parent.host is HostState.RESIDENT:
                self.reconsider(parent)
            current = parent

    def _may_leave_ssd(self, page: Page) -> bool:
        # What follows it in memory alone goes with it, if it has no copy there itself: it is no more recent.
        return not (
            page.pins or page.stored is None or page.stored_children or page.keep or page.kept_children or page.dropped
        )

    def reconsider(self, page: Page) -> None:
        """Put `page` at its place in the queues that it may be in now."""
        for queue, may_leave in ((self._host_queue, self._may_leave_host), (self._ssd_queue, self._may_leave_ssd)):
            if may_leave(page):
                queue.push(page)
            else:
                queue.remove(page)
        self.peer_copies.reconsider(page)

    def _changed(self, page: Page) -> None:
        """`page` has gained or lost a whole copy or its last pin."""
        self._directory.changed(page)
        if page.slot >= 0 and not page.dropped:
            self.host.mark(page.slot, host_slot_state(page))

    def _free_slot(self, page: Page) -> None:
        if page.host is HostState.RESIDENT:
            self.resident_pages -= 1
        if page.slot >= 0:
            self.host.free(page.slot)
            del self._in_host[page]
        page.host, page.slot, page.digest = HostState.NONE, -1, None
        self._note_held(page)
        self._changed(page)

    def _forget_stored(self, page: Page) -> None:
        assert page.stored is not None
        self._release_stored(page.stored)
        page.stored = None
        self.stored_pages -= 1
        self.stored_bytes -= self.size_on_ssd(page.length)
        self._changed(page)
        if page.parent is not None:
            page.parent.stored_children -= 1
            if not page.parent.stored_children:
                self.gaps.discard(page.parent)
            self.reconsider(page.parent)

    def _drop_one(self, page: Page) -> None:
        """`page` leaves with what is its own. What is behind it, if anything is, finds it dropped."""
        page.dropped = True
        space = self._spaces.get(page.namespace, {})
        if space.get(page.key) is page:
            del space[page.key]
            if not space:
                del self._spaces[page.namespace]
        self._directory.leave(page)
        self.gaps.discard(page)
        if page.keep:
            self.operator_pins.leave(page)
        self._host_queue.remove(page)
        self._ssd_queue.remove(page)
        self.peer_copies.forget(page)
        if page.stored is not None:
            self._forget_stored(page)
        if not page.pins:
            self._free_slot(page)
        elif page.host is HostState.RESIDENT:
            self.host.mark(page.slot, SlotState.PRIVATE)
        if page.parent is not None:
            self._leave_parent(page, page.parent)

    def _leave_parent(self, page: Page, parent: Page) -> None:
        parent.children.pop(page, None)
        parent.held_children -= page.held
        if not parent.dropped:
            self._note_held(parent)
            self.reconsider(parent)

    def check(self) -> None:
        """Assert every rule, once what is leaving has left; for tests, since it looks at all pages."""
        self.clean_up()
        self._directory.check(self.all_pages())
        self.operator_pins.check(self.all_pages())
        check_rules(self)
