"""The page table alone, over tiers that only count: whatever is done to pages, in whatever order, the rules hold, who
leaves next is who should, and every place comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swift_tiers.radix_tiering.base.errors import NotHeldError
from swift_tiers.radix_tiering.base.page import ROOT_KEY, HeldPages, PageRecord
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.table import kernels, page_table
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.kernels import BLOCK, GENERATION, HEAP, MOST_TIERS, TIER_BLOCK
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import (
    LEAST_FREQUENTLY_USED,
    LEAST_RECENTLY_USED,
    EvictionPolicy,
)
from swift_tiers.radix_tiering.table.rows import LEAST_ROWS
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier
from swift_tiers.radix_tiering.way import sweeps

from support.engine import GEOMETRY, chain
from support.examples import examples
from support.mutate import mutate
from support.table_rig import LENGTH, PEER, SSD, Counting, FlushInSteps, Rig

NUMBERS = st.integers(0, 10_000)
DOWN = st.sampled_from([PEER, SSD])
#: What says how much host memory, and each tier beneath it, may hold.
LIMITS = "limit_bytes", "limit", "limit"


def holds_pages(model: Model) -> bool:
    return model.table.pages > 0


class Model(RuleBasedStateMachine):
    """`under_way`: copies that have begun, and not ended, with their tiers; `pinned`: pages, once for each pin."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(12, LEAST_RECENTLY_USED)
        self.table = self.rig.table
        self.under_way: list[tuple[Page, int]] = []
        self.pinned: list[Page] = []
        self.flushes = FlushInSteps(self.table)

    def one(self, number: int) -> Page | None:
        pages = self.table.listed()
        return pages[number % len(pages)] if pages else None

    @rule(
        path=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        ends=st.booleans(),
        tiers=st.sets(DOWN),
        left=st.integers(0, 3),
    )
    def put(self, path: list[int], ends: bool, tiers: set[int], left: int) -> None:
        """A sequence comes in; it is there at once if it `ends`, and in these tiers beneath; so many of its pages have
        then `left` host memory."""
        keys, table = chain(*path), self.table
        held = table.settled_chain(table.serving, keys)
        assert [page.key for page in held] == keys[: len(held)]
        now = table.tick()
        table.refresh_all(held, now)
        taken = table.take_in(held[-1] if held else None, keys[len(held) :], LENGTH, now) if held != keys else []
        assert [page.key for page in taken] == keys[len(held) : len(held) + len(taken)]
        if not ends:
            self.under_way += [(page, HOST) for page in taken]
            return
        table.end_all(taken, HOST, whole=True, digests=[b"d" * 16] * len(taken))
        for tier in sorted(tiers):
            for page in taken:
                if tier == PEER or page.parent is None or page.parent.begun_in(SSD):
                    table.begin(page, tier, self.rig.tiers[tier - 1].take(), b"d" * 16)
                    assert table.end(page, tier, whole=True)
        for page in taken[: left if tiers else 0]:
            if page.elsewhere(HOST):
                table.lose(page, HOST)

    @precondition(lambda self: self.under_way)
    @rule(number=NUMBERS, whole=st.booleans())
    def end(self, number: int, whole: bool) -> None:
        page, tier = self.under_way.pop(number % len(self.under_way))
        copy = page.copy_in(tier)
        assert copy is not None
        keeper = self.rig.tiers[tier - 1] if tier else None
        reachable = tier != SSD or page.parent is None or page.parent.begun_in(SSD)
        kept = self.table.end(page, tier, whole=whole and reachable, digest=b"d" * 16)
        if not kept and keeper is not None:
            keeper.release([copy.place])

    @precondition(holds_pages)
    @rule(number=NUMBERS, tier=DOWN)
    def write(self, number: int, tier: int) -> None:
        page = self.one(number)
        if page is None or page.begun_in(tier) or not page.resident:
            return
        if tier == SSD and page.parent is not None and not page.parent.begun_in(SSD):
            return
        if not self.table.writable([page], tier)[0]:
            assert not self.table.holds(page)
            tier = PEER  # nobody should, and if so it is found no sooner
        if page.begun_in(tier):
            return
        self.table.begin(page, tier, self.rig.tiers[tier - 1].take(), b"d" * 16)
        self.under_way.append((page, tier))

    @precondition(holds_pages)
    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=6, unique=True), tier=DOWN)
    def write_together(self, numbers: list[int], tier: int) -> None:
        """Pages in any order, those that have left among them; each once."""
        asked = dict.fromkeys(page for page in map(self.one, numbers) if page is not None)
        pages = [*asked, *(page for page in dict.fromkeys(self.pinned) if page.dropped)]
        expected: list[Page] = []
        lacking = 0
        for page in pages:
            if page.dropped or page.begun_in(tier) or not page.resident or not self.table.holds(page):
                continue
            before = page.parent
            if tier == SSD and before is not None and not before.begun_in(SSD) and before not in expected:
                lacking += 1
            else:
                expected.append(page)
        if not pages:
            return
        assert self.table.writable(pages, tier) == (expected, lacking)
        self.table.begin_all(expected, tier, [self.rig.tiers[tier - 1].take() for _ in expected])
        self.under_way += [(page, tier) for page in expected]

    @precondition(holds_pages)
    @rule(tier=st.integers(0, 2), count=st.integers(1, 4), ago=st.integers(0, 6))
    def make_way(self, tier: int, count: int, ago: int) -> None:
        """As victim after victim would leave."""
        before = max(0, self.table.tick() - ago)
        first = self.table.victim(tier)
        leaves = first is not None and first.last_use < before
        evictions = self.table.of[tier].counters.evictions
        made = self.table.make_way(tier, count, before)
        assert (made > 0) == leaves
        assert self.table.of[tier].counters.evictions == evictions + made
        victim = self.table.victim(tier)
        assert made == count or victim is None or victim.last_use >= before

    @precondition(holds_pages)
    @rule(number=NUMBERS)
    def promote(self, number: int) -> None:
        page = self.one(number)
        if page is not None and not page.in_host and page.complete:
            self.table.pin(page)
            slot = self.table.take_slot(None)
            if slot is not None:
                self.table.begin(page, HOST, slot)
                self.under_way.append((page, HOST))
            self.table.unpin(page)

    @precondition(holds_pages)
    @rule(number=NUMBERS, reach=st.integers(0, 9), ago=st.integers(0, 2))
    def use(self, number: int, reach: int, ago: int) -> None:
        page = self.one(number)
        if page is not None:
            self.table.use(page, max(0, self.table.tick() - ago), reach)

    @precondition(holds_pages)
    @rule(number=NUMBERS, lands=st.booleans())
    def pin(self, number: int, lands: bool) -> None:
        page = self.one(number)
        if page is not None:
            self.table.pin(page)
            self.pinned.append(page)
            if lands and page.landing < 0:
                self.table.land(page, 7)

    @precondition(lambda self: self.pinned)
    @rule(number=NUMBERS)
    def unpin(self, number: int) -> None:
        page = self.pinned.pop(number % len(self.pinned))
        landed, others = page.landing >= 0, page.pins > 1
        self.rig.landing.clear()
        self.table.unpin(page)
        assert self.rig.landing == ([7] if landed and not others else [])

    @precondition(holds_pages)
    @rule(number=NUMBERS, tier=st.integers(0, 2))
    def lose(self, number: int, tier: int) -> None:
        page = self.one(number)
        if page is not None:
            self.table.lose(page, tier)

    @precondition(holds_pages)
    @rule(tier=st.integers(0, 2))
    def evict(self, tier: int) -> None:
        victim = self.table.victim(tier)
        if victim is not None:
            self.table.evict(victim, tier)

    @precondition(holds_pages)
    @rule(number=NUMBERS, clean=st.integers(0, 3))
    def drop(self, number: int, clean: int) -> None:
        page = self.one(number)
        if page is not None:
            keys = [one.key for one in (page, *page.children)]
            self.table.drop(page)
            self.table.clean_up(clean)
            assert all(self.table.find(self.table.serving, key) is None for key in keys), "hidden at once"

    @precondition(holds_pages)
    @rule(number=NUMBERS)
    def keep_or_let_go(self, number: int) -> None:
        page, pins = self.one(number), self.table.operator_pins
        if page is not None and page not in pins.pinned:
            pins.keep(page)
            pins.remember(page)
        elif page is not None:
            del pins.pinned[page]
            pins.let_go(page)

    @precondition(holds_pages)
    @rule(tier=DOWN, part=st.integers(0, 2), lost=NUMBERS, dropped=NUMBERS)
    def part_goes(self, tier: int, part: int, lost: int, dropped: int) -> None:
        """Between the look for its pages and their turn, one loses its copy, and another one leaves."""
        table = self.table
        table.part_gone(tier, part)
        perhaps = list(table.perhaps_on(tier, part))
        for number, end in ((lost, lambda page: table.lose(page, tier)), (dropped, table.drop)):
            page = self.one(number)
            if page is not None and (end == table.drop or page.whole_in(tier)):
                end(page)
        for page in perhaps:
            if table.lies_on(page, tier, part):
                table.settle(page)
        table.part_forgotten(tier, part)
        table.clean_up()
        assert not any(table.lies_on(page, tier, part) for page in table.perhaps_on(tier, part))

    @precondition(holds_pages)
    @rule(really=st.integers(0, 9))
    def forget(self, really: int) -> None:
        if really == 9:  # seldom, so that there are pages
            self.table.forget_namespace(self.table.serving)
            assert self.table.listed(self.table.serving) == []

    @precondition(lambda self: self.table.pages > 3)
    @rule()
    def flush(self) -> None:
        self.flushes.begin()

    @precondition(lambda self: self.flushes.under_way)
    @rule(count=st.integers(1, 5))
    def settle(self, count: int) -> None:
        self.flushes.go_on(count)

    @precondition(holds_pages)
    @rule(tier=st.sampled_from([HOST, PEER, PEER, SSD]), pages=st.integers(0, 2))
    def cap(self, tier: int, pages: int) -> None:
        """A tier is to hold less. What it holds beyond that is pinned, or on its way."""
        table = self.table
        limits = [table.host, *table.of[1:]]
        before = [(limit, name, getattr(limit, name)) for limit, name in zip(limits, LIMITS, strict=True)]
        setattr(limits[tier], LIMITS[tier], pages * (GEOMETRY.stride_bytes if tier == HOST else LENGTH))
        sweeps.run(sweeps.shed(table))
        if table.over(tier):
            assert table.victim(tier) is None
            assert tier != PEER or all(page.pinned for page in table.listed() if page.whole_in(PEER))
        for limit, name, value in before:
            setattr(limit, name, value)

    @rule(policy=st.sampled_from([LEAST_RECENTLY_USED, LEAST_FREQUENTLY_USED]))
    def change_policy(self, policy: EvictionPolicy) -> None:
        self.table.change_eviction(policy)

    @rule()
    def write_down(self) -> None:
        """What a durable tier is told at the end is what it has."""
        told = list(self.table.held_in(SSD))
        self.table.clean_up()
        if not told:
            return
        keys = {key.tobytes() for batch in told for key in np.ascontiguousarray(batch.keys[:, :4])}
        assert keys >= {page.key for page in self.table.listed() if page.whole_in(SSD)}

    @invariant()
    def all_is_well(self) -> None:
        self.rig.check()
        self.flushes.check()
        coming: dict[int, set[Any]] = {PEER: set(), SSD: set()}
        for page, tier in self.under_way:
            if tier != HOST:
                coming[tier].add(page.copy_in(tier).place)  # type: ignore[union-attr]
        for tier, places in coming.items():
            there = {page.copy_in(tier).place for page in self.table.listed() if page.whole_in(tier)}
            assert self.rig.tiers[tier - 1].held == there | places, "places leaked, or two pages in one"


