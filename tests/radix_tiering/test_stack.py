"""The tier stack: what goes in comes out, in every combination of tiers, and nothing unreachable is ever kept."""

from __future__ import annotations

import errno
import threading
import time
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.errors import FormatError, NotHeldError
from swift_tiers.radix_tiering.base.page import ROOT_KEY
from swift_tiers.radix_tiering.table.held_page import Places, held_run, host_slots
from swift_tiers.radix_tiering.tiers.ssd import Operation
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.tiers.testing.model_tier import ModelTier
from swift_tiers.radix_tiering.way.request_restore import RestoreState

from support.engine import (
    WAIT,
    Clock,
    chain,
    check,
    content,
    get,
    make_stack,
    memory_ssd,
    namespace,
    put,
    settle,
    wait_until,
)
from support.faulty_array import Fail, Fault, FaultyArray


def test_a_chain_comes_back_from_host_memory():
    stack = make_stack()
    keys = chain(*"abcde")
    assert put(stack, keys) == 5
    assert get(stack, keys) == 5
    assert get(stack, chain(*"abcxy")) == 3
    assert get(stack, chain(*"x")) == 0
    check(stack)
    stack.close()


def test_pages_held_already_are_not_taken_in_again():
    stack = make_stack()
    keys = chain(*"abc")
    assert put(stack, keys) == 3
    assert put(stack, keys) == 0
    assert put(stack, chain(*"abcd")) == 1
    assert stack.host.used_slots == 4
    check(stack)


def test_a_page_whose_prefix_is_not_held_is_refused():
    stack = make_stack()
    keys = chain(*"abc")
    offered = stack.intake.begin(keys[1:], parent=keys[0], depth=2)
    assert offered.refused == 2
    assert not offered.pages
    assert stack.snapshot().tiers["host"].refusals == {"prefix not held": 2}
    check(stack)


def test_pages_that_are_refused_are_counted_with_those_behind_them():
    stack = make_stack(8)
    keys = chain(*range(64))
    offered = stack.intake.begin(keys, ROOT_KEY, 1, offered_behind=100)
    assert offered.refused == 56
    assert stack.snapshot().tiers["host"].refusals == {"full": 156}
    stack.intake.abort(offered)
    check(stack)


def test_write_back_saves_a_burst_s_worth_of_pages_before_it_comes():
    """Beyond those that are saved already: a quarter of host memory may be needed at once."""
    stack = make_stack(1024, memory_ssd(array=MemoryArray([2**25] * 2, seed=1)), policy={"write": "back"})
    for number in range(16 * 20):
        put(stack, chain(f"before {number}", *range(3)))
        assert stack.wait_written(60)
    held = {page.key for page in stack.table.in_memory()}
    mover = stack.movers["ssd"]
    with stack.table.lock:
        mover.waits_for.add("busy devices")
    for number in range(48):  # 192 pages, of the 256 that are to be safe
        put(stack, chain(f"burst {number}", *range(3)))
    assert all(stack.probe([key]) for key in held)
    with stack.table.lock:
        mover.waits_for.discard("busy devices")
        mover.pump()
    stack.close()


def test_aborted_pages_leave_nothing():
    stack = make_stack()
    offered = stack.intake.begin(chain(*"abc"), ROOT_KEY, 1)
    assert stack.probe(chain(*"abc")) == 0, "visible before it is complete"
    stack.intake.abort(offered)
    assert stack.host.used_slots == 0
    assert get(stack, chain(*"abc")) == 0
    check(stack)


def test_the_longest_unused_sequence_leaves_first_from_its_end():
    stack = make_stack(host_pages=6)
    old, new = chain("old", 1, 2), chain("new", 1, 2)
    put(stack, old)
    put(stack, new)
    put(stack, chain("third"))
    assert stack.probe(old) == 2, "its last page goes first: nothing depends on it"
    assert stack.probe(new) == 3
    check(stack)


def test_a_used_sequence_outlives_an_unused_one():
    stack = make_stack(host_pages=6)
    first, second = chain("first", 1, 2), chain("second", 1, 2)
    put(stack, first)
    put(stack, second)
    get(stack, first)
    put(stack, chain("third", 1))
    assert stack.probe(first) == 3
    assert stack.probe(second) == 1
    check(stack)


