"""What the tier stack tells about itself."""

from __future__ import annotations

from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.figures.counters import DirectorySnapshot, PageFacts
from swift_tiers.radix_tiering.tiers.ssd import Operation
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.engine import (
    Clock,
    chain,
    check,
    copy_of,
    get,
    make_stack,
    memory_ssd,
    namespace,
    placement_of,
    put,
    settle,
    wait_until,
)
from support.faulty_array import Fail, Fault, FaultyArray, FlipBits


def directory(stack) -> DirectorySnapshot:
    return stack.snapshot().directory


def only_in(stack) -> dict[str, int]:
    """Of each tier, the pages that no other one has."""
    return {name: tier.only_pages for name, tier in stack.snapshot().tiers.items()}


def test_the_directory_says_how_many_pages_are_where_and_how_deep() -> None:
    stack = make_stack(host_pages=8, ssd=memory_ssd())
    assert directory(stack) == DirectorySnapshot(
        pages=0,
        both_pages=0,
        deepest_pages=0,
        first_pages=0,
        foreign_pages=0,
    )
    put(stack, chain(*"abcde"))
    put(stack, chain(*"abx"))
    put(stack, chain(*"y"))
    stack.wait_written(10)
    assert directory(stack) == DirectorySnapshot(
        pages=7,
        both_pages=7,
        deepest_pages=5,
        first_pages=2,
        foreign_pages=0,
    )
    assert only_in(stack) == {"host": 0, "ssd": 0}
    stack.flush("memory")
    assert get(stack, chain(*"abx")) == 3
    assert directory(stack) == DirectorySnapshot(
        pages=7,
        both_pages=3,
        deepest_pages=5,
        first_pages=2,
        foreign_pages=0,
    )
    assert only_in(stack) == {"host": 0, "ssd": 4}
    check(stack)


def test_pages_on_their_way_in_are_in_the_directory_without_a_copy() -> None:
    stack = make_stack()
    put(stack, chain(*"a"))
    offered = stack.intake.begin(chain(*"abc")[1:], chain(*"a")[0], 2)
    seen = directory(stack)
    assert (seen.pages, only_in(stack), seen.deepest_pages) == (3, {"host": 1}, 3)
    stack.intake.abort(offered)
    seen = directory(stack)
    assert (seen.pages, only_in(stack), seen.deepest_pages) == (1, {"host": 1}, 1)


def test_pages_of_other_weights_are_foreign() -> None:
    stack = make_stack(ssd=memory_ssd())
    put(stack, chain(*"abc"))
    stack.wait_written(10)
    stack.change_namespace(namespace(weights="new"))
    put(stack, chain(*"ab"))
    seen = directory(stack)
    assert (seen.pages, seen.foreign_pages, seen.first_pages) == (5, 3, 2)
    stack.change_namespace(namespace())
    seen = directory(stack)  # once: the others are being forgotten
    assert seen.foreign_pages == seen.pages - 3
    check(stack)


def test_the_depth_of_a_page_follows_from_its_parent_whatever_is_said() -> None:
    stack = make_stack()
    keys = chain(*"ab")
    put(stack, keys[:1], depth=7)
    put(stack, keys[1:], parent=keys[0], depth=1_000_000)
    assert directory(stack).deepest_pages == 2
    check(stack)


def test_links_count_what_went_over_them() -> None:
    clock = Clock()
    array = MemoryArray([2**20] * 2, seed=1)
    stack = make_stack(ssd=memory_ssd(array=array), clock=clock)
    keys = chain(*"abc")
    stack.movers["ssd"].enabled = False
    put(stack, keys)
    assert {link.pages for link in stack.snapshot().links.values()} == {0}
    stack.movers["ssd"].enabled = True
    get(stack, keys)
    stack.wait_written(10)
    written = stack.snapshot().links
    assert (written["host-ssd"].transfers, written["host-ssd"].pages, written["host-ssd"].bytes) == (3, 3, 3 * 4096)
    assert written["ssd-host"].pages == 0
    stack.restorer.wait_idle()  # pins are given back: pinned pages outlive a flush
    stack.flush("memory")
    assert get(stack, keys) == 3
    read = stack.snapshot().links
    assert (read["ssd-host"].transfers, read["ssd-host"].pages, read["ssd-host"].bytes) == (3, 3, 3 * 4096)
    assert read["host-ssd"] == written["host-ssd"], "what came from ssd is not written again"


