"""What operators command: pins, limits, policies, drops, drains. What it does, and what is refused."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.bus.contract.commands import (
    CapLending,
    CapTier,
    CommandRefusedError,
    DrainDevice,
    Drop,
    Flush,
    Pin,
    PinLease,
    ReadmitDevice,
    RecallLeases,
    SetPolicy,
    Unpin,
    UnpinLease,
)
from swift_tiers.radix_tiering.bus.contract.records import tier_record
from swift_tiers.radix_tiering.bus.speak.steering import carry_out
from swift_tiers.radix_tiering.figures.counters import NO_LATENCY
from swift_tiers.radix_tiering.table.page_table import PAGES_PER_HOLD
from swift_tiers.radix_tiering.tiers.ssd import Operation
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.way.request_restore import RestoreState

from support.engine import (
    Clock,
    busy_errands,
    chain,
    check,
    content,
    get,
    make_stack,
    memory_ssd,
    namespace,
    obey,
    put,
    refusal,
    settle,
)
from support.faulty_array import Fail, Fault, FaultyArray
from support.lease_hand import BORROWER, Both
from support.lease_hand import PAGE as LEASE
from support.redis import wait_for
from support.silent import SilentArray

PAGE = 4096


def kinds(stack) -> list[str]:
    return [event.kind for event in stack.events.since() if not event.kind.startswith("ssd.")]


def last(stack, kind: str) -> dict:
    return [event.fields for event in stack.events.since() if event.kind == kind][-1]


# ---- flush and drop ----


def test_a_flush_of_host_memory_leaves_what_is_on_ssd() -> None:
    stack = make_stack(ssd=memory_ssd())
    keys = chain(*"abc")
    put(stack, keys)
    stack.wait_written(10)
    assert obey(stack, Flush()) == "3 pages forgotten in host memory"
    assert stack.snapshot().tiers["ssd"].only_pages == 3
    assert obey(stack, Flush()) == "0 pages forgotten in host memory", "those on ssd only are none of them"
    assert obey(stack, Flush(tiers="all")) == "3 pages forgotten in every tier below the device"
    assert stack.snapshot().directory.pages == 0
    assert get(stack, keys) == 0
    assert kinds(stack) == ["tiers.flushed"] * 3
    check(stack)


def test_a_flush_survives_a_crash() -> None:
    array = MemoryArray([2**20] * 2, seed=3)
    stack = make_stack(ssd=memory_ssd(array=array))
    keys = chain(*"abc")
    put(stack, keys)
    stack.wait_written(10)
    obey(stack, Flush(tiers="all"))
    again = make_stack(ssd=memory_ssd(array=MemoryArray.from_images(array.images)))
    assert get(again, keys) == 0


@pytest.mark.parametrize(
    ("command", "told"),
    [(Pin, "is not held below the device"), (Unpin, "is not pinned"), (Drop, "0 pages forgotten")],
)
def test_a_page_that_leaves_before_its_command_is_begun(command: Any, told: str) -> None:
    """Commands wait for each other, and pages do not wait for them."""
    stack, keys, outcomes = make_stack(), chain(*"abc"), list[str]()
    put(stack, keys)
    with busy_errands(stack):
        carry_out(stack, command(page=keys[1].hex()), lambda outcome: outcomes.append(str(outcome)))
        with stack.table.lock:
            page = stack.table.find(stack.digest, keys[1])
            assert page is not None
            stack.table.drop(page)
            stack.table.clean_up()
        assert page.gone
    wait_for(lambda: outcomes)
    assert told in outcomes[0]
    check(stack)


@pytest.mark.parametrize("begun", ["offered", "written"])
def test_what_comes_in_while_all_is_flushed_does_not_come_back_after_a_crash(begun: str) -> None:
    """The devices have been told of the flush, and the pages are not gone from the table: whoever cleans it up does
    something else, as it does with many of them. What was begun before ends now."""
    array = SilentArray(MemoryArray([2**20] * 2, seed=3))
    stack = make_stack(ssd=memory_ssd(array=array), runner=THREADS)
    put(stack, chain("before"))
    assert stack.wait_written(60)
    keys = chain(*"abc")
    with busy_errands(stack):
        offered = stack.intake.begin(keys, ROOT_KEY, 1)
        for index, slot in zip(offered.indices, offered.slots, strict=True):
            stack.host.page(slot)[:] = content(keys[index])
        if begun == "written":
            for device in range(2):
                array.silence(device, Operation.WRITE)
            stack.intake.commit(offered)
            wait_for(lambda: array.swallowed)
            array.hear()
        flushing = stack.flush_steps("all")
        next(flushing)
        if begun == "offered":
            stack.intake.commit(offered)
        array.answer()
        assert stack.wait_written(60)
        images = [image.copy() for image in array.inner.images]
    for _ in flushing:
        pass
    check(stack)
    told = [event.kind for event in stack.events.since()]
    assert "ssd.write_failed" not in told, "a write that was flushed has not failed"
    again = make_stack(ssd=memory_ssd(array=MemoryArray.from_images(images)))
    assert get(again, keys) == 0


def test_a_flush_that_no_device_could_write_down_says_so() -> None:
    array = FaultyArray(MemoryArray([2**20] * 2, seed=3))
    stack = make_stack(ssd=memory_ssd(array=array))
    put(stack, chain(*"abc"))
    stack.wait_written(10)
    array.add(Fault(Fail(), operation=Operation.WRITE))
    assert obey(stack, Flush(tiers="all")) == (
        "3 pages forgotten in every tier below the device; "
        "no device could write this down: a restart may find some again"
    )
    assert stack.snapshot().directory.pages == 0
    check(stack)


def test_a_dropped_page_takes_all_that_follows_it() -> None:
    stack = make_stack(host_pages=32, ssd=memory_ssd())
    long, branch, other = chain(*"abcdef"), chain(*"abcxy"), chain(*"az")
    for keys in (long, branch, other):
        put(stack, keys)
    stack.wait_written(10)
    assert obey(stack, Drop(page=long[2].hex())) == "6 pages forgotten"
    assert stack.probe(long) == stack.probe(branch) == 2
    assert stack.probe(other) == 2
    assert last(stack, "prefix.dropped") == {"page": long[2].hex(), "pages": 6}
    check(stack)
    assert put(stack, long) == 4
    assert get(stack, long) == 6


def test_dropping_a_sequence_of_many_steps_takes_all_of_it() -> None:
    pages = 3 * PAGES_PER_HOLD + 5
    stack = make_stack(host_pages=pages)
    put(stack, chain(*range(pages)))
    assert obey(stack, Drop(page=chain(0)[0].hex())) == f"{pages} pages forgotten"
    assert stack.snapshot().directory.pages == 0
    assert stack.host.used_slots == 0


def test_pages_that_a_request_holds_are_dropped_when_it_is_done() -> None:
    stack = make_stack()
    keys = chain(*"abc")
    put(stack, keys)
    restore = settle(stack, stack.restore(keys))
    assert obey(stack, Drop(page=keys[1].hex())) == "2 pages forgotten"
    assert stack.probe(keys) == 1, "nobody else gets them"
    assert stack.host.used_slots == 3
    assert (stack.host.page(int(restore.slots[2])) == content(keys[2])).all()
    stack.restorer.release(restore)
    check(stack)
    assert stack.host.used_slots == 1


@pytest.mark.parametrize("command", [Pin, Unpin, Drop])
def test_a_page_that_is_not_held_is_refused(command) -> None:
    stack = make_stack()
    key = chain("a")
    assert "is not held below the device" in refusal(stack, command(page=key[0].hex()))
    offered = stack.intake.begin(key, ROOT_KEY, 1)
    assert "is not held below the device" in refusal(stack, command(page=key[0].hex())), "it is not there yet"
    stack.intake.abort(offered)
    assert kinds(stack) == []


# ---- pins ----


def test_a_pinned_prefix_is_not_evicted_from_host_memory() -> None:
    stack = make_stack(host_pages=8)
    pinned = chain(*"abcd")
    put(stack, pinned)
    assert obey(stack, Pin(page=pinned[2].hex())) == "3 pages pinned"
    assert stack.snapshot().tiers["host"].pinned_pages == 3
    assert last(stack, "prefix.pinned") == {"page": pinned[2].hex(), "pages": 3}
    for name in range(5):
        put(stack, chain(f"new {name}", *range(4)))
    assert stack.probe(pinned) == 3
    assert get(stack, pinned) == 3
    check(stack)
    assert obey(stack, Unpin(page=pinned[2].hex())) == "unpinned"
    assert stack.snapshot().tiers["host"].pinned_pages == 0
    put(stack, chain("last", *range(7)))
    assert stack.probe(pinned) == 0
    check(stack)


def test_a_pinned_prefix_is_not_evicted_from_ssd() -> None:
    stack = make_stack(host_pages=16, ssd=memory_ssd(devices=1, size=300_000))
    room = stack.tiers["ssd"].stripes.capacity_units
    pinned = chain(*"abc")
    put(stack, pinned)
    stack.wait_written(10)
    stack.flush("memory")
    obey(stack, Pin(page=pinned[2].hex()))
    tiers = stack.snapshot().tiers
    assert (tiers["host"].pinned_pages, tiers["ssd"].pinned_pages) == (0, 3)
    for name in range(room):
        put(stack, chain(name))
        stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].evictions > 0
    assert stack.page_facts(pinned[2]).ssd_placement
    assert get(stack, pinned) == 3
    check(stack)
    assert stack.page_facts(pinned[0]).pins == 1
    tiers = stack.snapshot().tiers
    assert (tiers["host"].pinned_pages, tiers["ssd"].pinned_pages) == (3, 3)


def test_pins_are_taken_back_one_by_one_where_their_paths_join() -> None:
    stack = make_stack(host_pages=64)
    trunk = chain(*"abcd")
    left, right = chain(*"abcdl"), chain(*"abcdrr")
    put(stack, left)
    put(stack, right)
    for keys, count in ((left, 5), (right, 7), (trunk, 7)):
        obey(stack, Pin(page=keys[-1].hex()))
        assert stack.snapshot().tiers["host"].pinned_pages == count
        check(stack)
    assert obey(stack, Pin(page=left[-1].hex())) == "it was pinned already"
    for keys, count in ((right, 5), (left, 4), (trunk, 0)):
        obey(stack, Unpin(page=keys[-1].hex()))
        assert stack.snapshot().tiers["host"].pinned_pages == count
        check(stack)


def test_a_long_prefix_is_pinned_and_unpinned_as_a_whole() -> None:
    pages = 5 * PAGES_PER_HOLD + 3
    stack = make_stack(host_pages=3 * pages)
    keys = chain(*range(pages))
    put(stack, keys)
    stop = keys[2 * PAGES_PER_HOLD - 1]  # where a step ends: a pin of its own must survive the longer one
    obey(stack, Pin(page=stop.hex()))
    assert obey(stack, Pin(page=keys[-1].hex())) == f"{pages} pages pinned"
    assert stack.snapshot().tiers["host"].pinned_pages == pages
    check(stack)
    obey(stack, Unpin(page=keys[-1].hex()))
    assert stack.snapshot().tiers["host"].pinned_pages == 2 * PAGES_PER_HOLD
    check(stack)
    obey(stack, Pin(page=keys[-1].hex()))
    obey(stack, Unpin(page=stop.hex()))
    assert stack.snapshot().tiers["host"].pinned_pages == pages
    obey(stack, Unpin(page=keys[-1].hex()))
    assert stack.snapshot().tiers["host"].pinned_pages == 0
    check(stack)


def test_unpinning_what_is_not_pinned_is_refused() -> None:
    stack = make_stack()
    keys = chain(*"abc")
    put(stack, keys)
    obey(stack, Pin(page=keys[2].hex()))
    assert "is not pinned" in refusal(stack, Unpin(page=keys[1].hex())), "it is only on the way to a pinned one"
    obey(stack, Unpin(page=keys[2].hex()))
    assert "is not pinned" in refusal(stack, Unpin(page=keys[2].hex()))
    assert kinds(stack) == ["prefix.pinned", "prefix.unpinned"]


def test_operators_cannot_pin_more_than_half_of_host_memory() -> None:
    stack = make_stack(host_pages=8)
    put(stack, chain(*"abcde"))
    why = refusal(stack, Pin(page=chain(*"abcde")[4].hex()))
    assert "5 more pages would be pinned" in why
    assert "at most 4 may be" in why
    obey(stack, Pin(page=chain(*"abc")[2].hex()))
    put(stack, chain(*"ax"))
    assert obey(stack, Pin(page=chain(*"ax")[1].hex())) == "2 pages pinned", "one of them was pinned already"
    put(stack, chain(*"ay"))
    assert "1 more pages would be pinned with it, 4 are" in refusal(stack, Pin(page=chain(*"ay")[1].hex()))
    check(stack)


def test_requests_still_come_up_beside_pins() -> None:
    """Restores that nobody has asked for yet begin while they leave half of what operators do not keep."""
    stack = make_stack(host_pages=16)
    pinned = chain(*range(8))
    put(stack, pinned)
    obey(stack, Pin(page=pinned[-1].hex()))
    keys = chain("x", 1, 2, 3)
    put(stack, keys)
    restore = stack.restore(keys)
    stack.restorer.wait_idle()
    assert restore.state is RestoreState.READY
    stack.restorer.release(restore)
    check(stack)


@pytest.mark.parametrize(
    "end",
    [
        lambda stack, keys: obey(stack, Drop(page=keys[0].hex())),
        lambda stack, keys: obey(stack, Flush(tiers="all")),
        lambda stack, keys: stack.change_namespace(namespace(weights="new")),
    ],
    ids=["drop", "flush", "weights"],
)
def test_nothing_is_left_of_a_pin_whose_page_has_gone(end) -> None:
    stack = make_stack(ssd=memory_ssd())
    keys = chain(*"abcd")
    put(stack, keys)
    stack.wait_written(10)
    obey(stack, Pin(page=keys[2].hex()))
    end(stack, keys)
    assert stack.errands.wait_idle(20)
    assert last(stack, "prefix.unpinned")["page"] == keys[2].hex()
    tiers = stack.snapshot().tiers
    assert (tiers["host"].pinned_pages, tiers["ssd"].pinned_pages) == (0, 0)
    assert not stack.table.operator_pins.pinned
    check(stack)


def test_a_damaged_page_goes_although_it_is_pinned() -> None:
    stack = make_stack()
    keys = chain(*"abcd")
    put(stack, keys)
    obey(stack, Pin(page=keys[3].hex()))
    page = stack.table.find(stack.namespace.digest(), keys[1])
    stack.host.page(page.slot)[7] ^= 1
    assert get(stack, keys) == 1
    assert stack.probe(keys) == 1
    check(stack)
    assert stack.snapshot().tiers["host"].pinned_pages == 0
    assert kinds(stack)[-3:] == ["prefix.unpinned", "restore.pages_lost", "restore.pages_lost"]


def test_a_flush_of_host_memory_leaves_the_pin_of_what_is_on_ssd() -> None:
    stack = make_stack(ssd=memory_ssd())
    keys = chain(*"abc")
    put(stack, keys)
    stack.wait_written(10)
    obey(stack, Pin(page=keys[2].hex()))
    obey(stack, Flush())
    assert stack.snapshot().tiers["ssd"].pinned_pages == 3
    assert obey(stack, Unpin(page=keys[2].hex())) == "unpinned"
    check(stack)


# ---- policy ----


def test_how_prefixes_come_back_can_be_changed() -> None:
    stack = make_stack()
    assert obey(stack, SetPolicy(field="restore.strategy", value="load")) == "restore.strategy: auto -> load"
    assert stack.planner.choice == "load"
    assert obey(stack, SetPolicy(field="restore.behind", value=4)) == "restore.behind: 3.0 -> 4.0"
    assert stack.restorer.behind == 4
    assert obey(stack, SetPolicy(field="restore.loads", value="by-need")) == "restore.loads: by-age -> by-need"
    assert not stack.restorer._turns.batch.by_age
    assert "restore.strategy: 'guess' is not one of" in refusal(
        stack, SetPolicy(field="restore.strategy", value="guess")
    )
    for field in ("ssd.throttle", "remote.throttle"):
        assert f"{field}: can be changed only where the server was started with it" in refusal(
            stack, SetPolicy(field=field, value="20MiB")
        )


def test_another_order_of_eviction_holds_for_pages_that_are_there() -> None:
    stack = make_stack(host_pages=6)
    often, lately = chain("often", 1, 2), chain("lately", 1, 2)
    put(stack, often)
    get(stack, often)
    get(stack, often)
    put(stack, lately)
    assert obey(stack, SetPolicy(field="eviction", value="lfu")) == "eviction: lru -> lfu"
    put(stack, chain("new"))
    assert (stack.probe(often), stack.probe(lately)) == (3, 2)
    assert obey(stack, SetPolicy(field="eviction", value="lru")) == "eviction: lfu -> lru"
    put(stack, chain("newer"))
    assert (stack.probe(often), stack.probe(lately)) == (2, 2)
    assert obey(stack, SetPolicy(field="eviction", value="lru")) == "eviction was lru already"
    assert kinds(stack) == ["policy.changed", "policy.changed"]
    assert last(stack, "policy.changed") == {"field": "eviction", "old": "lfu", "new": "lru"}
    check(stack)


def test_only_another_eviction_has_pages_get_new_places_in_the_order_of_leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which takes as long as there are pages, while the scheduler waits."""
    stack, ordered = make_stack(ssd=memory_ssd()), list[str]()
    monkeypatch.setattr(type(stack.table), "change_eviction", lambda table, policy: ordered.append(policy.name))
    for field, value in (
        ("restore_deadline", "5s"),
        ("write", "back"),
        ("ssd_admission", "reuse"),
        ("flush_cache", "all"),
    ):
        obey(stack, SetPolicy(field=field, value=value))  # type: ignore[arg-type]
        assert ordered == [], field
    obey(stack, SetPolicy(field="eviction", value="lfu"))
    assert ordered == ["lfu"]


