"""A server that knows nothing of its costs at first soon answers no later than one without tiers, however slow its
devices are, and while they are written to. In virtual time, by the engine that serves."""

from __future__ import annotations

import statistics

import pytest

from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.restore.cost import ComputeCost
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.engine import (
    Hands,
    chain,
    close,
    compute_what_does_not_come,
    forget_all,
    make_stack,
    memory_ssd,
    namespace,
    put,
)

GEOMETRY = PageGeometry(layers=2, planes=2, tokens=16, row_bytes=4_096)
PAGES, NEW, CHUNK = 40, 8, 8
#: A page in 40 ms, a forward in 50 more.
COST = ComputeCost(fixed_seconds=0.05, token_seconds=0.04 / GEOMETRY.tokens, pair_seconds=0.0)
PAGE_SECONDS = COST.token_seconds * GEOMETRY.tokens
#: Requests until enough is known, and after that.
LEARNING, ASKED = 6, 24


class Server:
    """One request after the other, of 40 pages that are on ssd alone and 8 that nobody has asked for."""

    def __init__(self, runner: VirtualRunner, share: float) -> None:
        """`share`: of what computing makes, what the device brings."""
        self.runner, self.number = runner, 0
        array = ThrottledArray(MemoryArray([2**26], seed=1), 1e12, clock=Hands(runner))
        ssd = memory_ssd(unit=GEOMETRY.page_bytes, array=array, runner=runner, stall_seconds=1e6)
        self.stack = make_stack(
            2 * PAGES,
            ssd,
            space=namespace(geometry=GEOMETRY),
            runner=runner,
            restore={"chunk": CHUNK * GEOMETRY.tokens},
        )
        self.keys = chain(*range(PAGES))
        put(self.stack, self.keys)
        assert self.stack.wait_written(20)
        array.slow_to(share * GEOMETRY.page_bytes / PAGE_SECONDS)

    def compute(self, first: int, end: int) -> None:
        tokens = first * GEOMETRY.tokens, end * GEOMETRY.tokens
        seconds = COST.seconds(*tokens)
        self.runner.sleep(seconds)
        self.stack.costs.computed([tokens], seconds)

    def ask(self) -> float:
        """Seconds to its first token; what is new of it is written while the next one waits for its pages."""
        self.stack.flush("memory")
        began, restorer = self.runner.monotonic(), self.stack.restorer
        restore = self.stack.restore(self.keys, can_compute=True)
        front = compute_what_does_not_come(self.stack, restore, self.compute, look=0.001)
        for first in range(max(front, restore.pages), PAGES, CHUNK):  # what has not come
            self.compute(first, min(PAGES, first + CHUNK))
        self.compute(PAGES, PAGES + NEW)
        seconds = self.runner.monotonic() - began
        restorer.split(restore)
        restorer.release(restore)
        self.number += 1
        put(self.stack, chain(*range(1000 * self.number, 1000 * self.number + NEW)))
        return seconds


def without_tiers() -> float:
    chunks = range(0, PAGES, CHUNK)
    return sum(COST.seconds(0, CHUNK * GEOMETRY.tokens) for _ in chunks) + COST.seconds(0, NEW * GEOMETRY.tokens)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 1.0, 2.0, 8.0])
def test_soon_it_is_no_slower_than_without(share: float) -> None:
    runner = VirtualRunner(1, stall=0.0, most_seconds=3600.0)
    took: list[float] = []

    def main() -> None:
        server = Server(runner, share)
        took.extend(server.ask() for _ in range(LEARNING + ASKED))
        close(server.stack)

    try:
        runner.run(main)
    finally:
        forget_all()
    assert statistics.mean(took[LEARNING:]) <= 1.05 * without_tiers(), took
    assert max(took[LEARNING:]) <= 1.3 * without_tiers(), took