def test_a_sequence_longer_than_the_tier_keeps_its_beginning():
    stack = make_stack(host_pages=4)
    keys = chain(*range(10))
    offered = stack.intake.begin(keys, ROOT_KEY, 1)
    stack.intake.commit(offered)
    assert (len(offered.pages), offered.refused) == (4, 6)
    assert stack.probe(keys) == 4
    check(stack)


def test_pinned_pages_are_never_evicted():
    stack = make_stack(host_pages=4)
    keys = chain(*"abcd")
    put(stack, keys)
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == 4
    assert put(stack, chain(*"xyz")) == 0
    for key, slot in zip(keys, restore.slots, strict=True):
        assert (stack.host.page(int(slot)) == content(key)).all()
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    assert put(stack, chain(*"xyz")) == 3
    check(stack)


def test_pages_evicted_from_host_memory_come_back_from_ssd():
    stack = make_stack(host_pages=4, ssd=memory_ssd())
    first, second = chain(*"abcd"), chain(*"wxyz")
    put(stack, first)
    stack.wait_written(10)
    put(stack, second)
    stack.wait_written(10)
    restore = settle(stack, stack.restore(first))
    assert restore.pages == 4
    assert restore.found() == ["ssd"] * 4
    stack.restorer.release(restore)
    assert get(stack, second) == 4
    check(stack)
    stack.close()


def test_everything_comes_back_after_a_restart():
    array = MemoryArray([2**20] * 3, seed=3)
    stack = make_stack(ssd=memory_ssd(array=array))
    sequences = [chain(name, 1, 2, 3) for name in range(5)]
    for keys in sequences:
        put(stack, keys)
        stack.wait_written(10)
    stack.close()
    again = make_stack(ssd=memory_ssd(array=_reopened(array)))
    for keys in sequences:
        assert get(again, keys) == 4
    check(again)
    again.close()


def test_another_namespace_never_hits_and_both_survive():
    array = MemoryArray([2**20] * 2, seed=3)
    keys = chain(*"abc")
    first = make_stack(ssd=memory_ssd(array=array))
    put(first, keys)
    first.close()
    for change in ({"model": "x"}, {"weights": "x"}, {"dtype": "bfloat16"}, {"rank": "tp1/2"}, {"kv_heads": 4}):
        array = _reopened(array)
        other = make_stack(ssd=memory_ssd(array=array), space=namespace(**change))
        assert get(other, keys) == 0, change
        other.close()
    again = make_stack(ssd=memory_ssd(array=_reopened(array)))
    assert get(again, keys) == 3
    check(again)


def test_a_full_ssd_evicts_pages_of_other_namespaces_too():
    array = MemoryArray([300_000], seed=3)
    old = make_stack(host_pages=64, ssd=memory_ssd(array=array))
    room = old.tiers["ssd"].stripes.capacity_units
    put(old, chain(*range(room)))
    old.close()
    new = make_stack(host_pages=64, ssd=memory_ssd(array=_reopened(array)), space=namespace(model="new"))
    assert new.snapshot().tiers["ssd"].pages == room
    keys = chain("new", *range(7))
    put(new, keys)
    new.wait_written(10)
    assert new.snapshot().tiers["ssd"].evictions == 8
    new.flush("memory")
    assert get(new, keys) == 8
    check(new)


def test_flushing_host_memory_keeps_what_is_on_ssd():
    stack = make_stack(ssd=memory_ssd())
    keys = chain(*"abc")
    put(stack, keys)
    stack.wait_written(10)
    stack.flush("memory")
    assert stack.host.used_slots == 0
    assert get(stack, keys) == 3
    stack.flush("all")
    assert get(stack, keys) == 0
    check(stack)
    assert put(stack, keys) == 3
    stack.wait_written(10)
    check(stack)


def test_new_weights_hide_every_old_page():
    stack = make_stack(ssd=memory_ssd())
    keys = chain(*"abc")
    put(stack, keys)
    stack.wait_written(10)
    stack.change_namespace(namespace(weights="new"))
    assert get(stack, keys) == 0
    assert put(stack, keys) == 3
    stack.wait_written(10)
    stack.change_namespace(namespace())
    assert get(stack, keys) == 3, "the old weights came back, and with them their pages"
    check(stack)