class TestModel(Model.TestCase):  # type: ignore[name-defined]
    settings = settings(max_examples=examples(600), stateful_step_count=50, deadline=None, derandomize=True)


def test_a_table_grows_where_more_pages_come_than_was_foreseen() -> None:
    rig, count = Rig(4, LEAST_RECENTLY_USED), 5 * LEAST_ROWS
    table, ssd = rig.table, rig.tiers[SSD - 1]
    keys = chain(*range(count))
    both = [*keys[1:], ROOT_KEY]
    records = np.frombuffer(
        b"".join(key + before for key, before in zip(keys, [ROOT_KEY, *both], strict=False)), np.int64
    )
    places = np.array([ssd.take() for _ in keys], np.int64)
    chains = records.reshape(-1, 8).copy()
    chains[1:, 4:] = chains[:-1, :4]
    held = HeldPages(table.serving, LENGTH, chains, np.arange(1, count + 1), places, np.arange(count))
    for start in range(0, count, 50):
        some = held._replace(keys=chains[start : start + 50], places=places[start : start + 50])
        assert not len(table.recover(some, SSD, np.full(len(some.places), -1))[1])
        assert table.probe(table.serving, keys) == min(count, start + 50)
    rig.check()
    written = list(table.held_in(SSD))
    assert [one.tobytes() for batch in written for one in np.ascontiguousarray(batch.keys[:, :4])] == keys
    assert np.array_equal(np.concatenate([batch.keys for batch in written]), chains)


