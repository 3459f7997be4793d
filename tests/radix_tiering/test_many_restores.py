"""Many requests at once, most of which nobody waits for yet: few are restored together, all in the end."""

from __future__ import annotations

from swift_tiers.radix_tiering.base.runner import Runner
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore, RestoreState
from swift_tiers.radix_tiering.way.up import MOST_EARLY, MOST_PASSED

from support.engine import Hands, chain, check, close, in_virtual_time, make_stack, memory_ssd, put, wait_until

#: Far more than are restored together, of so many pages each.
REQUESTS, PAGES = 4 * MOST_EARLY, 3


class Queue:
    """A server whose device lacks all of these; they are on ssd."""

    def __init__(self, runner: Runner, host_pages: int = 4 * REQUESTS * PAGES) -> None:
        array = ThrottledArray(MemoryArray([2**24] * 2, seed=1), 2**30, latency=0.001, clock=Hands(runner))
        ssd = memory_ssd(array=array, runner=runner)
        self.runner = runner
        self.began = runner.monotonic()
        self.stack: TierStack = make_stack(host_pages, ssd, runner=runner)
        self.chains = [chain(str(number), *range(PAGES - 1)) for number in range(REQUESTS)]
        for keys in self.chains:
            put(self.stack, keys)
        with self.stack.table.lock:
            assert self.stack.movers["ssd"].wait_idle(60.0)
        self.stack.flush("memory")
        wait_until(lambda: not self.stack.host.used_slots, "memory is not emptied", self.stack)

    @property
    def together(self) -> int:
        return len(self.stack.restorer._turns.batch)

    def begin(self) -> list[Restore]:
        return [self.stack.restore(keys) for keys in self.chains]

    def end(self) -> None:
        check(self.stack)
        close(self.stack)


on_a_queue = in_virtual_time(Queue, Queue.end, seeds=3, most_seconds=3600.0)


@on_a_queue
def test_few_are_restored_together_and_all_in_the_end(queue: Queue) -> None:
    restores, most = queue.begin(), 0
    while not all(one.state is RestoreState.READY for one in restores):
        most = max(most, queue.together)
        queue.runner.sleep(0.0005)
        assert queue.runner.monotonic() - queue.began < 60, "some never begin"
    assert 1 < most <= MOST_EARLY
    assert all(one.pages == PAGES for one in restores)
    assert not queue.stack.restorer._deferred
    for one in restores:
        queue.stack.restorer.release(one)


@on_a_queue
def test_who_is_waited_for_begins_whatever_else_is_under_way(queue: Queue) -> None:
    restores = queue.begin()
    last = restores[-1]
    while queue.stack.restorer.poll(last) is Readiness.WAIT:
        queue.runner.sleep(0.0005)
    assert last.pages == PAGES
    assert sum(one.state is RestoreState.READY for one in restores) < REQUESTS, "it did not wait for its turn"
    for one in restores:
        queue.stack.restorer.release(one)


@on_a_queue
def test_who_has_gone_is_kept_by_nobody(queue: Queue) -> None:
    restores = queue.begin()
    queue.runner.sleep(0.0001)
    while len(queue.stack.restorer._deferred) < REQUESTS - 2 * MOST_EARLY:
        queue.runner.sleep(0.0001)
    for one in restores:
        queue.stack.restorer.release(one)
    assert not queue.stack.restorer._deferred


def test_one_that_needs_more_room_than_there_is_holds_up_nobody() -> None:
    def test(queue: Queue) -> None:
        stack, runner = queue.stack, queue.runner
        large = [
            stack.restore([*queue.chains[number], *chain("more", *range(1000))[:600]])
            for number in range(MOST_PASSED - 1)
        ]
        small = [stack.restore(keys) for keys in queue.chains[MOST_PASSED:]]
        while not all(one.state is RestoreState.READY for one in small[:MOST_EARLY]):
            runner.sleep(0.001)
            assert runner.monotonic() - queue.began < 60, "they wait for one that nobody waits for"
        for one in [*large, *small]:
            stack.restorer.release(one)

    in_virtual_time(lambda runner: Queue(runner, 2 * REQUESTS * PAGES // 3), Queue.end, seeds=1, most_seconds=3600.0)(
        test
    )(0)
