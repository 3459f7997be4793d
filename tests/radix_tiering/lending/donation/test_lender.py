"""The lender between a model of an allocator, which knows who has each page, and the real machines of the protocol."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swift_tiers.ops.lab.torture.neighbours.pool import IN_USE, LENT, ModelPool
from swift_tiers.radix_tiering.lending.donation import gathering
from swift_tiers.radix_tiering.lending.donation import lender as lender_module
from swift_tiers.radix_tiering.lending.donation.extents import PoolLayout, RunShape, run_shape
from swift_tiers.radix_tiering.lending.donation.fenced import COPY_SECONDS
from swift_tiers.radix_tiering.lending.donation.gathering import MOST_EVICTED
from swift_tiers.radix_tiering.lending.donation.lender import (
    LEND_SECONDS,
    LOOK_SECONDS,
    SCATTERED_SECONDS,
    Lender,
    Sized,
)
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer
from swift_tiers.radix_tiering.lending.leases.effects import DonorEffect, Reclaimed, Send
from swift_tiers.radix_tiering.lending.leases.messages import Extent
from swift_tiers.radix_tiering.lending.leases.runs import RunState
from swift_tiers.radix_tiering.lending.leases.timing import Timing

from support.examples import examples
from support.lease_pair import Pair

PAGE_BYTES, PAGE_TOKENS, PAGES = 256, 16, 200
#: What changes hands: more than any run here.
RUN = 6 * PAGE_BYTES


class PairLending:
    """The donor of a `Pair` as the lender sees it: what a `LeaseService` does, with a clock moved by hand."""

    def __init__(self, pair: Pair, effects: deque[DonorEffect]) -> None:
        self.pair = pair
        self.effects = effects
        self.extents: dict[int, list[Extent]] = {}
        self.withdrawn = 0
        do = pair.do

        def keep(name: str, outputs: list[Any]) -> None:
            # As in the service: what the donor tells is put away, and taken in by the scheduler's thread.
            if name == "d":
                for output in outputs:
                    if not isinstance(output, Send):
                        effects.append(output)
            do(name, outputs)

        pair.do = keep  # type: ignore[method-assign]

    def stock(self, run: int, extents: Collection[Extent]) -> None:
        self.extents[run] = list(extents)
        self._do(self.pair.donor.stock(run, extents))

    def fenced(self, run: int) -> None:
        self._do(self.pair.donor.fenced(run))

    def withdraw(self, wanted_bytes: int) -> None:
        self.withdrawn += 1
        self._do(self.pair.donor.withdraw(wanted_bytes, self.pair.now))

    def set_limit(self, limit_bytes: int | None) -> None:
        self._do(self.pair.donor.set_limit(limit_bytes, self.pair.now))

    def withdraw_unused(self) -> None:
        self._do(self.pair.donor.withdraw_unused())

    def wanted_bytes(self, run_bytes: int) -> int:
        return self.pair.donor.wanted_bytes(run_bytes)

    def bytes_in(self, *states: RunState) -> int:
        return self.pair.donor.bytes_in(*states)

    def runs(self) -> list[int]:
        """That are with the machine, or have come back without the lender knowing yet."""
        with_machine = [number for state in RunState for number in self.pair.donor._runs._runs[state]]
        return with_machine + [effect.run for effect in self.effects if isinstance(effect, Reclaimed)]

    def _do(self, outputs: list[Any]) -> None:
        self.pair.do("d", outputs)


class Server:
    """A donor: the lender, its pool, and what its requests need."""

    def __init__(
        self,
        *,
        pages: int = PAGES,
        window: float = 60.0,
        layout: PoolLayout | None = None,
        least: int = 0,
        most: int | None = None,
    ) -> None:
        self.pair = Pair()
        self.pair.do("d", self.pair.donor.gone(self.pair.machines.pop("b").party))
        self.pool = ModelPool(pages)
        self.needed = 0  # tokens
        self.forward = 0  # forwards that have ended
        self.under_way = 0  # forwards that have begun
        self.copy_into: int | None = None  # the run that something is being copied to, whoever has it by now
        self.taken_back: list[tuple[int, float]] = []  # pages, seconds
        self.sized: list[Sized] = []
        effects: deque[DonorEffect] = deque()
        self.lending = PairLending(self.pair, effects)
        self.sizer = ElasticSizer(
            pages, PAGE_TOKENS, window_seconds=window, reserve=0.0, least_lent=least, most_lent=most
        )
        self.lender = Lender(
            self.pool,
            self.sizer,
            layout or PoolLayout((0,), PAGE_BYTES),
            self.lending,
            effects,
            demand=lambda: self.needed,
            fence=self._fence,
            copying=lambda: () if self.copy_into is None else (self.copy_into,),
            kept=lambda: self.pool.kept_pages * PAGE_TOKENS,
            taken_back=lambda pages, seconds: self.taken_back.append((pages, seconds)),
            sized=self.sized.append,
        )

    def _fence(self) -> Callable[[], bool]:
        begun = self.under_way
        return lambda: self.forward >= begun

    def copy_begins(self) -> None:
        """A borrower's store, into the run that was lent last."""
        lent = self.pair.donor._runs._runs[RunState.LENT]
        if self.copy_into is None and lent:
            self.copy_into = max(lent)
            self.copied_pages = self.pages_of(self.copy_into)

    def copy_ends(self) -> None:
        self.copy_into = None

    def pages_of(self, run: int) -> list[int]:
        return [
            page
            for extent in self.lending.extents[run]
            for page in range(extent.offset // PAGE_BYTES, (extent.offset + extent.length) // PAGE_BYTES)
        ]

    def tick(self, seconds: float = 0.0) -> None:
        self.pair.advance(seconds)
        evicted, longest = self.pool.evicted, max(map(len, self.pool.cache), default=0)
        self.lender.tick(self.pair.now)
        assert self.pool.evicted - evicted < gathering.MOST_EVICTED + max(1, longest), "one tick evicts too much"
        assert set(self.lender._returning) <= {self.copy_into}, "a copy keeps others' memory out of the pool"
        self.pair.settle()

    def looks(self, count: int = 1) -> list[int]:
        """Pages that each look of so many evicts."""
        evicted = []
        for _ in range(count):
            before = self.pool.evicted
            self.tick(LOOK_SECONDS)
            evicted.append(self.pool.evicted - before)
        return evicted

    def run(self, seconds: float, step: float = LOOK_SECONDS) -> None:
        """So many seconds of scheduling rounds."""
        for _ in range(math.ceil(seconds / step)):
            self.tick(step)

    def borrow(self, size: int, name: str = "b", page_bytes: int = PAGE_BYTES) -> None:
        if name not in self.pair.machines:
            self.pair.add(name, page_bytes)
        self.pair.want(size, name)

    def held(self, name: str = "b") -> int:
        held: int = self.pair.machines[name].held_bytes
        return held

    def check(self) -> None:
        self.pool.check()
        lent = [page for run in (*self.lending.runs(), *self.lender._returning) for page in self.pages_of(run)]
        assert sorted(lent) == [page for page, owner in self.pool.owner.items() if owner == LENT], "lent twice, or lost"
        assert self.lender.lent_pages == len(lent)
        if self.copy_into is not None:
            assert {self.pool.owner[page] for page in self.copied_pages} == {LENT}, (
                "memory that is written is somebody's"
            )


def test_nothing_leaves_the_pool_while_nobody_borrows_or_nobody_wants_anything() -> None:
    server = Server()
    server.run(5)
    assert server.lender.lent_pages == 0
    server.borrow(0)
    server.run(5)
    assert server.lender.lent_pages == 0
    assert server.lending.withdrawn == 0
    server.check()


def test_as_much_is_lent_as_is_wanted_and_spare() -> None:
    server = Server()
    server.needed = 50 * PAGE_TOKENS
    server.run(1)
    server.borrow(10 * PAGE_BYTES)
    server.run(3)
    # The pool is cut into spans of three pages here.
    assert server.held() == server.lender.lent_pages * PAGE_BYTES == 12 * PAGE_BYTES
    server.borrow(1000 * PAGE_BYTES)
    server.run(10)
    assert server.held() == server.lender.lent_pages * PAGE_BYTES == 150 * PAGE_BYTES
    server.check()


def test_what_cannot_be_put_at_borrowers_disposal_is_the_pools_again() -> None:
    server = Server()
    server.borrow(1000 * PAGE_BYTES)
    stock, stocked = server.lending.stock, []

    def fails_once(run: int, extents: Collection[Extent]) -> None:
        stocked.append(run)
        if len(stocked) == 3:
            raise RuntimeError("an error of ours")
        stock(run, extents)

    server.lending.stock = fails_once  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="an error of ours"):
        server.run(3)
    server.check()
    server.run(5)
    assert server.held() > 100 * PAGE_BYTES
    server.check()