def test_the_last_page_that_is_held_is_found_among_any() -> None:
    rig = Rig(8, LEAST_RECENTLY_USED)
    table, keys = rig.table, chain(*range(6))
    assert table.last_held(table.serving, keys) is None
    pages = table.take_in(None, keys, LENGTH, table.tick())
    assert table.last_held(table.serving, keys) is None, "none has come yet"
    for page in pages:
        table.end(page, HOST, whole=True)
    assert table.last_held(table.serving, keys) == 5
    assert table.last_held(table.serving, [keys[2], chain("another")[0], keys[1]]) == 2
    assert table.last_held(table.serving, [keys[2], *chain("another")]) == 0
    assert table.last_held(table.serving, []) is None
    assert table.last_held(b"m" * 16, keys) is None
    table.drop(pages[3])
    assert table.last_held(table.serving, keys) == 2, "what follows it has left with it"
    table.forget_memory()
    assert table.last_held(table.serving, keys) is None


def test_pages_are_told_that_another_one_follows_than_the_next_of_their_chain() -> None:
    rig = Rig(16, LEAST_RECENTLY_USED)
    table, keys = rig.table, chain(*range(6))
    assert table.branches(table.serving, keys) == []
    pages = table.take_in(None, keys, LENGTH, table.tick())
    assert table.branches(table.serving, keys) == []
    assert table.branches(table.serving, keys[:4]) == [4]
    for at in (1, 5):
        table.take_in(pages[at], chain(f"beside {at}"), LENGTH, table.tick())
    assert table.branches(table.serving, [*keys, *chain("another")]) == [2, 6]
    beside = table.take_in(pages[1], chain("one more"), LENGTH, table.tick())
    table.drop(pages[2])
    assert table.branches(table.serving, keys) == [2], "what it was has left, and others follow it"
    table.drop(beside[0])
    assert table.branches(table.serving, keys) == [2]
    assert table.branches(b"m" * 16, keys) == table.branches(table.serving, []) == []


