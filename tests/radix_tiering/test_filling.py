"""What durable tiers have kept comes back while pages are served: what is not entered yet is a miss, no more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.ops.lab.torture.stacks import GEOMETRY, content
from swift_tiers.radix_tiering.base.page import ROOT_KEY, HeldPages, Namespace
from swift_tiers.radix_tiering.bus.contract.commands import CapTier, DrainDevice
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.table.newest_first import newest_first
from swift_tiers.radix_tiering.tiers.ssd import stripe_set
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.way import filling as filling_module
from swift_tiers.radix_tiering.way.filling import Filling, Stage

from support.engine import chain, check, close, crash, get, make_stack, memory_ssd, namespace, obey, put, refusal

WAIT = 60.0
OLD, YOUNG = chain("old", 1, 2), chain("young", 1, 2, 3)


class Gate:
    """Lets a function go on so many times, and says how often it has been reached."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left = 0
        self.reached = 0

    def pass_through(self) -> None:
        with self._changed:
            self.reached += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._left, WAIT)
            self._left -= 1

    def let(self, times: int) -> None:
        with self._changed:
            self._left += times
            self._changed.notify_all()

    def wait_reached(self, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.reached >= times, WAIT)


def gate_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Gate:
    gate, real = Gate(), getattr(owner, name)

    def gated(self: Any, *arguments: Any) -> Any:
        gate.pass_through()
        return real(self, *arguments)

    monkeypatch.setattr(owner, name, gated)
    return gate


@pytest.fixture
def kept() -> MemoryArray:
    """Devices of a stack that was closed in order, with two chains on them."""
    array = MemoryArray([2**20] * 2, seed=1)
    stack = make_stack(ssd=memory_ssd(array=array))
    for keys in (OLD, YOUNG):
        put(stack, keys)
        assert stack.wait_written(WAIT)
    close(stack)
    return MemoryArray.from_images(array.images)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Whatever reads what the devices have waits here."""
    gate = gate_before(monkeypatch, SsdTier, "open")
    yield gate
    gate.let(99)


@pytest.fixture
def entering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Pages are entered one by one, each of them waits here."""
    monkeypatch.setattr(filling_module, "ENTERED_TOGETHER", 1)
    gate = Gate()
    real = Filling._enter_some

    def gated(self: Filling, newest: int) -> int:
        self._table.lock.release()
        try:
            gate.pass_through()
        finally:
            self._table.lock.acquire()
        return 0 if self._ending else real(self, newest)

    monkeypatch.setattr(Filling, "_enter_some", gated)
    yield gate
    gate.let(99)


def start(array: MemoryArray, space: Namespace | None = None, **options: Any) -> TierStack:
    return make_stack(ssd=memory_ssd(array=array, behind=True), space=space, fill_behind=True, **options)


def start_to(array: MemoryArray, entering: Gate, entered: int) -> TierStack:
    """A server that has so many of the pages."""
    stack = start(array)
    entering.let(entered)
    if entered < 7:
        entering.wait_reached(entered + 1)
        return stack
    return filled(stack)


def filled(stack: TierStack) -> TierStack:
    assert stack.filler.wait_idle(WAIT)
    assert stack.fillings["ssd"].stage is Stage.FILLED
    return stack


def again(array: MemoryArray, space: Namespace | None = None) -> TierStack:
    """Another server, that waits until all is read."""
    return make_stack(ssd=memory_ssd(array=MemoryArray.from_images(array.images)), space=space)


def told(stack: TierStack, kind: str) -> list[dict[str, Any]]:
    return [event.fields for event in stack.events.since() if event.kind == kind]


# ---- while the index is read ----


