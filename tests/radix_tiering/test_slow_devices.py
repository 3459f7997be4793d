"""A stripe set is planned as one source: one slow device of several moves where computing and loading meet."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.restore.plan import Strategy
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.ssd.arrays.throttled import ThrottledArray
from swift_tiers.radix_tiering.tiers.testing.memory_array import MemoryArray

from support.engine import (
    Hands,
    chain,
    close,
    compute_what_does_not_come,
    in_virtual_time,
    make_stack,
    memory_ssd,
    namespace,
    put,
    wait_until,
)

DEVICES, PAGES, CHUNK = 4, 64, 8
#: 256 KiB pages: a unit of 64 KiB on each of four devices.
GEOMETRY = PageGeometry(layers=2, planes=2, tokens=4, row_bytes=16_384)
UNIT = 65_536
RATE = 64e6  # bytes per second of each device


class Devices(ThrottledArray):
    """Of which one may turn slow, or go."""

    gone: int | None = None

    def slow_one_to(self, device: int, bytes_per_second: float) -> None:
        self._buckets[device].bytes_per_second = bytes_per_second

    def present(self, device: int) -> bool:
        return device != self.gone


class Rig:
    """A chain on four devices. By what is believed at first, loading takes as long as recomputing; then what is
    believed follows what happens."""

    def __init__(self, runner: VirtualRunner) -> None:
        self.runner = runner
        self.array = Devices(MemoryArray([2**24] * DEVICES, seed=1), 1e12, clock=Hands(runner))
        ssd = memory_ssd(unit=UNIT, array=self.array, runner=runner, stall_seconds=1e6)
        self.stack: TierStack = make_stack(
            2 * PAGES,
            ssd,
            space=namespace(geometry=GEOMETRY),
            runner=runner,
            restore={"chunk": CHUNK * GEOMETRY.tokens},
            policy={"restore_deadline": "60s"},
        )
        self.keys = chain(*range(PAGES))
        self.write()
        self.array.slow_to(RATE)
        self.computes_in(GEOMETRY.page_bytes / (DEVICES * RATE))

    def computes_in(self, page_seconds: float) -> None:
        """What a page is believed, and found, to take to compute; loading is believed to be as the devices are made."""
        compute = ComputeCost(fixed_seconds=0.0, token_seconds=page_seconds / GEOMETRY.tokens, pair_seconds=0.0)
        ssd_cost = SourceCost(latency_seconds=0.0, bytes_per_second=DEVICES * RATE)
        self.costs = LiveCosts(CostModel(compute=compute, sources={"ssd": ssd_cost}))
        self.stack.planner.costs = self.stack.restorer._turns._costs = self.costs

    def write(self) -> None:
        put(self.stack, self.keys)
        assert self.stack.wait_written(20)

    @property
    def believed(self) -> float:
        """Of what the devices are made for, the share that the whole set is believed to bring."""
        return self.costs.sources["ssd"].bytes_per_second / (DEVICES * RATE)

    def load(self) -> None:
        """One request whose pages are all loaded."""
        self.stack.flush("memory")
        choice, self.stack.planner.choice = self.stack.planner.choice, "load"
        restore = self.stack.restore(self.keys)
        while not self.stack.restorer.poll(restore):
            self.stack.restorer.wait_idle()
        assert restore.pages == PAGES
        self.stack.planner.choice = choice
        self.stack.restorer.release(restore)
        self.stack.restorer.wait_idle()

    def compute(self, first: int, end: int) -> None:
        assert self.costs.compute is not None
        self.runner.sleep(self.costs.compute.seconds(first * GEOMETRY.tokens, end * GEOMETRY.tokens))

    def ask(self) -> int:
        """One request, of a device that computes what does not come sooner; how many pages came."""
        self.stack.flush("memory")
        before = self.stack.snapshot().tiers["ssd"].bytes_read
        restore, restorer = self.stack.restore(self.keys, can_compute=True), self.stack.restorer
        compute_what_does_not_come(self.stack, restore, self.compute, look=0.0005)
        restorer.split(restore)
        restorer.release(restore)
        restorer.wait_idle()
        self.runner.sleep(1.0)  # what is under way comes, and is told to the costs
        return (self.stack.snapshot().tiers["ssd"].bytes_read - before) // GEOMETRY.page_bytes

    def meeting(self) -> int:
        """Where the next request would meet its pages."""
        decision = self.stack.planner.decide(0, ["ssd"] * PAGES)
        assert decision.plan is not None
        assert decision.strategy is Strategy.TOKEN_WISE
        return decision.plan.meeting // GEOMETRY.tokens


#: What is believed must not hang on who comes first.
on_a_rig = in_virtual_time(Rig, lambda rig: close(rig.stack), seeds=2, most_seconds=600.0)


@on_a_rig
def test_four_devices_are_one_source_four_times_as_fast(rig: Rig) -> None:
    rig.load()
    assert rig.believed == pytest.approx(1.0, rel=0.25)
    assert rig.meeting() == pytest.approx(PAGES / 2, abs=CHUNK)


@on_a_rig
def test_one_slow_device_of_four_moves_the_meeting_within_a_few_requests(rig: Rig) -> None:
    """Every page has a unit on it, so the set is as slow as it: by ten times, not by the quarter that it is of all."""
    rig.load()
    before = rig.meeting()
    rig.array.slow_one_to(2, RATE / 10)
    rig.load()
    assert rig.believed < 0.25
    assert rig.meeting() > before + CHUNK
    rig.array.slow_one_to(2, RATE)
    rig.load()
    assert rig.believed == pytest.approx(1.0, rel=0.25)
    assert rig.meeting() == pytest.approx(before, abs=CHUNK / 2)


@on_a_rig
def test_without_the_slow_device_the_others_are_believed_what_they_bring(rig: Rig) -> None:
    """Its pages are computed once more, and written to three devices."""
    rig.array.slow_one_to(2, RATE / 10)
    rig.load()
    slow = rig.meeting()
    rig.array.gone = 2
    rig.runner.sleep(2.0)  # devices are looked at once a second
    wait_until(lambda: rig.stack.tiers["ssd"].snapshot()[1][2].service != "in service", "the device stays", rig.stack)
    rig.stack.flush("all")
    rig.write()
    rig.load()
    assert rig.believed > 0.4
    assert rig.meeting() < slow - CHUNK


@on_a_rig
def test_devices_that_were_slow_for_a_while_are_read_again(rig: Rig) -> None:
    """Nobody reads what is sooner computed, so that what they take would never be known again."""
    rig.computes_in(GEOMETRY.page_bytes / (4 * DEVICES * RATE))
    usual = rig.ask()
    rig.array.slow_to(RATE / 200)
    asked = [rig.ask() for _ in range(60)]
    assert asked.count(0) > 50, "all is computed, nearly always"
    rig.array.slow_to(RATE)
    asked = [rig.ask() for _ in range(60)]
    assert min(asked[-5:]) > usual / 2 > 0


@on_a_rig
def test_a_read_does_not_wait_for_all_that_is_to_be_written(rig: Rig) -> None:
    """What a slow device has begun to write a read has to wait for: that is little, and keeps it busy all the same."""
    rate = RATE / 128
    unit_seconds = UNIT / rate
    rig.stack.flush("memory")
    rig.array.slow_to(rate)
    put(rig.stack, chain(*range(1000, 1000 + PAGES)))
    rig.runner.sleep(10 * unit_seconds)
    before, written = rig.stack.snapshot().tiers["ssd"].bytes_written, rig.runner.monotonic()
    rig.runner.sleep(10 * unit_seconds)
    seconds = rig.runner.monotonic() - written
    written_bytes = rig.stack.snapshot().tiers["ssd"].bytes_written - before
    assert written_bytes > 0.8 * seconds * DEVICES * rate
    rig.stack.planner.choice = "load"
    asked = rig.runner.monotonic()
    restore = rig.stack.restore(rig.keys[:1])
    while not rig.stack.restorer.poll(restore):
        rig.runner.sleep(0.001)
    assert rig.runner.monotonic() - asked < 4 * unit_seconds
    assert restore.pages == 1
    rig.stack.restorer.release(restore)
    rig.array.slow_to(1e12)
    assert rig.stack.wait_written(60)
    rig.array.slow_to(RATE)
    rig.load()
    assert rig.believed == pytest.approx(1.0, rel=0.25), "quick again"