def test_another_admission_holds_from_the_next_page_on() -> None:
    stack = make_stack(ssd=memory_ssd())
    obey(stack, SetPolicy(field="ssd_admission", value="size"))
    obey(stack, SetPolicy(field="admission_tokens", value=12))
    put(stack, chain("short", 1))
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 0
    put(stack, chain("long", 1, 2))
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 3
    obey(stack, SetPolicy(field="ssd_admission", value="reuse"))
    obey(stack, SetPolicy(field="admission_uses", value=3))
    get(stack, chain("short", 1))
    stack.restorer.wait_idle()
    assert stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 3
    get(stack, chain("short", 1))
    stack.restorer.wait_idle()
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 5
    check(stack)


def test_writing_back_instead_of_through() -> None:
    stack = make_stack(host_pages=16, ssd=memory_ssd())
    obey(stack, SetPolicy(field="write", value="back"))
    put(stack, chain(*"abc"))
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 0, "there is room"
    obey(stack, SetPolicy(field="write", value="through"))
    put(stack, chain(*"xy"))
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 2


def test_another_deadline_holds_for_those_who_begin_to_wait() -> None:
    clock = Clock()
    stack = make_stack(clock=clock)
    put(stack, chain("a"))
    stack.restorer._start = lambda restore: None  # a worker that never comes to it
    waiting = stack.restore(chain("a"))
    assert not stack.restorer.poll(waiting)
    obey(stack, SetPolicy(field="restore_deadline", value="5s"))
    patient = stack.restore(chain("a"))
    assert not stack.restorer.poll(patient)
    clock.now += 3
    assert stack.restorer.poll(waiting)
    assert not stack.restorer.poll(patient)
    clock.now += 3
    assert stack.restorer.poll(patient)
    for restore in (waiting, patient):
        stack.restorer.release(restore)