def test_the_youngest_and_the_largest_pages_are_taken_back_at_once_when_a_request_needs_them() -> None:
    server = Server()
    server.borrow(1000 * PAGE_BYTES)
    server.run(10)
    lent = server.lender.lent_pages
    assert lent >= 190
    server.needed = 100 * PAGE_TOKENS
    server.lender.arrived()
    server.tick()  # asks
    assert not server.taken_back
    server.tick(Timing().recall_bound)  # is there
    ((pages, seconds),) = server.taken_back
    assert abs(100 - (PAGES - lent) - pages) < 3, "in whole spans"
    assert 0 < seconds <= Timing().recall_bound
    assert 100 <= server.sizer.own_pages <= 103
    assert server.pool.free_pages >= 100
    server.check()
    # Not given again before a window has passed.
    server.needed = 0
    server.run(59)
    assert server.sizer.own_pages >= 100
    server.run(70, step=0.25)
    assert server.lender.lent_pages == lent


def test_every_decision_is_told_once_with_what_it_was_made_from() -> None:
    server = Server(window=10.0)
    server.needed = 40 * PAGE_TOKENS
    server.run(1)
    server.needed = 5 * PAGE_TOKENS
    server.borrow(1000 * PAGE_BYTES)
    server.run(5)
    assert server.sized, "nothing was lent: this tests nothing"
    assert {one.decision for one in server.sized} == {"grow"}
    # Step by step to what is lent; the window still has the larger demand.
    assert [one.from_bytes for one in server.sized] == [0, *(one.to_bytes for one in server.sized[:-1])]
    assert server.sized[-1].to_bytes == server.lender.lent_pages * PAGE_BYTES
    assert {one.peak_bytes for one in server.sized} == {40 * PAGE_BYTES} == {server.lender.peak_bytes}
    server.sized.clear()
    server.run(3)
    assert server.sized == [], "nothing has changed"
    lent = server.lender.lent_pages
    server.needed = 100 * PAGE_TOKENS
    server.run(1)
    (shrink,) = server.sized
    assert (shrink.decision, shrink.from_bytes, shrink.peak_bytes) == ("shrink", lent * PAGE_BYTES, 100 * PAGE_BYTES)
    assert shrink.to_bytes == server.lender.lent_pages * PAGE_BYTES
    assert shrink.free_bytes <= (PAGES - lent) * PAGE_BYTES
    server.needed = 120 * PAGE_TOKENS
    server.run(1)
    assert [one.decision for one in server.sized] == ["shrink", "shrink"]
    server.check()


