"""The stack with memory that other servers lend: what goes there, what comes back, and what happens when it is gone."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.bus.contract.commands import Flush, Pin
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.way.request_restore import RestoreState

from support.engine import GEOMETRY, chain, check, content, copy_of, get, make_stack, memory_ssd, obey, put, settle

PAGE = GEOMETRY.page_bytes


def lent(slots: int = 8, host_pages: int = 4, **options):
    """A stack and its lent memory, with a lease of so many pages."""
    ssd = options.pop("ssd", None)
    peer = ModelPeer(PAGE, **({"fingerprint": ssd.fingerprint} if ssd is not None else {}))
    stack = make_stack(host_pages=host_pages, lent=peer, ssd=ssd, **options)
    key = peer.lend(slots)
    peer.settle()
    return stack, peer, key


def quiet(stack, peer) -> None:
    """Wait until nothing is on its way."""
    stack.restorer.wait_idle()
    peer.settle()  # has it told of every lease
    assert stack.errands.wait_idle(20)
    while stack.movers["peer"].backlog and peer.capacity_bytes:
        peer.settle()
    peer.settle()


def evict_host_copies(stack) -> None:
    """Host copies leave, those at peers stay."""
    with stack.table.lock:
        for page in reversed(stack.table.listed()):
            stack.table.lose(page, HOST)


def leave_with_peers(stack, peer, keys: list[bytes]) -> list[bytes]:
    """Put pages in, and take them out of host memory again once peers have them."""
    put(stack, keys)
    stack.wait_written(10)
    quiet(stack, peer)
    evict_host_copies(stack)
    return keys


def kinds(stack) -> list[str]:
    return [event.kind for event in stack.events.since()]


def sources(stack, keys) -> list[str]:
    restore = settle(stack, stack.restore(keys))
    found = restore.found()
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    return found


def test_what_host_memory_has_no_room_for_comes_back_from_a_peer() -> None:
    stack, peer, _ = lent(slots=8, host_pages=4)
    first, second = chain("a", 1, 2), chain("b", 1, 2)
    put(stack, first)
    quiet(stack, peer)
    put(stack, second)
    quiet(stack, peer)
    assert stack.probe(first) == 3
    assert sources(stack, first)[-1] == "peer"
    assert get(stack, first) == 3
    tier = stack.snapshot().tiers["peer"]
    assert (tier.pages, tier.used_bytes, tier.capacity_bytes) == (6, 6 * PAGE, 8 * PAGE)
    assert tier.bytes_written == 6 * PAGE
    check(stack)


def test_copies_at_peers_let_the_host_copy_go_first() -> None:
    stack, peer, _ = lent(slots=2, host_pages=4)
    shared, alone = chain("a", 1), chain("b", 1)
    put(stack, shared)
    quiet(stack, peer)
    get(stack, shared)
    put(stack, alone)
    get(stack, shared)
    quiet(stack, peer)
    put(stack, chain("c", 1))
    assert (stack.probe(shared), stack.probe(alone)) == (2, 2), "the lately used one is safe elsewhere"
    check(stack)


def test_a_damaged_copy_is_never_served() -> None:
    stack, peer, _ = lent(host_pages=3)
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    peer.damage(copy_of(stack, stack.table.find(stack.digest, keys[1]), "peer").place)
    assert get(stack, keys) == 1
    assert stack.snapshot().tiers["peer"].checksum_failures == 1
    assert "page.corrupt" in kinds(stack)
    check(stack)


def test_a_damaged_copy_leads_to_the_one_on_ssd() -> None:
    stack, peer, _ = lent(host_pages=3, ssd=memory_ssd())
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    peer.damage(copy_of(stack, stack.table.find(stack.digest, keys[1]), "peer").place)
    restore = settle(stack, stack.restore(keys))
    assert restore.found() == ["peer", "ssd", "peer"]
    stack.restorer.release(restore)
    assert get(stack, keys) == 3
    check(stack)


def test_what_is_only_there_is_saved_when_the_lease_is_recalled() -> None:
    stack, peer, key = lent(host_pages=4)
    keys = leave_with_peers(stack, peer, chain(*"abcd"))
    peer.recall(key)
    peer.settle()
    quiet(stack, peer)
    assert peer.returned == [key]
    assert sources(stack, keys) == ["host"] * 4
    assert stack.snapshot().tiers["peer"].pages == 0
    check(stack)


def recalled_under(stack, peer, key, keys):
    """A restore of `keys` whose lease is recalled between its claim and its first read; nothing is copied yet."""
    claim = stack.restorer._claim

    def then_recalled(restore, now, **more):
        claim(restore, now, **more)
        peer.hold(True)
        deque(stack.parts["peer"].leaving(key, 0.0), 0)

    stack.restorer._claim = then_recalled
    restore = stack.restore(keys)
    stack.restorer.wait_idle()
    del stack.restorer._claim
    return restore


def test_a_page_that_is_being_saved_is_joined_by_a_restore_that_wants_it() -> None:
    stack, peer, key = lent(slots=16, host_pages=32)
    keys = leave_with_peers(stack, peer, chain(*range(8)))
    before = stack.snapshot().tiers["peer"].bytes_read
    restore = recalled_under(stack, peer, key, keys)
    peer.hold(False)
    assert settle(stack, restore).pages == 8
    assert stack.snapshot().tiers["peer"].bytes_read - before == 8 * PAGE, "each is read once"
    for page_key, slot in zip(keys, restore.slots, strict=True):
        assert np.array_equal(stack.host.page(int(slot)), content(page_key))
    stack.restorer.release(restore)
    quiet(stack, peer)
    assert stack.host.used_slots == 8, "each takes one slot"
    assert peer.returned == [key]
    assert get(stack, keys) == 8
    check(stack)


def test_a_page_that_could_not_be_saved_is_lost_to_the_restore_that_waits_for_it() -> None:
    stack, peer, key = lent(slots=16, host_pages=32)
    keys = leave_with_peers(stack, peer, chain(*range(8)))
    peer.damage(copy_of(stack, stack.table.find(stack.digest, keys[3]), "peer").place)
    restore = recalled_under(stack, peer, key, keys)
    peer.hold(False)
    assert settle(stack, restore).pages == 3
    stack.restorer.release(restore)
    quiet(stack, peer)
    assert get(stack, keys) == 3
    assert stack.host.used_slots == 3
    check(stack)


def test_what_cannot_be_saved_in_time_is_lost_and_never_served() -> None:
    stack, peer, key = lent(host_pages=4)
    keys = leave_with_peers(stack, peer, chain(*"abcd"))
    peer.recall(key, in_time=False)
    quiet(stack, peer)
    assert (stack.probe(keys), stack.host.used_slots) == (0, 0)
    check(stack)


def test_saving_takes_no_room_from_what_was_used_later() -> None:
    stack, peer, key = lent(slots=3, host_pages=3)
    cold, warm = chain("cold", 1, 2), chain("warm", 1, 2)
    put(stack, cold)
    quiet(stack, peer)
    get(stack, cold)  # worth keeping there, against one that was used once
    put(stack, warm)
    quiet(stack, peer)
    assert stack.snapshot().tiers["peer"].pages == 3
    peer.recall(key)
    quiet(stack, peer)
    assert (stack.probe(warm), stack.probe(cold)) == (3, 0)
    check(stack)


@pytest.mark.parametrize("with_ssd", [False, True])
def test_what_was_only_there_is_lost_with_the_lease(with_ssd: bool) -> None:
    stack, peer, key = lent(host_pages=4, ssd=memory_ssd() if with_ssd else None)
    keys = leave_with_peers(stack, peer, chain(*"abcd"))
    peer.end(key)
    peer.settle()
    assert stack.probe(keys) == (4 if with_ssd else 0)
    assert get(stack, keys) == (4 if with_ssd else 0)
    assert stack.errands.wait_idle(20)
    assert "borrowed.ended" in kinds(stack)
    check(stack)


def test_a_lease_that_ends_under_a_restore_cuts_it_short() -> None:
    stack, peer, key = lent(host_pages=4)
    keys = leave_with_peers(stack, peer, chain(*"abcd"))
    peer.hold(True)
    restore = stack.restore(keys)
    stack.restorer.wait_idle()
    peer.end(key)
    peer.hold(False)
    settle(stack, restore)
    assert (restore.state, restore.pages) == (RestoreState.READY, 0)
    stack.restorer.release(restore)
    check(stack)


def test_a_copy_that_is_made_after_the_recall_goes_with_the_lease() -> None:
    stack, peer, key = lent(host_pages=4)
    peer.hold(True)
    keys = chain(*"ab")
    put(stack, keys)
    peer.recall(key)
    peer.hold(False)
    quiet(stack, peer)
    assert stack.snapshot().tiers["peer"].pages == 0
    assert peer.returned == [key]
    assert get(stack, keys) == 2
    check(stack)


def test_two_requests_share_one_read() -> None:
    stack, peer, _ = lent(host_pages=16)
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    peer.hold(True)
    before = stack.snapshot().tiers["peer"].bytes_read
    first, second = stack.restore(keys), stack.restore(keys)
    stack.restorer.wait_idle()
    peer.hold(False)
    for restore in (settle(stack, first), settle(stack, second)):
        assert restore.found() == ["peer"] * 3
        stack.restorer.release(restore)
    assert stack.snapshot().tiers["peer"].bytes_read - before == 3 * PAGE
    check(stack)


def test_hot_and_long_prefixes_keep_their_places() -> None:
    stack, peer, _ = lent(slots=4, host_pages=8)
    hot = chain("hot", 1, 2, 3)
    put(stack, hot)
    get(stack, hot)
    quiet(stack, peer)
    put(stack, chain("once", 1, 2, 3))
    quiet(stack, peer)
    places = [copy_of(stack, stack.table.find(stack.digest, key), "peer") is not None for key in hot]
    assert places == [True] * 4, "one-off prompts do not push out what is used again"
    assert not stack.snapshot().tiers["peer"].refusals, "that it is full of better pages is no trouble"
    for number in range(80):  # but nothing stays for ever
        put(stack, chain(f"later{number}"))
        quiet(stack, peer)
    page = stack.table.find(stack.digest, hot[-1])
    assert page is None or copy_of(stack, page, "peer") is None
    check(stack)


def test_a_lease_takes_in_what_host_memory_holds_already() -> None:
    stack, peer, _ = lent(slots=1, host_pages=8)
    keys = chain(*"abcd")
    put(stack, keys)
    quiet(stack, peer)
    peer.lend(8)
    quiet(stack, peer)
    assert stack.snapshot().tiers["peer"].pages == 4
    assert peer.wanted >= 4 * PAGE
    check(stack)


def test_a_limit_bounds_what_is_wanted() -> None:
    stack, peer, _ = lent(slots=1, host_pages=16)
    peer.limit = 2 * PAGE
    put(stack, chain(*range(12)))
    quiet(stack, peer)
    assert 0 < peer.wanted <= 2 * PAGE


def test_what_is_wanted_follows_in_strides() -> None:
    stack, peer, _ = lent(slots=64, host_pages=64)
    for number in range(16):
        put(stack, chain(number, 1, 2))
        quiet(stack, peer)
        assert peer.wanted >= stack.table.of[HOST].pages * PAGE
    assert 0 < peer.times_wanted <= 10, "of 48 pages, not each is worth a word to the donors"


def test_a_flush_takes_the_copies_at_peers_along() -> None:
    stack, peer, _ = lent(host_pages=4)
    keys = chain(*"abc")
    put(stack, keys)
    quiet(stack, peer)
    assert obey(stack, Flush()) == "3 pages forgotten in host memory"
    assert (stack.probe(keys), stack.snapshot().tiers["peer"].pages) == (0, 0)
    assert stack.snapshot().directory.pages == 0
    check(stack)


def test_what_an_operator_pinned_keeps_its_place() -> None:
    stack, peer, _ = lent(slots=2, host_pages=6)
    keys = chain(*"ab")
    put(stack, keys)
    quiet(stack, peer)
    obey(stack, Pin(page=keys[-1].hex()))
    for number in range(70):
        put(stack, chain(f"other{number}", 1))
        quiet(stack, peer)
    assert all(copy_of(stack, stack.table.find(stack.digest, key), "peer") for key in keys)
    assert stack.snapshot().tiers["peer"].pinned_pages == 2
    check(stack)


def test_where_a_page_is() -> None:
    stack, peer, key = lent()
    keys = chain("a")
    put(stack, keys)
    quiet(stack, peer)
    place = copy_of(stack, stack.table.find(stack.digest, keys[0]), "peer").place
    assert stack.page_facts(keys[0]).peer == f"donor lease {key.lease} slot {place.slot}"
    evict_host_copies(stack)
    snapshot = stack.snapshot()
    assert (snapshot.directory.pages, snapshot.tiers["peer"].only_pages, snapshot.directory.both_pages) == (1, 1, 0)
    assert np.array_equal(peer.stored[place], content(keys[0]))


def test_closing_with_copies_under_way_ends() -> None:
    stack, peer, _ = lent(host_pages=4)
    peer.hold(True)
    put(stack, chain(*"abc"))
    stack.close()
    assert stack.movers["peer"].backlog == 0