def test_rows_that_are_free_are_taken_before_the_table_grows() -> None:
    rig = Rig(260, LEAST_RECENTLY_USED)
    table = rig.table
    rows = len(table.book.rows.words)
    for number in range(20):
        for page in table.take_in(None, chain(*(f"{number} {at}" for at in range(200))), LENGTH, table.tick()):
            table.end(page, HOST, whole=True)
        rig.check()
        table.forget_namespace(table.serving)
        table.clean_up()
        rig.check()
    assert len(table.book.rows.words) == rows


def entries(table: PageTable, tier: int) -> int:
    return int(table.book.rows.count[TIER_BLOCK + BLOCK * tier + HEAP])


def comes_in(table: PageTable, name: str) -> Page:
    (page,) = table.take_in(None, chain(name), LENGTH, table.tick())
    table.end(page, HOST, whole=True)
    return page


def test_no_page_that_comes_in_pays_for_many_that_have_left() -> None:
    """Entries of a heap that count no more go a few at a time, and all of them go."""
    rig = Rig(1500, LEAST_RECENTLY_USED)
    table = rig.table
    for page in [comes_in(table, f"first {number}") for number in range(1000)]:
        table.drop(page)
    before = entries(table, HOST)
    assert before > 900
    for number in range(500):
        comes_in(table, f"second {number}")
        now = entries(table, HOST)
        assert before - 4 <= now <= before + 1
        before = now
    assert before < 64 + 500 * 5 // 4 + 2
    rig.check()


