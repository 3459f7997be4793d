"""The page table: which pages the tier stack of one rank holds, where, and what may happen to them next.

Every change of a page's state is a method here, made under one lock, so that the rules hold at any moment:

1. *No page outlives its prefix.* A page is entered only if its parent is held (or it is a first page), and leaves
   only when no page behind it is held. A page that is lost (damaged, its device gone) takes its descendants along.
2. *A durable tier is closed under prefixes by itself*, since it alone survives a restart: a page is written behind one
   that is there, or on its way. One that loses its copy there, and has another, is a gap until it is written again.
3. *A pinned page keeps its copies.* Pins count requests that are about to read the page, and writes from it. One that
   an operator pinned is not evicted either, nor is the path to it; but being flushed, dropped or lost ends such a pin.

A page has at most one copy in each tier: none -> begun (a place taken, bytes arriving) -> whole -> none. Host memory is
the tier that every page enters by, and that others are written from; beyond that the table knows of a tier what
`Keeper` says.

No method takes longer because there are more pages. What would is begun by one (`drop`, `forget_namespace`,
`forget_memory`, `part_gone`), from which on nobody is told of what is to go, and ended in steps by others
(`clean_up`, `settle`), which somebody else calls.

A tier may be given a limit below its capacity. It takes nothing in beyond that. What it holds too much is evicted in
steps, by somebody else who calls `shed`; what is pinned then leaves when it no longer is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..base.page import ROOT_KEY, PageRecord
from ..base.runner import Runner
from ..base.slot_map import SlotState
from ..figures.counters import DirectorySnapshot, TierCounters
from .directory import Directory
from .held_page import HOST, Copy, Page, host_slot_state
from .leaving import Leaving
from .operator_pins import OperatorPins
from .policy import EvictionPolicy, HostOrder
from .tier_copies import HostSlots, Keeper, Part, TierCopies


class PageTable:
    """See the module. Callers hold `lock` around every method, except `find`, which needs none."""

    def __init__(
        self,
        host: HostSlots,
        policy: EvictionPolicy,
        tiers: Sequence[Keeper] = (),
        *,
        runner: Runner,
        release_landing: Callable[[int], None] = lambda slot: None,
        pin_lost: Callable[[Page], None] = lambda page: None,
        too_much: Callable[[], None] = lambda: None,
        clean: Callable[[], None] | None = None,
    ) -> None:
        """`tiers`: the others, in the order in which a page that several have is read. `release_landing` gives a slot
        of landing memory back; `pin_lost`: a page that an operator pinned has left; `too_much`: pages that a tier
        holds beyond its limit may leave now, and somebody should call `shed` until it finds none; `clean`: pages are
        leaving, and somebody should call `clean_up` until none is, which None does at once. All are called with the
        lock held."""
        self.lock = runner.lock()
        self.host = host
        self.serving = b""  # digest of the namespace that is served now; set by the stack
        #: What each tier has, by its number.
        self.of = tuple(
            TierCopies(number, keeper, order, TierCounters(), self._may_leave)
            for number, (keeper, order) in enumerate(zip((host, *tiers), self._orders(policy, tiers), strict=True))
        )
        self._below = range(1, len(self.of))
        self._release_landing = release_landing
        self._too_much = too_much
        self._shed_asked_for = False
        self._spaces: dict[bytes, dict[bytes, Page]] = {}
        self._leaving = Leaving(self._drop_one, clean or self.clean_up)
        self.flushes = 0  # of memory
        self._emptying = False  # there may be copies in memory of before the last one
        #: Parts of tiers that have copies yet, and do not give them: how many pages have given theirs up so far.
        self._gone: dict[tuple[int, Part], int] = {}
        self._time = 0
        self.summary = Directory(len(self.of))
        self.operator_pins = OperatorPins(self._kept_changed, pin_lost)
        self.pinned_pages = 0

    def named(self, tier: str) -> TierCopies:
        """What the tier of this name has. Raises KeyError where there is none."""
        for copies in self.of:
            if copies.name == tier:
                return copies
        raise KeyError(tier)

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
        return any(
            copy is not None and copy.whole and self._counts(tier, copy) for tier, copy in enumerate(page.copies)
        )

    def _counts(self, tier: int, copy: Copy) -> bool:
        """Whether a copy is to be told of: neither of memory that was emptied, nor on a part that has gone."""
        of = self.of[tier]
        if self._emptying and not of.durable and copy.flushes < self.flushes:
            return False
        return not self._gone_with(tier, copy)

    def _gone_with(self, tier: int, copy: Copy) -> list[tuple[int, Part]]:
        """The parts that have gone on which it lies."""
        if not self._gone:
            return []
        uses = self.of[tier].keeper.uses
        return [(where, part) for where, part in list(self._gone) if where == tier and uses(copy.place, part)]

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
        page = Page(record, parent, len(self.of))
        page.last_use = now
        page.uses = 1
        if parent is not None:
            parent.children[page] = None
        space = self._spaces.setdefault(record.namespace, {})
        space.pop(record.key, None)  # one that is leaving: the new one comes after its own parent
        space[record.key] = page
        self.summary.enter(page)
        return page

    def recover(self, record: PageRecord, tier: int, copy: Copy, now: int) -> Page | None:
        """Enter a page that a durable tier has kept; parents come before their children. None: unreachable."""
        page = self.find(record.namespace, record.key) or self.enter(record, now)
        if page is None or page.copies[tier] is not None:
            return None
        page.recovered = True
        page.copies[tier] = copy
        self._entered(page, tier, copy)
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
            for copies in self.of:
                copies.queue.remove(page)
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
            self._free_host(page)
        else:
            self._note_held(page)
            self._changed(page)
            self.reconsider(page)
        if self._limited and self.over_limit and not self._shed_asked_for:
            self._shed_asked_for = True
            self._too_much()

    def pinned_in(self, tier: int) -> int:
        """Pinned pages with a whole copy in this tier; of host memory, also those with a slot that is being filled for
        the first time."""
        if tier == HOST:
            return self.pinned_pages - self.summary.pinned_elsewhere
        return self.summary.pinned(tier)

    def _kept_changed(self, page: Page) -> None:
        if not page.pins:
            self.pinned_pages += 1 if page.kept else -1
        if not page.dropped:
            self._changed(page)
            self.reconsider(page)

    # ---- room in host memory ----

    def take_slot(self, now: int | None) -> int | None:
        """A free host slot, made by evicting if needed; None if all pages are pinned, needed, or as recent as `now`.

        A page used at `now` is never the victim: a sequence longer than the tier must not evict its own beginning.
        With None, recency protects nothing: for a request that waits, and has pinned what it needs itself.
        """
        slot = self.host.allocate()
        if slot is None and self.host.used_slots <= self.host.limit_slots:
            victim = self.victim(HOST)
            if victim is not None and (now is None or victim.last_use < now):
                self.evict(victim, HOST)
                slot = self.host.allocate()
        return slot

    def land(self, page: Page, slot: int) -> None:
        """`page`, which is pinned, lies in a slot of landing memory, verified, until its last pin goes. Its place is
        told as one of host memory is, the slots there being numbered from where host memory's end."""
        assert page.pins
        assert page.landing < 0
        page.landing = self.host.slots + slot

    # ---- copies ----

    def begin(self, page: Page, tier: int, place: Any, digest: bytes | None = None) -> Copy:
        """Bytes of `page` begin to arrive at `place` of this tier, where it has none; pinned until `end`."""
        assert page.copies[tier] is None
        copy = page.copies[tier] = Copy(place, digest, self.flushes)
        self.of[tier].begun(page, copy)
        if tier == HOST:
            self.host.mark(place, SlotState.LOADING)
        self.pin(page)
        return copy

    def end(self, page: Page, tier: int, *, whole: bool, place: Any | None = None, digest: bytes | None = None) -> bool:
        """They have arrived, or will not: there is a whole copy, or none. Takes back `begin`'s pin. A page that ends up
        with no copy at all is dropped. `place`, `digest`: where they really lie, and their checksum,
        if not as `begin` said.

        False if there is no copy now. Its place is the caller's then, but a host slot, which is freed.
        """
        copy, copies = page.copies[tier], self.of[tier]
        assert copy is not None
        assert not copy.whole
        kept = whole and not page.dropped
        if tier != HOST or not page.dropped:  # a host slot is there as long as the page is pinned
            copies.ended(page, copy)
            copy.place = copy.place if place is None else place
            copy.digest = copy.digest if digest is None else digest
        if kept:
            self._entered(page, tier, copy)
            copies.counters.bytes_written += page.length
        elif not page.dropped:
            self._abandon(page, tier, copy)
        elif tier != HOST:
            page.copies[tier] = None
        self.unpin(page)
        return kept

    def _entered(self, page: Page, tier: int, copy: Copy) -> None:
        self.of[tier].entered(page, copy)
        self._changed(page)
        self.reconsider(page)
        parent = page.parent
        if parent is not None and self.of[tier].durable:
            if parent.behind is None:
                parent.behind = [0] * len(self.of)
            parent.behind[tier] += 1
            self.reconsider(parent)

    def _abandon(self, page: Page, tier: int, copy: Copy) -> None:
        """What was begun has come to nothing."""
        page.copies[tier] = None
        if tier == HOST:
            self.host.release([copy.place])
        if self.of[tier].durable and page.has_behind(tier):
            self.of[tier].gaps.add(page)  # they were written ahead of it
        if not any(page.copies):
            self.drop(page)

    def lose(self, page: Page, tier: int) -> bool:
        """`page` gives up its copy in this tier; without another one it leaves, and all behind it. Those keep their
        copies if it stays: in a durable tier it is to be written again. False if there was none, or it is to stay:
        what requests have pinned in host memory, and is elsewhere."""
        copy = page.copies[tier]
        if copy is None or page.dropped or (tier != HOST and not copy.whole):
            return False
        if not page.elsewhere(tier) and (tier == HOST or not page.in_host):
            self.drop(page)
            return True
        if tier == HOST and (page.pins or not copy.whole):
            return False
        self._forget(page, tier)
        if self.of[tier].durable and page.has_behind(tier):
            self.of[tier].gaps.add(page)
        self.reconsider(page)
        return True

    def victim(self, tier: int) -> Page | None:
        """The page that leaves this tier next, or None if none may. In host memory there is one whenever a page is
        there and none is pinned."""
        return self.of[tier].queue.peek()

    def evict(self, page: Page, tier: int) -> None:
        """Give up the copy of a victim; the page stays while it has another one."""
        self.of[tier].counters.evictions += 1
        self.of[tier].queue.remove(page)
        self.lose(page, tier)

    # ---- what counts no more ----

    def forget_memory(self) -> None:
        """From now on no copy counts that does not survive a restart, whole or on its way. To be given up by
        `settle`, all of `in_memory`; then `emptied`."""
        self.flushes += 1
        self._emptying = True

    def in_memory(self) -> list[Page]:
        """The pages with such a copy. Any thread."""
        return [page for copies in self.of if not copies.durable for page in copies.listed()]

    def emptied(self, flushes: int) -> None:
        """What there was in memory when `flushes` was this has been settled."""
        if flushes == self.flushes:
            self._emptying = False

    def lying_on(self, tier: int, part: Part) -> Iterable[Page]:
        """The pages with a whole copy on a part of a tier, to be gone through later, by any thread, without the lock:
        those of now, as far as they still are then."""
        of = self.of[tier]
        if not of.durable:
            return of.under(part)
        # To make a list of all is one step of the interpreter; to go through them, with the lock held, is not.
        copies = ((page, page.copies[tier]) for page in self.listed())
        return (page for page, copy in copies if copy is not None and copy.whole and of.keeper.uses(copy.place, part))

    def part_gone(self, tier: int, part: Part) -> None:
        """From now on no copy counts that lies on this part of a tier. To be given up by `settle`; then
        `part_forgotten`."""
        self._gone[tier, part] = 0

    def part_forgotten(self, tier: int, part: Part) -> int:
        """No copy lies on it any more; how many pages had one when it went, and have given it up."""
        return self._gone.pop((tier, part), 0)

    def settle(self, page: Page) -> bool:
        """Have `page` give up the copies that do not count any more, those that outlive a restart first. What requests
        have pinned in host memory, and is elsewhere, stays. Whether there was one."""
        lost = False
        for tier in reversed(range(len(self.of))):
            copy = page.copies[tier]
            if copy is None or page.dropped or not (copy.whole or tier == HOST):
                continue  # what is being written there is judged when it is
            if not self._counts(tier, copy):
                lost = self.lose(page, tier) or lost
        return lost

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
        return self.host.limit_slots < self.host.slots or any(copies.limit is not None for copies in self.of)

    def over(self, tier: int) -> bool:
        """Whether this tier holds more than it may."""
        if tier == HOST:
            return self.host.used_slots > self.host.limit_slots
        return not self.of[tier].may_take(0)

    @property
    def over_limit(self) -> bool:
        """Whether a tier holds more than it may."""
        return any(self.over(tier) for tier in range(len(self.of)))

    def shed(self, count: int) -> int:
        """Evict up to `count` pages of tiers that hold more than they may; how many that were."""
        evicted = 0
        while evicted < count:
            victims = ((tier, self.victim(tier)) for tier in range(len(self.of)) if self.over(tier))
            found = next(((tier, victim) for tier, victim in victims if victim is not None), None)
            if found is None:
                break
            self.evict(found[1], found[0])
            evicted += 1
        if not evicted:
            self._shed_asked_for = False
        return evicted

    def change_eviction(self, policy: EvictionPolicy) -> None:
        """Pages get the place that `policy` gives them when they are used, or by `reconsider`."""
        orders = self._orders(policy, [copies.keeper for copies in self.of[1:]])
        for copies, order in zip(self.of, orders, strict=True):
            copies.queue.policy = order

    @staticmethod
    def _orders(policy: EvictionPolicy, tiers: Sequence[Keeper]) -> list[EvictionPolicy]:
        """Who leaves each tier first, host memory's before those of `tiers`."""
        near = [number for number, keeper in enumerate(tiers, HOST + 1) if keeper.near]
        return [HostOrder(policy, near), *(keeper.order(policy) for keeper in tiers)]

    # ---- all pages ----

    @property
    def pages(self) -> int:
        """How many there are. Any thread."""
        return self.summary.pages

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
        return self.summary.snapshot(len(self._spaces.get(namespace, ())))

    def coldest_unsaved(self, count: int) -> list[Page]:
        """Up to `count` pages that leave host memory next and would be lost by it."""
        return [page for page in self.of[HOST].queue.coldest(count) if not any(page.copies[1:])]

    # ---- rules ----

    def _may_leave(self, page: Page, tier: int) -> bool:
        copy = page.copies[tier]
        if copy is None or not copy.whole or page.pins or page.keep or page.kept_children or page.dropped:
            return False
        if self.of[tier].durable:
            # What follows it in memory alone goes with it, if it has no copy there itself: it is no more recent.
            return not page.has_behind(tier)
        # What has no other copy takes along what is behind it. From host memory as long as nothing of that is there or
        # wanted: nothing is lost that is worth more, and the last page there can always leave.
        return page.elsewhere(tier) or not (page.held_children if tier == HOST else page.children)

    def _note_held(self, page: Page) -> None:
        """Tell the pages before `page` whether it, or what is behind it, is in host memory or pinned; as far up as
        that is new to them."""
        current = page
        while not current.dropped:
            held = current.in_host or current.pins > 0 or current.held_children > 0
            if held == current.held:
                return
            current.held = held
            parent = current.parent
            if parent is None:
                return
            parent.held_children += 1 if held else -1
            if parent.resident:
                self.reconsider(parent)
            current = parent

    def reconsider(self, page: Page) -> None:
        """Put `page` at its place in the queues that it may be in now."""
        for tier, copy in enumerate(page.copies):
            if copy is not None:
                self.of[tier].reconsider(page)

    def _changed(self, page: Page) -> None:
        """`page` has gained or lost a whole copy or its last pin."""
        self.summary.changed(page)
        if page.in_host and not page.dropped:
            self.host.mark(page.slot, host_slot_state(page))

    def _forget(self, page: Page, tier: int) -> None:
        """`page` has a whole copy there no more."""
        copy, copies = page.copies[tier], self.of[tier]
        assert copy is not None
        for where in self._gone_with(tier, copy):
            self._gone[where] += 1
        page.copies[tier] = None
        copies.left(page, copy)
        copies.keeper.release([copy.place])
        if tier == HOST:
            self._note_held(page)
        self._changed(page)
        parent = page.parent
        if copies.durable and parent is not None and parent.behind is not None:
            parent.behind[tier] -= 1
            if not parent.behind[tier]:
                copies.gaps.discard(parent)
            self.reconsider(parent)

    def _free_host(self, page: Page) -> None:
        """A page that has left needs its host slot no more, if it has one."""
        copy = page.copies[HOST]
        if copy is None:
            return
        if copy.whole:
            self._forget(page, HOST)
        else:
            page.copies[HOST] = None
            self.of[HOST].ended(page, copy)
            self.host.release([copy.place])

    def _drop_one(self, page: Page) -> None:
        """`page` leaves with what is its own. What is behind it, if anything is, finds it dropped."""
        page.dropped = True
        space = self._spaces.get(page.namespace, {})
        if space.get(page.key) is page:
            del space[page.key]
            if not space:
                del self._spaces[page.namespace]
        self.summary.leave(page)
        for copies in self.of:
            copies.gaps.discard(page)
            copies.queue.remove(page)
        if page.keep:
            self.operator_pins.leave(page)
        for tier in self._below:
            if page.whole_in(tier):
                self._forget(page, tier)
        if not page.pins:
            self._free_host(page)
        elif page.resident:
            self.host.mark(page.slot, SlotState.PRIVATE)
        if page.parent is not None:
            self._leave_parent(page, page.parent)

    def _leave_parent(self, page: Page, parent: Page) -> None:
        parent.children.pop(page, None)
        parent.held_children -= page.held
        if not parent.dropped:
            self._note_held(parent)
            self.reconsider(parent)
