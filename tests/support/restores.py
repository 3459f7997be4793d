"""Restores of a stack whose pages come from ssd when a test says so, for a device that computes beside them."""

from __future__ import annotations

import threading
from typing import Any

from swift_tiers.radix_tiering.restore.flight import Step
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.ssd import ReadRequest
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome
from swift_tiers.radix_tiering.way.request_restore import Restore

from support.engine import WAIT, Clock, chain, make_stack, memory_ssd, put


class Link:
    """Stands between a stack and its ssd tier: pages arrive, or fail, when the test says so."""

    def __init__(self, stack: TierStack) -> None:
        self.lock = stack.table.lock
        self.tier = stack.tiers["ssd"]
        self.stripes = self.tier.stripes
        self.read = self.stripes.read_many
        self.kept: list[ReadRequest] = []
        self.failed = 0
        self.stripes.read_many = self.kept.extend

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        """What nobody has decided about comes in, and so does what is asked for from now on."""
        self.stripes.read_many = self.read
        while self.kept:
            self.deliver(0)

    def deliver(self, number: int) -> None:
        """Page `number` of those asked for comes in."""
        read = self.kept.pop(number % len(self.kept))
        came = threading.Event()
        self.read([read._replace(done=lambda outcome: (read.done(outcome), came.set())[0])])
        assert came.wait(WAIT)
        with self.lock:
            pass  # which is held until what has come is accounted for

    def fail(self, number: int) -> None:
        read = self.kept.pop(number % len(self.kept))
        self.failed += 1
        with self.tier.answers:
            read.done(ReadOutcome.IO_ERROR)


def on_ssd(pages: int, **config: Any) -> tuple[TierStack, Clock, list[bytes]]:
    """A stack, its clock, and a chain whose pages are on ssd alone."""
    clock = Clock()
    stack = make_stack(host_pages=64, ssd=memory_ssd(), clock=clock, **config)
    keys = chain(*range(pages))
    put(stack, keys)
    assert stack.wait_written(10)
    stack.flush("memory")
    return stack, clock, keys


def take(stack: TierStack, restore: Restore, front: int) -> Step:
    """One step of a device that has the first `front` pages."""
    step = stack.restorer.step(restore, front)
    if step.jump > front:
        restore.story.loaded(front, [(source, 1) for source in restore.found(front, step.jump)])
    if step.end > front:
        stack.restorer.take(restore, step)
    return step
