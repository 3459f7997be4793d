"""Threads that hang are told of, with their place; those that wait for work, compute or go on by and by are not.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests call them there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from swift_tiers.radix_tiering.base.events import EventLog
from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.sglang_ext.tell import hang_watch
from swift_tiers.sglang_ext.tell.hang_watch import LOOKS, HangWatch

from support.prompts import prompt
from support.redis import wait_for
from support.scheduler_process import SchedulerProcess

#: Looks at threads that do not hang.
MANY = 5 * LOOKS


class World:
    """A watch that looks when it is told to, and threads that end with the test."""

    def __init__(self) -> None:
        self.stack = SimpleNamespace(events=EventLog(time.time), hung_threads=0)
        self.watch = HangWatch(self.stack)
        self._ends: list[Callable[[], Any]] = []

    def thread(self, name: str, waits: Callable[[], Any], end: Callable[[], Any]) -> threading.Thread:
        """One that does that until `end` is called."""
        thread = threading.Thread(target=waits, name=name, daemon=True)
        self._ends += [thread.join, end]
        thread.start()
        return thread

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.watch.look()

    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.fields["thread"]) for event in self.stack.events.since()]

    def close(self) -> None:
        for end in reversed(self._ends):
            end()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(hang_watch, "_OURS", os.path.dirname(__file__))
    made = World()
    yield made
    made.close()


def read_pipe(descriptor: int) -> None:
    while os.read(descriptor, 1) != b"e":
        pass


def take(lock: Any) -> None:
    with lock:
        pass


def test_a_look_that_fails_is_not_the_last(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "LOOK_SECONDS", 0.0)
    looks = []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) < 3:
            raise MemoryError

    monkeypatch.setattr(world.watch, "look", look)
    world.watch.start()
    wait_for(lambda: len(looks) > 3)
    world.watch.close()


def test_a_call_that_does_not_return_is_told_once_and_when_it_has_returned(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    reads, writes = os.pipe()
    world.thread("ssd-sync", lambda: read_pipe(reads), lambda: os.write(writes, b"e"))
    wait_for(lambda: world.look() or world.told())
    world.look(MANY)
    assert world.told() == [("thread.hangs", "ssd-sync")]
    assert world.stack.hung_threads == 1
    (event,) = world.stack.events.since()
    assert event.fields["at"].startswith("test_hang_watch.py:")
    assert event.fields["at"].endswith(" in read_pipe")
    (entry,) = [one for one in caplog.records if "ssd-sync" in one.getMessage()]
    assert "os.read" in entry.getMessage(), "its stack"
    os.write(writes, b"x")
    wait_for(lambda: world.look() or len(world.told()) > 1)
    assert world.told()[1] == ("thread.goes_on", "ssd-sync")
    assert world.stack.hung_threads == 0


def test_a_lock_that_nobody_gives_back_is_a_hang(world: World) -> None:
    lock = threading.Lock()
    lock.acquire()
    world.thread("swift-offload", lambda: take(lock), lock.release)
    wait_for(lambda: world.look() or world.told())
    assert world.told() == [("thread.hangs", "swift-offload")]


def test_who_waits_for_work_computes_or_goes_on_does_not_hang(world: World) -> None:
    flag, condition, queue, poller = THREADS.flag(), THREADS.condition(), THREADS.queue(), THREADS.poller()
    over, turns = threading.Event(), [0]

    def wait() -> None:
        with condition:
            condition.wait()

    def notify() -> None:
        with condition:
            condition.notify_all()

    def look_about() -> None:
        while not over.is_set():
            turns[0] += 1
            time.sleep(0.0001)

    def compute() -> None:
        while not over.is_set():
            pass

    world.thread("swift-flag", flag.wait, flag.set)
    world.thread("swift-condition", wait, notify)
    world.thread("swift-queue", lambda: queue.get(), lambda: queue.put(None))
    world.thread("swift-poller", lambda: poller.poll(100.0), poller.wake)
    world.thread("ssd-io", look_about, over.set)
    world.thread("ssd-code-0", compute, over.set)
    for _ in range(MANY):
        until = turns[0] + 3
        wait_for(lambda until=until: turns[0] >= until)  # who goes on by and by has done so since the last look
        world.look()
    assert world.told() == []


def test_a_thread_of_somebody_else_is_not_looked_at(world: World) -> None:
    lock = threading.Lock()
    lock.acquire()
    world.thread("zmq-publisher", lambda: take(lock), lock.release)
    world.look(MANY)
    assert world.told() == []


def test_the_scheduler_is_looked_at_where_it_is_in_code_of_ours(world: World) -> None:
    """It waits at a place where threads of ours wait for work: that is none of its places."""
    flag = THREADS.flag()

    def looks() -> None:
        while not world.told():
            world.look()
        flag.set()

    looker = threading.Thread(target=looks)
    looker.start()
    flag.wait()
    looker.join()
    assert world.told()[0] == ("thread.hangs", "scheduler")
    assert "test_the_scheduler_is_looked_at" in world.stack.events.since()[0].fields["at"]


def test_it_ends_with_its_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "LOOK_SECONDS", 0.001)
    looks = []
    monkeypatch.setattr(HangWatch, "look", lambda self: looks.append(1))
    world.watch.start()
    wait_for(lambda: len(looks) > 3)
    world.watch.close()
    world.watch.close()
    wait_for(lambda: not any(one.name == "swift-watch" for one in threading.enumerate()))


# ---- a scheduler with threads of every kind ----


def watched(s) -> tuple[HangWatch, Callable[[], list[dict]]]:
    """A watch that looks when it is told to, and what it has told."""
    if s.linker.reporting is not None:
        s.linker.reporting.watch.close()
    events = s.linker.stack.events
    watch, begun = HangWatch(s.linker.stack), events.emitted
    return watch, lambda: [one.fields for one in events.since(begun) if one.kind == "thread.hangs"]


def nobody_hangs(s) -> set[str]:
    """Neither at work nor without any; the threads that were looked at."""
    watch, told = watched(s)
    for seed in range(6):
        s.generate(prompt(seed))
        watch.look()
    s.settle()
    for _ in range(LOOKS + 2):
        watch.look()
        time.sleep(hang_watch.LOOK_SECONDS)  # as it does: some wait for a second, look about and wait again
    assert told() == [], told()
    return {seen.name for seen in watch._seen.values()}


def who_waits_for_a_lock_hangs(s) -> tuple[list[dict], list[dict]]:
    """Somebody has the page table's lock and does not give it back; what is told before and after it does."""
    watch, told = watched(s)
    lock, before = s.linker.stack.table.lock, []
    lock.acquire()

    def looks() -> None:
        while not any(one["thread"] == "scheduler" for one in told()):
            watch.look()
        before.extend(told())
        lock.release()

    looker = threading.Thread(target=looks)
    looker.start()
    try:
        s.generate(prompt(77))
    finally:
        looker.join()
    wait_for(lambda: watch.look() or not s.linker.stack.hung_threads)
    return before, [one.fields for one in s.linker.stack.events.since() if one.kind == "thread.goes_on"]


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    from swift_tiers.ops.base.model import tiny_model

    folders = [tmp_path_factory.mktemp(name) for name in ("bus", "ssd0", "ssd1", "store")]
    folders[0].chmod(0o700)
    config = {
        "host": {"size": "4MiB"},
        "ssd": {"directories": list(map(str, folders[1:3])), "size_per_device": "32MiB", "stripe_unit": "8KiB"},
        "bus": {"directory": str(folders[0]), "server": "watched"},
        "peer": {"donate": "0..50%", "borrow": True},
        "remote": {"engine": "file", "options": {"file_storage_path": str(folders[3])}},
    }
    arguments = [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32",
        "--max-total-tokens", "4096", "--max-running-requests", "8", "--page-size", "16",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip
    with SchedulerProcess(arguments) as process:
        yield process


def test_none_of_the_threads_of_a_scheduler_hangs(scheduler: SchedulerProcess) -> None:
    looked_at = scheduler(nobody_hangs)
    of_every_kind = {
        "scheduler", "swift-load", "swift-offload", "swift-restore", "swift-check-0", "ssd-io", "ssd-verify-0",
        "swift-bus", "swift-lease", "swift-arena", "swift-peer", "swift-remote", "swift-remote-ear",
    }  # fmt: skip
    assert of_every_kind <= looked_at, of_every_kind - looked_at


def test_a_scheduler_that_waits_for_a_lock_is_told_of(scheduler: SchedulerProcess) -> None:
    hung, went_on = scheduler(who_waits_for_a_lock_hangs)
    (event,) = [one for one in hung if one["thread"] == "scheduler"]
    assert event["at"].partition("/")[0] in ("radix_tiering", "sglang_ext")
    assert {one["thread"] for one in went_on} >= {"scheduler"}
