"""The page table grows, and there is no memory for it: what was begun is refused, and nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

import pytest

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table import rows
from swift_tiers.radix_tiering.table.rows import PageRows
from swift_tiers.radix_tiering.tiers.testing.model_engine import ModelStore
from swift_tiers.radix_tiering.way.request_restore import Readiness

from support.engine import GEOMETRY, chain, check, forget_all, get, make_stack, memory_ssd, put, wait_until
from support.remote import remote_stack, run_of, wait_sent


class Memory:
    """What page tables grow in."""

    def __init__(self) -> None:
        self.random = Random(0)
        self.fails = 0.0  # how probably a table does not get it
        self.failed = 0

    @contextmanager
    def lacking(self, share: float = 1.0) -> Iterator[None]:
        """There is none for so large a share of those that ask."""
        self.fails = share
        try:
            yield
        finally:
            self.fails = 0.0


@pytest.fixture
def memory(monkeypatch) -> Memory:
    """Tables begin small, and ask for each row more: nothing has to be large for them to find none."""
    memory, make_room = Memory(), PageRows.make_room

    def asks(self: PageRows, rows: int) -> None:
        if memory.random.random() < memory.fails:
            memory.failed += 1
            raise MemoryError("no memory for more rows")
        make_room(self, rows)

    monkeypatch.setattr(rows, "LEAST_ROWS", 8)
    monkeypatch.setattr(PageRows, "make_room", asks)
    return memory


def test_slots_and_the_prefix_are_given_back(memory: Memory) -> None:
    stack = make_stack(host_pages=8)
    keys = chain(*range(4))
    put(stack, keys)
    with memory.lacking():
        refused = stack.intake.begin(chain(*range(4), *"more")[4:], keys[-1], 5)
    assert (refused.pages, refused.refused) == ([], 4)
    assert (stack.host.used_slots, stack.table.pinned_pages) == (4, 0)
    check(stack)


def test_pages_that_a_restore_has_claimed_are_pinned_whatever_follows(memory: Memory) -> None:
    """Were they not, giving them back would leave them with less than no pin, and the next to restore them would have
    them evicted while they are copied."""
    store = ModelStore()
    first, keys = remote_stack(store), run_of("seq", 2)
    put(first, keys)
    wait_sent(first)
    stack = remote_stack(store)
    put(stack, keys[:2])
    asked = 0

    def comes_to_an_end(self: PageRows, rows: int) -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise MemoryError("no memory for more rows")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PageRows, "make_room", comes_to_an_end)
        restore = stack.restore(keys)
        wait_until(lambda: stack.restorer.poll(restore) is not Readiness.WAIT, "the restore", stack)
    assert asked >= 3
    assert all(page.pins for page in restore.claimed)
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    assert min(page.pins for page in stack.table.all_pages()) == 0
    assert get(stack, keys) == len(keys)
    check(stack)


def some_pages(random: Random) -> list[bytes]:
    """One of a few conversations, as far as it has come."""
    return chain(random.randrange(3), *range(random.randrange(1, 12)))


def live(stack: TierStack, memory: Memory, random: Random, steps: int) -> None:
    """Prompts come and go, and now and then there is no memory."""
    for _ in range(steps):
        keys, does = some_pages(random), random.choice(("computed", "restored", "forgotten", "offered"))
        with memory.lacking(random.choice((0.0, 0.3))), suppress(MemoryError):
            if does == "computed":
                put(stack, keys)
            elif does == "restored":
                restore = stack.restore(keys)
                wait_until(lambda restore=restore: stack.restorer.poll(restore) is not Readiness.WAIT, "it", stack)
                assert all(page.pins > 0 for page in restore.claimed)
                stack.restorer.release(restore)
            elif does == "forgotten":
                stack.flush("memory")
            else:
                stack.intake.abort(stack.intake.begin(keys, ROOT_KEY, 1))
        if isinstance(peer := stack.tiers.get("peer"), ModelPeer):
            peer.settle()  # it answers when it is told to


def new_server(kind: str, runner: Runner) -> TierStack:
    """One with host memory for fewer pages than there are, and this tier beneath it."""
    match kind:
        case "lent":
            peer = ModelPeer(GEOMETRY.page_bytes, runner=runner)
            stack = make_stack(host_pages=16, lent=peer, runner=runner)
            peer.lend(64, "d1")
            return stack
        case "remote":
            return remote_stack(ModelStore(runner=runner), host_pages=16, runner=runner)
        case "ssd":
            return make_stack(host_pages=16, ssd=memory_ssd(runner=runner), runner=runner)
        case _:
            return make_stack(host_pages=16, runner=runner)


@pytest.mark.parametrize("kind", ["host", "ssd", "lent", "remote"])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_and_what_is_promised_is_pinned(memory: Memory, kind: str, seed: int) -> None:
    runner = VirtualRunner(seed, stall=0.0, most_seconds=1000.0)

    def lives() -> None:
        stack = new_server(kind, runner)
        live(stack, memory, memory.random, 100)
        keys = some_pages(memory.random)
        put(stack, keys)
        assert get(stack, keys) == len(keys), "it serves as before"
        check(stack)

    memory.random = Random(seed)
    try:
        runner.run(lives)
    finally:
        forget_all()
    assert memory.failed
