"""What operators are told of every slot and of every page of a sequence, while things are under way.

Where all is quiet, `support.engine.check` compares the maps with the pages, in every test of the stack.
"""

from __future__ import annotations

from typing import Any

import pytest

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.bus.contract.commands import Pin, Unpin
from swift_tiers.radix_tiering.figures.counters import PagePlaces
from swift_tiers.radix_tiering.table.tier_copies import HOST
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.way import observing
from swift_tiers.radix_tiering.way.observing import prefix_places, tier_map, whole_key

from support.engine import (
    GEOMETRY,
    chain,
    check,
    copy_of,
    make_stack,
    memory_ssd,
    obey,
    placement_of,
    put,
    settle,
    slot_words,
)
from support.faulty_array import Fault, FaultyArray, Gone
from support.redis import wait_for


def of_pages(stack, keys) -> list[str]:
    """The words for the slots of these pages, which are in host memory."""
    words = slot_words(stack, "host")
    return [words[stack.table.find(stack.digest, key).slot] for key in keys]


def test_a_slot_of_host_memory_from_being_taken_to_being_free() -> None:
    stack = make_stack(host_pages=8)
    keys = chain(*"abc")
    offered = stack.intake.begin(keys, ROOT_KEY, 1)
    assert of_pages(stack, keys) == ["loading"] * 3
    assert slot_words(stack, "host").count("free") == 5
    stack.intake.commit(offered)
    assert of_pages(stack, keys) == ["cached"] * 3
    restore = settle(stack, stack.restore(keys[:2]))
    assert of_pages(stack, keys) == ["pinned", "pinned", "cached"]
    assert obey(stack, Pin(page=keys[2].hex())).startswith("3 pages")
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    assert of_pages(stack, keys) == ["pinned"] * 3
    assert obey(stack, Unpin(page=keys[2].hex())) == "unpinned"
    assert of_pages(stack, keys) == ["cached"] * 3
    check(stack)
    stack.flush("all")
    assert slot_words(stack, "host") == ["free"] * 8


def test_the_slots_of_pages_that_have_left_belong_to_their_request_alone() -> None:
    stack = make_stack(host_pages=4)
    keys = chain(*"ab")
    put(stack, keys)
    restore = settle(stack, stack.restore(keys))
    slots = restore.slots.tolist()
    with stack.table.lock:
        stack.table.drop(stack.table.find(stack.digest, keys[0]))
    words = slot_words(stack, "host")
    assert [words[slot] for slot in slots] == ["private"] * 2
    assert words.count("free") == 2
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    assert slot_words(stack, "host") == ["free"] * 4
    check(stack)


def test_units_on_ssd_are_loading_until_their_page_is_written() -> None:
    stack = make_stack(ssd=memory_ssd(unit=4096, devices=2))
    placement = stack.tiers["ssd"].stripes.reserve(8192)
    found = tier_map(stack, "ssd", time=7.5)
    assert (found.time, found.slot_bytes, found.first_slot) == (7.5, 4096, 0)
    assert [piece.name for piece in found.pieces] == ["0", "1"]
    per_device = found.pieces[0].slots
    words = slot_words(stack, "ssd")
    places = [device * per_device + slot for device, slot in placement]
    assert [place for place, word in enumerate(words) if word != "free"] == sorted(places)
    assert {words[place] for place in places} == {"loading"}
    stack.tiers["ssd"].stripes.release(placement)
    assert set(slot_words(stack, "ssd")) == {"free"}
    put(stack, chain(*"abcd"))
    stack.wait_written(10)
    assert slot_words(stack, "ssd").count("cached") == 4
    check(stack)


def test_pages_that_were_recovered_are_told_as_such() -> None:
    array = MemoryArray([300_000] * 2, seed=1)
    keys = chain(*"abcd")
    first = make_stack(ssd=memory_ssd(array=array))
    put(first, keys)
    assert first.page_facts(keys[0]).origin == "computed here"
    first.close()
    again = make_stack(ssd=memory_ssd(array=array))
    assert slot_words(again, "ssd").count("cached") == 4
    facts = [again.page_facts(key) for key in keys]
    assert {(one.origin, one.host_slot) for one in facts} == {("recovered", None)}
    assert all(len(one.checksum) == 32 for one in facts)
    put(again, chain(*"abcde"))
    assert again.page_facts(chain(*"abcde")[4]).origin == "computed here"
    check(again)


