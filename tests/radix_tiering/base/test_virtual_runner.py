"""Locks, conditions, flags, queues and threads mean the same on real threads and in virtual time; and a seed is an
order of everything."""

from __future__ import annotations

import gc
import queue
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import greenlet
import pytest

from swift_tiers.radix_tiering.base.runner import Runner, ThreadRunner
from swift_tiers.radix_tiering.base.virtual import Stuck, TaskDied, VirtualProcess, VirtualRunner

from support.examples import examples

SEEDS = range(examples(40))
#: Long for a machine that is busy; no time at all in virtual time.
LONG = 60.0

Program = Callable[[Runner], Any]


def everywhere(program: Program) -> list[Any]:
    """What a program returns on real threads, and by many seeds."""
    found = [program(ThreadRunner())]
    for seed in SEEDS:
        runner = VirtualRunner(seed, switch=0.5, changes=seed % 4, expected_steps=100)
        found.append(runner.run(lambda runner=runner: program(runner)))
    return found


def join(runner: Runner, *targets: Callable[[], None]) -> None:
    """Run all at once, to their ends."""
    threads = [runner.thread(target, f"number {number}") for number, target in enumerate(targets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def one_at_a_time(runner: Runner) -> int:
    lock, inside, most = runner.lock(), [0], [0]

    def enter() -> None:
        for _ in range(20):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                runner.sleep(0)
                inside[0] -= 1

    join(runner, *[enter] * 4)
    return most[0]


def handed_over(runner: Runner) -> list[int]:
    """By a condition: no notice is lost, whoever comes first."""
    changed, box, got = runner.condition(), list[int](), list[int]()

    def give() -> None:
        for number in range(10):
            with changed:
                assert changed.wait_for(lambda: not box, LONG)
                box.append(number)
                changed.notify_all()

    def take() -> None:
        for _ in range(10):
            with changed:
                assert changed.wait_for(lambda: box, LONG)
                got.append(box.pop())
                changed.notify_all()

    join(runner, take, give)
    return got


def queued(runner: Runner) -> list[int]:
    jobs, got = runner.queue(), list[int]()

    def take() -> None:
        while (job := jobs.get()) is not None:
            got.append(job)

    def give() -> None:
        for number in range(10):
            jobs.put(number)
        jobs.put(None)

    join(runner, take, give)
    assert jobs.empty()
    with pytest.raises(queue.Empty):
        jobs.get(timeout=0.001)
    return got


def flagged(runner: Runner) -> bool:
    flag = runner.flag()
    assert not flag.wait(0.001)
    seen = []
    join(runner, lambda: seen.append(flag.wait(LONG)), lambda: seen.append(flag.wait(LONG)), flag.set)
    flag.clear()
    return seen == [True, True] and not flag.is_set()


def here(runner: Runner) -> bool:
    found = []
    thread = runner.thread(lambda: found.append(runner.here(thread)), "one")
    thread.start()
    thread.join(LONG)
    return found == [True] and not runner.here(thread)


@pytest.mark.parametrize(
    ("program", "result"),
    [(one_at_a_time, 1), (handed_over, [*range(10)]), (queued, [*range(10)]), (flagged, True), (here, True)],
)
def test_the_same_on_threads_and_in_virtual_time(program: Program, result: Any) -> None:
    assert all(found == result for found in everywhere(program))


def test_who_sleeps_longest_wakes_last_and_an_hour_takes_no_time() -> None:
    runner, woken = VirtualRunner(1, stall=0.0), list[float]()

    def sleeper(seconds: float) -> Callable[[], None]:
        def sleep() -> None:
            runner.sleep(seconds)
            woken.append(seconds)

        return sleep

    def main() -> None:
        began = runner.monotonic()
        join(runner, sleeper(3600.0), sleeper(30.0), sleeper(0.5))
        assert 3600 < runner.monotonic() - began < 3601

    with pytest.raises(AssertionError):  # `join` waits a minute for each
        runner.run(main)
    assert woken == [0.5, 30.0]


def unguarded(runner: Runner, lock: bool) -> int:
    """Two that count on, reading before they write; a step lies between."""
    counted, guard = [0], runner.lock()

    def count() -> None:
        for _ in range(3):
            if lock:
                guard.acquire()
            before = counted[0]
            runner.sleep(0)
            counted[0] = before + 1
            if lock:
                guard.release()

    join(runner, count, count)
    return counted[0]


def test_a_missing_lock_shows_under_some_seeds_only() -> None:
    found = []
    for seed in range(20):
        runner = VirtualRunner(seed)
        found.append(runner.run(lambda runner=runner: unguarded(runner, lock=False)))
        runner = VirtualRunner(seed)
        assert runner.run(lambda runner=runner: unguarded(runner, lock=True)) == 6
    assert min(found) < 6
    assert len(set(found)) > 1


def test_who_gets_no_turn_goes_on_later_and_misses_nothing() -> None:
    runner = VirtualRunner(3, switch=0.0, stall=0.0)
    went_on: list[float] = []

    def main() -> None:
        flag, began = runner.flag(), runner.monotonic()

        def wait() -> None:
            assert flag.wait(5.0), "it was woken"
            went_on.append(runner.monotonic() - began)

        thread = runner.thread(wait, "waits")
        thread.start()
        runner.sleep(1.0)
        flag.set()
        assert runner.starve(10.0) == "waits"
        assert runner.starve(10.0) == ""
        thread.join()

    runner.run(main)
    assert 11.0 <= went_on[0] < 11.1


def test_the_time_of_day_jumps_and_nothing_else_does() -> None:
    runner = VirtualRunner(0)
    day, began = runner.time(), runner.monotonic()
    runner.clock_off -= 3600.0
    assert runner.time() < day - 3599
    assert began < runner.monotonic() < began + 1


def test_who_waits_for_each_other_is_told() -> None:
    runner = VirtualRunner(3)

    def main() -> None:
        one, two = runner.lock(), runner.lock()

        def crossing(first: Any, second: Any) -> Callable[[], None]:
            def cross() -> None:
                with first:
                    runner.sleep(0.001)
                    with second:
                        pass

            return cross

        threads = [runner.thread(crossing(one, two), "left"), runner.thread(crossing(two, one), "right")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with pytest.raises(
        Stuck, match=r"everybody waits[\s\S]*left +a lock that right holds[\s\S]*right +a lock that left"
    ):
        runner.run(main)


def test_what_never_ends_is_told() -> None:
    def spin(runner: VirtualRunner) -> None:
        lock = runner.lock()
        while True:
            with lock:
                pass

    def wait(runner: VirtualRunner) -> None:
        while True:
            runner.sleep(1.0)

    for program, granted in ((spin, {"most_steps": 1000}), (wait, {"most_seconds": 10.0})):
        runner = VirtualRunner(1, **granted)
        with pytest.raises(Stuck, match="no end after"):
            runner.run(lambda program=program, runner=runner: program(runner))


def test_an_exception_in_any_task_ends_the_run() -> None:
    runner = VirtualRunner(1)

    def main() -> None:
        thread = runner.thread(lambda: {}["nothing"], "careless")
        thread.start()
        runner.flag().wait()

    with pytest.raises(TaskDied, match=r"careless: KeyError\('nothing'\)"):
        runner.run(main)


def of_type(*types: type) -> list[object]:
    """What is alive of these types, which is not asked of objects: a weak proxy answers for what may be gone."""
    return [found for found in gc.get_objects() if issubclass(type(found), types)]


def test_nothing_is_left_of_a_run() -> None:
    """What threads knew goes with them, whether they came to an end, waited at the end, or never began."""

    class Known:
        pass

    def program(runner: Runner) -> None:
        def ends(known: Known) -> None:
            runner.sleep(0.001)

        def waits(known: Known) -> None:
            runner.flag().wait()

        for target in (ends, waits):
            thread = runner.thread(lambda target=target: target(Known()), target.__name__)  # type: ignore[misc]
            thread.start()
        runner.sleep(1.0)
        runner.thread(lambda: ends(Known()), "last").start()

    before = {id(found) for found in of_type(greenlet.greenlet)}  # of whoever else is in this process
    for seed in SEEDS:
        runner = VirtualRunner(seed)
        runner.run(lambda runner=runner: program(runner))
        del runner
    gc.collect()
    assert not [found for found in of_type(Known, greenlet.greenlet) if id(found) not in before]


def test_a_process_that_was_killed_is_buried_with_all_that_it_knew() -> None:
    """Whoever stays goes on, and gets the locks that are his."""

    class Known:
        pass

    ends: list[str] = []

    def program(runner: VirtualRunner) -> None:
        process, lock = VirtualProcess(runner), runner.lock()

        def waits(known: Known) -> None:
            try:
                with process.lock():
                    process.flag().wait()
            finally:
                ends.append("buried")

        def begins() -> None:
            process.thread(lambda: waits(Known()), "waits").start()

        begins()
        with lock:
            runner.sleep(0.001)
            process.kill()
            process.bury()
            assert ends == ["buried"]
            gc.collect()
            assert not of_type(Known)
        other = runner.thread(lambda: ends.append("lives"), "lives")
        other.start()
        other.join()
        assert ends == ["buried", "lives"]

    runner = VirtualRunner(1)
    runner.run(lambda: program(runner))


def test_a_condition_wants_its_lock() -> None:
    runner = VirtualRunner(1)

    def main() -> None:
        runner.condition().notify()

    with pytest.raises(RuntimeError, match="whose lock is not held"):
        runner.run(main)
    with pytest.raises(TypeError, match="another runner"):
        runner.condition(ThreadRunner().lock())


PROCESS = """
import sys
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
def busy(runner):
    lock, jobs = runner.lock(), runner.queue()
    def work():
        for number in range(20):
            with lock:
                jobs.put(number)
            runner.sleep(runner.random.random() / 1000)
    threads = [runner.thread(work, str(number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
for seed in range(5):
    runner = VirtualRunner(seed)
    runner.run(lambda: busy(runner))
    print(runner.history, runner.steps, runner.now)
"""


def test_a_seed_is_the_same_order_in_every_process() -> None:
    found = set()
    for hashing in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", PROCESS], env={"PYTHONHASHSEED": hashing}, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert len(set(found.pop().splitlines())) == 5, "and another one is another order"
