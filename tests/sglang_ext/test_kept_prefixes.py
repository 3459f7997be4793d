"""What a donor keeps of its cached prefixes, counted while they are used, against a model that walks the tree."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from swift_tiers.sglang_ext.build.kept_prefixes import MOST_PASSED_OVER, KeptPrefixes
from swift_tiers.sglang_ext.pools.lending_allocator import PagedLendingAllocator
from swift_tiers.sglang_ext.way.keeping_cache import KeepingRadixCache

from support.examples import examples

PAGE, PAGES, SECONDS = 2, 64, 60.0
#: A sequence, page by page: with two kinds of pages most sequences share prefixes, and split each other's nodes.
Sequence = tuple[int, ...]
sequences = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=7).map(tuple)


class Tree:
    """SGLang's real tree over an allocator, its clock moved by hand."""

    def __init__(self, backend: str, pages: int = PAGES, policy: str = "lru") -> None:
        self.now = 0.0
        self.faults: list[str] = []
        self.allocator = PagedLendingAllocator(pages * PAGE, PAGE, torch.float32, "cpu", None, need_sort=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=backend,
            eviction_policy=policy,
        )
        self.cache = KeepingRadixCache(params)
        stack = SimpleNamespace(events=SimpleNamespace(emit=lambda kind, **fields: self.faults.append(str(fields))))
        self.cache.kept = self.kept = KeptPrefixes(self.cache, SECONDS, stack, clock=lambda: self.now)

    def match(self, sequence: Sequence) -> tuple[int, int]:
        """Its tokens that are there, and the node where they end."""
        result = self.cache.match_prefix(MatchPrefixParams(key=key(sequence)))
        return result.device_prefix_len, result.last_device_node

    def insert(self, sequence: Sequence) -> int | None:
        """The node where it ends; None: there is no room. What of it was there is not needed twice."""
        values = self.allocator.alloc(len(sequence) * PAGE)
        if values is None:
            return None
        node: int = self.cache.insert(InsertParams(key=key(sequence), value=values)).last_device_node
        return node

    def evict(self, tokens: int) -> None:
        self.cache.evict(EvictParams(num_tokens=tokens))

    def there(self, sequence: Sequence) -> int:
        """Its tokens that are in the tree; nothing is used by asking."""
        tokens: int = self.cache.tree_core.match_full_device_prefix(key(sequence))[0]
        return tokens


def key(sequence: Sequence) -> RadixKey:
    return RadixKey(array("q", [page + 1 for page in sequence for _ in range(PAGE)]))


