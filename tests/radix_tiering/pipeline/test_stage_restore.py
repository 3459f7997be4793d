"""One stage restores alone: every page copied or computed once, in order, from bytes that are right; or it says where
it is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.pipeline import StageRestore, StageState
from swift_tiers.radix_tiering.pipeline.boundary_inputs import AHEAD
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.held_page import HOST

from support.engine import chain, check, content, end_all, make_stack, memory_ssd, namespace, put
from support.examples import examples
from support.restores import Link

KV = namespace(first_layer=2, rank="tp0/1 pp1/2")
BOUNDARY = KV.of_boundary(hidden_size=32, dtype="float32", dtype_bytes=4)
#: Pages of a chunk.
CHUNK = 4
PAGES = 20
#: A guard against hanging, not a measure.
PATIENCE = 60.0


class Stage:
    """Two stacks with ssds in memory, and a device that knows whether it was given the right bytes."""

    def __init__(self, strategy: str = "token-wise") -> None:
        restore = {"strategy": strategy, "chunk": CHUNK * KV.geometry.tokens}
        self.kv = make_stack(host_pages=64, ssd=memory_ssd(), space=KV, restore=restore)
        self.boundary = make_stack(host_pages=64, ssd=memory_ssd(), space=BOUNDARY)
        self.copied: list[int] = []
        self.computed: list[int] = []

    def store(self, keys: Sequence[bytes], boundaries: int | None = None) -> None:
        """All KV pages, and so many boundary pages."""
        assert put(self.kv, keys) == len(keys)
        kept = keys if boundaries is None else keys[:boundaries]
        offered = self.boundary.intake.begin(kept, ROOT_KEY, 1)
        for index, slot in zip(offered.indices, offered.slots, strict=True):
            self.boundary.host.page(slot)[:] = activations(keys[index])
        self.boundary.intake.commit(offered)
        assert self.kv.wait_written(PATIENCE)
        assert self.boundary.wait_written(PATIENCE)

    def forget(self, *stacks: TierStack) -> None:
        """Only the ssds keep what they have."""
        for stack in stacks:
            stack.flush(memory=True, durable=False)

    def restore(
        self, keys: Sequence[bytes], first: bool = False, computed: Callable[[], None] = lambda: None
    ) -> StageRestore:
        """Until it ends. `computed` is called whenever pages have been."""
        restore = StageRestore(self.kv, None if first else self.boundary, keys)
        limit = time.monotonic() + PATIENCE
        while restore.state is StageState.RESTORING:
            assert time.monotonic() < limit, f"no end after {restore.restored} pages"
            move = restore.next_move()
            if move is None:
                time.sleep(0.0005)  # as a scheduler comes around again
                continue
            assert move.front == restore.restored
            assert move.front <= move.jump <= move.end
            for page, slot in zip(range(move.front, move.jump), restore.kv_slots(move), strict=True):
                assert np.array_equal(self.kv.host.page(int(slot)), content(keys[page])), "wrong KV"
                self.copied.append(page)
            if move.end > move.jump and not first:
                for page, slot in zip(range(move.jump, move.end), restore.boundary_slots(move), strict=True):
                    assert np.array_equal(self.boundary.host.page(int(slot)), activations(keys[page])), "wrong input"
            self.computed += range(move.jump, move.end)
            restore.moved(move)
            if move.end > move.jump:
                computed()
        assert sorted(self.copied + self.computed) == list(range(restore.restored)), "each page once"
        restore.close()
        check_quiet(self.kv)
        check_quiet(self.boundary)
        return restore


def activations(key: bytes) -> np.ndarray:
    """What goes into the stage for the page `key`."""
    return content(key[::-1], BOUNDARY.geometry.page_bytes)


def check_quiet(stack: TierStack) -> None:
    """Nothing leaked, once the reads that were under way when the restore ended have ended as well."""
    limit = time.monotonic() + PATIENCE
    while stack.host.used_slots != stack.table.of[HOST].pages and time.monotonic() < limit:
        time.sleep(0.0005)
    check(stack)


def damage(stack: TierStack, key: bytes) -> None:
    """Flip a byte of a page in host memory, so that its checksum fails; it is nowhere else any more."""
    page = stack.table.find(stack.digest, key)
    assert page is not None
    stack.host.page(page.slot)[5] ^= 1


@pytest.mark.parametrize("forgetful", [(), ("kv",), ("boundary",), ("kv", "boundary")])
@pytest.mark.parametrize("strategy", ["token-wise", "recompute", "load"])
def test_a_stage_restores_alone_from_wherever_its_pages_are(strategy: str, forgetful: tuple[str, ...]) -> None:
    stage = Stage(strategy)
    keys = chain(*range(PAGES))
    stage.store(keys)
    stage.forget(*(getattr(stage, name) for name in forgetful))
    restore = stage.restore(keys)
    assert (restore.state, restore.restored) == (StageState.DONE, PAGES)
    if strategy == "recompute":
        assert stage.computed == list(range(PAGES))
    if strategy == "load":
        assert stage.copied == list(range(PAGES))


def test_the_first_stage_needs_no_boundary_pages() -> None:
    stage = Stage("recompute")
    keys = chain(*range(PAGES))
    stage.store(keys, boundaries=0)
    assert stage.restore(keys, first=True).state is StageState.DONE
    assert stage.computed == list(range(PAGES))


def test_the_front_is_computed_while_the_back_is_loaded() -> None:
    """Costs known: some of each, the computed part in front."""
    stage = Stage("auto")
    keys = chain(*range(PAGES))
    stage.store(keys)
    stage.forget(stage.kv, stage.boundary)
    even = KV.geometry.page_bytes / 0.01
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=0.01 / KV.geometry.tokens, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=even)},
    )
    stage.kv.planner.costs = LiveCosts(costs)
    with Link(stage.kv) as link:  # pages in memory would all be there before a busy machine comes to computing
        assert stage.restore(keys, computed=link.__exit__).state is StageState.DONE
    assert stage.computed
    assert stage.copied
    assert min(stage.computed) == 0


def test_pages_whose_activations_are_not_stored_are_loaded() -> None:
    stage = Stage()
    keys = chain(*range(PAGES))
    stage.store(keys, boundaries=6)
    stage.forget(stage.kv)
    assert stage.restore(keys).state is StageState.DONE
    assert all(page < 6 for page in stage.computed)


@pytest.mark.parametrize("page", [0, 3, 5, PAGES - 1])
def test_a_damaged_boundary_page_is_not_computed_from(page: int) -> None:
    stage = Stage()
    keys = chain(*range(PAGES))
    stage.store(keys)
    stage.forget(stage.kv)
    damage(stage.boundary, keys[page])
    assert stage.restore(keys).state is StageState.DONE
    assert page not in stage.computed
    assert page in stage.copied


def test_a_damaged_kv_page_is_computed() -> None:
    stage = Stage("load")
    keys = chain(*range(PAGES))
    stage.store(keys)
    damage(stage.kv, keys[7])
    assert stage.restore(keys).state is StageState.DONE
    assert 7 in stage.computed


def test_a_stage_that_can_have_neither_says_where() -> None:
    stage = Stage()
    keys = chain(*range(PAGES))
    stage.store(keys)
    damage(stage.kv, keys[9])
    damage(stage.boundary, keys[9])
    restore = stage.restore(keys)
    assert (restore.state, restore.restored) == (StageState.STUCK, 9)
    assert restore.next_move() is None


def test_a_stage_that_holds_nothing_is_stuck_at_the_start() -> None:
    restore = Stage().restore(chain(*range(PAGES)))
    assert (restore.state, restore.restored) == (StageState.STUCK, 0)


def test_an_empty_prefix_is_done_at_once() -> None:
    restore = StageRestore(make_stack(space=KV), make_stack(space=BOUNDARY), [])
    assert (restore.state, restore.next_move()) == (StageState.DONE, None)


@pytest.mark.parametrize("room", [1, 2, CHUNK, (AHEAD + 1) * CHUNK])
def test_little_room_for_boundary_pages_makes_it_load_more_but_not_fail(room: int) -> None:
    stage = Stage()
    keys = chain(*range(PAGES))
    stage.store(keys)
    stage.forget(stage.kv, stage.boundary)
    stage.boundary.host.limit_slots = room
    assert stage.restore(keys).state is StageState.DONE


def test_an_aborted_restore_gives_everything_back() -> None:
    stage = Stage()
    keys = chain(*range(PAGES))
    stage.store(keys)
    stage.forget(stage.kv, stage.boundary)
    restore = StageRestore(stage.kv, stage.boundary, keys)
    limit = time.monotonic() + PATIENCE
    while restore.next_move() is None:
        assert time.monotonic() < limit
        time.sleep(0.0005)
    restore.close()
    restore.close()
    assert restore.next_move() is None
    check_quiet(stage.kv)
    check_quiet(stage.boundary)


@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_whatever_is_damaged_or_forgotten_no_page_is_made_from_wrong_bytes(data: st.DataObject) -> None:
    stage = Stage(data.draw(st.sampled_from(["token-wise", "load", "recompute"])))
    keys = chain(*range(PAGES))
    pages = st.integers(0, PAGES - 1)
    stage.store(keys, boundaries=data.draw(st.integers(0, PAGES)))
    forgotten: dict[Any, bool] = {stack: data.draw(st.booleans()) for stack in (stage.kv, stage.boundary)}
    stage.forget(*(stack for stack, gone in forgotten.items() if gone))
    for stack, gone in forgotten.items():
        for page in set() if gone else data.draw(st.sets(pages, max_size=3)):
            if stack.table.find(stack.digest, keys[page]) is not None:
                damage(stack, keys[page])
    restore = stage.restore(keys)
    assert restore.state in (StageState.DONE, StageState.STUCK)
    assert (restore.state is StageState.DONE) == (restore.restored == PAGES)
    end_all()