def test_a_device_that_leaves_service_is_out_with_all_its_slots() -> None:
    array = FaultyArray(MemoryArray([300_000] * 3, seed=1))
    stack = make_stack(ssd=memory_ssd(array=array))
    put(stack, chain(*"abcdef"))
    stack.wait_written(10)
    per_device = tier_map(stack, "ssd", time=1.0).pieces[0].slots
    stack.tiers["ssd"].stripes.drain(1)
    draining = slot_words(stack, "ssd")[per_device : 2 * per_device]
    assert draining.count("cached") + draining.count("out") == per_device
    array.add(Fault(Gone(), device=2))
    put(stack, chain(*"uvwxyz"))
    wait_for(lambda: stack.tiers["ssd"].snapshot()[1][2].service == "out", "the device to be taken out")
    stack.wait_written(10)
    assert set(slot_words(stack, "ssd")[2 * per_device :]) == {"out"}
    check(stack)


def test_pages_are_not_refused_for_a_full_tier_when_no_device_is_left() -> None:
    """Two things to do: make a tier larger, or mend its devices."""
    array = FaultyArray(MemoryArray([2**20] * 2, seed=1))
    stack = make_stack(host_pages=64, ssd=memory_ssd(array=array))
    for device in range(2):
        array.add(Fault(Gone(), device=device))
    put(stack, chain("first", *range(5)))
    wait_for(lambda: not any(one.in_service for one in stack.tiers["ssd"].snapshot()[1]), "the devices to be taken out")
    stack.wait_written(10)
    before = stack.snapshot().tiers["ssd"].refusals.get("no device takes pages", 0)
    put(stack, chain("second", *range(5)))
    refusals = stack.snapshot().tiers["ssd"].refusals
    assert refusals["no device takes pages"] == before + 6
    assert "full" not in refusals
    check(stack)


def test_borrowed_slots() -> None:
    peer = ModelPeer(4096)
    stack = make_stack(host_pages=8, lent=peer)
    assert slot_words(stack, "peer") == []
    lease = peer.lend(3, donor="beta.dp0-tp0")
    other = peer.lend(2, donor="alpha.dp0-tp0")
    peer.settle()
    found = tier_map(stack, "peer", time=1.0)
    assert [tuple(piece) for piece in found.pieces] == [
        (f"alpha.dp0-tp0/{other.lease}", 2), (f"beta.dp0-tp0/{lease.lease}", 3),
    ]  # fmt: skip
    assert slot_words(stack, "peer") == ["borrowed"] * 5
    peer.hold(True)
    keys = chain(*"ab")
    put(stack, keys)
    wait_for(lambda: slot_words(stack, "peer").count("loading") == 2, "the copies to begin")
    peer.hold(False)
    check(stack)
    assert slot_words(stack, "peer") == ["borrowed"] * 2 + ["borrowed", "cached", "cached"]
    restore = settle(stack, stack.restore(keys))
    stack.flush("memory")
    stack.restorer.release(restore)
    check(stack)
    peer.end(lease)
    peer.settle()
    check(stack)
    assert slot_words(stack, "peer") == ["borrowed"] * 2


def test_a_lent_slot_that_was_given_back_while_it_is_read_is_nobodys() -> None:
    peer = ModelPeer(4096)
    stack = make_stack(host_pages=2, lent=peer)
    peer.lend(3)
    keys = chain(*"a")
    put(stack, keys)
    check(stack)
    assert slot_words(stack, "peer").count("cached") == 1
    with stack.table.lock:
        stack.table.lose(stack.table.find(stack.digest, keys[0]), HOST)
    place = copy_of(stack, stack.table.find(stack.digest, keys[0]), "peer").place
    peer.hold(True)
    restore = stack.restore(keys)
    wait_for(lambda: peer.busy(place), "the read to begin")
    with stack.table.lock:
        stack.table.drop(stack.table.find(stack.digest, keys[0]))
    assert slot_words(stack, "peer").count("private") == 1
    assert slot_words(stack, "host").count("loading") == 1
    peer.hold(False)
    stack.restorer.release(restore)
    check(stack)