class Model:
    """Knows of every page when it was used, and by whom it is locked; looks at all of them each time."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._used: dict[Sequence, float] = {}  # by the pages up to and with it
        self.locked: list[tuple[Sequence, Any]] = []

    def use(self, sequence: Sequence) -> None:
        for pages in range(1, len(sequence) + 1):
            self._used[sequence[:pages]] = self._tree.now

    def kept(self) -> set[Sequence]:
        locked = {way[:pages] for way, _ in self.locked for pages in range(1, len(way) + 1)}
        oldest = self._tree.now - SECONDS
        lately = {way for way, when in self._used.items() if when > oldest and way not in locked}
        return {way for way in lately if self._tree.there(way) == len(way) * PAGE}


class Keeping(RuleBasedStateMachine):
    """Any history of a tree: matches, insertions, locks, evictions for itself and for others, flushes."""

    @initialize(backend=st.sampled_from(["rust", "python"]), policy=st.sampled_from(["lru", "lfu", "mru"]))
    def begin(self, backend: str, policy: str) -> None:
        self.tree = Tree(backend, policy=policy)
        self.model = Model(self.tree)

    @rule(seconds=st.sampled_from([1.0, 25.0, 35.0]))
    def wait(self, seconds: float) -> None:
        self.tree.now += seconds

    @rule()
    def wait_half_as_long_as_a_use_counts(self) -> None:
        self.tree.now += SECONDS / 2

    @rule(sequence=sequences)
    def match(self, sequence: Sequence) -> None:
        found, _ = self.tree.match(sequence)
        self.model.use(sequence[: found // PAGE])

    @rule(sequence=sequences)
    def touch(self, sequence: Sequence) -> None:
        self.tree.cache.touch_prefix(key(sequence))
        self.model.use(sequence[: self.tree.there(sequence) // PAGE])

    @rule(sequence=sequences)
    def insert(self, sequence: Sequence) -> None:
        if self.tree.insert(sequence) is not None:
            self.model.use(sequence)

    @rule(sequence=sequences)
    def admit(self, sequence: Sequence) -> None:
        """A request takes its prefix, and locks it."""
        found, node = self.tree.match(sequence)
        if found:
            self.model.use(sequence[: found // PAGE])
            lock = self.tree.cache.lock(node)
            self.model.locked.append((sequence[: found // PAGE], lock))

    @precondition(lambda self: self.model.locked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._unlock(data)

    @precondition(lambda self: self.model.locked)
    @rule(data=st.data(), more=sequences)
    def go_on(self, data: st.DataObject, more: Sequence) -> None:
        """A request has computed more, puts it into the tree, and locks that instead."""
        way, lock = data.draw(st.sampled_from(self.model.locked))
        node = self.tree.insert(way + more)
        if node is not None:
            self.model.use(way + more)
            taken = self.tree.cache.lock(node)
            self.tree.cache.unlock(lock)
            self.model.locked[self.model.locked.index((way, lock))] = (way + more, taken)

    def _unlock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.model.locked) - 1))
        way, lock = self.model.locked.pop(index)
        self.tree.cache.unlock(lock)
        self.model.use(way)

    @rule(pages=st.integers(1, 6))
    def evict(self, pages: int) -> None:
        self.tree.evict(pages * PAGE)

    @rule(pages=st.integers(1, PAGES))
    def evict_for_others(self, pages: int) -> None:
        kept, free = self.model.kept(), self.tree.allocator.available_size()
        spare = self.tree.cache.evictable_size() - len(kept) * PAGE
        self.tree.cache.evict_for_others(pages * PAGE)
        assert self.model.kept() == kept, "a prefix that is kept was given away"
        assert self.tree.allocator.available_size() - free >= min(spare, pages * PAGE)

    @precondition(lambda self: not self.model.locked)
    @rule(seldom=st.integers(0, 9))
    def flush(self, seldom: int) -> None:
        if seldom:
            return
        self.tree.cache.reset()
        self.tree.allocator.clear()

    @invariant()
    def what_is_kept_is_what_a_walk_finds(self) -> None:
        if hasattr(self, "tree"):
            assert self.tree.kept.tokens() == len(self.model.kept()) * PAGE
            assert self.tree.faults == []


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)


@pytest.fixture(params=["rust", "python"])
def tree(request: pytest.FixtureRequest) -> Iterator[Tree]:
    made = Tree(request.param)
    yield made
    assert made.faults == []


def test_a_use_counts_until_it_is_as_old_as_it_may_be(tree: Tree) -> None:
    tree.insert((0, 1, 1))
    tree.now = SECONDS - 0.001
    assert tree.kept.tokens() == 3 * PAGE
    tree.match((0, 1, 0))
    tree.now = SECONDS
    assert tree.kept.tokens() == 2 * PAGE, "of what was inserted, what was matched a moment ago"


def test_what_is_evicted_was_a_use_of_what_is_before_it(tree: Tree) -> None:
    tree.insert((0, 0))
    tree.now = 50.0
    tree.insert((0, 0, 1))
    tree.now = 70.0
    tree.evict(PAGE)
    assert tree.there((0, 0, 1)) == tree.kept.tokens() == 2 * PAGE
    tree.now = 110.0
    assert tree.kept.tokens() == 0


def test_a_request_uses_its_prefix_until_it_ends(tree: Tree) -> None:
    tree.insert((0, 0))
    lock = tree.cache.lock(tree.match((0, 0))[1])
    tree.now = 1000.0
    assert tree.kept.tokens() == 0, "it is in use"
    tree.cache.unlock(lock)
    tree.now += 59.0
    assert tree.kept.tokens() == 2 * PAGE
    tree.now += 1.0
    assert tree.kept.tokens() == 0


def test_a_waiting_request_uses_its_prefix_as_long_as_that_is_there(tree: Tree) -> None:
    tree.insert((0, 0, 1))
    _, node = tree.match((0, 0, 0))
    for _ in range(3):
        tree.now += 40.0
        assert tree.kept.wait_for(node) == 2 * PAGE
    assert tree.kept.tokens() == 2 * PAGE
    tree.evict(3 * PAGE)
    assert tree.kept.wait_for(node) == tree.kept.tokens() == 0


def test_what_is_lent_is_not_sought_behind_more_leaves_than_a_round_has_time_for() -> None:
    tree = Tree("rust", pages=1000, policy="mru")
    for number in range(500):
        tree.now = number / 10
        tree.insert((number + 2,))
    tree.now = SECONDS + 1.05  # eleven are not kept any more, and are offered last
    asked: list[int] = []
    spares = tree.kept.spares
    tree.kept.spares = lambda node: asked.append(node) or spares(node)  # type: ignore[func-returns-value, method-assign]
    tree.cache.evict_for_others(PAGE)
    assert len(asked) == MOST_PASSED_OVER
    assert tree.cache.evictable_size() == 500 * PAGE
