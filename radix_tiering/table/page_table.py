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

What is done to a page is done by a kernel (`kernels`), over rows in arrays (`rows`); here is what they have to do with
the rest of the house: tiers' places, leases and devices that go, operators.

No method but `change_eviction` and those that list pages takes longer because there are more pages. What would is begun
by one (`drop`, `forget_namespace`, `forget_memory`, `part_gone`), from which on nobody is told of what is to go, and
ended in steps by others (`clean_up`, `settle`), which somebody else calls.

A tier may be given a limit below its capacity. It takes nothing in beyond that. What it holds too much is evicted in
steps, by somebody else who calls `shed`; what is pinned then leaves when it no longer is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..base.page import HELD_TOGETHER, KEY_BYTES, ROOT_KEY, HeldPages, PageRecord
from ..base.runner import Runner
from ..figures.counters import DirectorySnapshot
from . import directory, kernels
from .announced import Announced
from .held_page import Book, Page
from .kernels import (
    ANY_WHOLE,
    BATCH,
    BITS,
    CHILD,
    DEPTH,
    FLAGS,
    LAST,
    NEXT,
    NOTES,
    PAGES,
    PARENT,
    PINNED,
    PLACES,
    ROOT_LENGTH,
    ROOT_PAGES,
    SPACE,
    TIERS,
    WHOLE,
)
from .operator_pins import OperatorPins
from .policy import EvictionPolicy
from .rows import PageRows, as_key, as_keys, leading, rows_of, split
from .tier_copies import HOST, BookedCopies, HostCopies, HostSlots, Keeper, Part, TierCopies

#: Pages that are handled in one hold of the lock: bounds how long another thread waits for it.
PAGES_PER_HOLD = 64
#: A tier that has nothing yet, since others decide how much it has, is foreseen to have as much as host memory so many
#: times: rows cost nothing before they are used, and more than were foreseen are copied, with all there are.
UNKNOWN_TIMES = 4
#: Pages behind one that is dropped that leave with it, if none is leaving yet: most have no more, and nobody need wait
#: for another thread.
LEAVE_AT_ONCE = 16
#: The logical time of a use that is later than all.
_NEVER = (1 << 62) - 1