def test_a_page_that_is_entered_again_and_again_has_one_entry() -> None:
    """Written to a near tier and gone from there, it may leave sooner, and later again."""
    rig = Rig(300, LEAST_RECENTLY_USED)
    table, peer = rig.table, rig.tiers[PEER - 1]
    pages = [comes_in(table, f"page {number}") for number in range(300)]
    for turn in range(40):
        for page in pages:
            table.begin(page, PEER, peer.take(), b"d" * 16)
            assert table.end(page, PEER, whole=True)
            table.lose(page, PEER)
        assert entries(table, HOST) < 2 * len(pages), turn
    rig.check()
    assert table.coldest_unsaved(len(pages)) == pages


def test_a_row_may_be_given_out_again_for_ever() -> None:
    rig = Rig(4, LEAST_RECENTLY_USED)
    table = rig.table
    table.take_in(None, chain("first"), LENGTH, table.tick())
    word = table.book.rows.word
    (page,) = table.listed()
    word[page.row, GENERATION] = 2**31 - 1
    (last,) = table.listed()
    assert last.key == chain("first")[0]
    table.end(last, HOST, whole=False)
    (again,) = table.take_in(None, chain("again"), LENGTH, table.tick())
    assert (again.row, again.generation) == (last.row, 0)
    assert table.find(table.serving, chain("again")[0]) == again
    assert last.gone


def test_a_copy_of_before_a_flush_is_none_wherever_it_was_written() -> None:
    """The tier says only at the end where it lies."""
    rig = Rig(4, LEAST_RECENTLY_USED)
    table, peer = rig.table, rig.tiers[PEER - 1]
    (page,) = table.take_in(None, chain("page"), LENGTH, table.tick())
    table.end(page, HOST, whole=True)
    first, second = peer.take(), peer.take()
    table.begin(page, PEER, first, b"d" * 16)
    table.forget_memory()
    table.end(page, PEER, whole=True, place=second)
    assert table.probe(table.serving, chain("page")) == 0
    table.settle(page)
    assert peer.held == {first}, "which is the writer's"


def test_a_capped_tier_lets_go_of_what_pages_follow_that_are_in_host_memory() -> None:
    """Those lead nowhere without it, and it is nowhere else. What is pinned stays, and what fits."""
    rig = Rig(8, LEAST_RECENTLY_USED)
    table, peer = rig.table, rig.tiers[PEER - 1]

    def comes_in(*names: str) -> list[Page]:
        pages = table.take_in(None, chain(*names), LENGTH, table.tick())
        table.end_all(pages, HOST, whole=True, digests=[b"d" * 16] * len(pages))
        for page in pages[:-1]:
            table.begin(page, PEER, peer.take(), b"d" * 16)
            assert table.end(page, PEER, whole=True)
            table.lose(page, HOST)
        return pages

    pinned, cold, warm = comes_in("a", "behind a"), comes_in("b", "behind b", "end"), comes_in("c", "behind c")
    table.pin(pinned[0])
    table.of[PEER].limit = 2 * LENGTH
    assert table.victim(PEER) is None
    assert sweeps.run(sweeps.shed(table)) == 3
    assert [page.dropped for page in (*pinned, *cold, *warm)] == [False] * 2 + [True] * 3 + [False] * 2
    rig.check()


def test_a_chain_that_names_a_page_twice_takes_it_in_once() -> None:
    rig = Rig(4, LEAST_RECENTLY_USED)
    (key,) = chain("page")
    assert len(rig.table.take_in(None, [key, key], LENGTH, rig.table.tick())) == 1
    assert rig.table.host.used_slots == 1


def test_what_nothing_leads_to_is_not_entered() -> None:
    rig = Rig(4, LEAST_RECENTLY_USED)
    first, second, third = (np.frombuffer(key, np.int64) for key in chain("a", "b", "c"))
    none = np.zeros(4, np.int64)
    places = np.array([rig.tiers[SSD - 1].take() for _ in range(4)], np.int64)
    chains = np.array([[*first, *none], [*first, *none], [*third, *second], [*second, *first]], np.int64)
    held = HeldPages(rig.table.serving, LENGTH, chains, np.array([1, 1, 3, 2]), places, np.arange(4))
    assert rig.table.recover(held, SSD, np.zeros(4, np.int64))[1].tolist() == places[[1, 2]].tolist()
    longer = held._replace(length=2 * LENGTH, keys=chains[:1], places=places[:1])
    assert rig.table.recover(longer, SSD, np.zeros(1, np.int64))[1].tolist() == [places[0]], "of another size"