def test_from_a_borrower_that_says_nothing_memory_comes_back_when_its_lease_ends() -> None:
    server = Server()
    server.borrow(1000 * PAGE_BYTES)
    server.run(10)
    del server.pair.machines["b"]  # stopped
    server.pair.deliver = lambda send: None  # type: ignore[method-assign]
    server.needed = PAGES * PAGE_TOKENS
    server.lender.arrived()
    server.tick()
    server.run(2.1)
    ((_, seconds),) = server.taken_back
    assert Timing().recall_bound < seconds <= 2.1
    assert server.lender.lent_pages == 0
    assert server.pool.free_pages == PAGES
    server.check()


def test_pages_are_offered_only_when_what_had_begun_before_has_ended() -> None:
    server = Server()
    server.under_way = 1
    server.borrow(10 * PAGE_BYTES)
    server.run(1)
    assert server.lender.lent_pages > 0
    assert server.held() == 0
    server.forward = 1
    server.run(1)
    assert server.held() > 0


def test_cached_prefixes_are_evicted_for_what_is_wanted_least_valuable_first_and_used_pages_never() -> None:
    server = Server()
    used = server.pool.alloc(20)
    prefixes = [server.pool.alloc(20) for _ in range(9)]
    for prefix in prefixes:
        assert prefix is not None
        server.pool.finish(prefix, keep=True)
    assert used is not None
    assert server.pool.free_pages == 0
    server.needed = 20 * PAGE_TOKENS
    server.borrow(30 * PAGE_BYTES)
    server.run(5)
    assert server.held() >= 27 * PAGE_BYTES
    assert server.pool.evicted <= 60
    assert prefixes[8] in server.pool.cache
    assert all(server.pool.owner[page] == IN_USE for page in used)
    server.check()
    server.borrow(1000 * PAGE_BYTES)
    server.run(20)
    assert all(server.pool.owner[page] == IN_USE for page in used)
    server.check()


