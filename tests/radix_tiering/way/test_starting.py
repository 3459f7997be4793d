"""Who starts a restore: whoever asks for it, where that takes a moment, else a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.ops.lab.torture.scenarios import pages_at_peers_alone
from swift_tiers.ops.lab.torture.taking import KnownCosts
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.page_table import PAGES_PER_HOLD
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.testing.model_engine import ModelStore
from swift_tiers.radix_tiering.way import up
from swift_tiers.radix_tiering.way.request_restore import Readiness

from support.engine import GEOMETRY, chain, check, close, make_stack, memory_ssd, put, settle
from support.remote import remote_stack, run_of, wait_sent


def waiting(stack: TierStack, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What its own thread is given to do from now on, and does not."""
    jobs: list[Callable[[], None]] = []
    monkeypatch.setattr(stack.restorer, "_jobs", SimpleNamespace(put=jobs.append))
    return jobs


@pytest.mark.parametrize("behind", [0, 3])
def test_what_is_in_host_memory_is_ready_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, behind: int) -> None:
    """A scheduler looks next in the same round; its thread would not have had the interpreter by then."""
    stack = make_stack(host={"verify": "beside"})
    keys = chain(*"abcdefg")
    put(stack, keys[:4])
    jobs = waiting(stack, monkeypatch)
    restore = stack.restore(keys[: 4 + behind])
    assert (restore.under_way, restore.pages, jobs) == (False, 4, [stack.restorer._has_its_turn])
    assert stack.table.pinned_pages == 4
    monkeypatch.undo()
    stack.restorer.release(restore)


def test_a_store_that_would_not_be_asked_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a prefix is in host memory; where a part of it is not, the store's answer is waited for."""
    stack = remote_stack(ModelStore(), sections={"host": {"verify": "beside"}})
    keys = run_of("seq", 2)
    put(stack, keys)
    wait_sent(stack)
    waiting(stack, monkeypatch)
    whole = stack.restore(keys)
    assert (whole.under_way, whole.pages) == (False, len(keys))
    part = stack.restore(run_of("seq", 4))
    assert part.under_way
    monkeypatch.undo()
    stack.restorer.release(whole)
    stack.restorer.release(part)


def test_many_at_once_are_started_by_its_own_thread_until_that_has_had_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = make_stack(64, host={"verify": "beside"})
    keys = chain(*"abcd")
    put(stack, keys)
    monkeypatch.setattr(up, "AT_ONCE", 10)
    jobs = waiting(stack, monkeypatch)
    restores = [stack.restore(keys) for _ in range(4)]
    assert [restore.under_way for restore in restores] == [False, False, True, True]
    for job in jobs:
        job()
    jobs.clear()
    restores.append(stack.restore(keys))
    assert [restore.under_way for restore in restores] == [False] * 5
    monkeypatch.undo()
    for restore in restores:
        stack.restorer.release(restore)