def test_what_flush_cache_empties_can_be_changed() -> None:
    stack = make_stack()
    obey(stack, SetPolicy(field="flush_cache", value="all"))
    assert stack.config.policy.flush_cache == "all"


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("eviction", "fifo", "policy.eviction: 'fifo' is not one of"),
        ("write", 3, "policy.write"),
        ("admission_uses", 0, "policy.admission_uses"),
        ("admission_uses", "2", "policy.admission_uses"),
        ("admission_tokens", -1, "policy.admission_tokens"),
        ("restore_deadline", "soon", "is not a duration"),
        ("restore_deadline", "0s", "must be above zero"),
        ("flush_cache", "ssd", "policy.flush_cache: 'ssd' is not one of"),
    ],
)
def test_values_that_the_configuration_would_refuse_are_refused(field, value, why) -> None:
    stack = make_stack()
    before = stack.config
    assert why in refusal(stack, SetPolicy(field=field, value=value))
    assert stack.config == before
    assert kinds(stack) == []


# ---- limits ----


def test_a_capped_host_tier_gives_up_what_is_too_much_and_takes_no_more() -> None:
    stack = make_stack(host_pages=16)
    old, new = chain("old", *range(7)), chain("new", *range(7))
    put(stack, old)
    put(stack, new)
    assert (
        obey(stack, CapTier(tier="host", limit=10 * PAGE)) == "host of this rank holds at most 40KiB; 6 pages evicted"
    )
    assert (stack.probe(old), stack.probe(new)) == (2, 8)
    tier = stack.snapshot().tiers["host"]
    assert (tier.limit_bytes, tier.used_bytes, tier.capacity_bytes, tier.evictions) == (10 * PAGE, 10 * PAGE, 65536, 6)
    assert last(stack, "tier.capped") == {"tier": "host", "limit_bytes": 10 * PAGE}
    for name in range(4):
        put(stack, chain(name, *range(5)))
        assert stack.host.used_slots == 10
    check(stack)
    assert obey(stack, CapTier(tier="host")) == "host may use its whole capacity"
    put(stack, chain("more", *range(9)))
    assert stack.host.used_slots == 16
    assert stack.snapshot().tiers["host"].limit_bytes == 65536
    check(stack)