def cached(server: Server, prefixes: int, pages: int = 20) -> list[list[int]]:
    found = [server.pool.alloc(pages) for _ in range(prefixes)]
    for prefix in found:
        assert prefix is not None
        server.pool.finish(prefix, keep=True)
    return list(server.pool.cache)[-prefixes:]


def test_what_is_kept_of_the_cache_is_not_lent_and_memory_comes_back_for_more_of_it() -> None:
    server = Server(window=1.0)
    prefixes = cached(server, 10)
    server.pool.kept = 6
    server.borrow(1000 * PAGE_BYTES)
    server.run(5)
    assert 80 * PAGE_BYTES - RUN < server.held() <= 80 * PAGE_BYTES
    assert list(server.pool.cache) == prefixes[4:]
    assert server.sized[-1].kept_bytes == 120 * PAGE_BYTES
    # What a request computes becomes a cached prefix that is kept; all others still are.
    server.needed = 20 * PAGE_TOKENS
    server.lender.arrived()
    server.tick()
    server.tick(Timing().recall_bound)
    cached(server, 1)
    server.pool.kept, server.needed = 7, 0
    server.run(5)
    assert list(server.pool.cache)[:6] == prefixes[4:]
    assert server.lender.lent_pages <= 60
    # When none is kept any more, all goes.
    server.pool.kept = 0
    server.run(5)
    assert server.held() > PAGES * PAGE_BYTES - RUN
    server.check()


def test_the_lower_bound_is_lent_though_it_takes_what_is_kept() -> None:
    server = Server(least=50)
    prefixes = cached(server, 10)
    server.pool.kept = 10
    server.borrow(1000 * PAGE_BYTES)
    server.run(5)
    # Of three prefixes, 60 pages, what is left over is idle.
    assert 50 * PAGE_BYTES - RUN < server.held() <= 60 * PAGE_BYTES
    assert list(server.pool.cache) == prefixes[3:], "the least valuable ones, and no more than it takes"
    server.check()


def test_a_cache_is_not_given_away_for_a_few_pages_that_happen_to_lie_together() -> None:
    server = Server()
    pages = server.pool.alloc(PAGES)
    assert pages is not None
    # Every prefix has one page of three spans each: eviction frees no neighbours.
    order = sorted(pages, key=lambda page: page % 3)
    for start in range(0, PAGES, 10):
        server.pool.finish(order[start : start + 10], keep=True)
    server.borrow(12 * PAGE_BYTES)
    server.run(SCATTERED_SECONDS / 2)
    assert server.pool.evicted <= 30
    assert server.lender.lent_pages == 0
    server.check()

    assert server.pool.searches <= 3, "the whole free list is looked through too often"


def test_twice_as_much_is_evicted_where_the_first_pages_are_scattered() -> None:
    server = Server()
    pages = server.pool.alloc(PAGES)
    assert pages is not None
    odd, even = ([page for page in pages if page < 120 and page % 2 == rest] for rest in (1, 0))
    for prefix in (odd, even, [page for page in pages if page >= 120]):
        server.pool.finish(prefix, keep=True)
    server.borrow(57 * PAGE_BYTES)
    server.run(1)
    assert server.held() == 57 * PAGE_BYTES
    assert server.pool.evicted == len(odd) + len(even)
    server.check()