def test_a_flipped_byte_in_host_memory_is_a_miss_with_all_that_follows():
    stack = make_stack()
    keys = chain(*"abcd")
    put(stack, keys)
    page = stack.table.find(stack.namespace.digest(), keys[1])
    stack.host.page(page.slot)[7] ^= 1
    assert get(stack, keys) == 1
    assert stack.snapshot().tiers["host"].checksum_failures == 1
    corrupt, *lost = stack.events.since()
    assert corrupt.kind == "page.corrupt"
    assert [(event.kind, event.fields["pages"], event.fields["reason"]) for event in lost] == [
        ("restore.pages_lost", 1, "corrupt: checksum"),
        ("restore.pages_lost", 2, "dropped meanwhile"),
    ]
    assert stack.snapshot().restores.lost_pages == 3
    assert stack.probe(keys) == 1, "the pages behind it are unreachable and must not be kept"
    assert put(stack, keys) == 3
    assert get(stack, keys) == 4
    check(stack)


def test_verification_can_be_turned_off():
    stack = make_stack(host={"verify": False})
    keys = chain(*"ab")
    put(stack, keys)
    page = stack.table.find(stack.namespace.digest(), keys[1])
    stack.host.page(page.slot)[7] ^= 1
    restore = settle(stack, stack.restore(keys))
    assert restore.pages == 2


def test_a_waiting_request_may_evict_what_was_used_after_it_came():
    """An offload of another request is counted as a use while the restore is under way."""
    stack = make_stack(host_pages=4, ssd=memory_ssd())
    keys, other = chain(*"abcd"), chain(*"wxyz")
    for one in (keys, other):
        put(stack, one)
        stack.wait_written(10)
    tick = stack.table.tick

    def tick_and_use():
        now = tick()
        stack.table.tick = tick
        for key in other:
            stack.table.refresh(stack.table.find(stack.namespace.digest(), key), tick())
        return now

    stack.table.tick = tick_and_use
    assert get(stack, keys) == 4
    check(stack)


def test_two_requests_share_one_read():
    stack = make_stack(host_pages=8, ssd=memory_ssd())
    keys = chain(*"abcd")
    put(stack, keys)
    stack.wait_written(10)
    stack.flush("memory")
    first, second = stack.restore(keys), stack.restore(keys)
    assert settle(stack, first).pages == 4
    assert settle(stack, second).pages == 4
    assert list(first.slots) == list(second.slots)
    assert sum(device.bytes_read for device in stack.snapshot().devices) <= 4 * 8192
    stack.restorer.release(first)
    stack.restorer.release(second)
    check(stack)


def test_a_restore_past_its_deadline_gives_what_has_come_up():
    clock = Clock()
    stack = make_stack(clock=clock, policy={"restore_deadline": "100ms"})
    keys = chain(*"abc")
    put(stack, keys)
    stack.restorer._start = lambda restore: None  # a worker that never comes to it
    restore = stack.restore(keys)
    clock.now += 3600
    assert not stack.restorer.poll(restore), "the deadline counts from the first time that somebody waits"
    clock.now += 0.05
    assert not stack.restorer.poll(restore)
    clock.now += 0.1
    assert stack.restorer.poll(restore)
    assert (restore.state, restore.pages) == (RestoreState.READY, 0)
    assert (restore.outcome, restore.ended - restore.started) == ("expired", pytest.approx(3600.15))
    stack.restorer.release(restore)
    assert stack.snapshot().restores.restores_expired == 1
    assert [event.kind for event in stack.events.since()] == ["restore.expired"]
    check(stack)


def test_requests_that_cannot_be_admitted_pin_no_more_than_half_of_host_memory():
    stack = make_stack(host_pages=8)
    sequences = [chain(name, 1) for name in range(4)]
    for keys in sequences:
        put(stack, keys)
    restores = [stack.restore(keys) for keys in sequences]
    stack.restorer.wait_idle()
    assert [restore.state for restore in restores] == [RestoreState.READY] * 2 + [RestoreState.WAITING] * 2
    assert stack.table.pinned_pages == 4
    # Somebody waits for the last one: it starts at once.
    assert settle(stack, restores[3]).pages == 2
    # Pins are given back: the one that was put off starts by itself.
    stack.restorer.release(restores[0])
    stack.restorer.release(restores[1])
    stack.restorer.wait_idle()
    stack.restorer.wait_idle()
    assert restores[2].state is RestoreState.READY
    for restore in restores:
        stack.restorer.release(restore)
    check(stack)