def test_serving_begins_before_anything_is_read(kept: MemoryArray, opening: Gate) -> None:
    stack = start(kept)
    assert stack.probe(YOUNG) == 0
    assert get(stack, YOUNG) == 0
    other = chain("other", 1, 2)
    assert put(stack, other) == 3
    assert get(stack, other) == 3
    assert not stack.wait_written(0.0), "written before it is known what is there"
    snapshot = stack.snapshot()
    assert [device.service for device in snapshot.devices] == ["opening"] * 2
    assert snapshot.tiers["ssd"].capacity_bytes > 0
    assert snapshot.tiers["ssd"].pages == 0
    assert snapshot.tiers["ssd"].unread_pages == 1, "nobody has to think that all is found"
    assert "being read" in refusal(stack, DrainDevice(device=0))
    opening.let(99)
    filled(stack)
    assert stack.wait_written(WAIT)
    assert [get(stack, keys) for keys in (OLD, YOUNG, other)] == [3, 4, 3]
    assert [device.service for device in stack.snapshot().devices] == ["in service"] * 2
    assert told(stack, "ssd.recovered") == [{"pages": 7, "unreachable": 0}]
    check(stack)


def test_a_stop_before_all_is_read_leaves_the_devices_as_they_were(kept: MemoryArray, opening: Gate) -> None:
    before = [image.copy() for image in kept.images]
    stack = start(kept)
    opening.wait_reached()
    put(stack, chain("other"))
    stopping = threading.Thread(target=stack.close, args=(1.0,))
    stopping.start()
    stopping.join(WAIT)
    opening.let(99)
    stack.filler.close(WAIT)
    assert all(np.array_equal(now, then) for now, then in zip(kept.images, before, strict=True))
    found = again(kept)
    ssd = found.tiers["ssd"]
    assert isinstance(ssd, SsdTier)
    assert not ssd.stripes.scanned
    assert [get(found, keys) for keys in (OLD, YOUNG)] == [3, 4]


