"""What the tier stack tells about itself."""

from __future__ import annotations

from swift_tiers.radix_tiering.counters import DirectorySnapshot
from swift_tiers.radix_tiering.ssd.memory_array import MemoryArray

from support.engine import Clock, chain, check, get, make_stack, memory_ssd, namespace, put


def directory(stack) -> DirectorySnapshot:
    return stack.snapshot().directory


def test_the_directory_says_how_many_pages_are_where_and_how_deep() -> None:
    stack = make_stack(host_pages=8, ssd=memory_ssd())
    assert directory(stack) == DirectorySnapshot(
        pages=0, host_only_pages=0, ssd_only_pages=0, both_pages=0, deepest_pages=0, first_pages=0, foreign_pages=0
    )
    put(stack, chain(*"abcde"))
    put(stack, chain(*"abx"))
    put(stack, chain(*"y"))
    stack.wait_written(10)
    assert directory(stack) == DirectorySnapshot(
        pages=7, host_only_pages=0, ssd_only_pages=0, both_pages=7, deepest_pages=5, first_pages=2, foreign_pages=0
    )
    stack.flush(host=True, ssd=False)
    assert get(stack, chain(*"abx")) == 3
    assert directory(stack) == DirectorySnapshot(
        pages=7, host_only_pages=0, ssd_only_pages=4, both_pages=3, deepest_pages=5, first_pages=2, foreign_pages=0
    )
    check(stack)


def test_pages_on_their_way_in_are_in_the_directory_without_a_copy() -> None:
    stack = make_stack()
    put(stack, chain(*"a"))
    offered = stack.begin_put(chain(*"abc")[1:], chain(*"a")[0], 2)
    seen = directory(stack)
    assert (seen.pages, seen.host_only_pages, seen.deepest_pages) == (3, 1, 3)
    stack.abort_put(offered)
    seen = directory(stack)
    assert (seen.pages, seen.host_only_pages, seen.deepest_pages) == (1, 1, 1)


def test_pages_of_other_weights_are_foreign() -> None:
    stack = make_stack(ssd=memory_ssd())
    put(stack, chain(*"abc"))
    stack.wait_written(10)
    stack.change_namespace(namespace(weights="new"))
    put(stack, chain(*"ab"))
    seen = directory(stack)
    assert (seen.pages, seen.foreign_pages, seen.first_pages) == (5, 3, 2)
    stack.change_namespace(namespace())
    assert directory(stack).foreign_pages == directory(stack).pages - 3
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
    stack.writer.enabled = False
    put(stack, keys)
    assert {link.pages for link in stack.snapshot().links.values()} == {0}
    stack.writer.enabled = True
    get(stack, keys)
    stack.wait_written(10)
    written = stack.snapshot().links
    assert (written["host-ssd"].transfers, written["host-ssd"].pages, written["host-ssd"].bytes) == (3, 3, 3 * 4096)
    assert written["ssd-host"].pages == 0
    stack.restorer.flush()  # pins are given back: pinned pages outlive a flush
    stack.flush(host=True, ssd=False)
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
    stack = make_stack(ssd=memory_ssd(array=array), clock=clock)
    keys = chain("a")
    put(stack, keys)
    stack.wait_written(10)
    assert stack.snapshot().links["host-ssd"].seconds == 1
    stack.flush(host=True, ssd=False)
    assert get(stack, keys) == 1
    assert stack.snapshot().links["ssd-host"].seconds == 1


def test_without_an_ssd_tier_only_the_device_has_links() -> None:
    assert set(make_stack().snapshot().links) == {"device-host", "host-device"}
