"""A prefix that is longer than landing memory comes through it all the same: pages leave it as they are copied.

What goes wrong meanwhile, and several requests at once: `drained_by_several` in `ops/lab/torture/scenarios.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from swift_tiers.ops.lab.torture.model_peer import ModelPeer
from swift_tiers.ops.lab.torture.scenarios import pages_at_peers_alone
from swift_tiers.ops.lab.torture.stacks import content, device_digests
from swift_tiers.ops.lab.torture.taking import How, KnownCosts, Taking
from swift_tiers.radix_tiering.base.errors import DamagedPageError
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.restore.cost import ComputeCost, SourceCost
from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.restore.live import PAGES_TIMED
from swift_tiers.radix_tiering.way.draining import Draining
from swift_tiers.radix_tiering.way.request_restore import Readiness
from swift_tiers.radix_tiering.way.up import Restorer

from support.engine import GEOMETRY, chain, check, close, copy_of, end_all, make_stack, settle
from support.mutate import mutate

SLOTS, PAGES = 4, 16
KEYS = chain(*range(PAGES))


class Bench:
    """A stack whose pages lie in lent memory alone, and the device that takes them."""

    def __init__(self, stack: Any, peer: ModelPeer, lease: Any, device: Taking) -> None:
        self.stack, self.peer, self.lease, self.device = stack, peer, lease, device
        self.runner = stack.runner


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    end_all()


def in_virtual_time(
    seed: int,
    test: Callable[[Bench], None],
    slots: int = SLOTS,
    costs: Any = None,
    *,
    here_too: bool = False,
    **options: Any,
) -> None:
    """`here_too`: host memory has the pages as well; `options`: of the stack."""
    draw = random.Random(seed)
    runner = VirtualRunner(seed, switch=draw.choice((0.1, 0.3, 0.7)), most_seconds=300.0)

    def main() -> None:
        peer = ModelPeer(GEOMETRY.page_bytes, landing_slots=slots, runner=runner)
        stack = make_stack(2 * PAGES, lent=peer, runner=runner, **options)
        lease = peer.lend(2 * PAGES)
        peer.settle()
        pages_at_peers_alone(stack, peer, KEYS, KEYS if here_too else ())
        stack.planner.costs = costs or KnownCosts()
        test(Bench(stack, peer, lease, Taking(stack, runner, draw)))
        check(stack)
        close(stack)

    runner.run(main)


def comes_whole(bench: Bench) -> None:
    assert bench.device.serve(KEYS) is How.WHOLE
    assert bench.peer.landings == PAGES
    assert (bench.device.copied, bench.device.computed) == (PAGES - 1, 1)
    assert bench.stack.host.used_slots == 0, "something came through host memory"
    assert bench.peer.links["peer-host"].pages == 0


@pytest.mark.parametrize("slots", [1, 2, SLOTS])
@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_many_times_its_slots_comes_through_landing_memory(seed: int, slots: int) -> None:
    in_virtual_time(seed, comes_whole, slots)


DEFECTS = [
    (Draining, "copied", "restore.flight[unit] is Unit.DONE", "False"),
    (Restorer, "take", "self._draining.taken(restore, step)", "pass"),
    (Draining, "room", "return 0 if self._goes_on(restore) else most", "return most"),
]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect[1]}: {defect[2]}")
def test_a_slot_that_comes_back_too_late_is_noticed(defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *defect)
    with pytest.raises(BaseException, match=r"AssertionError|assert"):
        in_virtual_time(0, comes_whole, slots=1)


def test_what_landing_memory_has_room_for_waits_for_nobody() -> None:
    """It is promised whole, as ever."""

    def test(bench: Bench) -> None:
        restore = settle(bench.stack, bench.stack.restore(KEYS[:SLOTS], can_compute=True))
        assert not restore.drains
        assert restore.pages == SLOTS
        bench.stack.restorer.release(restore)

    in_virtual_time(0, test)


def test_what_is_needed_whole_comes_through_host_memory_as_ever() -> None:
    def test(bench: Bench) -> None:
        restore = settle(bench.stack, bench.stack.restore(KEYS))
        assert restore.pages == PAGES
        assert (restore.slots >= bench.stack.host.slots).sum() == SLOTS
        bench.stack.restorer.release(restore)

    in_virtual_time(0, test)


def may_begin(bench: Bench) -> Any:
    """A restore of all of it that the device may begin to take."""
    restore = bench.stack.restore(KEYS, can_compute=True)
    while bench.stack.restorer.poll(restore) is Readiness.WAIT:
        bench.runner.sleep(1e-3)
    return restore


def test_it_waits_for_its_turn_and_is_not_late() -> None:
    """Its first pages have landed, and no more have room until it begins: that is for want of a turn, not of speed."""

    def test(bench: Bench) -> None:
        restorer, restore = bench.stack.restorer, may_begin(bench)
        bench.runner.sleep(100.0)
        assert restorer.poll(restore) is Readiness.COMPUTE
        assert restore.drains
        assert not restore.late
        assert bench.stack.snapshot().restores.restores_late == 0
        restorer.release(restore)

    in_virtual_time(0, test)


def test_it_is_loaded_in_another_way_where_other_ranks_do_not_take_it_so() -> None:
    def test(bench: Bench) -> None:
        restorer, restore = bench.stack.restorer, may_begin(bench)
        bench.runner.sleep(1.0)  # longer than it was to take
        restorer.refuse_draining(restore)
        assert not restore.drains
        settle(bench.stack, restore)
        assert restore.pages == PAGES
        assert not restore.late
        assert bench.stack.host.used_slots >= PAGES - SLOTS, "it came through host memory"
        restorer.release(restore)

    in_virtual_time(0, test)


def test_the_first_page_comes_whoever_keeps_landing_memory() -> None:
    """Pages of its own may: another restore has brought them up."""

    def test(bench: Bench) -> None:
        bench.stack.restorer.release(settle(bench.stack, bench.stack.restore(KEYS[:4], can_compute=True)))
        kept = bench.stack.restore(KEYS[-SLOTS:], KEYS[:-SLOTS], can_compute=True)
        settle(bench.stack, kept)
        assert bench.peer.used_slots == SLOTS
        assert bench.device.serve(KEYS) is How.WHOLE
        assert bench.stack.snapshot().restores.restores_late == 0
        bench.stack.restorer.release(kept)

    in_virtual_time(0, test)


class FastHost(KnownCosts):
    """A way through host memory costs next to nothing, so nothing is gained by a forward more."""

    def __init__(self) -> None:
        super().__init__()
        self.sources["host"] = SourceCost(latency_seconds=0.0, bytes_per_second=GEOMETRY.page_bytes / 1e-5)


def test_it_is_not_drained_where_host_memory_is_as_fast() -> None:
    def test(bench: Bench) -> None:
        restore = settle(bench.stack, bench.stack.restore(KEYS, can_compute=True))
        assert not restore.drains
        assert restore.pages == PAGES
        bench.stack.restorer.release(restore)

    in_virtual_time(0, test, costs=FastHost())


# ---- what host memory has as well ----


def lands_whole(bench: Bench) -> None:
    assert bench.device.serve(KEYS) is How.WHOLE
    assert bench.peer.landings == PAGES
    assert (bench.device.copied, bench.device.computed) == (PAGES - 1, 1)
    assert bench.stack.snapshot().tiers["peer"].bytes_read == PAGES * GEOMETRY.page_bytes


@pytest.mark.parametrize("slots", [1, 2, SLOTS])
@pytest.mark.parametrize("seed", range(3))
def test_what_host_memory_has_too_lands_where_that_is_sooner(seed: int, slots: int) -> None:
    in_virtual_time(seed, lands_whole, slots, here_too=True, copies_beside=True)


def comes_from_here(bench: Bench) -> None:
    restore = settle(bench.stack, bench.stack.restore(KEYS, can_compute=True))
    assert restore.pages == PAGES
    assert not restore.also_here
    assert bench.peer.landings == 0
    bench.stack.restorer.release(restore)


def is_computed(bench: Bench) -> None:
    """Though it was to land at first, and could be copied from host memory."""
    restore = settle(bench.stack, bench.stack.restore(KEYS, can_compute=True))
    assert (len(restore.also_here), restore.pages) == (PAGES, 0)
    assert "recomputing takes" in restore.story.told().why
    assert bench.peer.landings == 0
    bench.stack.restorer.release(restore)


def test_it_is_copied_from_there_where_that_is_sooner() -> None:
    in_virtual_time(0, comes_from_here, costs=FastHost(), here_too=True, copies_beside=True)


def test_it_is_copied_from_there_where_nothing_is_known_of_that() -> None:
    """Nobody has measured it, and too few have been copied."""

    def test(bench: Bench) -> None:
        del bench.stack.planner.costs.sources["host"]
        bench.stack.links["host-device"].count(PAGES_TIMED - 1, GEOMETRY.page_bytes, 1e-2 * PAGES_TIMED)
        comes_from_here(bench)
        bench.stack.links["host-device"].count(1, GEOMETRY.page_bytes, 1e-2)
        lands_whole(bench)

    in_virtual_time(0, test, here_too=True, copies_beside=True)


class FastDevice(KnownCosts):
    """Computing a page takes less than landing it, which takes less than copying it from host memory."""

    compute = compute_at_worst = ComputeCost(fixed_seconds=1e-3, token_seconds=1e-4, pair_seconds=0.0)


def test_it_is_computed_where_that_is_sooner_than_landing_and_copying() -> None:
    in_virtual_time(0, is_computed, costs=FastDevice(), here_too=True, copies_beside=True)


class SlowDevice(KnownCosts):
    """To compute the last pages takes longer than any wait for them; the first one is soon computed."""

    compute = compute_at_worst = ComputeCost(fixed_seconds=1e-3, token_seconds=1e-2, pair_seconds=1e-3)


def test_it_is_copied_from_there_where_pages_are_verified_first() -> None:
    in_virtual_time(0, comes_from_here, here_too=True)


def test_it_is_copied_from_there_where_all_that_lands_would_fit() -> None:
    """Then nothing would be drained, and it would only be waited for."""
    in_virtual_time(0, comes_from_here, slots=PAGES, here_too=True, copies_beside=True)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("what", ["recalled", "ended", "damaged"])
def test_what_does_not_land_is_taken_from_host_memory(seed: int, what: str) -> None:
    def test(bench: Bench) -> None:
        def cause() -> None:
            bench.runner.sleep(random.Random(seed).random() * 3e-3)
            if what == "recalled":
                bench.peer.recall(bench.lease)
            elif what == "ended":
                bench.peer.end(bench.lease)
            else:
                for data in bench.peer.stored.values():
                    data[5] ^= 1

        thread = bench.runner.thread(cause, "trouble")
        thread.start()
        assert bench.device.serve(KEYS) is How.WHOLE
        # The page that it begins with, unless that happened before it began: then all of it was taken from there.
        assert bench.device.computed <= 1
        thread.join()

    in_virtual_time(seed, test, here_too=True, copies_beside=True)


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_neighbour_that_hangs_costs_a_wait_and_nothing_is_computed(begun_before: bool) -> None:
    """The wait is as long as a load may take that falls behind."""

    def test(bench: Bench) -> None:
        restorer, device = bench.stack.restorer, bench.device
        if not begun_before:
            bench.peer.hold(True)
            assert device.serve(KEYS) is How.WHOLE
            assert (device.copied, device.computed) == (PAGES, 0)
        else:
            restore = begun(bench)
            bench.peer.hold(True)
            restorer.copies(restore, 1, SLOTS)
            restorer.take(restore, restorer.step(restore, 1))
            restorer.copied(restore, 1, SLOTS)
            until(bench, lambda: restorer.step(restore, 1 + SLOTS) == (PAGES, PAGES))
            restorer.release(restore)
        assert [event.kind for event in bench.stack.events.since()].count("restore.behind") == 1
        bench.peer.hold(False)
        bench.runner.sleep(1.0)

    in_virtual_time(0, test, here_too=True, copies_beside=True)


def test_it_begins_where_its_first_page_will_not_come() -> None:
    """As where nothing has room for it: the device computes it. It waited for its deadline before."""

    def test(bench: Bench) -> None:
        restorer = bench.stack.restorer
        bench.peer.hold(True)
        restore = bench.stack.restore(KEYS, can_compute=True)
        until(bench, lambda: restore.drains and restore.flight.loading)
        assert restorer.poll(restore) is Readiness.WAIT
        with bench.stack.table.lock:
            restore.flight.failed(0)
        assert restorer.poll(restore) is Readiness.COMPUTE
        assert restorer.step(restore, 0) == Step(0, 1)
        restorer.release(restore)
        bench.peer.hold(False)
        bench.peer.settle()

    in_virtual_time(0, test)


@pytest.mark.parametrize("deadline", ["0.3s", "60s"])
def test_pages_that_trickle_are_waited_for_until_its_deadline(deadline: str) -> None:
    """However soon one comes after the other: nobody else is admitted meanwhile."""

    def test(bench: Bench) -> None:
        put = bench.peer._put

        def slowly(job: Callable[[], None] | None, **named: Any) -> None:
            put(job and (lambda: (bench.runner.sleep(0.04), job())[1]), **named)

        bench.peer._put = slowly  # type: ignore[method-assign]
        assert bench.device.serve(KEYS) is How.WHOLE
        behind = [event.fields["reason"] for event in bench.stack.events.since() if event.kind == "restore.behind"]
        if deadline == "60s":
            assert (bench.device.computed, behind) == (1, [])
        else:
            assert bench.device.computed > 1
            assert behind == ["a page that the device waited for did not come in time"]

    in_virtual_time(0, test, costs=SlowDevice(), policy={"restore_deadline": deadline}, restore={"behind": 50})


@pytest.mark.parametrize("taken_first", [True, False])
def test_what_lands_while_it_is_copied_from_host_memory_stays_pinned_there(taken_first: bool) -> None:
    """It landed before the device took it once, behind the look at what is being copied: another user's page came to
    its slot while it was copied from there. Found by reading; the worlds "landing-here" find it now."""

    def test(bench: Bench) -> None:
        restorer, restore = bench.stack.restorer, taken_from_here(bench)
        places = restorer.places(restore, 0, PAGES).numbers
        assert (places < bench.stack.host.slots).all()
        restorer.copies(restore, 0, PAGES)
        if taken_first:
            restorer.take(restore, Step(PAGES, PAGES))
        bench.peer.hold(False)
        until(bench, lambda: bench.peer.landings)
        if not taken_first:
            restorer.take(restore, Step(PAGES, PAGES))
        assert all(page.pins for page in restore.claimed), "its slot is another one's while it is copied"
        bench.stack.host.page(restore.claimed[0].slot)[3] ^= 1
        with pytest.raises(DamagedPageError):
            restorer.verifier.verified(restore, 0, places.tolist())(None)
        restorer.copied(restore, 0, PAGES)
        restorer.split(restore)
        restorer.release(restore)

    in_virtual_time(0, test, here_too=True, copies_beside=True)


def test_a_slot_that_is_another_pages_by_the_end_of_a_copy_does_not_agree_with_itself() -> None:
    """What the device says of a page is compared with what it had said when the copy began."""

    def test(bench: Bench) -> None:
        restorer, restore, host = bench.stack.restorer, taken_from_here(bench), bench.stack.host
        slots = [page.slot for page in restore.claimed]
        host.digests.learn(slots, device_digests([host.page(slot) for slot in slots]))
        verified = restorer.verifier.verified(restore, 0, slots, by_device=True)
        host.page(slots[3])[:] = content(b"another user's")
        there = device_digests([host.page(slot) for slot in slots])
        host.digests.learn(slots, there)
        with pytest.raises(DamagedPageError):
            verified(there)
        bench.peer.hold(False)
        restorer.release(restore)

    in_virtual_time(0, test, here_too=True, copies_beside=True)


def test_what_is_taken_from_host_memory_after_all_is_verified_there() -> None:
    def test(bench: Bench) -> None:
        restorer, restore = bench.stack.restorer, taken_from_here(bench)
        bench.stack.host.page(restore.claimed[2].slot)[3] ^= 1
        verified = restorer.verifier.verified(restore, 0, restorer.places(restore, 0, PAGES).numbers.tolist())
        with pytest.raises(DamagedPageError):
            verified(None)
        bench.peer.hold(False)
        restorer.release(restore)

    in_virtual_time(0, test, here_too=True, copies_beside=True)


def until(bench: Bench, there: Callable[[], object]) -> None:
    for _ in range(2000):
        if there():
            return
        bench.runner.sleep(1e-4)
    raise AssertionError("it does not come")


def taken_from_here(bench: Bench) -> Any:
    """A restore some of whose pages are to land, where nothing does, and that takes all from host memory instead."""
    bench.peer.hold(True)
    restore = bench.stack.restore(KEYS, can_compute=True)
    until(bench, lambda: restore.flight.loading)
    with bench.stack.table.lock:
        restore.take_what_is_here()
    return restore


def begun(bench: Bench) -> Any:
    """A restore whose first page the device computes, with others behind that have landed."""
    restorer = bench.stack.restorer
    restore = bench.stack.restore(KEYS, can_compute=True)
    until(bench, lambda: restorer.poll(restore) is Readiness.COMPUTE)
    assert restorer.present(restore, 0) < PAGES
    restorer.take(restore, restorer.step(restore, 0))
    until(bench, lambda: bench.peer.used_slots == SLOTS and restore.flight.arrived_from(1) == SLOTS)
    return restore


def being_copied(bench: Bench) -> Any:
    """As `begun`, and all that has landed is being copied to the device, which has taken it."""
    restorer, restore = bench.stack.restorer, begun(bench)
    restorer.copies(restore, 1, SLOTS)
    step = restorer.step(restore, 1)
    assert step == (1 + SLOTS, 1 + SLOTS)
    restorer.take(restore, step)
    bench.runner.sleep(0.01)
    return restore


def test_it_is_promised_only_what_has_landed_and_one_page_less_before_it_begins() -> None:
    def test(bench: Bench) -> None:
        restorer = bench.stack.restorer
        restore = bench.stack.restore(KEYS, can_compute=True)
        until(bench, lambda: restorer.poll(restore) is Readiness.COMPUTE)
        until(bench, lambda: restore.flight.present == SLOTS // 2)
        bench.runner.sleep(0.01)
        assert bench.peer.used_slots == SLOTS // 2, "half of it is for whoever the device takes pages of"
        assert restorer.present(restore, 0) == SLOTS // 2 - 1
        step = restorer.step(restore, SLOTS // 2 - 1)
        assert step == (SLOTS // 2 - 1, SLOTS // 2)
        restorer.release(restore)

    in_virtual_time(0, test)


def test_slots_come_back_when_the_copy_has_ended_and_not_before() -> None:
    def test(bench: Bench) -> None:
        restorer, restore = bench.stack.restorer, being_copied(bench)
        assert bench.peer.landings == 1 + SLOTS, "others landed where it is being copied from"
        restorer.copied(restore, 1, SLOTS)
        until(bench, lambda: bench.peer.landings == 1 + 2 * SLOTS)
        restorer.copied(restore, 1, SLOTS)  # a second time changes nothing
        assert bench.peer.used_slots == SLOTS
        restorer.release(restore)

    in_virtual_time(0, test)


def test_a_copy_that_was_withdrawn_gives_nothing_back_before_its_request_ends() -> None:
    def test(bench: Bench) -> None:
        restorer, restore = bench.stack.restorer, being_copied(bench)
        restorer.copied(restore, 1, 0)
        bench.runner.sleep(0.01)
        assert (bench.peer.landings, bench.peer.used_slots) == (1 + SLOTS, SLOTS)
        restorer.release(restore)
        restorer.copied(restore, 1, SLOTS)  # too late: it is all given back

    in_virtual_time(0, test)


def test_a_page_that_is_damaged_is_computed_and_those_before_it_have_landed() -> None:
    def test(bench: Bench) -> None:
        page = bench.stack.table.find(bench.stack.digest, KEYS[10])
        bench.peer.damage(copy_of(bench.stack, page, "peer").place)
        assert bench.device.serve(KEYS) is How.WHOLE
        assert bench.device.copied >= 9
        assert bench.device.computed < PAGES - 8
        assert bench.stack.host.used_slots == 0

    in_virtual_time(0, test)


def test_a_donor_that_dies_leaves_the_rest_to_be_computed() -> None:
    def test(bench: Bench) -> None:
        restorer, restore = bench.stack.restorer, begun(bench)
        bench.peer.end(bench.lease)
        bench.peer.settle()
        step = restorer.step(restore, 1)
        assert step.jump == 1 + SLOTS, "what has landed is promised still"
        restorer.copies(restore, 1, SLOTS)
        restorer.take(restore, step)
        restorer.copied(restore, 1, SLOTS)
        until(bench, lambda: restorer.step(restore, 1 + SLOTS).end == PAGES)
        restorer.release(restore)

    in_virtual_time(0, test)