def test_a_map_of_many_slots_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever serves waits for the page table meanwhile."""
    monkeypatch.setattr(observing, "SLOTS_AT_ONCE", 4)
    peer = ModelPeer(4096)
    stack = make_stack(host_pages=50, lent=peer)
    peer.lend(30)
    put(stack, chain(*range(40)))
    check(stack)  # compares both maps with the pages
    looked: list[int] = []
    states, places = stack.table.host_states, stack.table.places_in

    def counted(rows: Any) -> Any:
        assert stack.table.lock.locked()
        looked.append(len(rows))
        return rows

    monkeypatch.setattr(stack.table, "host_states", lambda some: counted(states(some)))
    monkeypatch.setattr(stack.table, "places_in", lambda tier, rows: places(tier, counted(rows)))
    for tier, slots in (("host", 50), ("peer", 30)):
        looked.clear()
        assert len(slot_words(stack, tier)) == slots
        assert (sum(looked), max(looked)) == (slots, 4)


def test_a_key_is_known_by_its_beginning() -> None:
    stack = make_stack(host_pages=8)
    keys = chain(*"abcd")
    put(stack, keys)
    check(stack)
    for key in keys:
        assert whole_key(stack, key[:8]) == whole_key(stack, key[:31]) == whole_key(stack, key) == key
    assert whole_key(stack, bytes(8)) is None
    assert whole_key(stack, bytes(32)) == bytes(32), "a whole one may be of a page on the device"
    assert whole_key(stack, b"") is None, "of several"


def test_tiers_that_are_not_there_have_no_map() -> None:
    stack = make_stack()
    assert tier_map(stack, "ssd", time=1.0) is None
    assert tier_map(stack, "peer", time=1.0) is None
    assert tier_map(stack, "device", time=1.0) is None


def test_the_pages_of_a_sequence_and_their_places() -> None:
    peer = ModelPeer(4096)
    stack = make_stack(host_pages=200, ssd=memory_ssd(unit=4096, devices=2), lent=peer)
    lease = peer.lend(8, donor="beta.dp0-tp0")
    keys = chain(*range(150))
    put(stack, keys)
    stack.wait_written(10)
    check(stack)
    with stack.table.lock:
        for key in keys[:100]:
            stack.table.lose(stack.table.find(stack.digest, key), HOST)
    found = prefix_places(stack, keys[-1])
    assert [one.depth for one in found] == list(range(1, 151))
    for one, key in zip(found, keys, strict=True):
        page = stack.table.find(stack.digest, key)
        lent = copy.place if (copy := copy_of(stack, page, "peer")) else None
        assert one == PagePlaces(
            page.depth,
            key.hex(),
            host_slot=page.slot if page.depth > 100 else None,
            peer=None if lent is None else ("beta.dp0-tp0", lease.lease, lent.slot),
            ssd_placement=placement_of(stack, page),
        )
    assert any(one.peer for one in found)
    assert prefix_places(stack, keys[0]) == found[:1]
    assert prefix_places(stack, chain("unknown")[0]) == []


def test_a_sequence_that_leaves_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone, and nothing of it is told; the rows of its pages may be others' already."""
    monkeypatch.setattr(observing, "PAGES_PER_HOLD", 4)
    stack, keys = make_stack(host_pages=16), chain(*range(10))
    put(stack, keys)
    find = stack.table.find
    looks = []

    class Dropping:
        """Drops the sequence after the second look at it."""

        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def __enter__(self) -> None:
            self.lock.acquire()
            looks.append(stack.table.pages)
            if len(looks) == 3:
                stack.table.drop(find(stack.digest, keys[0]))
                stack.table.clean_up()
                stack.table.take_in(None, chain("another"), GEOMETRY.page_bytes, stack.table.tick())

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    stack.table.lock = Dropping(stack.table.lock)
    assert prefix_places(stack, keys[-1]) == []
    assert looks == [10, 10, 10]