def test_a_cancelled_restore_leaves_no_pin():
    stack = make_stack(host_pages=8, ssd=memory_ssd())
    keys = chain(*"abcd")
    put(stack, keys)
    stack.wait_written(10)
    stack.flush("memory")
    for _ in range(50):
        stack.restorer.release(stack.restore(keys))
    check(stack)
    assert get(stack, keys) == 4


def test_a_restore_says_how_it_ended():
    stack = make_stack(host_pages=8)
    keys = chain(*"abc")
    assert stack.restore(keys).outcome == "", "nothing is held"
    put(stack, keys)
    whole = settle(stack, stack.restore(keys))
    stack.restorer._start = lambda restore: None  # a worker that never comes to it
    ended_first = stack.restore(keys)
    assert (ended_first.outcome, ended_first.ended) == ("", None)
    stack.restorer.release(ended_first)
    stack.restorer.release(whole)
    assert (whole.outcome, ended_first.outcome) == ("completed", "cancelled")
    counts = stack.snapshot().restores
    ended = counts.restores_completed, counts.restores_cancelled
    assert (counts.restores_started, *ended) == (2, 1, 1), "no more end than begin"
    check(stack)


def test_restores_larger_than_host_memory_bring_up_what_fits():
    array = MemoryArray([2**20] * 2, seed=5)
    before = make_stack(host_pages=8, ssd=memory_ssd(array=array))
    keys = chain(*range(8))
    put(before, keys)
    before.wait_written(10)
    stack = make_stack(host_pages=4, ssd=memory_ssd(array=MemoryArray.from_images(array.images)))
    assert stack.probe(keys) == 8
    restore = settle(stack, stack.restore(keys))
    assert (restore.pages, restore.outcome) == (4, "cut_short")
    assert put(stack, chain("other")) == 0
    second = settle(stack, stack.restore([*keys[:4], *chain("else")]))
    assert (second.pages, second.outcome) == (4, "completed"), "all that was found"
    stack.restorer.release(second)
    stack.restorer.release(restore)
    check(stack)


def test_a_restore_that_finds_no_room_at_all_is_cut_short():
    stack = make_stack(host_pages=4, ssd=memory_ssd())
    first, other = chain(*range(4)), chain("other", *range(3))
    for keys in (first, other):
        put(stack, keys)
        stack.wait_written(10)
    holds_all = settle(stack, stack.restore(first))
    without = settle(stack, stack.restore(other))
    assert (holds_all.outcome, without.pages, without.outcome) == ("completed", 0, "cut_short")
    counts = stack.snapshot().restores
    assert (counts.restores_started, counts.restores_completed, counts.restores_cut_short) == (2, 1, 1)
    stack.restorer.release(without)
    stack.restorer.release(holds_all)
    check(stack)


@pytest.mark.parametrize("write", ["through", "back"])
def test_a_clean_end_saves_what_is_in_host_memory(write):
    array = MemoryArray([2**20] * 2, seed=5)
    stack = make_stack(ssd=memory_ssd(array=array), policy={"write": write})
    keys = chain(*"abcdef")
    put(stack, keys)
    if write == "back":
        assert stack.snapshot().tiers["ssd"].pages == 0, "nothing is written while there is room"
    stack.close()
    again = make_stack(ssd=memory_ssd(array=_reopened(array)))
    assert get(again, keys) == 6


def test_write_back_saves_pages_before_they_are_evicted():
    stack = make_stack(host_pages=16, ssd=memory_ssd(), policy={"write": "back"})
    sequences = [chain(name, 1, 2, 3) for name in range(8)]
    for keys in sequences:
        put(stack, keys)
        stack.wait_written(10)
    for keys in sequences:
        assert get(stack, keys) == 4
    check(stack)


def test_admission_on_reuse_writes_nothing_that_is_used_once():
    stack = make_stack(ssd=memory_ssd(), policy={"ssd_admission": "reuse"})
    once, twice = chain("once", 1), chain("twice", 1)
    put(stack, once)
    put(stack, twice)
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 0
    get(stack, twice)
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 2
    check(stack)


def test_admission_by_size_writes_long_prefixes_from_their_beginning():
    stack = make_stack(ssd=memory_ssd(), policy={"ssd_admission": "size", "admission_tokens": 12})
    put(stack, chain("short", 1))
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 0
    put(stack, chain("long", 1, 2, 3))
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 4, "a prefix is admitted as a whole"
    check(stack)