def test_limits_are_in_whole_pages_and_never_above_the_capacity() -> None:
    stack = make_stack(host_pages=16)
    obey(stack, CapTier(tier="host", limit=5 * PAGE + 100))
    assert stack.snapshot().tiers["host"].limit_bytes == 5 * PAGE
    obey(stack, CapTier(tier="host", limit="1GiB"))
    assert stack.snapshot().tiers["host"].limit_bytes == 16 * PAGE
    obey(stack, CapTier(tier="host", limit=0))
    assert put(stack, chain("a")) == 0
    check(stack)


def test_shrinking_by_many_steps_ends_at_the_limit() -> None:
    pages = 4 * PAGES_PER_HOLD
    stack = make_stack(host_pages=pages)
    put(stack, chain(*range(pages)))
    assert obey(stack, CapTier(tier="host", limit=PAGE)).endswith(f"{pages - 1} pages evicted")
    assert stack.host.used_slots == 1
    check(stack)


def test_what_requests_came_to_hold_while_a_tier_shrinks_leaves_with_them() -> None:
    stack = make_stack(host_pages=16)
    keys = chain(*range(8))
    put(stack, keys)
    shed, restores = stack.table.shed, []

    def request_comes_first(count):
        """Between the look at what is pinned and the first eviction."""
        stack.table.shed = shed
        for key in keys:
            stack.table.pin(stack.table.find(stack.digest, key))
        return shed(count)

    stack.table.shed = request_comes_first
    assert "leaves when they are done" in obey(stack, CapTier(tier="host", limit=4 * PAGE))
    restores.append(settle(stack, stack.restore(keys)))
    assert restores[0].pages == 8
    assert put(stack, chain("x")) == 0, "nothing comes in while there is too much"
    with stack.table.lock:
        for key in keys:
            stack.table.unpin(stack.table.find(stack.digest, key))
    assert stack.host.used_slots == 8, "the other request still holds them"
    stack.restorer.release(restores[0])
    check(stack)
    assert stack.host.used_slots == 4
    assert stack.probe(keys) == 4


