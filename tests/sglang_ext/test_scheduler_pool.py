"""A donor's pool over SGLang's real trees and allocators: how often its list of free pages is copied, which is as long
as the pool is large."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from swift_tiers.radix_tiering.lending.donation.extents import Span
from swift_tiers.sglang_ext.build.donation import SchedulerPool
from swift_tiers.sglang_ext.build.kept_prefixes import KeptPrefixes
from swift_tiers.sglang_ext.pools.lending_allocator import (
    LendingAllocator,
    PagedLendingAllocator,
    TokenLendingAllocator,
)
from swift_tiers.sglang_ext.way.keeping_cache import KeepingRadixCache

LEAVES, LEAF_PAGES, PAGES = 60, 3, 200
FREE = PAGES - LEAVES * LEAF_PAGES


class CountsCopies:
    """How often a list of free pages became another one, longer one."""

    copies = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("free_pages", "release_pages"):
            before = getattr(self, name, None)
            self.__dict__["copies"] = self.copies + int(before is not None and len(value) > len(before))
        super().__setattr__(name, value)


class Paged(CountsCopies, PagedLendingAllocator):
    pass


class Tokens(CountsCopies, TokenLendingAllocator):
    pass


def paged(need_sort: bool = False) -> LendingAllocator:
    return Paged(PAGES * 4, 4, torch.float32, "cpu", None, need_sort)


def of_tokens(need_sort: bool = False) -> LendingAllocator:
    return Tokens(PAGES, torch.float32, "cpu", None, need_sort)


class Donor:
    """A tree of many small leaves, and what lends of its pool."""

    def __init__(self, allocator: LendingAllocator, backend: str = "rust", *, keeps: int = 0) -> None:
        self.allocator: Any = allocator
        self.page = allocator.page_size
        self.cache = KeepingRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=allocator,
                page_size=self.page,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=backend,
            )
        )
        self.cache.room_made = lambda: None
        self.pool = SchedulerPool(SimpleNamespace(tree_cache=self.cache), allocator)
        stack = SimpleNamespace(events=SimpleNamespace(emit=lambda kind, **fields: pytest.fail(str(fields))))
        for leaf in range(LEAVES):
            if keeps and leaf == LEAVES - keeps:
                self.cache.kept = KeptPrefixes(self.cache, 60.0, stack, clock=lambda: 0.0)
            values = allocator.alloc(LEAF_PAGES * self.page)
            key = array("q", [1 + leaf] * (LEAF_PAGES * self.page))
            self.cache.insert(InsertParams(key=RadixKey(key), value=values))
        self.allocator.copies = 0

    def check(self, free: int) -> None:
        """So many pages are free, each once, and nothing is held back."""
        assert self.pool.free_pages == free
        assert self.allocator.free_group is None
        listed = self.allocator.get_all_free_pages().tolist()
        staged = [page for some in getattr(self.allocator, "staged_pages", []) for page in some.tolist()]
        assert len({*listed, *staged}) == free
        assert self.cache.evictable_size() == (PAGES - free) * self.page


@pytest.mark.parametrize("backend", ["rust", "python"])
@pytest.mark.parametrize("allocator", [paged, of_tokens])
@pytest.mark.parametrize("need_sort", [False, True])
def test_an_eviction_for_others_copies_the_list_of_free_pages_once(
    backend: str, allocator: Callable[[bool], LendingAllocator], need_sort: bool
) -> None:
    donor = Donor(allocator(need_sort), backend)
    donor.check(FREE)
    donor.pool.evict(100)
    donor.check(FREE + 102)
    assert donor.allocator.copies <= 1
    donor.pool.evict(30, kept=True)
    donor.check(FREE + 132)
    assert donor.allocator.copies <= 2
    donor.pool.evict(PAGES)
    donor.pool.evict(PAGES)
    donor.check(PAGES)


@pytest.mark.parametrize("backend", ["rust", "python"])
def test_where_prefixes_are_kept_too(backend: str) -> None:
    donor = Donor(paged(), backend, keeps=20)
    donor.pool.evict(PAGES)
    donor.check(FREE + 40 * LEAF_PAGES)
    assert donor.allocator.copies == 1
    donor.pool.evict(10, kept=True)
    donor.check(FREE + 44 * LEAF_PAGES)
    assert donor.allocator.copies == 2


def test_what_was_evicted_before_an_error_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    donor = Donor(paged())
    evict, evicted = donor.cache.evict_leaf, []

    def fails(node: Any, tracker: Any) -> Any:
        if len(evicted) == 5:
            raise RuntimeError("an error of ours")
        evicted.append(node)
        return evict(node, tracker)

    monkeypatch.setattr(donor.cache, "evict_leaf", fails)
    with pytest.raises(RuntimeError, match="an error of ours"):
        donor.pool.evict(100)
    donor.check(FREE + 5 * LEAF_PAGES)
    monkeypatch.undo()
    donor.pool.evict(100)
    donor.check(FREE + 5 * LEAF_PAGES + 102)


@pytest.mark.parametrize("allocator", [paged, of_tokens])
@pytest.mark.parametrize("now", [0, 7], ids=["nobody borrows any more", "another shape"])
def test_spans_of_a_former_shape_come_back_with_one_copy_of_the_list(
    allocator: Callable[[], LendingAllocator], now: int
) -> None:
    donor = Donor(allocator())
    donor.pool.evict(PAGES)
    donor.pool.arrange(4)
    taken = donor.pool.take(40)
    assert len(taken) == 40
    assert donor.allocator.lent_tokens == 160 * donor.page
    assert sorted(donor.allocator.lent_pages()) == sorted(page for span in taken for page in pages_of(span))
    donor.pool.arrange(now)
    donor.allocator.copies = 0
    donor.pool.put_back(taken)
    assert donor.allocator.copies == 1
    assert donor.allocator.lent_tokens == 0
    assert not len(donor.allocator.lent_pages())
    donor.check(PAGES)


def pages_of(span: Span) -> range:
    return range(span.first, span.first + span.pages)
