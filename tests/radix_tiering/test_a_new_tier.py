"""A tier that nothing in the project knows of: what a stack makes of it, and what operators see, without a change.

It is `ModelTier`, under the name "attic", handed to the stack as any other.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.base.slot_map import SlotState
from swift_tiers.radix_tiering.bus.contract.commands import CapTier, OrderTier
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.testing.model_tier import ModelTier
from swift_tiers.radix_tiering.way.observing import tier_map

from support.engine import (
    GEOMETRY,
    chain,
    check,
    content,
    copy_of,
    get,
    make_stack,
    memory_ssd,
    obey,
    put,
    settle,
    wait_until,
)
from support.publishing import bus_config, make_publisher, wait_published
from support.redis import RealRedis
from support.telemetry import MadeUp

PAGE = GEOMETRY.page_bytes


def with_attic(host_pages: int = 4, pages: int = 32, *, ssd: bool = False, lent: ModelPeer | None = None):
    """A stack with it beneath host memory, and beneath whatever else there is."""
    below = memory_ssd() if ssd else None
    attic = ModelTier("attic", PAGE, pages, **({"fingerprint": below.fingerprint} if below is not None else {}))
    return make_stack(host_pages, below, lent=lent, others=[attic]), attic


def quiet(stack) -> None:
    stack.restorer.wait_idle()
    with stack.table.lock:
        assert all(mover.wait_idle(20) for mover in stack.movers.values())
    assert stack.errands.wait_idle(20)


def filled(stack):
    """A sequence that has left host memory for another one."""
    keys = chain("a", 1, 2)
    for names in (keys, chain("b", 1, 2)):
        put(stack, names)
        quiet(stack)
    return keys


def test_pages_go_there_and_come_back() -> None:
    stack, _ = with_attic()
    keys = filled(stack)
    assert not stack.table.find(stack.digest, keys[-1]).resident
    restore = settle(stack, stack.restore(keys))
    assert restore.found()[-1] == "attic"
    stack.restorer.release(restore)
    assert get(stack, keys) == 3
    check(stack)


@pytest.mark.parametrize("ssd", [False, True])
def test_a_damaged_page_is_a_miss_or_comes_from_elsewhere(ssd: bool) -> None:
    stack, attic = with_attic(ssd=ssd)
    keys = filled(stack)
    with stack.table.lock:
        page = stack.table.find(stack.digest, keys[-1])
        attic.damage(copy_of(stack, page, "attic").place)
    if ssd:
        with stack.table.lock:  # so that the attic is asked
            stack.table.lose(page, stack.table.named("ssd").number)
    assert get(stack, keys) == 2
    assert stack.snapshot().tiers["attic"].checksum_failures == 1
    (event,) = [event for event in stack.events.since() if event.kind == "page.corrupt"]
    assert (event.fields["tier"], event.fields["reason"]) == ("attic", "corrupt: checksum")
    check(stack)


def test_what_it_has_lost_is_promised_to_nobody_and_written_again() -> None:
    stack, attic = with_attic()
    keys = filled(stack)
    attic.lose_all()
    wait_until(lambda: stack.probe(keys) < 3, "what it has lost is promised", stack)
    get(stack, keys)
    assert get(stack, chain("b", 1, 2)) == 3, "memory has it, and writes it again"
    check(stack)


def test_operators_order_what_it_alone_can_do() -> None:
    stack, _ = with_attic()
    keys = filled(stack)
    assert obey(stack, OrderTier(tier="attic", order="lose")) == "everything is lost"
    wait_until(lambda: stack.probe(keys) < 3, "what it has lost is promised", stack)
    [event] = [event for event in stack.events.since() if event.kind == "model.emptied"]
    assert event.fields["tier"] == "attic"
    for tier, order, argument, why in (
        ("host", "drain", "", "order: host has no orders; flush and cap-tier are what it obeys"),
        ("attic", "drain", "", "order: attic has none called drain; it has: lose"),
        ("attic", "lose", "all", "lose: takes no argument, and not 'all'"),
        ("cellar", "lose", "", "this server has no cellar tier"),
    ):
        assert str(obey(stack, OrderTier(tier=tier, order=order, argument=argument))) == why
    check(stack)


def test_who_is_worth_less_leaves_for_what_comes() -> None:
    stack, _ = with_attic(host_pages=4, pages=6)
    for number in range(6):
        put(stack, chain(f"sequence {number}", 1, 2))
        quiet(stack)
        with stack.table.lock:
            check_rules(stack.table)
    assert stack.snapshot().tiers["attic"].evictions > 0
    assert get(stack, chain("sequence 5", 1, 2)) == 3
    check(stack)


def test_it_is_asked_after_nearer_tiers_and_before_nothing() -> None:
    peer = ModelPeer(PAGE)
    stack, _ = with_attic(lent=peer)
    lease = peer.lend(16)
    peer.settle()
    keys = filled(stack)
    with stack.table.lock:
        for page in stack.table.listed():
            stack.table.lose(page, HOST)
    restore = settle(stack, stack.restore(keys))
    assert restore.found() == ["peer"] * 3
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    peer.end(lease)
    quiet(stack)
    with stack.table.lock:
        for page in stack.table.listed():
            stack.table.lose(page, HOST)
    restore = settle(stack, stack.restore(keys))
    assert restore.found() == ["attic"] * 3
    stack.restorer.release(restore)
    check(stack)


def test_its_costs_are_learnt_and_plans_reckon_with_it() -> None:
    attic = ModelTier("attic", PAGE, 64)
    stack = make_stack(8, others=[attic], clock=time.monotonic)
    for number in range(8):
        put(stack, chain(f"sequence {number}", *range(7)))
        quiet(stack)
    for number in range(8):
        get(stack, chain(f"sequence {number}", *range(7)))
    assert stack.planner.page_seconds("attic") is not None
    check(stack)


def test_an_operator_caps_it() -> None:
    stack, _ = with_attic(host_pages=8)
    put(stack, chain("a", *range(5)))
    quiet(stack)
    assert "2 pages" in str(obey(stack, CapTier(tier="attic", limit=4 * PAGE)))
    assert stack.snapshot().tiers["attic"].pages == 4
    assert stack.snapshot().tiers["attic"].limit_bytes == 4 * PAGE
    assert "no loft tier" in str(obey(stack, CapTier(tier="loft", limit=PAGE)))
    check(stack)


def test_its_slots_are_shown() -> None:
    stack, _ = with_attic()
    filled(stack)
    states = tier_map(stack, "attic", time=1.0).states
    assert (states == SlotState.CACHED).sum() == stack.snapshot().tiers["attic"].pages == 6
    check(stack)


def test_the_bus_tells_of_it() -> None:
    stack, _ = with_attic()
    keys = filled(stack)
    get(stack, keys)
    telemetry = MadeUp()
    telemetry.tiers = stack.snapshot()
    with RealRedis(None) as redis:
        publisher = make_publisher(bus_config(redis.url), telemetry)
        publisher.start()
        try:
            wait_published(redis)
            with BusReader(redis.client()) as reader:
                (tier,) = [tier for tier in reader.tiers("alpha") if tier.tier == "attic"]
                names = {link.link for link in reader.links("alpha")}
        finally:
            publisher.close()
    assert (tier.pages, tier.capacity_bytes) == (6, 32 * PAGE)
    assert tier.bytes_read
    assert {"host-attic", "attic-host"} <= names
    check(stack)


def test_what_is_put_behind_it_in_one_go_is_written_in_one_go() -> None:
    """A tier is given batches, not pages."""
    stack, attic = with_attic(host_pages=16)
    batches = []
    write = attic.write
    attic.write = lambda writes: (batches.append(len(writes)), write(writes))  # type: ignore[method-assign]
    keys = chain(*range(8))
    with stack.table.lock:
        stack.movers["attic"].waits_for.add("the test")
    put(stack, keys, ROOT_KEY, 1)
    with stack.table.lock:
        stack.movers["attic"].waits_for.clear()
        stack.movers["attic"].pump()
    quiet(stack)
    assert batches == [8]
    for key in keys:
        page = stack.table.find(stack.digest, key)
        assert np.array_equal(stack.host.page(page.slot), content(key))
    check(stack)