def test_a_page_that_has_left_says_so() -> None:
    rig = Rig(4, LEAST_RECENTLY_USED)
    table = rig.table
    pages = table.take_in(None, chain("a", "b"), LENGTH, table.tick())
    table.end_all(pages, HOST, whole=True, digests=[b"d" * 16] * 2)
    first, second = pages
    assert second.parent == first
    assert first.children == [second]
    assert second.record == PageRecord(chain("a", "b")[1], chain("a")[0], table.serving, 2, LENGTH)
    table.pin(second)
    table.drop(first)
    assert (first.gone, second.gone, second.dropped, second.pins) == (True, False, True, 1)
    assert (second.parent, second.key, second.slot) == (None, chain("a", "b")[1], pages[1].slot)
    table.unpin(second)
    (again,) = table.take_in(None, chain("new"), LENGTH, table.tick())
    assert again.row in (first.row, second.row)
    assert again not in pages
    for page in pages:
        assert (page.gone, page.dropped, page.pins, page.parent, page.children) == (True, True, 0, None, [])
        assert (page.complete, page.in_host, page.pinned, page.begun_in(SSD)) == (False,) * 4
        for ask in ("key", "slot", "record"):
            with pytest.raises(NotHeldError):
                getattr(page, ask)


def filled(rig: Rig, keys: Sequence[bytes]) -> list[Page]:
    """A sequence comes in, all of it."""
    table = rig.table
    pages = table.take_in(None, keys, LENGTH, table.tick())
    assert len(pages) == len(keys)
    table.end_all(pages, HOST, whole=True, digests=[b"d" * 16] * len(pages))
    return pages