class PageTable:
    """See the module. Callers hold `lock` around every method but those that say "as `find`" or "any thread"."""

    def __init__(
        self,
        host: HostSlots,
        policy: EvictionPolicy,
        tiers: Sequence[Keeper] = (),
        *,
        runner: Runner,
        release_landing: Callable[[int], None] = lambda slot: None,
        pin_lost: Callable[[bytes], None] = lambda key: None,
        too_much: Callable[[], None] = lambda: None,
        clean: Callable[[], None] | None = None,
    ) -> None:
        """`tiers`: the others, in the order in which a page that several have is read. `release_landing` gives a slot
        of landing memory back; `pin_lost`: a page that an operator pinned has left, of this key; `too_much`: pages that
        a tier holds beyond its limit may leave now, and somebody should call `shed` until it finds none; `clean`: pages
        are leaving, and somebody should call `clean_up` until none is, which None does at once. All are called with the
        lock held."""
        self.lock = runner.lock()
        self.host = host
        self.serving = b""  # digest of the namespace that is served now; set by the stack
        length = host.geometry.page_bytes
        unknown = UNKNOWN_TIMES * host.capacity_bytes
        places = sum((keeper.capacity_bytes or unknown) // max(1, keeper.size_of(length)) for keeper in (host, *tiers))
        kinds = [(keeper.durable, keeper.near) for keeper in (host, *tiers)]
        self._rows = rows = PageRows(kinds, places + places // 8)
        orders = self._orders(policy, tiers)
        #: What each tier has, by its number.
        self.of: tuple[TierCopies, ...] = (
            HostCopies(host, rows, orders[HOST]),
            *(
                (TierCopies if keeper.numbered else BookedCopies)(number, keeper, rows, orders[number])
                for number, keeper in enumerate(tiers, HOST + 1)
            ),
        )
        #: The number of the tier whose copies are hints; 0: of none.
        self.hints = next((number for number, keeper in enumerate(tiers, HOST + 1) if keeper.hints), HOST)
        self.book = Book(rows, self.of)
        self._release_landing = release_landing
        self._too_much = too_much
        self._shed_asked_for = False
        self._clean = clean or self.clean_up
        self._clean_asked_for = False
        self._leaving: list[_Leaving] = []
        self.flushes = 0  # of memory
        self._emptying = False  # there may be copies in memory of before the last one
        #: Parts of tiers that have copies yet, and do not give them: how many pages have given theirs up so far.
        self._gone: dict[tuple[int, Part], int] = {}
        self._time = 0
        self.operator_pins = OperatorPins(self._call, rows, pin_lost)
        self.announced = Announced(rows)

    def named(self, tier: str) -> TierCopies:
        """What the tier of this name has. Raises KeyError where there is none. Any thread."""
        for copies in self.of:
            if copies.name == tier:
                return copies
        raise KeyError(tier)

    def _call(self, kernel: Callable[..., Any], *arguments: Any) -> Any:
        """What a kernel answers, once what it has noted is done."""
        answer = kernel(*self._rows.state, *arguments)
        if self._rows.count[NOTES]:
            self._do_what_is_noted()
        return answer

    def _page(self, handle: int) -> Page | None:
        return None if handle < 0 else Page(self.book, *split(handle))

    def _pages(self, rows: np.ndarray) -> list[Page]:
        return [Page(self.book, row, generation) for row, generation in self._rows.make_handles(rows)]

    def _one_by_one(self, rows: np.ndarray) -> Iterator[Page]:
        """The same of many, without a list of all."""
        for start in range(0, len(rows), BATCH):
            yield from self._pages(rows[start : start + BATCH])

    def unwritten(self, tier: int) -> Iterator[Page]:
        """The pages that are in host memory now, or on their way there, and of which this tier has no copy: those used
        last first, parents before their children; made one by one. Any thread."""
        rows = self.of[HOST].listed()
        rows = rows[~self._rows.begun(rows, tier)]
        return self._one_by_one(rows[self._rows.hottest_first(rows)])

    def hottest_first(self, pages: Sequence[Page]) -> list[Page]:
        """These, in that order."""
        return [pages[at] for at in self._rows.hottest_first(rows_of(pages)).tolist()]

    def parents_first(self, pages: Sequence[Page]) -> list[Page]:
        """These, each before those that follow it."""
        return [pages[at] for at in self._rows.parents_first(rows_of(pages)).tolist()]

    # ---- finding and entering ----

    def find(self, namespace: bytes, key: bytes) -> Page | None:
        """The page, or None. Any thread, without the lock, as a hint: what it says may change at once."""
        root = self.book.roots.get(namespace)
        return None if root is None else self._page(kernels.find(*self._rows.state, root, *as_key(key)))

    def settled(self, namespace: bytes, key: bytes) -> Page | None:
        """The page, with those copies only that count; see `settle`."""
        page = self.find(namespace, key)
        if page is not None and (self._gone or self._emptying):
            self.settle(page)
        return None if page is None or page.dropped else page

    def settled_chain(self, namespace: bytes, keys: Sequence[bytes]) -> list[Page]:
        """The pages of a chain, with those copies only that count, from the first on, as far as they are held."""
        return self._pages(self._settled_rows(namespace, keys))

    def _settled_rows(self, namespace: bytes, keys: Sequence[bytes]) -> np.ndarray:
        """The rows of `settled_chain`: int64."""
        root = self.book.roots.get(namespace)
        if root is None or not keys:
            return np.empty(0, np.int64)
        rows = np.empty(len(keys), np.int64)
        rows = rows[: kernels.find_chain(*self._rows.state, root, as_keys(keys), rows)]
        if self._gone or self._emptying:
            for at, page in enumerate(self._pages(rows)):
                self.settle(page)
                if page.dropped:
                    return rows[:at]
        return rows

    def probe(self, namespace: bytes, keys: Sequence[bytes]) -> int:
        """How many pages of a chain, from the first on, have a whole copy that counts. A hint, as `find`."""
        root = self.book.roots.get(namespace)
        if root is None or not keys:
            return 0
        held: int = kernels.probe(*self._rows.state, root, as_keys(keys))
        if self._gone or self._emptying:
            rows = np.empty(held, np.int64)
            held = kernels.find_chain(*self._rows.state, root, as_keys(keys[:held]), rows)
            for at, page in enumerate(self._one_by_one(rows[:held])):
                if not self.holds(page):
                    return at
        return held

    def branches(self, namespace: bytes, keys: Sequence[bytes]) -> list[int]:
        """Of a chain, as far as it is held: behind how many of its pages another one follows than the next of the
        chain. A hint, as `find`."""
        root = self.book.roots.get(namespace)
        if root is None or not keys:
            return []
        state, rows = self._rows.state, np.empty(len(keys), np.int64)
        rows = rows[: kernels.find_chain(*state, root, as_keys(keys), rows)]
        youngest = state[0][rows, CHILD]
        alone = state[0][youngest, NEXT] < 0  # of none, too, as is asked next
        following = np.append(rows[1:], -1)[: len(rows)]
        found: list[int] = (np.flatnonzero((youngest >= 0) & ~(alone & (youngest == following))) + 1).tolist()
        return found

    def last_held(self, namespace: bytes, keys: Sequence[bytes]) -> int | None:
        """The last of these pages, no chain, that has a whole copy that counts. A hint, as `find`."""
        root, held = self.book.roots.get(namespace), len(keys)
        if root is None:
            return None
        while held:
            held = kernels.last_held(*self._rows.state, root, as_keys(keys[:held]))
            if held < 0 or not (self._gone or self._emptying):
                break
            page = self.find(namespace, keys[held])
            if page is not None and self.holds(page):
                break
        else:
            return None
        return held if held >= 0 else None

    def announce(self, namespace: bytes, keys: Sequence[bytes], numbers: Sequence[int]) -> list[bool]:
        """Others outside are told now that these pages, a part of a chain, are here; by which number of theirs each is.
        Which of them are new to them, and here. See `announced`."""
        root = self.book.roots.get(namespace)
        fresh = np.zeros(len(keys), np.bool_)
        if root is not None and keys:
            rows = np.empty(len(keys), np.int64)
            rows = rows[: kernels.find_chain(*self._rows.state, root, as_keys(keys), rows)]
            held = leading(self._rows.words[rows, TIERS] & ANY_WHOLE != 0)
            fresh[:held] = self.announced.tell(rows[:held], np.array(numbers[:held], np.int64))
        return fresh.tolist()

    def is_announced(self, namespace: bytes, key: bytes) -> bool:
        """Whether others were told of this page, and not yet that it has left. A hint, as `find`."""
        page = self.find(namespace, key)
        return page is not None and self.announced.knows(page.row)

    def holds(self, page: Page) -> bool:
        """Whether `page` has a whole copy that counts. A hint, as `find`."""
        if not (self._gone or self._emptying):
            return page.complete
        return any(page.whole_in(tier) and self._counts(page, tier) for tier in range(len(self.of)))

    def _counts(self, page: Page, tier: int) -> bool:
        """Whether its copy there is to be told of: neither of memory that was emptied, nor on a part that has gone."""
        of = self.of[tier]
        copy = of.facts_at(self._rows.word[page.row, PLACES + tier])
        if copy is None or (self._emptying and not of.durable and copy.flushes < self.flushes):
            return False
        return not self._gone_with(of, copy.place)

    def _gone_with(self, of: TierCopies, place: Any) -> list[tuple[int, Part]]:
        """The parts that have gone on which a copy at this place lies."""
        return [one for one in list(self._gone) if one[0] == of.number and of.keeper.uses(place, one[1])]

    def keys_beginning(self, namespace: bytes, begin: bytes) -> list[bytes]:
        """The keys of its pages that begin with these bytes; takes as long as there are pages. Any thread, without the
        lock: each was there when it was looked at."""
        root = self.book.roots.get(namespace)
        return [] if root is None else self._rows.keys_beginning(root, begin)

    def tick(self) -> int:
        """A new logical time of use, later than all before."""
        self._time += 1
        return self._time

    @property
    def time(self) -> int:
        """The latest logical time of use."""
        return self._time

    def enter(self, record: PageRecord, now: int) -> Page | None:
        """A new page without copies; None if its parent is not held, or the others of its namespace are longer."""
        root = self._root(record.namespace, record.length)
        row = root
        if record.parent != ROOT_KEY:
            parent = self.find(record.namespace, record.parent)
            row = -1 if parent is None else parent.row
        if row < 0:
            return None
        self._rows.make_room(1)
        return self._page(self._call(kernels.enter, row, *as_key(record.key), now))

    def _root(self, namespace: bytes, length: int) -> int:
        """The row that the first pages of a namespace follow; -1: its pages are not so long."""
        root = self.book.roots.get(namespace)
        if root is None:
            self._rows.make_room(1)
            root = self._rows.new_root(length, [copies.keeper.size_of(length) for copies in self.of])
            self.book.roots[namespace], self.book.digests[root] = root, namespace
        return root if self._rows.word[root, ROOT_LENGTH] == length else -1

    def recover(self, held: HeldPages, tier: int, times: np.ndarray) -> tuple[int, np.ndarray]:
        """Enter pages that a durable tier has kept, whose places are numbers, parents before their children; `times`:
        logical times of their last use, int64. How many were looked at, which are not all where the next one is just
        coming in from the device; and the places of those that nothing leads to: int64."""
        root = self._root(held.namespace, held.length)
        if root < 0:
            return len(held.places), held.places
        self._rows.make_room(len(held.places))
        lost = np.empty(len(held.places) + 1, np.int64)
        unreachable = self._call(kernels.recover, root, tier, held.keys, held.places, times, lost)
        return int(lost[-1]), lost[:unreachable]

    def held_in(self, tier: int) -> Iterator[HeldPages]:
        """The whole copies of a tier whose places are numbers: a bounded number of them at a time, of one namespace.
        Any thread; nobody changes pages meanwhile."""
        rows = self._rows
        for root, namespace in list(self.book.digests.items()):
            if not rows.word[root, ROOT_PAGES]:
                continue  # looking for its pages takes as long as looking for any
            listed = rows.used(root, parents_first=False)
            listed = listed[rows.whole(listed, tier)]
            for start in range(0, len(listed), HELD_TOGETHER):
                some = listed[start : start + HELD_TOGETHER]
                keys, depths = rows.chains(some)
                places = rows.words[some, PLACES + tier].astype(np.int64)
                yield HeldPages(namespace, rows.word[root, ROOT_LENGTH], keys, depths, places, rows.longs[some, LAST])

    def whole(self, rows: np.ndarray, tier: int) -> np.ndarray:
        """Which of these rows, of pages that are pinned, have a whole copy in this tier: bool [rows]."""
        return self._rows.whole(rows, tier)

    def resident_run(self, pages: Sequence[Page]) -> int:
        """How many of these pages, from the first on, are in host memory."""
        there = self._rows.whole(rows_of(pages), HOST)
        return leading(there)

    def beneath_run(self, pages: Sequence[Page]) -> int:
        """How many of these pages, from the first on, have a whole copy in a tier beneath host memory, and none there,
        nor on its way there."""
        tiers = self._rows.words[rows_of(pages), TIERS]
        there = (tiers & kernels.ANY_WHOLE != 0) & (tiers & (kernels.BEGUN | kernels.WHOLE) == 0)
        return leading(there)

    def records(self, pages: Sequence[Page]) -> list[PageRecord]:
        """`Page.record` of many, which are in the table."""
        words, longs, rows = self._rows.words, self._rows.longs, rows_of(pages)
        keys, parents = longs[rows, :4].tobytes(), longs[words[rows, PARENT], :4].tobytes()
        found = []
        for at, (depth, root) in enumerate(words[rows, DEPTH : SPACE + 1].tolist()):
            one = slice(KEY_BYTES * at, KEY_BYTES * (at + 1))
            before = parents[one] if depth > 1 else ROOT_KEY
            length = self._rows.word[root, ROOT_LENGTH]
            found.append(PageRecord(keys[one], before, self.book.digests[root], depth, length))
        return found

    def use(self, page: Page, now: int, reach: int = 0) -> None:
        """`use_all` of one. For simulations and tests."""
        kernels.use(*self._rows.state, page.row, now, reach)

    def use_all(self, pages: Sequence[Page], now: int, reach: int = 0) -> None:
        """Count a use of each of these pages at logical time `now` by a request of `reach` whole pages.

        Requests interleave: a use at an earlier time than the last one counts, and sets no clock back.
        """
        kernels.use_all(*self._rows.state, rows_of(pages), now, reach)

    def use_chain(self, keys: Sequence[bytes], now: int, reach: int, tiers: Sequence[int]) -> list[Page]:
        """`use_all` of the pages of a chain of the namespace that is served, from the first on, as far as they are
        held; those of them that are `lacking` in these tiers."""
        rows = self._settled_rows(self.serving, keys)
        kernels.use_all(*self._rows.state, rows, now, reach)
        return self._pages(rows[self._lacking(rows, tiers)])

    def lacking(self, pages: Sequence[Page], tiers: Sequence[int]) -> list[Page]:
        """Those of these pages, which are in the table, that are in host memory, and of which one of these tiers has no
        copy."""
        mask = self._lacking(rows_of(pages), tiers).tolist()
        return [page for page, lacks in zip(pages, mask, strict=True) if lacks]

    def _lacking(self, rows: np.ndarray, tiers: Sequence[int]) -> np.ndarray:
        """bool [rows]"""
        everywhere = np.ones(len(rows), bool)
        for tier in tiers:
            everywhere &= self._rows.begun(rows, tier)
        return self._rows.whole(rows, HOST) & ~everywhere

    def refresh(self, page: Page, now: int) -> None:
        """`page` and the prefix before it were written again or relied upon: as recent as `now`, but not a use."""
        kernels.refresh(*self._rows.state, page.row, now)

    def refresh_all(self, pages: Sequence[Page], now: int) -> None:
        """`refresh` of many."""
        kernels.refresh_all(*self._rows.state, rows_of(pages), now)

    # ---- pins ----

    def pin(self, page: Page) -> None:
        kernels.pin(*self._rows.state, page.row)

    def unpin(self, page: Page) -> None:
        self._call(kernels.unpin, page.row)
        self._ask_to_shed()

    def pin_all(self, pages: Sequence[Page]) -> None:
        """`pin` of many."""
        kernels.pin_all(*self._rows.state, rows_of(pages))

    def unpin_all(self, pages: Sequence[Page]) -> None:
        """`unpin` of up to `kernels.BATCH`."""
        self._call(kernels.unpin_all, rows_of(pages))
        self._ask_to_shed()

    def _ask_to_shed(self) -> None:
        if self._limited and self.over_limit and not self._shed_asked_for:
            self._shed_asked_for = True
            self._too_much()

    @property
    def pinned_pages(self) -> int:
        """For requests' sake or operators', those that have left included."""
        return self._rows.count[PINNED]

    def pinned_in(self, tier: int) -> int:
        """Pinned pages with a whole copy in this tier; of host memory, also those with a slot that is being filled for
        the first time."""
        if tier == HOST:
            return self.pinned_pages - directory.pinned_elsewhere(self._rows)
        return directory.pinned(self._rows, tier)

    # ---- room in host memory ----

    def take_slot(self, now: int | None) -> int | None:
        """A free host slot, made by evicting if needed; None if all pages are pinned, needed, or as recent as `now`.

        A page used at `now` is never the victim: a sequence longer than the tier must not evict its own beginning.
        With None, recency protects nothing: for a request that waits, and has pinned what it needs itself.
        """
        return next(iter(self.take_slots(1, now)), None)

    def take_in(self, parent: Page | None, keys: Sequence[bytes], length: int, now: int) -> list[Page]:
        """New pages of the namespace that is served, of `length` bytes, one behind the other after `parent` (None: from
        the beginning of a sequence), whose bytes begin to arrive in host memory: as many of them as it has room for, by
        `take_slot`, up to the first that is held."""
        row = self._root(self.serving, length)
        if row < 0:
            return []
        # First: where there is no memory for more rows, no slot is lost.
        self._rows.make_room(len(keys))
        slots = np.array(self.take_slots(len(keys), now), np.int64)
        handles = np.empty(len(slots), np.int64)
        row = row if parent is None else parent.row
        taken = self._call(kernels.take_in, row, as_keys(keys[: len(slots)]), slots, now, handles)
        rows = handles[:taken] & 0xFFFFFFFF
        self.of[HOST].begun(rows, slots[:taken], self.flushes)  # type: ignore[attr-defined]
        self.host.release(slots[taken:].tolist())
        return self._pages(rows)

    def take_slots(self, count: int, now: int | None) -> list[int]:
        """Up to so many slots, as by `take_slot`."""
        slots: list[int] = []
        now = _NEVER if now is None else now
        while len(slots) < count:
            slot = self.host.allocate()
            if slot is not None:
                slots.append(slot)
            elif not self._evict_from_host(min(count - len(slots), BATCH), now):
                break
        return slots

    def _evict_from_host(self, count: int, before: int) -> int:
        """Make room for up to `count` pages, if host memory holds no more than it may; for how many."""
        if self.host.used_slots > self.host.limit_slots:
            return 0
        return self.make_way(HOST, count, before)

    def land(self, page: Page, slot: int) -> None:
        """`page`, which is pinned, lies in a slot of landing memory, verified, until its last pin goes. Its place is
        told as one of host memory is, the slots there being numbered from where host memory's end."""
        assert page.pins
        assert page.landing < 0
        self.book.landed[page.row] = self.host.slots + slot
        self._rows.word[page.row, FLAGS] |= kernels.LANDED

    # ---- copies ----

    def begin(self, page: Page, tier: int, place: Any, digest: bytes | None = None) -> None:
        """Bytes of `page` begin to arrive at `place` of this tier, where it has none; pinned until `end`."""
        assert not page.begun_in(tier)
        code = self.of[tier].code(page.row, place, digest, self._since(page))
        kernels.begin(*self._rows.state, page.row, tier, code)

    def _since(self, page: Page) -> int:
        """How many flushes of memory a copy has come after that begins now: as many as what it is made from."""
        if not self._emptying or not page.complete or self.holds(page):
            return self.flushes
        return self.flushes - 1

    def writable(self, pages: Sequence[Page], tier: int) -> tuple[list[Page], int]:
        """Those of up to `kernels.BATCH` pages that are in host memory and have no copy in this tier; and how many were
        left out because it is durable, and the page before them is neither there nor among those before. What has left,
        and what memory is being emptied of, is not written: there it would outlive that."""
        if self._emptying:
            pages = [page for page in pages if self.holds(page)]
        found = np.zeros(len(pages), np.int64)
        named = np.array([(page.row, page.generation) for page in pages], np.int64).reshape(-1, 2)
        kernels.writable(*self._rows.state, named, tier, found)
        answers = found.tolist()
        return [page for page, answer in zip(pages, answers, strict=True) if answer == 1], answers.count(2)

    def lacking_before(self, page: Page, tier: int, most: int) -> list[Page]:
        """Of the pages before `page`, which is in the table, from the last on that has a copy in this tier, whole or on
        its way, the first ones, in order: `most` at most."""
        handles = np.empty(most, np.int64)
        found = kernels.lacking_before(*self._rows.state, page.row, tier, handles)
        return self._pages(handles[:found] & 0xFFFFFFFF)

    def has_left(self, page: Page) -> bool:
        """Whether `page`, or one before it, or its namespace has been dropped: it is found no more, though it may be a
        while until it is gone."""
        return page.gone or bool(self._call(kernels.has_left, page.row))

    def begin_all(self, pages: Sequence[Page], tier: int, places: Sequence[Any]) -> None:
        """`begin` of up to `kernels.BATCH` pages whose checksums the tier learns as they are written."""
        of, rows = self.of[tier], rows_of(pages)
        codes = [of.code(page.row, place, None, self._since(page)) for page, place in zip(pages, places, strict=True)]
        kernels.begin_all(*self._rows.state, rows, tier, np.array(codes, np.int64))

    def end(self, page: Page, tier: int, *, whole: bool, place: Any | None = None, digest: bytes | None = None) -> bool:
        """They have arrived, or will not: there is a whole copy, or none. Takes back `begin`'s pin. A page that ends up
        with no copy at all is dropped. `place`, `digest`: where they really lie, and their checksum,
        if not as `begin` said.

        False if there is no copy now. Its place is the caller's then, but a host slot, which is freed.
        """
        of, row = self.of[tier], page.row
        code = self._rows.word[row, PLACES + tier]
        assert page.begun_in(tier)
        assert not page.whole_in(tier)
        if place is not None and place != of.place_at(code):
            begun = of.copy_at(code, whole=False).flushes
            of.forget(row, code)
            code = of.code(row, place, digest, begun)
        if digest is not None:
            of.learn_digest(code, digest)
        kept: bool = self._call(kernels.end, row, tier, whole, code)
        if kept:
            of.counters.bytes_written += page.length
        elif tier != HOST:
            of.forget(row, code)
        self._ask_to_shed()
        return kept

    def end_all(
        self, pages: Sequence[Page], tier: int, *, whole: bool, digests: Sequence[bytes | None] = ()
    ) -> list[bool]:
        """`end` of up to `kernels.BATCH` pages of one length where they were begun, with their checksums if they have
        come; of each, whether there is a whole copy now. There is none in a durable tier of a page whose prefix is
        neither there nor on its way."""
        of, rows = self.of[tier], rows_of(pages)
        codes = self._rows.words[rows, PLACES + tier].tolist()
        for code, digest in zip(codes, digests, strict=False):
            if digest is not None:
                of.learn_digest(code, digest)
        kept = np.empty(len(rows), np.bool_)
        come = self._call(kernels.end_all, rows, tier, whole, kept)
        if come:
            of.counters.bytes_written += come * pages[0].length
        if tier != HOST and come < len(codes):
            for row, code, there in zip(rows.tolist(), codes, kept, strict=True):
                if not there:
                    of.forget(row, code)
        self._ask_to_shed()
        return kept.tolist()

    def lose(self, page: Page, tier: int) -> bool:
        """`page` gives up its copy in this tier; without another one it leaves, and all behind it. Those keep their
        copies if it stays: in a durable tier it is to be written again. False if there was none, or it is to stay:
        what requests have pinned in host memory, and is elsewhere."""
        lost: bool = not page.gone and self._call(kernels.lose, page.row, tier)
        return lost

    # ---- hints ----

    def hear(self, record: PageRecord, place: Any, now: int) -> Page | None:
        """A new page that the tier of hints says it has, at `place`: to be pinned in the same hold of the lock, and
        until nobody wants it any more (`forget_hints`). None if it is held or coming in already, or its parent is not
        held.

        So a hint is a whole copy to the rules, and to restores, but never one that is left when another one goes: it
        leaves before the page may be evicted."""
        tier = self.hints
        if self.find(record.namespace, record.key) is not None or (page := self.enter(record, now)) is None:
            return None
        code = self.of[tier].code(page.row, place, None, self.flushes)
        self._call(kernels.begin, page.row, tier, code)
        self._call(kernels.end, page.row, tier, True, code)
        return page

    def hinted(self, pages: Sequence[Page]) -> list[Page]:
        """Those of these pages of which there is a hint."""
        if not self.hints or not self.of[self.hints].pages:
            return []
        return [page for page in pages if page.whole_in(self.hints)]

    def hinted_chain(self, keys: Sequence[bytes]) -> list[Page]:
        """`hinted` of a chain of the namespace that is served, from the first page on, as far as it is held."""
        if not self.hints or not self.of[self.hints].pages:
            return []
        rows = self._settled_rows(self.serving, keys)
        return self._pages(rows[self._rows.whole(rows, self.hints)])

    def only_hinted(self, pages: Sequence[Page]) -> list[int]:
        """Which of these pages, which are in the table, have a hint and nothing else, nor anything on its way."""
        if not self.hints or not pages:
            return []
        copies = self._rows.words[rows_of(pages), TIERS] & kernels.ANY_COPY
        return np.flatnonzero(copies == WHOLE << BITS * self.hints).tolist()

    def forget_hints(self, pages: Sequence[Page]) -> None:
        """Of pages with a hint, in the order of their chain, those give it up that are in host memory by now, or that
        nobody wants any more: these leave, and what is behind them."""
        for page in reversed(pages):
            if page.resident or not page.pins:
                self.lose(page, self.hints)

    def victim(self, tier: int) -> Page | None:
        """The page that leaves this tier next, or None if none may. In host memory there is one whenever a page is
        there and none is pinned."""
        return self._page(kernels.victim(*self._rows.state, tier))

    def make_way(self, tier: int, count: int, before: int) -> int:
        """`evict` up to so many victims of this tier, at most `kernels.BATCH`, that were last used before this logical
        time; how many."""
        evicted: int = self._call(kernels.evict, tier, count, before)
        self.of[tier].counters.evictions += evicted
        return evicted

    def evict(self, page: Page, tier: int) -> None:
        """Give up the copy of a victim; the page stays while it has another one."""
        self.of[tier].counters.evictions += 1
        self.lose(page, tier)

    # ---- what counts no more ----

    def forget_memory(self) -> None:
        """From now on no copy counts that does not survive a restart, whole or on its way. To be given up by
        `settle`, all of `in_memory`; then `emptied`."""
        self.flushes += 1
        self._emptying = True

    def in_memory(self) -> Iterator[Page]:
        """The pages that have such a copy now, most of them before those they follow; made one by one. Any thread."""
        listed = [copies.listed() for copies in self.of if not copies.durable]
        return self._one_by_one(np.concatenate(listed)[::-1])

    def emptied(self, flushes: int) -> None:
        """What there was in memory when `flushes` was this has been settled."""
        if flushes == self.flushes:
            self._emptying = False

    def perhaps_on(self, tier: int, part: Part) -> Iterator[Page]:
        """The pages that may have a copy on a part of a tier, of when the first is asked for, made one by one; ask
        `lies_on` of each. Any thread, without the lock: it may take as long as there are pages."""
        yield from self._one_by_one(self.of[tier].under(part))

    def lies_on(self, page: Page, tier: int, part: Part) -> bool:
        """Whether its copy in a tier is whole, and on that part."""
        copy = None if page.dropped else page.copy_in(tier)
        return copy is not None and copy.whole and self.of[tier].keeper.uses(copy.place, part)

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
            if page.dropped or not (page.whole_in(tier) or (tier == HOST and page.in_host)):
                continue  # what is being written there is judged when it is
            if not self._counts(page, tier):
                lost = self.lose(page, tier) or lost
        return lost

    # ---- leaving ----

    def drop(self, page: Page) -> int:
        """`page` and what is behind it leave the table. Copies are freed, of most that are behind it by `clean_up`;
        pinned host slots with their last pin. How many have left already."""
        if page.dropped:
            return 0
        before = self.pages
        self._call(kernels.drop, page.row)
        return before - self.pages

    def forget_namespace(self, namespace: bytes) -> int:
        """All pages of `namespace` leave, as by `drop`; how many."""
        root = self.book.roots.get(namespace)
        if root is None:
            return 0
        pages = self._rows.word[root, ROOT_PAGES]
        if pages or namespace != self.serving:
            del self.book.roots[namespace]
            self._rows.word[root, FLAGS] |= kernels.DROPPED | kernels.PENDING
            self._leaving.append(_Leaving(root))
            self._ask_to_clean()
        return pages

    def clean_up(self, count: float = math.inf) -> int:
        """Let up to `count` pages go that are hidden already; how many have gone."""
        left = 0
        while self._leaving and left < count:
            left += self._leave(self._leaving[-1], int(min(count - left, BATCH)))
        if not self._leaving:
            self._clean_asked_for = False
        return left

    def _leave(self, work: _Leaving, steps: int) -> int:
        rows, start = self._rows, work.root
        if not work.done:
            page = Page(self.book, *split(work.at))
            start = work.root if page.dropped else page.row
        left: int = kernels.leave(*rows.state, work.root, start, steps, work.out)
        if work.done:
            self._leaving.remove(work)
            self.book.digests.pop(work.root, None)
        if rows.count[NOTES]:
            self._do_what_is_noted()
        return left

    def _ask_to_clean(self) -> None:
        if self._leaving and not self._clean_asked_for:
            self._clean_asked_for = True
            self._clean()

    @property
    def leaving(self) -> bool:
        """Whether `clean_up` has something to do."""
        return bool(self._leaving)

    def _do_what_is_noted(self) -> None:
        """Give back the places of copies that pages have given up, and tell what else has come of it."""
        freed: dict[int, list[Any]] = {}
        busy = bool(self._leaving)
        for what, which, whose in self._rows.read_notes():
            if what < len(self.of):
                of = self.of[what]
                if self._gone:
                    for part in self._gone_with(of, of.place_at(which)):
                        self._gone[part] += 1
                freed.setdefault(what, []).append(of.place_at(which))
                of.forget(whose, which)
            elif what == kernels.LEFT_LANDING:
                self._release_landing(self.book.landed.pop(which) - self.host.slots)
            elif what == kernels.LOST_PIN:
                self.operator_pins.left(Page(self.book, which, whose))
            elif what == kernels.TOLD_LEFT:
                self.announced.leave(which)
            else:
                self._leaving.append(_Leaving(which))
        for tier, places in freed.items():
            self.of[tier].keeper.release(places)
        if self._leaving and not busy:
            self.clean_up(LEAVE_AT_ONCE)
            self._ask_to_clean()

    # ---- limits ----

    @property
    def _limited(self) -> bool:
        return self.host.limit_slots < self.host.slots or any(copies.limit is not None for copies in self.of)

    def over(self, tier: int) -> bool:
        """Whether this tier holds more than it may. A hint, as `find`."""
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

    def kept_by_followers(self, tier: int) -> Iterator[Page]:
        """The pages that may have no copy now but one in this tier, and are no victims because of what follows them,
        wherever that is: those used longest ago first, and of a sequence its end; made one by one. Any thread."""
        if tier == HOST or self.of[tier].durable:
            return iter(())  # something may always leave there
        rows = self.of[tier].listed()
        rows = rows[~self._rows.elsewhere(rows, tier)]
        return self._one_by_one(rows[self._rows.hottest_first(rows)[::-1]])

    def give_up(self, page: Page, tier: int) -> int:
        """`drop` one of `kept_by_followers`, if it still is one and not pinned; how many pages have left already."""
        if page.pinned or not page.whole_in(tier) or page.elsewhere(tier):
            return 0
        return self.drop(page)

    def change_eviction(self, policy: EvictionPolicy) -> None:
        """Pages leave by `policy` from now on. Takes as long as there are pages that may leave."""
        orders = self._orders(policy, [copies.keeper for copies in self.of[1:]])
        for copies, order in zip(self.of, orders, strict=True):
            copies.order = order

    @staticmethod
    def _orders(policy: EvictionPolicy, tiers: Sequence[Keeper]) -> list[EvictionPolicy]:
        """Who leaves each tier first, host memory's before those of `tiers`."""
        return [policy, *(keeper.order(policy) for keeper in tiers)]

    # ---- all pages ----

    @property
    def pages(self) -> int:
        """How many there are. Any thread."""
        return self._rows.count[PAGES]

    @property
    def changes(self) -> int:
        """How often a page has entered, left, or gained or lost a copy or its pins, ever."""
        return self._rows.count[kernels.CHANGES]

    def listed(self, namespace: bytes | None = None) -> list[Page]:
        """The pages there are, of one namespace or of all, each after the one it follows. A hint, as `find`."""
        root = -1 if namespace is None else self.book.roots.get(namespace)
        return [] if root is None else self._pages(self._rows.used(root))

    def all_pages(self) -> Iterator[Page]:
        """The same of all, made one by one: those of now, as far as they still are then. Any thread."""
        yield from (page for page in self._one_by_one(self._rows.used()) if not page.dropped)

    def directory(self, namespace: bytes) -> DirectorySnapshot:
        """The summary of what is held, from the point of view of a server of `namespace`."""
        root = self.book.roots.get(namespace)
        return directory.snapshot(self._rows, 0 if root is None else self._rows.word[root, ROOT_PAGES])

    def only_in(self, tier: int) -> int:
        """Pages with a whole copy in this tier alone."""
        return directory.only(self._rows, tier)

    def coldest_unsaved(self, count: int) -> list[Page]:
        """Up to `count` pages that leave host memory next and would be lost by it."""
        handles = np.empty(count, np.int64)
        found = kernels.coldest(*self._rows.state, HOST, count, handles)
        rows = handles[:found] & 0xFFFFFFFF
        alone = self._rows.words[rows, TIERS] >> BITS & kernels.ANY_COPY == 0
        return self._pages(rows[alone])

    def places_in(self, tier: int, rows: np.ndarray) -> list[Any]:
        """The places of the whole copies of a tier that pages in some of its rows, as they were `listed`, have now."""
        of = self.of[tier]
        rows = rows[self._rows.whole(rows, tier)]
        return [of.place_at(code) for code in self._rows.words[rows, PLACES + tier].tolist()]

    def host_states(self, some: slice = slice(None)) -> np.ndarray:
        """What each slot of host memory, or of some of it, is used for: uint8 [slots] of `SlotState`."""
        states = self.host.states(some)
        owners = self.of[HOST].owners[some]  # type: ignore[attr-defined]
        slots = np.flatnonzero(owners >= 0)
        states[slots] = directory.slot_states(self._rows, owners[slots])
        return states


class _Leaving:
    """What is behind a root that has left, and where its leaving has come to."""

    def __init__(self, root: int) -> None:
        self.root = root
        #: The handle of the page that is next, as `kernels.leave` says; -1: none is left, or none has been looked at.
        self.out = np.full(1, -1, np.int64)

    @property
    def at(self) -> int:
        return int(self.out[0])

    @property
    def done(self) -> bool:
        return self.at < 0