@pytest.mark.parametrize("tier", ["host", "ssd"])
def test_a_limit_stands_on_the_bus_in_bytes(tier: str) -> None:
    stack = make_stack(host_pages=16, ssd=memory_ssd())
    obey(stack, CapTier(tier=tier, limit="32KiB"))
    assert tier_record(stack.snapshot().tiers[tier], NO_LATENCY, time=1.5)["limit_bytes"] == "32768"


def test_a_limit_above_what_a_rank_has_is_none() -> None:
    """Of a server of several ranks each has a part: half of it all may be more than that."""
    stack = make_stack(host_pages=16, ssd=memory_ssd())
    answer = "host of this rank has no more than 64KiB, and may use all of it"
    assert obey(stack, CapTier(tier="host", limit="128KiB")) == answer
    check(stack)


def test_a_capped_ssd_tier_gives_up_what_is_too_much_and_takes_no_more() -> None:
    stack = make_stack(host_pages=32, ssd=memory_ssd(unit=8192))
    old, new = chain("old", *range(7)), chain("new", *range(7))
    for keys in (old, new):
        put(stack, keys)
        stack.wait_written(10)
    assert obey(stack, CapTier(tier="ssd", limit=10 * 8192)) == "ssd of this rank holds at most 80KiB; 6 pages evicted"
    tier = stack.snapshot().tiers["ssd"]
    assert (tier.limit_bytes, tier.used_bytes, tier.pages, tier.evictions) == (10 * 8192, 10 * 8192, 10, 6)
    check(stack)
    for name in range(4):
        put(stack, chain(name, *range(3)))
        stack.wait_written(10)
        assert stack.snapshot().tiers["ssd"].used_bytes <= 10 * 8192
    assert stack.probe(chain(3, *range(3))) == 4
    stack.flush("memory")
    assert stack.probe(chain(3, *range(3))) == 4, "the newest are those that are kept"
    obey(stack, CapTier(tier="ssd"))
    tier = stack.snapshot().tiers["ssd"]
    assert tier.limit_bytes == tier.capacity_bytes
    check(stack)