def test_the_time_of_a_link_is_that_of_its_copies() -> None:
    clock = Clock()

    class Slow(MemoryArray):
        """Each request takes a second of the clock."""

        def _carry_out(self, request):
            clock.now += 1
            return super()._carry_out(request)

    array = Slow([2**20], seed=1)
    stack = make_stack(ssd=memory_ssd(array=array, clock=clock), clock=clock)
    keys = chain("a")
    put(stack, keys)
    stack.wait_written(10)
    assert stack.snapshot().links["host-ssd"].seconds == 1
    stack.flush("memory")
    assert get(stack, keys) == 1
    assert stack.snapshot().links["ssd-host"].seconds == 1


def test_without_an_ssd_tier_only_the_device_has_links() -> None:
    assert set(make_stack().snapshot().links) == {"device-host", "host-device"}


def test_a_page_says_where_it_is() -> None:
    stack = make_stack(ssd=memory_ssd(unit=4096, devices=2))
    keys = chain(*"abc")
    stack.movers["ssd"].enabled = False
    put(stack, keys)
    put(stack, chain(*"abd"))
    space = stack.namespace.digest().hex()
    facts = stack.page_facts(keys[1])
    assert facts == PageFacts(
        namespace=space, depth=2, parent=keys[0].hex(), children=2, bytes=4096, uses=1, pins=0,
        host_slot=1, peer="", ssd_placement=(), generation=None,
        checksum=facts.checksum, last_used_seconds=facts.last_used_seconds, origin="computed here",
    )  # fmt: skip
    first = stack.page_facts(keys[0])
    assert (first.depth, first.parent, first.children) == (1, "", 1)
    stack.movers["ssd"].enabled = True
    restore = settle(stack, stack.restore(keys))
    stack.wait_written(10)
    held = stack.page_facts(keys[2])
    assert (held.uses, held.pins, held.children) == (2, 1, 0)
    assert held.host_slot == restore.slots[2]
    page = stack.table.find(stack.namespace.digest(), keys[2])
    assert held.ssd_placement == placement_of(stack, page) != ()
    assert held.generation == stack.tiers["ssd"].facts(copy_of(stack, page, "ssd"))["generation"] > 0
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    stack.flush("memory")
    assert stack.page_facts(keys[2]).host_slot is None
    assert stack.page_facts(keys[2]).ssd_placement == held.ssd_placement


def test_when_a_page_was_used_last() -> None:
    clock = Clock()
    stack = make_stack(ssd=memory_ssd(unit=4096, devices=2), clock=clock)
    first, second = chain(*"ab"), chain(*"xy")

    def ago(key: bytes) -> float | None:
        return stack.page_facts(key).last_used_seconds

    put(stack, first)
    assert ago(first[0]) == 0, "since the last snapshot"
    stack.snapshot()
    clock.now += 10
    put(stack, second)
    stack.snapshot()
    clock.now += 5
    stack.snapshot()
    assert (ago(first[0]), ago(second[0])) == (15, 5)
    stack.restorer.release(settle(stack, stack.restore(first[:1])))
    stack.restorer.wait_idle()
    stack.snapshot()
    clock.now += 1
    assert (ago(first[0]), ago(first[1]), ago(second[0])) == (1, 16, 6)


def test_a_page_that_is_only_on_its_way_in_is_not_there_yet() -> None:
    stack = make_stack()
    keys = chain(*"ab")
    offered = stack.intake.begin(keys, ROOT_KEY, 1)
    assert stack.page_facts(keys[0]) is None
    stack.intake.commit(offered)
    assert stack.page_facts(keys[0]) is not None
    assert stack.page_facts(chain("x")[0]) is None
    stack.change_namespace(namespace(weights="new"))
    assert stack.page_facts(keys[0]) is None