def many_small(pages: int = 4000, least: int = 0) -> Server:
    """A server whose whole pool is cached prefixes of two pages each."""
    server = Server(pages=pages, least=least)
    cached(server, pages // 2, 2)
    return server


def test_one_look_evicts_a_few_pages_and_lends_them_and_the_next_one_goes_on() -> None:
    server = many_small()
    server.borrow(3000 * PAGE_BYTES)
    (first,) = server.looks()
    assert MOST_EVICTED <= first <= MOST_EVICTED + 1, "in whole prefixes"
    unit = server.sizer.unit_pages
    assert MOST_EVICTED - 2 * unit < server.lender.lent_pages <= first, "what is free is not lent at once"
    evicted = [first, *server.looks(7)]
    assert max(evicted) <= MOST_EVICTED + 1
    assert sum(evicted) >= 3000 - unit, "the next look does not go on"
    assert 3000 - unit < server.lender.lent_pages < 3000 + unit
    server.check()
    server.looks(200)
    assert 3000 - unit < server.held() // PAGE_BYTES < 3000 + 2 * unit
    # Page 0 is nobody's: one span is missing when as many pages are free as are wanted, and is found a look later.
    assert server.pool.evicted <= 3000 + 2 * unit + MOST_EVICTED, "more is evicted than it takes"
    server.check()


def test_where_pages_are_scattered_as_many_again_are_evicted_over_several_looks_and_no_more() -> None:
    server = Server(pages=9000)
    pages = server.pool.alloc(9000)
    assert pages is not None
    # Every third page is cached: eviction frees no neighbours.
    order = [page for page in pages if page % 3] + [page for page in pages if page % 3 == 0]
    used, cached_pages = order[:6000], order[6000:]
    for start in range(0, len(cached_pages), 2):
        server.pool.finish(cached_pages[start : start + 2], keep=True)
    server.needed = len(used) * PAGE_TOKENS
    server.borrow(1000 * PAGE_BYTES)
    evicted = server.looks(math.ceil(SCATTERED_SECONDS / LOOK_SECONDS))
    unit = server.sizer.unit_pages
    assert max(evicted) <= MOST_EVICTED + 1
    assert 2000 <= sum(evicted) <= 2 * (1000 + unit) + 2
    assert server.lender.lent_pages == 0
    # The free list is not looked through for ever, either.
    assert server.pool.searches <= 2 + 2 * (1000 + unit) / MOST_EVICTED
    server.check()


def test_what_is_kept_and_promised_is_evicted_a_few_pages_at_a_time_too_and_no_more_than_that() -> None:
    server = many_small(least=2000)
    server.pool.kept = 2000
    server.borrow(3000 * PAGE_BYTES)
    evicted = server.looks(100)
    assert max(evicted) <= MOST_EVICTED + 1
    unit = server.sizer.unit_pages
    assert 2000 - unit < server.lender.lent_pages <= 2000
    assert sum(evicted) <= 2000 + unit
    server.check()


def test_a_demand_ends_what_was_begun() -> None:
    server = many_small()
    server.borrow(3000 * PAGE_BYTES)
    server.looks()
    evicted = server.pool.evicted
    server.needed = 3900 * PAGE_TOKENS
    server.lender.arrived()
    server.looks(40)
    assert server.pool.evicted == evicted, "prefixes are evicted for others while requests wait"
    assert server.lender.lent_pages <= 100
    server.check()


def test_what_somebody_no_longer_wants_is_not_evicted() -> None:
    server = many_small()
    server.borrow(3000 * PAGE_BYTES)
    server.looks()
    server.borrow(0)
    server.looks(40)
    assert server.pool.evicted <= 2 * MOST_EVICTED + 2
    server.check()


def test_what_is_no_whole_run_stays_in_the_pool() -> None:
    server = Server()
    used = server.pool.alloc(PAGES)
    assert used is not None
    # Three whole spans of three pages; a run for these pages is two of them.
    apart = {*range(30, 33), *range(60, 63), *range(90, 93)}
    server.pool.finish([page for page in used if page in apart], keep=False)
    server.borrow(1000 * PAGE_BYTES, page_bytes=6 * PAGE_BYTES)
    server.run(5)
    assert server.held() == 6 * PAGE_BYTES
    assert server.pool.free_pages == 3
    server.check()


def offered_but_not_lent() -> Server:
    """A server whose runs nobody gets: a forward that has begun does not end."""
    server = Server()
    server.under_way = 1
    server.borrow(60 * PAGE_BYTES)
    server.run(5)
    assert server.lender.lent_pages == 60, "more than is wanted"
    assert server.held() == 0
    return server


def test_what_is_not_lent_is_back_in_the_same_round() -> None:
    server = offered_but_not_lent()
    server.needed = PAGES * PAGE_TOKENS
    server.lender.arrived()
    server.lender.tick(server.pair.now)
    assert server.pool.free_pages == PAGES


def test_a_cap_counts_what_is_not_lent_yet() -> None:
    server = offered_but_not_lent()
    server.lender.cap(30 * PAGE_BYTES)
    server.tick()
    assert server.lender.lent_pages <= 30
    server.check()


def test_what_nobody_wants_any_more_is_not_kept_for_him() -> None:
    server = offered_but_not_lent()
    server.borrow(0)
    server.run(1)  # its next heartbeat says so
    assert server.lender.lent_pages == 0
    assert server.pool.free_pages == PAGES
    server.check()


def test_what_was_cut_for_others_and_is_not_lent_is_cut_anew() -> None:
    server = offered_but_not_lent()
    server.borrow(0)
    server.borrow(60 * PAGE_BYTES, "c", page_bytes=320)
    server.run(1)
    server.forward = 1
    server.run(1)
    assert server.held("c") == 60 * PAGE_BYTES
    assert server.lender.lent_pages == 60


def test_three_models_share_a_pool() -> None:
    server = Server()
    for name, page_bytes in (("b", 320), ("c", 96), ("e", PAGE_BYTES)):
        server.borrow(0, name, page_bytes)
    for name in "bce":
        server.borrow(30 * PAGE_BYTES, name)
    server.run(5)
    assert [server.held(name) for name in "bce"] == [30 * PAGE_BYTES] * 3
    server.check()


def test_a_flush_takes_nothing_that_is_lent() -> None:
    server = Server()
    server.borrow(60 * PAGE_BYTES)
    server.run(5)
    lent = server.lender.lent_pages
    assert lent >= 60
    server.pool.flush()
    server.check()
    server.run(1)
    assert server.lender.lent_pages == lent
    server.needed = PAGES * PAGE_TOKENS
    server.lender.arrived()
    server.tick()
    server.tick(Timing().recall_bound)
    assert server.pool.free_pages == PAGES
    server.check()


def test_borrowers_with_other_pages_get_whole_units_of_both() -> None:
    server = Server()
    server.borrow(60 * PAGE_BYTES)
    server.run(5)
    assert server.held() >= 60 * PAGE_BYTES
    server.borrow(60 * PAGE_BYTES, "c", page_bytes=5 * 64)  # common unit: 5 of the donor's pages
    server.run(5)
    assert server.held("c") > 0
    assert server.held("c") % (5 * PAGE_BYTES) == 0
    assert server.held() >= 60 * PAGE_BYTES, "what was lent before stays lent"
    server.check()
    server.needed = PAGES * PAGE_TOKENS
    server.lender.arrived()
    server.tick()
    server.tick(Timing().recall_bound)
    assert server.lender.lent_pages == 0
    server.check()


def test_a_borrower_whose_pages_have_no_unit_with_the_others_gets_nothing_and_the_others_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.borrow(10 * PAGE_BYTES)
    server.borrow(10 * PAGE_BYTES, "c", page_bytes=331)
    server.run(5)
    assert server.held() >= 10 * PAGE_BYTES
    assert server.held("c") == 0
    assert "nothing can be lent to c" in caplog.text
    assert server.lender.lent_pages * PAGE_BYTES == server.held(), "something waits for who can get nothing"


def test_page_sizes_that_others_choose_cost_no_more_than_the_pool_has_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find the shape of a unit takes as long as it has pages; the scheduler waits for that."""
    looked_at: list[int] = []

    def looked(layout: PoolLayout, unit_pages: int, pool_pages: int) -> RunShape:
        looked_at.append(unit_pages)
        return run_shape(layout, unit_pages, pool_pages)

    monkeypatch.setattr(lender_module, "run_shape", looked)
    server = Server()
    for name, size in (("b", PAGE_BYTES), ("c", 1021 * PAGE_BYTES), ("e", 1019 * PAGE_BYTES)):
        server.borrow(10 * PAGE_BYTES, name, page_bytes=size)
        server.run(2)
    assert server.held() >= 10 * PAGE_BYTES
    assert max(looked_at) <= server.pool.pages


def test_what_nobody_borrows_any_more_is_the_pools_again() -> None:
    server = Server()
    server.borrow(60 * PAGE_BYTES)
    server.run(5)
    server.pair.do("b", server.pair.borrower.disconnect("d", server.pair.now))
    server.run(10)
    assert server.lender.lent_pages == 0
    assert server.pool.free_pages == PAGES
    server.check()
    # And is a plain free list again.
    assert server.pool._spans is None


def test_bounds_and_caps_hold() -> None:
    server = Server(most=90)
    server.borrow(1000 * PAGE_BYTES)
    server.run(10)
    assert server.held() == 90 * PAGE_BYTES
    server.lender.cap(40 * PAGE_BYTES)
    server.run(1)
    assert server.held() <= 40 * PAGE_BYTES
    assert server.lender.lent_pages <= 40
    server.lender.cap(None)
    server.run(10)
    assert server.held() == 90 * PAGE_BYTES
    server.check()


def test_a_copy_that_does_not_end_keeps_its_own_run_back_and_nothing_waits_for_it() -> None:
    server = Server()
    server.borrow(1000 * PAGE_BYTES)
    server.run(10)
    lent = server.lender.lent_pages
    own = PAGES - lent
    server.copy_begins()  # into what is taken back first
    server.needed = 100 * PAGE_TOKENS
    server.lender.arrived()
    server.tick()
    server.tick(Timing().recall_bound)
    server.run(0.8 * COPY_SECONDS)
    copied = len(server.copied_pages)
    assert 100 - copied <= server.pool.free_pages < 100, "memory came back while it was written, or waits for that"
    # What has come back is not asked for again.
    assert server.held() >= lent * PAGE_BYTES - (100 - own) * PAGE_BYTES - RUN
    server.check()
    server.run(COPY_SECONDS)
    assert 100 <= server.pool.free_pages <= 100 + copied, "a request waits for a copy that does not end"
    server.check()
    server.copy_ends()
    server.copy_begins()  # whatever is copied next
    server.tick()
    assert server.pool.free_pages >= 100
    assert len(server.taken_back) == 1
    server.check()


def test_a_cap_does_not_ask_for_what_has_come_back() -> None:
    server = Server()
    server.borrow(1000 * PAGE_BYTES)
    server.run(10)
    server.copy_begins()
    server.lender.cap(100 * PAGE_BYTES)
    server.run(3)
    held = server.held()
    assert held >= 100 * PAGE_BYTES - RUN
    server.lender.cap(100 * PAGE_BYTES)
    server.run(3)
    assert server.held() == held
    server.copy_ends()
    server.tick()
    assert server.lender.lent_pages <= 100
    server.check()


def test_what_an_operator_recalled_is_not_lent_again_at_once() -> None:
    server = Server()
    server.borrow(60 * PAGE_BYTES)
    server.run(5)
    leases = [view.lease for view in server.pair.donor.leases(server.pair.now)]
    server.pair.do("d", server.pair.donor.recall(leases, server.pair.now))
    server.lender.rest()
    server.run(10)
    assert server.held() == 0
    server.run(60, step=0.25)
    assert server.held() >= 60 * PAGE_BYTES


def test_what_a_borrower_returns_by_itself_can_be_lent_to_another_at_once() -> None:
    server = Server(most=60)
    server.borrow(60 * PAGE_BYTES)
    server.run(5)
    server.pair.want(0, "b")
    for key in list(server.pair.borrower.keys()):
        server.pair.do("b", server.pair.borrower.release(key, server.pair.now))
    server.borrow(60 * PAGE_BYTES, "c")
    server.run(2)
    assert server.held("c") == 60 * PAGE_BYTES
    server.check()


def test_a_request_that_is_refused_before_memory_has_come_gets_what_it_needs_and_no_more() -> None:
    server = Server()
    server.borrow(1000 * PAGE_BYTES)
    server.run(10)
    server.needed = 100 * PAGE_TOKENS
    server.lender.arrived()
    server.tick()
    for _ in range(20):
        server.lender.refused()
        server.tick(Timing().recall_bound / 20)
    assert 100 <= server.sizer.own_pages <= 103


def test_a_refused_request_gets_everything_whatever_was_reckoned() -> None:
    server = Server()
    server.borrow(1000 * PAGE_BYTES)
    server.run(10)
    server.lender.refused()
    server.tick()
    server.tick(Timing().recall_bound)
    assert server.lender.lent_pages == 0
    server.lender.refused()  # it is not the lender who stands in the way
    server.tick()
    server.check()


def test_nothing_is_lent_after_closing() -> None:
    server = Server()
    server.lender.close()
    server.borrow(60 * PAGE_BYTES)
    server.run(5)
    assert server.lender.lent_pages == 0


class Lending(RuleBasedStateMachine):
    """Any history of a server and its borrowers."""

    @initialize(
        least=st.sampled_from([0, 20]),
        most=st.sampled_from([60, 150, PAGES]),
        window=st.sampled_from([1.0, 5.0]),
        most_evicted=st.sampled_from([7, MOST_EVICTED]),
    )
    def begin(self, least: int, most: int, window: float, most_evicted: int) -> None:
        gathering.MOST_EVICTED = most_evicted
        self.server = Server(least=least, most=most, window=window)
        self.requests: list[list[int]] = []
        self.waiting = 0  # pages
        self.most = most

    def _need(self) -> None:
        self.server.needed = (sum(map(len, self.requests)) + self.waiting) * PAGE_TOKENS

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.server.run(seconds, step=0.1)

    @rule()
    def rounds(self) -> None:
        for _ in range(3):
            self.server.tick(LEND_SECONDS)

    @rule(pages=st.integers(1, 80))
    def request(self, pages: int) -> None:
        """Arrives, and is admitted at once if it fits. What does not gets its memory within the bound."""
        server = self.server
        self.waiting = min(pages, PAGES - sum(map(len, self.requests)))
        if not self.waiting:
            return
        self._need()
        server.lender.arrived()
        server.tick()
        got = server.pool.alloc(self.waiting)
        if got is None:
            # Every borrower answers: the recall's bound is enough, and the end of a copy.
            server.tick(Timing().recall_bound)
            server.copy_ends()
            server.tick()
            got = server.pool.alloc(self.waiting)
        assert got is not None, f"{self.waiting} pages wanted, {server.pool.free_pages} free, {server.sizer.lent} lent"
        self.requests.append(got)
        self.waiting = 0
        self._need()

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), keep=st.booleans())
    def ends(self, data: st.DataObject, keep: bool) -> None:
        which = data.draw(st.integers(0, len(self.requests) - 1))
        self.server.pool.finish(self.requests.pop(which), keep=keep)
        self._need()

    @precondition(lambda self: not self.requests)
    @rule()
    def flush(self) -> None:
        self.server.pool.flush()

    @rule(prefixes=st.integers(0, 6))
    def keeps(self, prefixes: int) -> None:
        self.server.pool.kept = prefixes

    @rule(name=st.sampled_from("bce"), page=st.sampled_from([256, 320, 96, 1536]), pages=st.integers(0, 300))
    def wants(self, name: str, page: int, pages: int) -> None:
        self.server.borrow(pages * page, name, page)

    @rule(name=st.sampled_from("bce"))
    def returns(self, name: str) -> None:
        machine = self.server.pair.machines.get(name)
        if machine is not None:
            self.server.pair.want(0, name)
            for key in list(machine.keys()):
                self.server.pair.do(name, machine.release(key, self.server.pair.now))

    @rule(name=st.sampled_from("bce"))
    def dies(self, name: str) -> None:
        machine = self.server.pair.machines.pop(name, None)
        if machine is not None:
            self.server.pair.do("d", self.server.pair.donor.gone(machine.party))

    @rule()
    def forward_begins(self) -> None:
        self.server.under_way = self.server.forward + 1

    @rule()
    def forward_ends(self) -> None:
        self.server.forward = self.server.under_way

    @rule()
    def copy_begins(self) -> None:
        self.server.copy_begins()

    @rule()
    def copy_ends(self) -> None:
        self.server.copy_ends()

    @rule(pages=st.none() | st.integers(0, 100))
    def cap(self, pages: int | None) -> None:
        self.server.lender.cap(None if pages is None else pages * PAGE_BYTES)

    @rule()
    def rest(self) -> None:
        self.server.lender.rest()

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        self.server.check()
        assert self.server.pool.count(IN_USE) == sum(map(len, self.requests))

    @invariant()
    def bounds_hold(self) -> None:
        assert self.server.lender.lent_pages <= self.most
        for name in "bce":
            machine = self.server.pair.machines.get(name)
            if machine is not None:
                assert machine.held_bytes <= self.server.lender.lent_pages * PAGE_BYTES

    def teardown(self) -> None:
        """In the end everything comes back."""
        gathering.MOST_EVICTED = MOST_EVICTED
        if not hasattr(self, "server"):
            return
        self.server.forward = self.server.under_way
        self.server.copy_ends()
        self.server.lender.close()
        self.server.needed = PAGES * PAGE_TOKENS
        self.server.lender.arrived()
        self.server.tick()
        self.server.tick(Timing().recall_bound)
        assert self.server.lender.lent_pages == 0
        assert self.server.pool.count(LENT) == 0
        self.server.check()


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
