"""A page table over tiers that only count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.table.held_page import Page
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.table.policy import BY_WORTH, EvictionPolicy
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.table.tier_copies import HOST, Keeper
from swift_tiers.radix_tiering.tiers.host.host_tier import HostTier

from .engine import GEOMETRY

PEER, SSD = 1, 2
LENGTH = GEOMETRY.page_bytes


class Counting(Keeper):
    """As much of a tier as the page table asks of it: places that are numbers, or pairs of a part and a number."""

    capacity_bytes = 0

    def __init__(self, name: str, *, durable: bool, near: bool, numbered: bool, order: EvictionPolicy | None) -> None:
        self.name, self.durable, self.near, self.numbered = name, durable, near, numbered
        self._order = order
        self.held: set[Any] = set()
        self._next = 0

    def take(self) -> Any:
        self._next += 1
        place = self._next if self.numbered else (self._next % 3, self._next)
        self.held.add(place)
        return place

    def release(self, places: Sequence[Any]) -> None:
        for place in places:
            self.held.remove(place)

    def digest_at(self, place: Any) -> bytes:
        return b"%16d" % place

    def order(self, policy: EvictionPolicy) -> EvictionPolicy:
        return self._order or policy

    def part_of(self, place: Any) -> Any:
        return None if self.numbered else place[0]

    def uses(self, place: Any, part: Any) -> bool:
        return (place % 3 if self.numbered else place[0]) == part


class Rig:
    """A page table with room for `slots` pages in host memory."""

    def __init__(self, slots: int, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.tiers = [
            Counting("peer", durable=False, near=True, numbered=False, order=BY_WORTH),
            Counting("ssd", durable=True, near=False, numbered=True, order=None),
        ]
        self.lost_pins: list[bytes] = []
        self.landing: list[int] = []
        self.table = PageTable(
            HostTier(GEOMETRY, slots * GEOMETRY.stride_bytes),
            policy,
            self.tiers,
            runner=THREADS,
            clean=lambda: None,
            pin_lost=self.lost_pins.append,
            release_landing=self.landing.append,
        )
        self.table.serving = b"n" * 16

    def rank(self, page: Page, tier: int) -> tuple[int, ...]:
        order = self.table.of[tier].order
        worth = order.doubled * page.doublings + (order.reused if page.uses > 1 else 0)
        first = (not page.whole_in(PEER),) if tier == HOST else ()
        return (*first, page.uses if order.by_uses else 0, page.last_use + worth, -page.depth)

    def may_leave(self, page: Page, tier: int) -> bool:
        if not page.whole_in(tier) or page.pinned or page.dropped:
            return False
        if tier == SSD:
            return not any(child.whole_in(SSD) for child in page.children)
        if page.elsewhere(tier):
            return True
        return not (self.wanted_behind(page) if tier == HOST else page.children)

    def wanted_behind(self, page: Page) -> bool:
        return any(child.in_host or child.pins or self.wanted_behind(child) for child in page.children)

    def check(self) -> None:
        table = self.table
        check_rules(table)
        pages = table.listed()
        for tier in range(3):
            free = [page for page in pages if self.may_leave(page, tier)]
            victim = table.victim(tier)
            assert (victim is None) == (not free)
            if victim is not None:
                assert self.rank(victim, tier) == min(self.rank(page, tier) for page in free), "not who leaves first"


class FlushInSteps:
    """Flushes of memory, each as a sweep carries it out while others go on. `flushed`: pages that one of them is to
    end, since no tier that outlives it had, or was to have, a copy of them."""

    def __init__(self, table: PageTable) -> None:
        self.flushed: set[Page] = set()
        self._table = table
        self._left: list[Page] | None = None  # that the one under way has yet to go through

    @property
    def under_way(self) -> bool:
        return self._left is not None

    def begin(self) -> None:
        self._table.forget_memory()
        self.flushed.update(page for page in self._table.listed() if not page.begun_in(SSD))
        self._left = list(self._table.in_memory())[::-1]

    def go_on(self, count: int) -> None:
        """With so many pages; where none is left, it is over."""
        assert self._left is not None
        if not self._left:
            self._table.emptied(self._table.flushes)
            self._left = None
            return
        for page in [self._left.pop() for _ in self._left[-count:]]:
            if not page.dropped:
                self._table.settle(page)

    def check(self) -> None:
        for page in self.flushed:
            assert page.dropped or not self._table.holds(page), "found after it was flushed"