def test_use_of_the_device_prefix_counts():
    stack = make_stack(host_pages=6)
    hot, cold = chain("hot", 1, 2), chain("cold", 1, 2)
    put(stack, hot)
    put(stack, cold)
    # The device has all of `hot`: only its use is reported, nothing is moved.
    stack.restorer.release(settle(stack, stack.restore([chain("hot", 1, 2, 3)[3]], prefix_keys=hot)))
    stack.restorer.wait_idle()
    put(stack, chain("new", 1, 2))
    assert stack.probe(hot) == 3
    assert stack.probe(cold) == 0


def test_counters_balance():
    stack = make_stack(host_pages=8, ssd=memory_ssd())
    keys = chain(*range(6))
    put(stack, keys)
    get(stack, keys)
    get(stack, chain(*range(6), "x", "y"))
    check(stack)
    host = stack.snapshot().tiers["host"]
    assert host.misses == 2
    assert host.bytes_written == 6 * 4096
    assert stack.snapshot().restores.restores_started == stack.snapshot().restores.restores_completed == 2
    stack.close()
    stack.close()  # idempotent


class Unwilling(ModelTier):
    """Does not end: it waits for another process, or fails."""

    def __init__(self, fails: bool, ssd: SsdTier) -> None:
        super().__init__("attic", 4096, 4, fingerprint=ssd.fingerprint)
        self.let_go = threading.Event()
        self._fails = fails

    def close(self, held: Any, timeout: float | None = None) -> None:
        if self._fails:
            self.no_thread()
        self.let_go.wait()

    def no_thread(self, *arguments: Any) -> Any:
        raise RuntimeError("no thread to be had")