def cost_of_climbs(table: PageTable, patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Pages that were climbed to from now on, to see whether one of them has left."""
    unused = TIER_BLOCK - 1
    climbs = "r = words[r, PARENT]"
    mutate(patch, kernels, "_hidden", climbs, f"{climbs}; meta[{unused}] += 1")
    return lambda: table.book.rows.count[unused]


@pytest.mark.parametrize("asks", ["writes", "finds", "probes", "probes while memory is emptied", "takes in"])
def test_who_asks_for_many_pages_of_a_sequence_climbs_to_its_beginning_once(
    asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others leave. A hold of the lock, and of the interpreter, would grow with the sequence else."""
    rig, depth, some = Rig(400, LEAST_RECENTLY_USED), 200, 64
    table, space = rig.table, rig.table.serving
    keys = chain(*range(depth))
    pages = filled(rig, keys)
    gone = filled(rig, chain("leaves", *range(depth - 1))[:150])
    table.drop(pages[0] if asks == "takes in" else gone[0])
    assert table.leaving
    written = {"writes": depth - some, "probes while memory is emptied": depth}.get(asks, 0)
    for page in pages[:written]:  # the others are written behind them
        table.begin(page, SSD, rig.tiers[SSD - 1].take())
        table.end(page, SSD, whole=True)
    climbed = cost_of_climbs(table, monkeypatch)
    if asks == "writes":
        before = climbed()
        assert table.writable(pages[-some:], SSD) == (pages[-some:], 0)
        assert 0 < climbed() - before <= depth
        assert table.writable(gone[-some:], SSD) == ([], 0), "behind what leaves"
        assert climbed() - before <= 2 * depth
    elif asks == "finds":
        assert table.settled_chain(space, keys[-some:]) == pages[-some:]
        assert 0 < climbed() <= depth
    elif asks == "takes in":
        for start in range(0, depth - some, some):  # into slots of those that have left
            parent = table.find(space, keys[start - 1]) if start else None
            before = climbed()
            assert len(table.take_in(parent, keys[start : start + some], LENGTH, table.tick())) == some
            assert climbed() - before <= depth
    else:
        if asks != "probes":
            table.forget_memory()
        assert table.probe(space, keys) == depth
        assert climbed() <= 2


@given(
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    dropped=st.lists(NUMBERS, min_size=1, max_size=3),
    data=st.data(),
)
def test_pages_asked_for_together_are_as_if_each_were_asked_for_alone(
    lengths: list[int], dropped: list[int], data: st.DataObject
) -> None:
    """In any order, of several sequences, while some leave, step by step: what is known of a page from the one looked
    at before is what a climb would have found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_table, "LEAVE_AT_ONCE", 0)
        rig = Rig(64, LEAST_RECENTLY_USED)
        table, space = rig.table, rig.table.serving
        chains = [chain(name, *range(length)) for name, length in enumerate(lengths)]
        pages = [page for keys in chains for page in filled(rig, keys)]
        for page in pages:
            table.pin(page)  # so that it is there to be asked for
        for number in dropped:
            table.drop(pages[number % len(pages)])
            table.clean_up(data.draw(st.integers(0, 2)))
        some = data.draw(st.permutations(pages))[: data.draw(st.integers(1, len(pages)))]
        alone = [page for page in some if table.writable([page], PEER)[0]]
        assert alone == [page for page in some if not table.has_left(page)]
        assert table.writable(some, PEER)[0] == alone
        for keys in chains:
            found = [table.find(space, key) is not None for key in keys]
            held = found.index(False) if False in found else len(found)
            assert len(table.settled_chain(space, keys)) == table.probe(space, keys) == held
            if held < len(keys):
                parent = table.find(space, keys[held - 1]) if held else None
                assert len(table.take_in(parent, keys[held:], LENGTH, table.tick())) == len(keys) - held


def test_a_table_tells_only_so_many_tiers_apart() -> None:
    kinds = [
        Counting(str(number), durable=False, near=False, numbered=True, order=None) for number in range(MOST_TIERS)
    ]
    with pytest.raises(ValueError, match="it can tell 7 apart"):
        PageTable(HostTier(GEOMETRY, GEOMETRY.stride_bytes), LEAST_RECENTLY_USED, kinds, runner=THREADS)


@pytest.mark.parametrize("number", [lambda n: n.to_bytes(32, "big"), lambda n: n.to_bytes(32, "little")])
def test_keys_of_which_few_bits_differ_are_spread_as_others_are(number: Callable[[int], bytes]) -> None:
    """Traces number their blocks: a table that looked at the first bits of a key alone would become a list."""
    rig, count = Rig(4, LEAST_RECENTLY_USED), 20_000
    table = rig.table
    keys = np.frombuffer(b"".join(number(n + 1) for n in range(count)), np.int64).reshape(-1, 4)
    chains = np.concatenate([keys, np.zeros_like(keys)], axis=1)
    held = HeldPages(table.serving, LENGTH, chains, np.ones(count, np.int64), np.arange(count), np.arange(count))
    assert not len(table.recover(held, SSD, np.zeros(count, np.int64))[1])
    full = table.book.rows.table != 0
    ends = np.flatnonzero(~full)
    assert np.diff(ends, prepend=-1, append=len(full)).max() < 200, "far from where they are looked for"


@pytest.mark.parametrize("tier", [HOST, PEER, SSD])
@pytest.mark.parametrize("why", ["a flush", "a part"])
def test_a_look_without_the_lock_may_find_that_a_copy_has_just_gone(
    why: str, tier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by torture between two statements: a request was answered with an error of ours instead of a miss."""
    rig = Rig(4, LEAST_RECENTLY_USED)
    table = rig.table
    (page,) = table.take_in(None, chain("page"), LENGTH, table.tick())
    table.end(page, HOST, whole=True, digest=b"d" * 16)
    for beneath in (PEER, SSD):
        place = rig.tiers[beneath - 1].take()
        table.begin(page, beneath, place, b"d" * 16)
        assert table.end(page, beneath, whole=True)
    if tier != HOST:
        table.lose(page, HOST)
    if why == "a flush":
        table.forget_memory()
    else:
        table.part_gone(PEER, 1)
    looked, whole_in = list[int](), Page.whole_in

    def just_before(self: Page, number: int) -> bool:
        there = whole_in(self, number)
        if number == tier and there:
            looked.append(number)
            table.lose(self, number)
        return there

    monkeypatch.setattr(Page, "whole_in", just_before)
    table.holds(page)
    monkeypatch.undo()
    assert looked == [tier]
    rig.check()