def test_pages_that_only_host_memory_has_do_not_hold_the_ssd_tier_above_its_limit() -> None:
    """What follows a page that is on ssd alone would keep it there."""
    stack = make_stack(host_pages=32, ssd=memory_ssd())
    keys = chain(*"abcd")
    put(stack, keys[:2])
    stack.wait_written(10)
    stack.flush("memory")
    stack.movers["ssd"].enabled = False
    put(stack, keys[2:], parent=keys[1], depth=3)
    assert stack.snapshot().tiers["ssd"].only_pages == 2
    assert obey(stack, CapTier(tier="ssd", limit=PAGE)) == "ssd of this rank holds at most 4KiB; 1 pages evicted"
    assert stack.probe(keys) == 1, "no page outlives its prefix"
    check(stack)


def test_writes_under_way_count_against_the_limit() -> None:
    class Slow(MemoryArray):
        """Says nothing while it is held."""

        held = False

        def reap(self, at_least, timeout=None):
            return [] if self.held else super().reap(at_least, timeout)

    array = Slow([2**20] * 2, seed=2)
    stack = make_stack(host_pages=32, ssd=memory_ssd(array=array))
    obey(stack, CapTier(tier="ssd", limit=3 * PAGE))
    array.held = True
    put(stack, chain(*range(8)))
    assert stack.table.named("ssd").coming_bytes == 3 * PAGE
    array.held = False
    assert stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].used_bytes == 3 * PAGE
    assert stack.snapshot().tiers["ssd"].refusals["full"] > 0
    check(stack)


def test_a_limit_below_what_is_pinned_is_refused() -> None:
    stack = make_stack(host_pages=16, ssd=memory_ssd())
    keys = chain(*"abcdef")
    put(stack, keys)
    stack.wait_written(10)
    obey(stack, Pin(page=keys[3].hex()))
    for tier in ("host", "ssd"):
        why = refusal(stack, CapTier(tier=tier, limit=3 * PAGE))
        assert "12KiB is less than the 16KiB of the 4 pages that are pinned" in why
        obey(stack, CapTier(tier=tier, limit=4 * PAGE))
    assert stack.snapshot().directory.both_pages == 4
    assert stack.probe(keys) == 4
    check(stack)


@pytest.mark.parametrize("limit", ["much", -1, "8 bytes"])
def test_a_limit_that_is_no_size_is_refused(limit) -> None:
    stack = make_stack()
    assert "is not a size" in refusal(stack, CapTier(tier="host", limit=limit))
    assert stack.host.limit_slots == stack.host.slots


def test_without_an_ssd_tier_there_is_nothing_to_cap_or_drain() -> None:
    stack = make_stack()
    for command in (CapTier(tier="ssd", limit=0), DrainDevice(device=0)):
        assert "no ssd tier" in refusal(stack, command)


# ---- draining ----


def test_a_draining_device_serves_its_pages_and_gets_no_new_ones() -> None:
    stack = make_stack(host_pages=32, ssd=memory_ssd(devices=3))
    old = chain("old", *range(5))
    put(stack, old)
    stack.wait_written(10)
    before = stack.snapshot().devices[1]
    assert before.used_bytes > 0
    assert obey(stack, DrainDevice(device=1)) == "memory1 gets no new pages"
    put(stack, chain("new", *range(9)))
    stack.wait_written(10)
    drained = stack.snapshot().devices[1]
    assert (drained.service, drained.writes, drained.used_bytes) == ("draining", before.writes, before.used_bytes)
    stack.flush("memory")
    assert get(stack, old) == 6
    assert last(stack, "device.draining") == {"device": "memory1"}
    assert obey(stack, DrainDevice(device=1)) == "memory1 was draining already"
    check(stack)