def test_the_stripe_set_and_its_devices_are_counted() -> None:
    array = FaultyArray(MemoryArray([300_000] * 3, seed=1))
    stack = make_stack(ssd=memory_ssd(array=array))
    keys = chain(*"abcdef")
    put(stack, keys)
    stack.wait_written(10)
    stack.flush("memory")
    array.add(Fault(FlipBits(), device=1, operation=Operation.READ, times=1))
    assert get(stack, keys) < 6
    check(stack)
    # A read that was called back is counted a moment longer.
    wait_until(lambda: stack.snapshot().stripe.queued == 0, "reads under way that are none")
    seen = stack.snapshot()
    stripe, devices = seen.stripe, seen.devices
    assert (stripe.set_id, stripe.unit_bytes, stripe.devices, stripe.missing) == (
        stack.tiers["ssd"].stripes.set_id.hex(), 4096, 3, 0,
    )  # fmt: skip
    assert stripe.capacity_units - stripe.free_units == seen.tiers["ssd"].pages
    assert sum(stripe.reads.values()) == 6
    assert sum(count for outcome, count in stripe.reads.items() if outcome.startswith("corrupt")) == 1
    assert [device.corrupt_units for device in devices] == [0, 1, 0]
    assert sum(device.writes for device in devices) == 6
    assert sum(device.reads for device in devices) == 6
    assert [device.latency.count for device in devices] == [device.requests for device in devices]
    assert {device.service for device in devices} == {"in service"}
    assert {device.errors for device in devices} == {0}
    assert {device.in_flight for device in devices} == {0}


def test_devices_that_are_not_in_service_say_why() -> None:
    array = FaultyArray(MemoryArray([2**20] * 3, seed=1))
    stack = make_stack(ssd=memory_ssd(array=array))
    stack.tiers["ssd"].stripes.drain(0)
    array.add(Fault(Fail(), device=2, operation=Operation.WRITE))
    keys = chain(*range(8))
    put(stack, keys)
    stack.wait_written(10)
    draining, well, out = stack.snapshot().devices
    assert (draining.service, draining.in_service, draining.reason) == ("draining", True, "draining")
    assert (well.service, well.in_service, well.reason) == ("in service", True, "")
    assert (out.service, out.in_service, out.reason) == ("out", False, "write failed: EIO")
    assert (out.errors, out.write_errors, out.read_errors) == (out.writes, out.writes, 0)
    assert draining.writes == 0
    assert stack.snapshot().stripe.capacity_units * 4096 == well.capacity_bytes


def test_used_bytes_of_the_ssd_tier_are_whole_stripe_units() -> None:
    stack = make_stack(ssd=memory_ssd(unit=16_384))
    put(stack, chain(*"abc"))
    stack.wait_written(10)
    tier = stack.snapshot().tiers["ssd"]
    assert (tier.pages, tier.used_bytes, tier.bytes_written) == (3, 3 * 16_384, 3 * 4096)
    assert tier.limit_bytes == tier.capacity_bytes == sum(device.capacity_bytes for device in stack.snapshot().devices)
    assert sum(device.used_bytes for device in stack.snapshot().devices) == tier.used_bytes


def test_pages_that_stand_for_no_tokens_are_neither_hits_nor_misses() -> None:
    """A state takes many pages, and is of a prefix's tokens no more than one page is: a rate of hits with them would
    stay high whatever is computed."""
    stack = make_stack(host_pages=32)
    keys, state = chain(*range(6)), chain("state", *range(11))
    put(stack, keys + state)
    restore = settle(stack, stack.restore(keys + state, beside=len(state), wanted=10))
    assert restore.pages == 18
    stack.restorer.count_load(restore, 0, 6, 0.001, failed=False)
    stack.restorer.count_load(restore, 6, 12, None, failed=False)
    stack.restorer.release(restore)
    host = stack.snapshot().tiers["host"]
    assert (host.hits, host.misses) == (6, 4)
    check(stack)
