"""New weights and flushes while devices do not answer: nobody waits who need not, and no old page comes back."""

from __future__ import annotations

import threading
import time

import pytest

from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.engine import Clock, chain, check, crash, get, make_stack, memory_ssd, namespace, put
from support.silent import STALL, SilentArray, wait_for

OLD, NEW, NEWER = namespace(), namespace(weights="new"), namespace(weights="newer")
KEYS = chain(*"abc")


class Scene:
    """A stack on three devices that may fall silent, its pages written."""

    def __init__(self) -> None:
        self.array = SilentArray(MemoryArray([2**20] * 3, seed=6))
        self.clock = Clock()
        self.stack = make_stack(
            ssd=memory_ssd(array=self.array, stall_seconds=STALL, clock=self.clock), host_pages=32, space=OLD
        )
        put(self.stack, KEYS)
        assert self.stack.wait_written(10)

    def silence(self) -> None:
        for device in range(3):
            self.array.silence(device)

    def events(self, kind: str) -> list[dict]:
        return [event.fields for event in self.stack.events.since() if event.kind == kind]

    def after_a_crash(self, space) -> int:
        """How many of `KEYS` a server of this namespace finds after a crash now."""
        again = make_stack(ssd=memory_ssd(array=MemoryArray.from_images(self.array.inner.images)), space=space)
        found = get(again, KEYS)
        crash(again)
        return found


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.array.sync_answers.set()
    made.array.answer()


def test_new_weights_wait_for_no_device(scene) -> None:
    scene.silence()
    scene.stack.change_namespace(NEW)
    assert get(scene.stack, KEYS) == 0
    assert put(scene.stack, KEYS) == 3
    assert get(scene.stack, KEYS) == 3
    assert scene.after_a_crash(NEW) == 0
    scene.array.answer()
    assert scene.stack.wait_written(10)
    assert (scene.after_a_crash(NEW), scene.after_a_crash(OLD)) == (3, 3)
    check(scene.stack)


def test_no_page_is_written_before_the_devices_know_its_namespace(scene) -> None:
    written = scene.stack.snapshot().tiers["ssd"].bytes_written
    scene.array.sync_hangs.update(range(3))
    scene.stack.change_namespace(NEW)
    put(scene.stack, KEYS)
    assert not scene.stack.wait_written(0.1)
    assert scene.stack.snapshot().tiers["ssd"].bytes_written == written
    assert scene.stack.snapshot().write_queue_pages == 3
    scene.array.sync_answers.set()
    assert scene.stack.wait_written(10)
    assert scene.after_a_crash(NEW) == 3
    check(scene.stack)


def test_weights_that_change_again_meanwhile(scene) -> None:
    scene.silence()
    for space in (NEW, NEWER, NEW, OLD, NEWER):
        scene.stack.change_namespace(space)
        put(scene.stack, KEYS)
    scene.array.answer()
    assert scene.stack.wait_written(10)
    assert [scene.after_a_crash(space) for space in (OLD, NEW, NEWER)] == [3, 0, 3]
    check(scene.stack)


def test_where_no_device_is_left_pages_stay_in_host_memory(scene) -> None:
    scene.silence()
    scene.stack.change_namespace(NEW)
    put(scene.stack, KEYS)
    wait_for(lambda: len(scene.array.swallowed) == 3)
    scene.clock.now += STALL + 1
    wait_for(lambda: scene.events("ssd.namespace_refused"))
    assert scene.events("ssd.namespace_refused") == [{"reason": "no device is left"}]
    assert scene.stack.wait_written(10), "what nobody will ever write is waited for"
    assert get(scene.stack, KEYS) == 3
    assert put(scene.stack, chain(*"xyz")) == 3
    assert scene.stack.snapshot().write_queue_pages == 0


@pytest.mark.parametrize("silent", [1, 3])
def test_a_flush_says_whether_it_would_survive_a_crash(scene, silent: int) -> None:
    for device in range(silent):
        scene.array.silence(device)
    ended: list[bool] = []
    flushing = threading.Thread(target=lambda: (scene.stack.flush("all"), ended.append(True)), daemon=True)
    flushing.start()
    wait_for(lambda: len(scene.array.swallowed) >= silent)
    time.sleep(0.05)
    assert not ended
    assert scene.stack.probe(KEYS) == 0, "in memory it takes effect at once"
    # Somebody waits a moment for one that is slow, and as long as there is hope for the last.
    scene.clock.now += 2.0 if silent == 1 else STALL + 1
    wait_for(lambda: ended)
    flushing.join()
    assert scene.events("tiers.flushed") == [{"host": True, "ssd": True, "durable": silent == 1}]
    assert scene.stack.snapshot().devices[0].in_service == (silent == 1)
    if silent == 1:
        assert scene.after_a_crash(OLD) == 0


@pytest.mark.parametrize("memory", [True, False])
def test_a_flush_that_writes_nothing_down_says_nothing_of_crashes(scene, memory: bool) -> None:
    scene.stack.flush("memory" if memory else "nothing")
    assert scene.events("tiers.flushed") == [{"host": memory, "ssd": False}]
    assert scene.after_a_crash(OLD) == 3


def test_nor_does_one_where_there_is_nothing_to_write_it_to() -> None:
    stack = make_stack()
    stack.flush("all")
    assert [event.fields for event in stack.events.since()] == [{"host": True, "ssd": True}]