def test_no_page_is_evicted_for_one_that_no_device_takes() -> None:
    stack = make_stack(host_pages=32, ssd=memory_ssd(devices=1))
    put(stack, chain("old", *range(5)))
    stack.wait_written(10)
    assert obey(stack, DrainDevice(device=0)) == "memory0 gets no new pages; no device is left that does"
    put(stack, chain("new", *range(5)))
    assert stack.wait_written(10)
    tier = stack.snapshot().tiers["ssd"]
    assert (tier.pages, tier.evictions, tier.refusals) == (6, 0, {"no device takes pages": 6})


def test_a_device_that_is_out_can_be_kept_out() -> None:
    array = FaultyArray(MemoryArray([2**20] * 2, seed=4))
    stack = make_stack(ssd=memory_ssd(array=array))
    assert refusal(stack, DrainDevice(device=2)) == "device: there is no device 2 here, only 0 to 1"
    array.add(Fault(Fail(), device=0, operation=Operation.WRITE))
    put(stack, chain(*"abcd"))
    stack.wait_written(10)
    text = "memory0 is out of service (write failed: EIO), and stays so until it is readmitted"
    assert obey(stack, DrainDevice(device=0)) == text


def test_a_drained_device_gets_new_pages_again_when_it_is_readmitted() -> None:
    stack = make_stack(host_pages=32, ssd=memory_ssd(devices=2))
    for device in (0, 1):
        obey(stack, DrainDevice(device=device))
    put(stack, chain("old", *range(5)))
    assert obey(stack, ReadmitDevice(device=1)) == "memory1 gets new pages again"
    wait_for(lambda: stack.snapshot().tiers["ssd"].pages == 6)  # what had waited is offered anew
    assert [device.used_bytes > 0 for device in stack.snapshot().devices] == [False, True]
    assert last(stack, "device.readmitted") == {"device": "memory1"}
    assert obey(stack, ReadmitDevice(device=1)) == "memory1 was in service already"
    check(stack)


def test_a_device_that_was_out_is_readmitted_with_nothing_on_it() -> None:
    array = FaultyArray(MemoryArray([2**20] * 2, seed=4))
    stack = make_stack(host_pages=32, ssd=memory_ssd(array=array))
    assert refusal(stack, ReadmitDevice(device=2)) == "device: there is no device 2 here, only 0 to 1"
    array.add(Fault(Fail(), device=0, operation=Operation.WRITE))
    old = chain(*"abcd")
    put(stack, old)
    stack.wait_written(10)
    wait_for(lambda: any(event.kind == "device.pages_lost" for event in stack.events.since()))
    refused = refusal(stack, ReadmitDevice(device=0))
    assert refused == ("device: memory0 is out of service and stays so: cannot be written (EIO)")
    array.clear()
    assert obey(stack, ReadmitDevice(device=0)) == "memory0 gets new pages again"
    assert [event.fields for event in stack.events.since() if event.kind == "device.back"] == [{"device": "memory0"}]
    put(stack, chain("new", *range(9)))
    stack.wait_written(10)
    assert stack.snapshot().devices[0].used_bytes > 0
    stack.flush("memory")
    assert get(stack, old) == 4
    assert get(stack, chain("new", *range(9))) == 10
    check(stack)


# ---- the end ----


def test_a_closed_stack_refuses() -> None:
    stack = make_stack()
    put(stack, chain("a"))
    stack.close()
    for command in (Flush(), SetPolicy(field="eviction", value="lfu"), Pin(page=chain("a")[0].hex())):
        assert refusal(stack, command) == "the server is ending"


def test_commands_under_way_are_answered_when_the_stack_closes() -> None:
    stack = make_stack(ssd=memory_ssd())
    entered, leave = threading.Event(), threading.Event()
    flush = stack.tiers["ssd"].stripes.flush_namespace

    def hang(digest):
        entered.set()
        assert leave.wait(20)
        return flush(digest)

    stack.tiers["ssd"].stripes.flush_namespace = hang
    outcomes: list[object] = []
    for command in (Flush(tiers="all"), Flush(), Flush()):
        carry_out(stack, command, outcomes.append)
    assert entered.wait(20)
    stack.close(timeout=0.1)
    assert [str(outcome) for outcome in outcomes] == ["the server is ending"] * 3
    assert all(isinstance(outcome, CommandRefusedError) for outcome in outcomes)
    leave.set()


def test_a_command_that_fails_inside_is_answered() -> None:
    stack = make_stack()
    keys = chain("a")
    put(stack, keys)
    put(stack, chain("b"))
    stack.table.clean_up = lambda count: 1 / 0
    assert "internal error: ZeroDivisionError" in refusal(stack, Drop(page=chain("b")[0].hex()))
    stack.table.find = lambda namespace, key: 1 / 0
    assert "internal error: ZeroDivisionError" in refusal(stack, Drop(page=keys[0].hex()))
    del stack.table.clean_up, stack.table.find
    assert obey(stack, Drop(page=keys[0].hex())) == "1 pages forgotten", "the next one is carried out"


