"""Pages that come up from other servers' devices to landing memory: promised there, and there no longer than that."""

from __future__ import annotations

from support.engine import GEOMETRY, chain, check, copy_of, get, memory_ssd, page_at, settle
from support.landing_stack import landing, leave_with_peers

PAGE = GEOMETRY.page_bytes


def on_its_way(stack, peer, keys):
    """A restore whose pages have all been asked for, and have not come."""
    restore = stack.restore(keys)
    stack.restorer.poll(restore)  # somebody waits: it is not put off
    stack.restorer.wait_idle()
    assert peer.used_slots == len(keys)
    return restore


def test_pages_are_promised_where_they_landed_and_host_memory_stays_empty() -> None:
    stack, peer, _ = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == 3
    assert (restore.slots >= stack.host.slots).all()
    assert restore.found() == ["peer"] * 3
    assert (stack.host.used_slots, peer.used_slots) == (0, 3)
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    assert peer.used_slots == 0
    assert get(stack, keys) == 3
    assert stack.snapshot().tiers["peer"].bytes_read == 6 * PAGE
    check(stack)


def test_two_requests_share_what_has_landed() -> None:
    stack, peer, _ = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    first = settle(stack, stack.restore(keys))
    second = settle(stack, stack.restore(keys))
    assert second.found() == ["peer"] * 3
    assert list(first.slots) == list(second.slots)
    assert peer.landings == 3
    stack.restorer.release(first)
    stack.restorer.wait_idle()
    assert peer.used_slots == 3, "the second one still needs them"
    stack.restorer.release(second)
    check(stack)


def test_what_landing_memory_has_no_room_for_comes_through_host_memory() -> None:
    stack, peer, _ = landing(slots=2)
    keys = leave_with_peers(stack, peer, chain(*"abcd"))
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == 4
    assert sorted(place >= stack.host.slots for place in restore.slots.tolist()) == [False, False, True, True]
    stack.restorer.release(restore)
    assert get(stack, keys) == 4
    check(stack)


def test_a_lease_that_ends_takes_nothing_away_that_was_promised() -> None:
    stack, peer, key = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    restore = settle(stack, stack.restore(keys))
    before = [page_at(stack, place).copy() for place in restore.slots.tolist()]
    peer.recall(key, in_time=False)
    peer.settle()
    assert all((page_at(stack, place) == was).all() for place, was in zip(restore.slots.tolist(), before, strict=True))
    stack.restorer.release(restore)
    check(stack)


def test_what_is_on_its_way_when_the_lease_ends_is_not_promised() -> None:
    stack, peer, key = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    peer.hold(True)
    restore = on_its_way(stack, peer, keys)
    peer.end(key)
    peer.hold(False)
    settle(stack, restore)
    assert restore.pages == 0
    stack.restorer.release(restore)
    peer.settle()
    assert stack.probe(keys) == 0
    check(stack)


def test_a_page_that_does_not_land_is_read_from_ssd() -> None:
    stack, peer, _ = landing(ssd=memory_ssd())
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    peer.damage(copy_of(stack, stack.table.find(stack.digest, keys[1]), "peer").place)
    restore = settle(stack, stack.restore(keys))
    assert restore.found() == ["peer", "ssd", "peer"]
    assert [place >= stack.host.slots for place in restore.slots.tolist()] == [True, False, True]
    stack.restorer.release(restore)
    assert stack.snapshot().tiers["peer"].checksum_failures == 1
    assert get(stack, keys) == 3
    check(stack)


def test_nobody_waits_any_more_when_a_page_lands() -> None:
    stack, peer, _ = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    peer.hold(True)
    restore = on_its_way(stack, peer, keys)
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    peer.hold(False)
    peer.settle()
    assert peer.used_slots == 0
    check(stack)


def test_a_page_that_was_dropped_leaves_with_its_last_reader() -> None:
    stack, peer, _ = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    restore = settle(stack, stack.restore(keys))
    stack.flush("memory")
    assert stack.probe(keys) == 0
    assert peer.used_slots == 3, "it is being read"
    stack.restorer.release(restore)
    check(stack)


def test_a_page_that_was_dropped_on_its_way_leaves_when_it_has_landed() -> None:
    stack, peer, _ = landing()
    keys = leave_with_peers(stack, peer, chain(*"abc"))
    peer.hold(True)
    restore = on_its_way(stack, peer, keys)
    stack.flush("memory")
    peer.hold(False)
    assert settle(stack, restore).pages == 0
    stack.restorer.release(restore)
    peer.settle()
    check(stack)