def test_a_thread_that_has_its_turn_at_once_has_had_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before whoever asked it to has counted what that is for."""
    stack = make_stack(64, host={"verify": "beside"})
    keys = chain(*"abcd")
    put(stack, keys)
    monkeypatch.setattr(up, "AT_ONCE", 10)
    jobs: list[Callable[[], None]] = []

    def have_it_done(job: Callable[[], None]) -> None:
        jobs.append(job)
        job()

    monkeypatch.setattr(stack.restorer, "_jobs", SimpleNamespace(put=have_it_done))
    restores = [stack.restore(keys) for _ in range(4)]
    monkeypatch.undo()
    assert jobs == [stack.restorer._has_its_turn] * 4, "some were left to it"
    for restore in restores:
        stack.restorer.release(restore)


def test_what_tiers_want_of_it_is_left_to_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """To write pages, a tier may have to evict others: milliseconds."""
    stack = make_stack(ssd=memory_ssd(), host={"verify": "beside"})
    keys = chain(*"abcdef")
    stack.movers["ssd"].enabled = False
    put(stack, keys)
    offered: list[list[bytes]] = []
    monkeypatch.setattr(stack.movers["ssd"], "offer", lambda pages: offered.append([page.key for page in pages]))
    jobs = waiting(stack, monkeypatch)
    restore = stack.restore(keys[2:], keys[:2])
    assert (restore.under_way, offered) == (False, [])
    for job in jobs:
        job()
    while stack.restorer._uses:
        stack.restorer._go_on()
    assert offered == [keys]
    monkeypatch.undo()
    stack.restorer.release(restore)


@pytest.mark.parametrize("lands", [True, False])
def test_what_is_to_land_though_it_is_in_host_memory_is_read_by_its_own_thread(lands: bool) -> None:
    """Where landing is no faster, it is ready when it is asked for, as if nothing could land."""
    runner = VirtualRunner(0)

    def main() -> None:
        peer = ModelPeer(GEOMETRY.page_bytes, landing_slots=3, runner=runner)
        stack = make_stack(32, lent=peer, runner=runner, copies_beside=True)
        peer.lend(32)
        peer.settle()
        keys = chain(*range(16))
        pages_at_peers_alone(stack, peer, keys, keys)
        stack.planner.costs = KnownCosts(1e-3 if lands else 1.0)
        restore = stack.restore(keys, can_compute=True)
        assert (restore.under_way, restore.complete, peer.landings) == (lands, not lands, 0)
        while (readiness := stack.restorer.poll(restore)) is Readiness.WAIT:
            runner.sleep(1e-3)
        assert readiness is (Readiness.COMPUTE if lands else Readiness.READY)
        assert bool(peer.landings) is restore.drains is lands
        stack.restorer.release(restore)
        check(stack)
        close(stack)

    runner.run(main)


@pytest.mark.parametrize("why", ["many", "many before", "one is beneath", "verified first"])
def test_the_rest_is_started_by_its_own_thread(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    stack = make_stack(ssd=memory_ssd(), host={"verify": "beside" if why != "verified first" else True})
    keys = chain(*"abcdef")
    put(stack, keys)
    prefix = [b"p" * 32] if why == "many before" else []
    if why == "one is beneath":
        assert stack.wait_written(10)
        with stack.table.lock:
            last = stack.table.settled(stack.digest, keys[-1])
            assert last is not None
            stack.table.lose(last, HOST)
    elif why.startswith("many"):
        monkeypatch.setattr(up, "AT_ONCE", 6 - (why == "many"))
    jobs = waiting(stack, monkeypatch)
    restore = stack.restore(keys, prefix)
    assert (restore.under_way, len(jobs)) == (True, 1)
    monkeypatch.undo()
    jobs[0]()
    settle(stack, restore)
    assert restore.pages == 6
    stack.restorer.release(restore)


def test_who_waits_comes_before_uses_that_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prefix that the device has costs its requests nothing but a use; others wait for their pages."""
    monkeypatch.setattr(up, "USES_PER_HOLD", 2)
    monkeypatch.setattr(up, "AT_ONCE", 0)
    runner, requests = VirtualRunner(0), 20

    def main() -> None:
        stack = make_stack(64, runner=runner)
        keys, wanted = chain(*range(16)), chain(*range(100, 104))
        for some in (keys, wanted):
            put(stack, some)
        last = stack.table.settled(stack.digest, keys[-1])
        assert last is not None
        for _ in range(requests):
            stack.restorer.nothing([b"q" * 32], keys)
        restore = stack.restore(wanted)
        while stack.restorer.poll(restore) is Readiness.WAIT:
            runner.sleep(1e-6)
        assert restore.pages == len(wanted)
        assert last.uses < requests, "all uses were counted before anything was done for who waits"
        stack.restorer.wait_idle()
        assert last.uses == 1 + requests
        stack.restorer.release(restore)
        check(stack)
        close(stack)

    runner.run(main)


def test_a_use_offers_few_pages_in_one_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though many are counted in one: whoever offers looks at each."""
    stack = make_stack(400, ssd=memory_ssd())
    keys = chain(*range(300))
    stack.movers["ssd"].enabled = False
    put(stack, keys)
    offered: list[int] = []
    monkeypatch.setattr(stack.movers["ssd"], "offer", lambda pages: offered.append(len(pages)))
    stack.restorer.used(keys)
    stack.restorer.wait_idle()
    assert sum(offered) == len(keys)
    assert max(offered) == PAGES_PER_HOLD


def test_uses_that_nobody_has_time_for_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "MOST_USES", 3)
    stack = make_stack()
    keys = chain(*"abcd")
    put(stack, keys)
    last = stack.table.settled(stack.digest, keys[-1])
    assert last is not None
    jobs = waiting(stack, monkeypatch)
    for _ in range(5):
        stack.restorer.nothing([b"q" * 32], keys)
    for job in jobs:
        job()
    while stack.restorer._uses:
        stack.restorer._go_on()
    assert last.uses == 1 + up.MOST_USES
    assert stack.table.of[HOST].counters.misses == 5, "who was refused a use has missed its page all the same"


def test_an_error_is_told_and_costs_whoever_asks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = make_stack(host={"verify": "beside"})
    keys = chain(*"abcd")
    put(stack, keys)

    def fails(*_: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(stack.restorer, "_claim", fails)
    restore = stack.restore(keys)
    monkeypatch.undo()
    assert [event.kind for event in stack.events.since() if event.kind == "restore.error"] == ["restore.error"]
    settle(stack, restore)
    assert restore.pages == 0
    stack.restorer.release(restore)
    assert stack.table.of[HOST].counters.checksum_failures == 0