def test_no_step_holds_the_lock_for_more_than_its_pages() -> None:
    """Others have their turn between the steps, however many pages a command is about."""
    pages = 6 * PAGES_PER_HOLD
    stack = make_stack(host_pages=2 * pages + 2)
    keys = chain(*range(pages))
    put(stack, keys)
    longest = before = 0
    table = stack.table

    class Watched:
        """Counts what changes while the lock is held."""

        def __init__(self, lock):
            self._lock = lock

        def __enter__(self):
            nonlocal before
            self._lock.acquire()
            before = table.changes

        def __exit__(self, *_):
            nonlocal longest
            longest = max(longest, table.changes - before)
            self._lock.release()

    table.lock = Watched(table.lock)
    for command in (
        Pin(page=keys[-1].hex()),
        Unpin(page=keys[-1].hex()),
        CapTier(tier="host", limit=pages // 2 * PAGE),
        Drop(page=keys[0].hex()),
    ):
        outcome = obey(stack, command)
        assert isinstance(outcome, str)
        assert 0 < longest <= 2 * PAGES_PER_HOLD, command
        longest = 0


# ---- leases ----


@pytest.fixture
def both() -> Iterator[Both]:
    """A lender whose three leases a borrower holds, which wants no more."""
    with tempfile.TemporaryDirectory(prefix="swift-lease-") as name:
        made = Both(Path(name))
        made.borrower.want(0)
        yield made
        made.close()


@pytest.fixture
def lending(both: Both):
    stack = make_stack()
    stack.lease_hand = both.lending
    return stack


OF_LEASES = (RecallLeases(leases="all"), PinLease(lease=1), UnpinLease(lease=1), CapLending(limit="1GiB"))


@pytest.mark.parametrize("command", OF_LEASES)
def test_who_does_not_lend_has_no_leases_to_command(command, both: Both) -> None:
    stack = make_stack()
    assert refusal(stack, command) == "this server does not lend; set peer.donate and start it again"
    stack.lease_hand = both.borrowing
    assert "does not lend" in refusal(stack, command), "it borrows only"
    assert kinds(stack) == []


def test_one_lease_is_recalled(lending, both: Both) -> None:
    first, *others = both.numbers()
    assert obey(lending, RecallLeases(leases=first)) == "1 leases recalled"
    wait_for(lambda: both.numbers() == others, "the return")
    assert last(lending, "lease.recalled") == {"leases": 1, "borrower": "", "reason": "command"}
    assert refusal(lending, RecallLeases(leases=first)).startswith(f"leases: {first} is not lent here, or recalled")


def test_all_leases_of_a_borrower_are_recalled(lending, both: Both) -> None:
    assert obey(lending, RecallLeases(leases="all", borrower="other.dp0-tp0")) == "0 leases recalled"
    number = both.numbers()[0]
    said = refusal(lending, RecallLeases(leases=number, borrower="other.dp0-tp0"))
    assert f"{number} is not lent to other.dp0-tp0 here" in said
    assert kinds(lending) == [], "nothing has happened"
    assert obey(lending, RecallLeases(leases="all", borrower=BORROWER)) == "3 leases recalled"
    wait_for(lambda: both.numbers() == [], "the return")


def test_a_pinned_lease_is_the_last_that_a_cap_takes(lending, both: Both) -> None:
    *others, youngest = both.numbers()
    assert obey(lending, PinLease(lease=youngest)) == "recalled last from now on"
    assert obey(lending, CapLending(limit=LEASE)) == "at most 256B are lent; what is beyond is recalled"
    wait_for(lambda: both.numbers() == [youngest], "the others' return")
    assert obey(lending, UnpinLease(lease=youngest)) == "recalled like others from now on"
    assert [view.pinned for view in both.lending.leases()] == [False]
    assert kinds(lending) == ["lease.pinned", "lending.capped", "lease.unpinned"]
    for command in (PinLease(lease=4711), UnpinLease(lease=others[0])):
        assert f"lease: {command.lease} is not lent here" in refusal(lending, command)


def test_a_cap_is_taken_back(lending, both: Both) -> None:
    obey(lending, CapLending(limit="0"))
    wait_for(lambda: both.numbers() == [], "the return of all")
    assert last(lending, "lending.capped") == {"limit_bytes": 0}
    assert obey(lending, CapLending()) == "as much is lent as there is"
    assert both.donor.limit_bytes is None
    assert "limit: " in refusal(lending, CapLending(limit="much"))


def test_only_the_rank_that_is_named_obeys(lending, both: Both) -> None:
    assert obey(lending, RecallLeases(leases="all", rank="dp1-tp0")) == "another rank was meant"
    assert len(both.numbers()) == 3
    assert obey(lending, RecallLeases(leases="all", rank="dp0-tp0")) == "3 leases recalled"


def test_a_cap_for_one_rank_is_for_all_of_its_replica(lending, both: Both) -> None:
    """They lend together, the same on each."""
    assert obey(lending, CapLending(limit="0", rank="dp1-tp0")) == "another rank was meant"
    assert len(both.numbers()) == 3
    assert obey(lending, CapLending(limit="0", rank="dp0-tp1")).startswith("at most 0B are lent")
    wait_for(lambda: both.numbers() == [], "the return of all")