@pytest.mark.parametrize("what", ["hangs", "fails", "no thread"])
def test_a_tier_that_does_not_end_keeps_no_index_from_being_written(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    array = MemoryArray([2**20] * 2, seed=8)
    ssd = memory_ssd(array=array)
    unwilling = Unwilling(what == "fails", ssd)
    stack = make_stack(ssd=ssd, others=[unwilling])
    keys = chain(*"abcd")
    put(stack, keys)
    if what == "no thread":
        monkeypatch.setattr(stack.runner, "thread", unwilling.no_thread)
    if what != "hangs":
        with pytest.raises(RuntimeError, match="no thread to be had"):
            stack.close(timeout=6.0)
    else:
        stack.close(timeout=6.0)
        assert "the attic tier has not ended in time" in caplog.text
    unwilling.let_go.set()
    ModelTier.close(unwilling, None)
    scanned: list[int] = []
    ssd = memory_ssd(array=_reopened(array), progress=lambda device, *slots: scanned.append(device))
    again = make_stack(ssd=ssd)
    assert get(again, keys) == 4
    assert scanned == [], "it was not closed in order"
    check(again)


def test_a_byte_that_flips_before_the_write_is_never_blessed():
    """The stripe set gives what it is handed a checksum of its own; it must not be handed damaged bytes."""
    array = MemoryArray([2**20] * 2, seed=8)
    stack = make_stack(ssd=memory_ssd(array=array), policy={"write": "back"})
    keys = chain(*"abcd")
    put(stack, keys)
    page = stack.table.find(stack.namespace.digest(), keys[2])
    stack.host.page(page.slot)[100] ^= 1
    stack.close()
    assert stack.table.named("host").counters.checksum_failures == 1
    again = make_stack(ssd=memory_ssd(array=_reopened(array)))
    assert get(again, keys) == 2
    check(again)


def test_weights_may_change_any_number_of_times():
    stack = make_stack(ssd=memory_ssd(size=2**21))
    for number in range(600):
        stack.change_namespace(namespace(weights=f"unnamed-{number}"))
    keys = chain(*"ab")
    put(stack, keys)
    stack.wait_written(10)
    stack.flush("memory")
    assert get(stack, keys) == 2
    check(stack)


def test_weights_that_do_not_come_back_leave_nothing():
    """A model that is trained has others every few minutes; those that it was started with may be served again."""
    array, own = MemoryArray([2**21]), namespace()
    stack = make_stack(ssd=memory_ssd(array=array), space=own)
    keys = chain(*"ab")
    put(stack, keys)
    assert stack.wait_written(10)
    for number in range(600):
        stack.change_namespace(namespace(weights=f"unnamed-{number}"), comes_back=number == 0)
        if number % 100 == 0:
            assert put(stack, keys) == 2
            assert stack.wait_written(10)
    assert stack.errands.wait_idle(60)
    assert set(stack.table.book.roots) == {own.digest()}
    assert set(stack.table.book.digests.values()) == {own.digest()}
    assert stack.table.pages == 2
    check(stack)
    stack.close()
    again = make_stack(ssd=memory_ssd(array=_reopened(array)), space=own)
    assert get(again, keys) == 2, "others took its place among the namespaces that the devices know"
    check(again)


def test_a_namespace_that_the_devices_refuse_stays_in_host_memory():
    stack = make_stack(ssd=memory_ssd())

    def refuse(*_):
        raise FormatError("injected")

    stack.tiers["ssd"].stripes.register_namespace = refuse
    stack.change_namespace(namespace(weights="new"))
    keys = chain(*"ab")
    assert put(stack, keys) == 2
    assert get(stack, keys) == 2
    assert stack.snapshot().tiers["ssd"].pages == 0
    assert "ssd.namespace_refused" in [event.kind for event in stack.events.since()]
    check(stack)


def test_a_silent_device_keeps_nobody_waiting():
    """Its reads and writes never come back: requests, new copies of its pages and other devices go on."""

    class Silent(MemoryArray):
        """Device 0 swallows requests when told to."""

        silent = False
        swallowed = 0

        def submit(self, requests):
            heard = [request for request in requests if not (self.silent and request.device == 0)]
            self.swallowed += len(requests) - len(heard)
            super().submit(heard)

        @property
        def in_flight(self):
            return len(self._requests) + (self.swallowed if self.silent else 0)

        def reap(self, at_least, timeout=None):
            time.sleep(0.0005)
            return super().reap(min(at_least, len(self._requests)), timeout)

    array = Silent([2**20] * 3, seed=4)
    clock = Clock()
    ssd = memory_ssd(array=array, stall_seconds=5.0, clock=clock)
    stack = make_stack(host_pages=64, ssd=ssd)
    old = chain("old", *range(8))
    put(stack, old)
    stack.wait_written(10)
    stack.flush("memory")
    array.silent = True
    restore = stack.restore(old)
    put(stack, chain("new", *range(20)))
    limit = time.monotonic() + WAIT
    while stack.snapshot().devices[0].in_service and time.monotonic() < limit:
        clock.now += 1
        time.sleep(0.01)
    assert not stack.snapshot().devices[0].in_service
    assert settle(stack, restore).pages < 9
    stack.restorer.release(restore)
    assert stack.wait_written(10), "writes to the devices that are left do not go on"
    assert put(stack, old) > 0, "a page that is being read for ever is never computed anew"
    assert get(stack, old) == 9
    assert get(stack, chain("new", *range(20))) == 21
    # What it has swallowed never comes back: the end of the stack gives it up.


def test_a_stripe_set_that_closes_under_a_write_blocks_nobody():
    """Pages are handed to it with the page table's lock held, which the end of each write needs."""
    stack = make_stack(ssd=memory_ssd())
    reserve = stack.tiers["ssd"].stripes.reserve

    def reserve_and_close(length):
        placement = reserve(length)
        stack.tiers["ssd"].stripes.close(None)
        return placement

    stack.tiers["ssd"].stripes.reserve = reserve_and_close
    keys = chain(*"abc")
    assert put(stack, keys) == 3
    assert stack.wait_written(10)
    assert "ssd.write_failed" in [event.kind for event in stack.events.since()]
    assert get(stack, keys) == 3
    check(stack)


def test_a_stripe_set_that_has_closed_gives_a_restore_nothing():
    stack = make_stack(ssd=memory_ssd())
    keys = chain(*"abc")
    put(stack, keys)
    stack.wait_written(10)
    stack.flush("memory")
    stack.tiers["ssd"].stripes.close(None)
    assert get(stack, keys) == 0
    check(stack)


def test_ssd_pages_leave_from_the_end_of_a_sequence():
    ssd = memory_ssd(devices=1, size=300_000)
    room = ssd.stripes.capacity_units
    stack = make_stack(host_pages=64, ssd=ssd)
    old = chain("old", *range(room - 1))
    put(stack, old)
    stack.wait_written(10)
    put(stack, chain("new", 1, 2))
    stack.wait_written(10)
    stack.flush("memory")
    assert get(stack, chain("new", 1, 2)) == 3
    assert get(stack, old) == room - 3
    check(stack)


def test_a_failed_write_is_tried_on_the_devices_that_are_left():
    class Broken(MemoryArray):
        """Writes to device 0 fail once the stripe set is made."""

        broken = False

        def _carry_out(self, request):
            done = super()._carry_out(request)
            return done._replace(error=5) if self.broken and request.device == 0 and request.operation else done

    array = Broken([2**20] * 2, seed=4)
    stack = make_stack(ssd=memory_ssd(array=array))
    array.broken = True
    keys = chain(*"abcdefgh")
    put(stack, keys)
    stack.wait_written(10)
    snapshot = stack.snapshot()
    assert [device.in_service for device in snapshot.devices] == [False, True]
    assert snapshot.tiers["ssd"].pages == 8
    stack.flush("memory")
    assert get(stack, keys) == 8
    check(stack)
    assert "device.out" in [event.kind for event in stack.events.since()]


def test_a_device_that_is_full_beneath_its_file_is_told_of():
    array = FaultyArray(MemoryArray([2**20] * 2, seed=4))
    stack = make_stack(ssd=memory_ssd(array=array))
    array.add(Fault(Fail(errno.ENOSPC), device=0, operation=Operation.WRITE))
    put(stack, chain(*"abcdefgh"))
    stack.wait_written(10)
    (event,) = [event for event in stack.events.since() if event.kind == "device.takes_nothing"]
    assert "ENOSPC" in event.fields["reason"]
    devices = stack.snapshot().devices
    assert [(device.in_service, device.takes_pages) for device in devices] == [(True, False), (True, True)]
    check(stack)


def test_a_device_that_was_full_is_written_to_again():
    """After a minute, and after two where it is full still; but not if an operator drains it meanwhile."""
    array, clock = FaultyArray(MemoryArray([2**20] * 2, seed=4)), Clock()
    ssd = memory_ssd(array=array, clock=clock)
    stack = make_stack(ssd=ssd, clock=clock)
    names = iter("abcdefghijklmnopqrst")

    def takes() -> list[bool]:
        return [device.takes_pages for device in stack.snapshot().devices]

    def writes() -> None:
        put(stack, chain(*(next(names) for _ in range(4))))
        stack.wait_written(10)

    array.add(Fault(Fail(errno.ENOSPC), device=0, operation=Operation.WRITE))
    writes()
    assert takes() == [False, True]
    clock.now += 59
    time.sleep(0.01)
    assert takes() == [False, True]
    clock.now += 2
    wait_until(lambda: takes() == [True, True], "it is not tried again")
    writes()
    assert takes() == [False, True], "it is full still"
    array.clear()
    clock.now += 61
    writes()
    assert takes() == [False, True], "it was too soon the last time"
    clock.now += 60
    wait_until(lambda: takes() == [True, True], "it is not tried again")
    writes()
    assert takes() == [True, True]
    ssd.commands(stack.config)["drain"]("0")
    array.add(Fault(Fail(errno.ENOSPC), device=1, operation=Operation.WRITE))
    writes()
    ssd.commands(stack.config)["drain"]("1")
    clock.now += 7200
    stack.wait_written(10)
    wait_until(lambda: ssd.stripes._io._next_check > clock.now, "the devices are not looked at")
    assert takes() == [False, False], "who drains a device wants it so"
    assert [device.reason for device in stack.snapshot().devices] == ["draining"] * 2
    check(stack)


def test_a_device_that_was_out_is_written_to_again():
    """After a minute, with nothing on it; what was in memory is written there, too, and comes up from there."""
    array, clock = FaultyArray(MemoryArray([2**20] * 2, seed=4)), Clock()
    stack = make_stack(host_pages=64, ssd=memory_ssd(array=array, clock=clock), clock=clock)
    array.add(Fault(Fail(errno.EIO), device=0, operation=Operation.WRITE))
    old = chain(*"abcdefgh")
    put(stack, old)
    stack.wait_written(10)
    kinds = [event.kind for event in stack.events.since()]
    assert "device.out" in kinds
    array.clear()

    def is_back() -> bool:
        clock.now += 1.1
        time.sleep(0.002)
        return "device.back" in [event.kind for event in stack.events.since()]

    began = clock.now
    wait_until(is_back, "it is not taken back")
    assert clock.now - began > 59
    new = chain(*"ijklmnopq")
    put(stack, new)
    stack.wait_written(10)
    devices = stack.snapshot().devices
    assert all(device.takes_pages and device.used_bytes for device in devices)
    stack.flush("memory")
    assert (get(stack, old), get(stack, new)) == (8, 9)
    check(stack)


def test_a_device_that_is_back_learns_of_a_namespace_that_came_meanwhile():
    """While no device was left the weights changed: nothing could note the new namespace, so nothing was written."""
    array = FaultyArray(MemoryArray([2**20], seed=4))
    ssd = memory_ssd(array=array)
    stack = make_stack(host_pages=64, ssd=ssd)
    array.add(Fault(Fail(errno.EIO), device=0, operation=Operation.WRITE))
    put(stack, chain(*"abcd"))
    stack.wait_written(10)
    wait_until(lambda: "device.pages_lost" in [one.kind for one in stack.events.since()], "its pages are not given up")
    stack.change_namespace(namespace(weights="others"))
    wait_until(
        lambda: "ssd.namespace_refused" in [one.kind for one in stack.events.since()], "the namespace is not refused"
    )
    array.clear()
    assert ssd.stripes.readmit(0) == ""
    new = chain(*"efgh")
    wait_until(lambda: stack.movers["ssd"].enabled, "nothing is written to it")
    put(stack, new)
    stack.wait_written(10)
    assert stack.snapshot().tiers["ssd"].pages == 4
    stack.flush("memory")
    assert get(stack, new) == 4
    check(stack)


def _reopened(array):
    """A new array over what `array` holds: a process that ended and one that starts."""
    return MemoryArray.from_images([image.copy() for image in array.images], seed=9)


def test_writes_for_which_there_is_no_memory_are_tried_no_more_than_once_until_the_next_use():
    """As long as that lasts: nothing has left service, so that nobody would end trying."""
    array = FaultyArray(MemoryArray([2**20] * 2, seed=4))
    stack = make_stack(64, memory_ssd(array=array))
    array.add(Fault(Fail(errno.ENOMEM), operation=Operation.WRITE))
    keys = chain(*range(32))
    put(stack, keys)
    assert stack.wait_written(60)
    told = [event for event in stack.events.since() if event.kind == "ssd.write_failed"]
    assert 0 < len(told) <= len(keys)
    assert all(device.in_service for device in stack.snapshot().devices)
    array.clear()
    stack.restorer.used(keys)
    stack.restorer.wait_idle()
    assert stack.wait_written(60)
    assert stack.snapshot().tiers["ssd"].pages == len(keys)
    check(stack)


def test_reads_for_which_there_is_no_memory_cost_neither_pages_nor_devices():
    array = FaultyArray(MemoryArray([2**20] * 2, seed=4))
    stack = make_stack(64, memory_ssd(array=array))
    keys = chain(*range(16))
    put(stack, keys)
    assert stack.wait_written(60)
    stack.flush("memory")
    array.add(Fault(Fail(errno.EAGAIN), operation=Operation.READ))
    assert get(stack, keys) == 0
    array.clear()
    assert stack.snapshot().tiers["ssd"].pages == len(keys)
    assert all(device.in_service for device in stack.snapshot().devices)
    assert get(stack, keys) == len(keys)
    check(stack)


def test_many_pages_say_what_each_of_them_says():
    stack = make_stack(host_pages=8, ssd=memory_ssd())
    keys = chain(*"abcdef")
    put(stack, keys)
    assert stack.wait_written(60), "a write pins the pages that it copies"
    restore = settle(stack, stack.restore(keys))
    pages = list(restore.claimed)
    assert Places.of_pages(pages).numbers.tolist() == host_slots(pages) == [page.slot for page in pages]
    assert held_run(pages) == len(pages)
    with stack.table.lock:
        stack.table.drop(pages[3])
    assert held_run(pages) == next(at for at, page in enumerate(pages) if page.dropped) == 3
    assert Places.of_pages(pages).numbers.tolist() == [page.slot for page in pages], "pinned ones stay"
    stack.restorer.release(restore)
    stack.restorer.wait_idle()
    assert [page.gone for page in pages[3:]] == [True] * 3
    assert held_run(pages) == 3
    for function in (host_slots, Places.of_pages):
        with pytest.raises(NotHeldError):
            function(pages)
    assert held_run([]) == len(Places.of_pages([])) == len(host_slots([])) == 0
    stack.close()
