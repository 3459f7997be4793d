"""Small tier stacks for tests of the engine: no SGLang, devices in memory or in temporary files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import pytest

from swift_tiers.ops.lab.torture import stacks
from swift_tiers.ops.lab.torture.stacks import (
    GEOMETRY,
    LOOK,
    WAIT,
    chain,
    check,
    content,
    copy_of,
    get,
    namespace,
    new_stack,
    obey,
    page_at,
    placement_of,
    put,
    refusal,
    settle,
    slot_words,
    wait_until,
)
from swift_tiers.radix_tiering.base.page import Namespace
from swift_tiers.radix_tiering.base.runner import Runner, ThreadRunner
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.ssd.ssd_tier import SsdTier
from swift_tiers.radix_tiering.way.request_restore import Readiness, Restore

from support.threads import assert_engine_threads_ended

Made = TypeVar("Made")

__all__ = [
    "GEOMETRY", "LOOK", "WAIT", "Clock", "chain", "check", "close", "compute_what_does_not_come", "content", "copy_of",
    "crash", "end_all", "forget_all", "get", "make_stack", "memory_ssd", "namespace", "obey", "page_at",
    "placement_of", "put", "refusal", "settle", "slot_words", "wait_until",
]  # fmt: skip

#: What the test under way has made, for `end_all`.
_stacks: list[TierStack] = []
_clocks: list[Clock] = []


class Clock:
    """Time that only moves when told to, until the test is over: closing waits for it, so it must not stand still."""

    #: Seconds of this clock in one second of the machine's, once it is let go.
    HASTE = 60.0

    def __init__(self) -> None:
        self.now = 1000.0
        self._let_go_at: float | None = None
        _clocks.append(self)

    def __call__(self) -> float:
        if self._let_go_at is None:
            return self.now
        return self.now + (time.monotonic() - self._let_go_at) * self.HASTE

    def let_go(self) -> None:
        self._let_go_at = time.monotonic()


class SetClock(ThreadRunner):
    """Its monotonic clock stands still until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()

    def monotonic(self) -> float:
        return self.clock()


class Hands:
    """The runner's time, for whoever waits for a throttled device."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def now(self) -> float:
        return self._runner.monotonic()

    def sleep(self, seconds: float) -> None:
        self._runner.sleep(seconds)


def memory_ssd(*arguments: Any, clock: Any = None, **options: Any) -> SsdTier:
    """As `stacks.memory_ssd`; `clock`: what tells it the time."""
    if clock is not None:
        options["runner"] = ThreadRunner(clock)
    return stacks.memory_ssd(*arguments, **options)


def make_stack(
    host_pages: int = 16,
    ssd: SsdTier | None = None,
    clock: Any = None,
    space: Namespace | None = None,
    *,
    runner: Runner | None = None,
    **options: Any,
) -> TierStack:
    """As `stacks.new_stack`, closed when the test is over."""
    stack = new_stack(host_pages, ssd, space, runner=runner or ThreadRunner(clock or Clock()), **options)
    _stacks.append(stack)
    return stack


def crash(stack: TierStack) -> None:
    """End a stack as if its process had been killed: its threads are gone, and no index is written."""
    with stack.table.lock:
        for filling in stack.fillings.values():
            filling.end(0)
    stack.filler.close(0)
    stack.errands.close(0)
    stack.restorer.close()
    for tier in stack.tiers.values():
        if not isinstance(tier, SsdTier):
            tier.close(None)
            continue
        if tier.direct is not None:
            tier.direct.close()
        tier.stripes.close(None)  # the array is opened again
    _stacks.remove(stack)


def close(stack: TierStack) -> None:
    """End a stack in order."""
    stack.close()
    _stacks.remove(stack)


@contextmanager
def busy_errands(stack: TierStack) -> Iterator[None]:
    """Nothing is done in steps until this is left."""
    go_on = threading.Event()

    def errand() -> Generator[None, None, int]:
        assert go_on.wait(60)
        yield
        return 0

    stack.errands.start(errand())
    yield
    go_on.set()
    assert stack.errands.wait_idle(60)


def in_virtual_time(
    make: Callable[[VirtualRunner], Made], end: Callable[[Made], None], *, seeds: int, most_seconds: float
) -> Callable[[Callable[[Made], None]], Callable[[int], None]]:
    """Has a test run in virtual time, on what `make` makes of a runner, in orders that seeds decide. Nobody is held up:
    only devices, and engines, take time."""

    def decorate(test: Callable[[Made], None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("seed", range(seeds))
        @wraps(test, assigned=("__doc__", "__name__", "__module__"), updated=())
        def run(seed: int) -> None:
            runner = VirtualRunner(seed, stall=0.0, most_seconds=most_seconds)

            def main() -> None:
                made = make(runner)
                test(made)
                end(made)

            try:
                runner.run(main)
            finally:
                forget_all()

        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate


def compute_what_does_not_come(
    stack: TierStack, restore: Restore, compute: Callable[[int, int], None], look: float
) -> int:
    """A device that waits for a prefix, and then computes what of it does not come sooner: pages `[first, end)` by
    `compute`. It looks every `look` seconds of the stack's runner. The page up to which all is there."""
    restorer, front = stack.restorer, 0
    while restorer.poll(restore) is Readiness.WAIT:
        stack.runner.sleep(look)
    while restore.under_way and front < len(restore.flight):
        step = restorer.step(restore, front)
        if step.end == step.jump < len(restore.flight):
            stack.runner.sleep(look)
            continue
        restorer.take(restore, step)
        if step.end > step.jump:
            compute(step.jump, step.end)
        front = step.end
    return front


def forget_all() -> None:
    """Leave stacks as they are whose run has ended in the middle of something; their threads were virtual ones."""
    _stacks.clear()
    _clocks.clear()


def end_all() -> None:
    """Close every stack that the test has left open; then none of the engine's threads may be left."""
    for clock in _clocks:
        clock.let_go()
    try:
        for stack in _stacks:
            if not isinstance(stack.runner, VirtualRunner):  # whose threads are gone with its run
                stack.close()
    finally:
        _stacks.clear()
        _clocks.clear()
    assert_engine_threads_ended()
