"""The page table: who leaves, in what order, and that something always can."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.table.kernels import BATCH
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.table.tier_copies import HOST

from support.engine import GEOMETRY, chain, check, copy_of, get, make_stack, memory_ssd, put, settle
from support.examples import examples


def quiet(stack, peer) -> None:
    """Wait until nothing is on its way, and every lease has been heard of."""
    peer.settle()
    assert stack.errands.wait_idle(20)
    while stack.movers["peer"].backlog and peer.capacity_bytes:
        peer.settle()
    peer.settle()


def resident(stack, keys) -> list[bool]:
    pages = [stack.table.find(stack.digest, key) for key in keys]
    return [page is not None and page.resident for page in pages]


# ---- the order in which pages leave ----


def test_of_pages_used_together_the_end_of_the_sequence_leaves_first() -> None:
    stack = make_stack(host_pages=4, ssd=memory_ssd())
    keys = chain(*"abcd")
    put(stack, keys)
    assert stack.wait_written(10)  # from now on each of them may leave
    put(stack, chain("new", 1))
    assert resident(stack, keys) == [True, True, False, False]
    check(stack)


def test_a_use_at_an_earlier_time_sets_no_clock_back() -> None:
    stack = make_stack(host_pages=4)
    (key,) = chain("page")
    put(stack, [key])
    with stack.table.lock:
        page = stack.table.find(stack.digest, key)
        earlier = stack.table.tick()  # of a request that is slow to come to this page
        later = stack.table.tick()
        stack.table.use(page, later)
        uses = page.uses
        stack.table.use(page, earlier, reach=7)
        assert (page.last_use, page.uses, page.doublings) == (later, uses + 1, 3), "it counts, and makes nothing older"
        stack.table.refresh(page, earlier)
        assert page.last_use == later
    check(stack)


def test_a_request_that_comes_late_to_its_pages_does_not_have_them_evicted() -> None:
    stack = make_stack(host_pages=3)
    warm, cold = chain("warm"), chain("cold")
    put(stack, warm)
    with stack.table.lock:
        slow = stack.table.tick()
    put(stack, cold)
    get(stack, warm)
    with stack.table.lock:
        stack.table.use(stack.table.find(stack.digest, warm[0]), slow)
    put(stack, chain("new", 1))
    assert (stack.probe(warm), stack.probe(cold)) == (1, 0)
    check(stack)


# ---- room ----


def test_host_memory_takes_in_pages_whose_room_others_hold_with_children_at_peers_alone() -> None:
    """The pages there have no other copy, and all that follows them lies in another lease."""
    peer = ModelPeer(GEOMETRY.page_bytes)
    stack = make_stack(host_pages=8, lent=peer)
    first = peer.lend(4, "d1")
    keys = chain(*range(8))
    put(stack, keys[:4])
    quiet(stack, peer)
    peer.lend(8, "d2")
    put(stack, keys[4:], parent=keys[3], depth=5)
    quiet(stack, peer)
    with stack.table.lock:
        for key in reversed(keys[4:]):
            stack.table.lose(stack.table.find(stack.digest, key), HOST)
    stack.host.limit_bytes = 4 * GEOMETRY.stride_bytes
    peer.recall(first)
    quiet(stack, peer)
    assert resident(stack, keys) == [True] * 4 + [False] * 4
    assert all(not stack.table.find(stack.digest, key).saved for key in keys[:4])
    new = chain("new", 1)
    assert put(stack, new) == 2, "nothing may leave, so nothing can come in"
    assert get(stack, new) == 2
    assert get(stack, keys) == 2, "from the end of the sequence on"
    check(stack)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 6)),
        st.tuples(st.just("lend"), st.integers(1, 4)),
        st.tuples(st.just("recall"), st.integers(0, 1)),
        st.tuples(st.just("push out"), st.integers(1, 4)),
    ),
    max_size=14,
)


@settings(max_examples=examples(150), deadline=None)
@given(host_pages=st.integers(1, 5), operations=OPERATIONS)
def test_something_may_always_leave_host_memory(host_pages: int, operations: list) -> None:
    """Whatever was lent and taken back: with no request under way, a new page always finds room."""
    peer = ModelPeer(GEOMETRY.page_bytes)
    stack = make_stack(host_pages=host_pages, lent=peer)
    leases = []
    for number, (what, value) in enumerate(operations):
        if what == "put":
            put(stack, chain(*range(value)))
        elif what == "lend":
            leases.append(peer.lend(value, f"d{number}"))
        elif what == "recall" and leases:
            peer.recall(leases.pop(value % len(leases)))
        elif what == "push out":
            with stack.table.lock:
                for page in [page for page in stack.table.listed() if copy_of(stack, page, "peer")][-value:]:
                    stack.table.lose(page, HOST)
        quiet(stack, peer)
        with stack.table.lock:
            check_rules(stack.table)
    assert put(stack, chain("new")) == 1
    check(stack)
    stack.close()


# ---- what a request holds ----


def test_a_page_that_is_dropped_under_a_restore_is_not_promised() -> None:
    peer = ModelPeer(GEOMETRY.page_bytes)
    stack = make_stack(host_pages=8, lent=peer)
    peer.lend(1)
    peer.settle()
    keys = chain(*"abc")
    put(stack, keys[:2])
    quiet(stack, peer)
    peer.lend(8)
    put(stack, keys[2:], parent=keys[1], depth=3)
    quiet(stack, peer)
    with stack.table.lock:
        stack.table.lose(stack.table.find(stack.digest, keys[2]), HOST)
    peer.hold(True)
    restore = stack.restore(keys)
    stack.restorer.poll(restore)
    stack.restorer.wait_idle()  # two pages are there, the third is on its way
    with stack.table.lock:
        stack.table.drop(stack.table.find(stack.digest, keys[1]))
    peer.hold(False)
    assert settle(stack, restore).pages == 1
    stack.restorer.release(restore)
    check(stack)


def test_a_long_chain_leaves_no_pin() -> None:
    """Longer than what is unpinned in one hold of the lock, several times."""
    stack = make_stack(host_pages=200)
    keys = chain(*range(200))
    assert put(stack, keys) == 200
    for pages in (64, 65, 128, 129, 200):
        assert get(stack, keys[:pages]) == pages
        assert stack.table.pinned_pages == 0
    assert put(stack, chain("new"), ROOT_KEY) == 1, "every slot can be used again"
    check(stack)


# ---- lists of many ----


def test_what_a_tier_lacks_is_offered_hottest_first_and_a_few_objects_at_a_time(monkeypatch) -> None:
    """A million pages in a list, sorted there, keep the interpreter from SGLang for most of a second."""
    stack = make_stack(host_pages=2000, lent=ModelPeer(GEOMETRY.page_bytes))
    sequences = [chain(f"sequence {number}", *range(number % 7 + 1)) for number in range(300)]
    for keys in sequences:
        put(stack, keys)
    table, number = stack.table, stack.movers["peer"].number
    with table.lock:
        for keys in sequences[::-3]:
            for page in table.settled_chain(stack.digest, keys):
                table.use(page, table.tick())
    made: list[int] = []
    make = table._rows.make_handles
    monkeypatch.setattr(table._rows, "make_handles", lambda rows: (made.append(len(rows)), make(rows))[1])
    told = list(table.unwritten(number))
    assert max(made) <= BATCH < len(told) == sum(map(len, sequences))
    assert told == sorted(table.listed(), key=lambda page: (-page.last_use, page.depth, page.slot))
    assert table.hottest_first(table.listed()) == sorted(table.listed(), key=lambda page: (-page.last_use, page.depth))
    assert [page.depth for page in table.parents_first(told)] == sorted(page.depth for page in told)
    assert not any(map(gc.is_tracked, told)), "the garbage collector has nothing to look at"


def test_room_that_comes_again_and_again_is_filled_once() -> None:
    stack = make_stack(host_pages=8, lent=ModelPeer(GEOMETRY.page_bytes))
    put(stack, chain(*"abcd"))
    offered: list[int] = []
    stack.movers["peer"].offer = lambda pages: offered.append(len(pages))
    parts = stack.parts["peer"]
    begun, parts._start = [], lambda steps: begun.append(steps)
    for _ in range(5):
        parts.room()
    assert len(begun) == 1
    next(begun[0])
    assert offered == [4]
    parts.room()
    assert len(begun) == 2, "which this one may have come too late for"