def test_a_stop_in_the_middle_of_reading_ends_it(kept: MemoryArray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads is told between two steps."""
    from swift_tiers.radix_tiering.tiers.ssd import opening as module

    reading, closed = threading.Event(), threading.Event()
    real = module.read_checkpoint

    def read(*arguments: Any) -> Any:
        reading.set()
        assert closed.wait(WAIT)
        return real(*arguments)

    monkeypatch.setattr(module, "read_checkpoint", read)
    before = [image.copy() for image in kept.images]
    stack = start(kept)
    assert reading.wait(WAIT)
    stopping = threading.Thread(target=stack.close, args=(30.0,))
    stopping.start()
    ssd = stack.tiers["ssd"]
    assert isinstance(ssd, SsdTier)
    while not ssd.stripes._closed:
        stack.runner.sleep(0.001)
    closed.set()
    stopping.join(WAIT)
    assert not stopping.is_alive()
    assert not told(stack, "ssd.not_opened")
    assert all(np.array_equal(now, then) for now, then in zip(kept.images, before, strict=True))


def test_what_is_flushed_before_it_is_read_never_comes_back(kept: MemoryArray, opening: Gate) -> None:
    stack = start(kept)
    stack.flush("all")
    assert told(stack, "tiers.flushed")[-1]["durable"] is False, "nothing could be written yet"
    put(stack, OLD[:2])
    opening.let(99)
    filled(stack)
    assert told(stack, "tiers.flushed")[-1] == {"host": False, "ssd": True, "durable": True}
    assert stack.wait_written(WAIT)
    assert [get(stack, keys) for keys in (OLD, YOUNG)] == [2, 0]
    check(stack)
    crash(stack)
    assert [get(again(kept), keys) for keys in (OLD, YOUNG)] == [2, 0]


def test_what_is_flushed_before_it_is_read_does_not_come_back_after_a_stop(kept: MemoryArray, opening: Gate) -> None:
    stack = start(kept)
    opening.wait_reached()
    stack.flush("all")
    stopping = threading.Thread(target=stack.close)
    stopping.start()
    opening.let(99)
    stopping.join(WAIT)
    assert not stopping.is_alive()
    assert told(stack, "tiers.flushed")[-1]["durable"]
    assert [get(again(kept), keys) for keys in (OLD, YOUNG)] == [0, 0]


def test_new_weights_before_the_index_is_read(kept: MemoryArray, opening: Gate) -> None:
    stack = start(kept)
    stack.change_namespace(namespace(weights="new"))
    put(stack, OLD)
    opening.let(99)
    filled(stack)
    assert stack.wait_written(WAIT)
    assert [get(stack, keys) for keys in (OLD, YOUNG)] == [3, 0]
    check(stack)
    close(stack)
    assert [get(again(kept, namespace()), keys) for keys in (OLD, YOUNG)] == [3, 4], "the old weights come back"
    assert [get(again(kept, namespace(weights="new")), keys) for keys in (OLD, YOUNG)] == [3, 0]


@pytest.mark.parametrize("where", ["recover", "register"])
def test_an_error_while_the_index_is_taken_over_ends_the_tier_and_keeps_its_devices(
    kept: MemoryArray, opening: Gate, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As MemoryError is. What the devices have is there for the next start."""

    def fail(*arguments: Any) -> Any:
        raise MemoryError(where)

    stack = start(kept)
    monkeypatch.setattr(stack.tiers["ssd"], where, fail)
    put(stack, YOUNG)
    opening.let(99)
    assert stack.filler.wait_idle(WAIT)
    assert told(stack, "ssd.not_opened") == [{"reason": where}]
    assert stack.movers["ssd"].backlog == 0, "what nobody will write is kept"
    put(stack, chain(*"uvw"))
    assert stack.movers["ssd"].backlog == 0
    assert get(stack, YOUNG) == 4
    stack.flush("memory")
    close(stack)
    monkeypatch.undo()
    assert get(again(kept, namespace()), OLD) == 3


def test_pages_that_wait_for_an_index_are_no_more_than_can_be_written(kept: MemoryArray, opening: Gate) -> None:
    """What host memory has no room for any more is not waited with, however long that takes."""
    stack = start(kept)
    slots = stack.host.slots
    for number in range(40 * slots):
        put(stack, chain(f"p{number}"))
        assert stack.movers["ssd"].backlog <= 2 * slots + 2
    stack.flush("nothing")
    assert 0 < stack.movers["ssd"].backlog <= 2 * slots + 2, "nothing of it was to be emptied"
    opening.let(99)
    filled(stack)
    assert stack.wait_written(WAIT)
    assert stack.snapshot().tiers["ssd"].pages > 0
    close(stack)


def test_devices_that_cannot_be_read_leave_service(
    kept: MemoryArray, opening: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise OSError("no such luck")

    monkeypatch.setattr(stripe_set, "open_set", fail)
    before = [image.copy() for image in kept.images]
    stack = start(kept)
    put(stack, YOUNG)
    assert stack.movers["ssd"].backlog == 4
    opening.let(1)
    assert stack.filler.wait_idle(WAIT)
    assert told(stack, "ssd.not_opened") == [{"reason": "no such luck"}]
    assert stack.movers["ssd"].backlog == 0, "what nobody will write is kept"
    put(stack, OLD)
    assert [get(stack, keys) for keys in (OLD, YOUNG)] == [3, 4]
    snapshot = stack.snapshot()
    assert {(device.service, device.reason) for device in snapshot.devices} == {
        ("out", "what it has could not be read: no such luck")
    }
    assert snapshot.tiers["ssd"].capacity_bytes == 0
    assert set(snapshot.tiers["ssd"].refusals) == {"no device takes pages"}
    stack.change_namespace(namespace(weights="new"))
    put(stack, OLD)
    check(stack)
    close(stack)
    assert all(np.array_equal(now, then) for now, then in zip(kept.images, before, strict=True))


# ---- while pages are entered ----


def test_what_was_written_last_comes_first(kept: MemoryArray, entering: Gate) -> None:
    stack = start(kept)
    for number, (young, old) in enumerate([(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (4, 1), (4, 2)]):
        entering.wait_reached(number + 1)
        assert (stack.probe(YOUNG), stack.probe(OLD)) == (young, old)
        assert stack.snapshot().tiers["ssd"].unread_pages == 7 - young - old
        assert get(stack, YOUNG) == young
        entering.let(1)
    filled(stack)
    check(stack)


@pytest.mark.parametrize("entered", range(8))
def test_a_stop_in_between_forgets_nothing(kept: MemoryArray, entering: Gate, entered: int) -> None:
    stack = start_to(kept, entering, entered)
    stopping = threading.Thread(target=stack.close)
    stopping.start()
    with stack.table.lock:
        while not stack.fillings["ssd"]._ending:
            stack.table.lock.release()
            stack.runner.sleep(0.001)
            stack.table.lock.acquire()
    entering.let(99)
    stopping.join(WAIT)
    found = again(kept)
    ssd = found.tiers["ssd"]
    assert isinstance(ssd, SsdTier)
    assert not ssd.stripes.scanned
    assert [get(found, keys) for keys in (OLD, YOUNG)] == [3, 4]
    check(found)


@pytest.mark.parametrize("entered", range(8))
def test_what_is_flushed_in_between_never_comes_back(kept: MemoryArray, entering: Gate, entered: int) -> None:
    stack = start_to(kept, entering, entered)
    stack.flush("all")
    assert told(stack, "tiers.flushed")[-1]["durable"]
    entering.let(99)
    filled(stack)
    assert [get(stack, keys) for keys in (OLD, YOUNG)] == [0, 0]
    check(stack)
    crash(stack)
    assert [get(again(kept), keys) for keys in (OLD, YOUNG)] == [0, 0]


@pytest.mark.parametrize("entered", range(8))
def test_a_device_that_goes_in_between_takes_its_pages_along(kept: MemoryArray, entering: Gate, entered: int) -> None:
    stack = start_to(kept, entering, entered)
    ssd = stack.tiers["ssd"]
    assert isinstance(ssd, SsdTier)
    ssd.stripes._io.call(lambda: ssd.stripes._io.take_out(0, "it fell off"))
    while not told(stack, "device.out"):
        stack.runner.sleep(0.001)
    entering.let(99)
    filled(stack)
    assert stack.errands.wait_idle(WAIT)
    for page in stack.table.all_pages():
        copy = page.copy_in(stack.table.named("ssd").number)
        assert copy is None or not ssd.uses(copy.place, 0), "a page is promised that lies on a device that is gone"
    for keys in (OLD, YOUNG):
        assert stack.probe(keys) == get(stack, keys)
    check(stack)


def test_a_device_that_has_gone_makes_no_step_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling takes as long as there are steps: as many pages are entered in each of them, whatever lies between."""
    array, steps = MemoryArray([2**21] * 4, seed=1), list[int]()
    stack = make_stack(1024, memory_ssd(array=array))
    for number in range(40):
        put(stack, chain(number, *range(4)))
    assert stack.wait_written(WAIT)
    close(stack)
    real = Filling._enter_some

    def counted(self: Filling, newest: int) -> int:
        steps.append(1)
        return real(self, newest)

    monkeypatch.setattr(Filling, "_enter_some", counted)
    filling = make_stack(16, memory_ssd(array=MemoryArray.from_images(array.images), behind=True), fill_behind=True)
    with filling.table.lock:
        filling.fillings["ssd"].lose(1)
    filled(filling)
    assert len(steps) <= -(-200 // filling_module.ENTERED_TOGETHER) + 1
    assert 0 < filling.table.pages < 200
    check(filling)


def test_a_cap_in_between_holds_for_what_comes_after_it(kept: MemoryArray, entering: Gate) -> None:
    stack = start_to(kept, entering, 2)
    assert isinstance(obey(stack, CapTier(tier="ssd", limit=3 * GEOMETRY.page_bytes)), str)
    entering.let(99)
    filled(stack)
    assert stack.table.named("ssd").pages == 3
    assert [get(stack, keys) for keys in (OLD, YOUNG)] == [0, 3]
    check(stack)


def test_a_page_that_comes_from_the_device_just_then(kept: MemoryArray, entering: Gate) -> None:
    """It has no copy until it is there: nobody reads it where another thread fills its slot."""
    stack = start(kept)
    entering.let(2)
    entering.wait_reached(3)
    offered = stack.intake.begin(YOUNG[2:], YOUNG[1], 3)
    assert len(offered.pages) == 2
    entering.let(2)  # looks, and looks again
    entering.wait_reached(5)
    assert stack.probe(YOUNG) == 2
    for index, slot in zip(offered.indices, offered.slots, strict=True):
        stack.host.page(slot)[:] = content(YOUNG[2:][index])
    stack.intake.commit(offered)
    entering.let(99)
    filled(stack)
    assert [get(stack, keys) for keys in (OLD, YOUNG)] == [3, 4]
    assert told(stack, "ssd.recovered") == [{"pages": 7, "unreachable": 0}]
    check(stack)


def test_what_came_in_before_its_copy_was_entered_has_both(kept: MemoryArray, entering: Gate) -> None:
    stack = start(kept)
    put(stack, OLD)
    entering.let(99)
    filled(stack)
    assert stack.wait_written(WAIT)
    page = stack.table.find(stack.digest, OLD[0])
    assert page is not None
    assert page.resident
    assert page.whole_in(stack.table.named("ssd").number)
    check(stack)


# ---- the order ----


def _held(parents: Sequence[int], orders: Sequence[int]) -> HeldPages:
    """Pages of which each follows one before it in the list, or none (-1)."""
    keys = chain(*range(len(parents)))
    before = [ROOT_KEY if parent < 0 else keys[parent] for parent in parents]
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    rows = np.frombuffer(b"".join(key + one for key, one in zip(keys, before, strict=True)), np.int64).reshape(-1, 8)
    places = np.arange(len(parents))
    return HeldPages(bytes(16), GEOMETRY.page_bytes, rows.copy(), np.array(depths), places, np.array(orders))


@st.composite
def forests(draw: Callable[..., Any]) -> tuple[list[int], list[int], list[int]]:
    count = draw(st.integers(1, 24))
    parents = [draw(st.integers(-1, number - 1)) for number in range(count)]
    orders = draw(st.permutations(range(count)))
    return parents, list(orders), list(draw(st.permutations(range(count))))


@settings(max_examples=200, deadline=None)
@given(forests())
def test_chains_come_newest_first_and_parents_before_children(forest: tuple[list[int], list[int], list[int]]) -> None:
    parents, orders, shuffled = forest
    held = _held(parents, orders)
    mixed = held._replace(
        keys=np.ascontiguousarray(held.keys[shuffled]), depths=held.depths[shuffled], order=held.order[shuffled]
    )
    found = [shuffled[at] for at in newest_first(mixed).tolist()]
    assert sorted(found) == list(range(len(parents)))
    reach = list(orders)
    for page in reversed(range(len(parents))):
        if parents[page] >= 0:
            reach[parents[page]] = max(reach[parents[page]], reach[page])
    assert [reach[page] for page in found] == sorted(reach, reverse=True)
    place = {page: at for at, page in enumerate(found)}
    assert all(parent < 0 or place[parent] < place[page] for page, parent in enumerate(parents))


def test_nothing_has_an_order() -> None:
    held = _held([], [])._replace(keys=np.zeros((0, 8), np.int64), depths=np.zeros(0, np.int64))
    assert not len(newest_first(held._replace(order=np.zeros(0, np.int64))))
