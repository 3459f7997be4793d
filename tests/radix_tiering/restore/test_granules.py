"""Sources that bring several units at a time, whichever of them is asked for, as a store does whose objects hold more
than one page: they count whole, in what is asked for and in what is left to the device."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.batch import Batch, Forward
from swift_tiers.radix_tiering.restore.flight import Flight, Step


class Restored:
    """One request, restored in virtual time: a unit takes a second to compute, and a granule as long to come as all of
    its units, `load` seconds each. The source brings one granule after the other."""

    def __init__(self, units: int, granule: int, start: int, load: float, fixed: float = 0.0, most: int = 64) -> None:
        """`start`: units before the first; `most`: that one forward computes, each of which takes `fixed` besides."""
        self.now = 0.0
        self.flight = Flight(["remote"] * units)
        self.batch = Batch[int](lambda: self.now)
        self.asked: list[range] = []
        self._granule, self._start, self._load = granule, start, load

        def forward(first: int, end: int) -> float:
            return fixed + end - first if end > first else 0.0

        def forwards(first: int, end: int) -> float:
            return end - first + fixed * -(-(end - first) // most)

        self._forward = Forward(forward, forward)
        self.batch.add(
            0, self.flight, forwards, lambda source: load, self._forward, granule=lambda source: granule, start=start
        )
        self._most = most
        self._coming: list[tuple[float, range]] = []
        self._line_free = 0.0
        self._brought: set[int] = set()  # granules, by number

    def ask(self, most: int) -> range:
        """What the source is asked for next."""
        pick = self.batch.next_load("remote", most)
        if pick is None:
            return range(0)
        self.asked.append(pick.units)
        # What is still wanted of a granule that has come lies there.
        granules = {(self._start + unit) // self._granule for unit in pick.units} - self._brought
        self._brought |= granules
        self._line_free = max(self.now, self._line_free) + len(granules) * self._granule * self._load
        self._coming.append((self._line_free, pick.units))
        return pick.units

    def seconds(self) -> float:
        """Until all of it is there, if the device begins at once."""
        self.batch.set_computing(0, True)
        computed_at: float | None = None
        while not self.flight.done:
            while self.batch.under_way("remote") < 2 * self._granule and self.ask(self._granule):
                pass
            if computed_at is None:
                self.flight.reserve(0)
                step = self.batch.next_step(0, self._most)
                if step.end > step.jump or step.jump > self.flight.front:
                    self.flight.abandon_loading(step.jump, step.end)
                    self.flight.take(step)
                    self.batch.set_computing(0, True)
                    computed_at = self.now + (self._forward.seconds(*step) if step.end > step.jump else 0.0)
                    continue
            events = [when for when, _ in self._coming] + ([computed_at] if computed_at is not None else [])
            self.now = min(events)
            if computed_at is not None and computed_at <= self.now:
                self.flight.computed()
                computed_at = None
            for when, units in list(self._coming):
                if when <= self.now:
                    self._coming.remove((when, units))
                    for unit in units:
                        self.flight.arrived(unit)
                        self.batch.answered("remote")
        return self.now


@example(5, 12, 1, 3.0, 4.0, 15).via(
    "what is left of a granule, asked for because its source had rested for ten seconds"
)
@example(8, 5, 0, 8.0, 4.0, 4).via(
    "a granule asked for because its source had rested, shortly before the device was through: waited for, while "
    "several forwards would have computed it sooner"
)
@given(
    granules=st.integers(1, 12),
    granule=st.integers(1, 16),
    offset=st.integers(0, 15),
    load=st.floats(0.05, 20.0),
    fixed=st.sampled_from([0.0, 0.5, 4.0]),
    most=st.integers(4, 64),
)
def test_both_at_once_are_not_slower_than_the_better_way(
    granules: int, granule: int, offset: int, load: float, fixed: float, most: int
) -> None:
    start = offset % granule  # the device has the first units of the first granule
    units = granules * granule - start
    both = Restored(units, granule, start, load, fixed, most)
    took = both.seconds()
    recomputing = units + fixed * -(-units // most)
    # Whether to wait for all of it where forwards cost is not asked here: the device has begun.
    loading = granules * granule * load if not fixed else math.inf
    assert took <= min(recomputing, loading) + 1e-9, (took, recomputing, loading, both.asked)


def test_whole_granules_are_asked_for() -> None:
    one = Restored(20, 8, start=4, load=1.0)
    assert one.ask(4) == range(16, 20), "no more than it may ask for"
    one = Restored(20, 8, start=4, load=1.0)
    assert one.ask(8) == range(12, 20)
    assert one.ask(11) == range(4, 12)
    assert one.ask(8) == range(4), "what is left of one"


def test_a_granule_that_comes_later_than_it_would_be_computed_is_not_asked_for() -> None:
    """Sixteen units in sixteen seconds: the last eight come after sixteen, if each of them takes two."""
    one = Restored(16, 8, start=0, load=2.0)
    one.batch.set_computing(0, True)
    assert not one.ask(8)
    one = Restored(16, 8, start=0, load=1.9)
    one.batch.set_computing(0, True)
    assert one.ask(8) == range(8, 16)
    assert not one.ask(8), "the others come after thirty"


def test_the_device_leaves_whole_granules_to_the_source() -> None:
    """Of 32 units in as many seconds the source brings two granules of eight while the others are computed."""
    assert Restored(32, 8, start=0, load=1.0).batch.next_step(0, 64) == Step(0, 16)
    assert Restored(28, 8, start=4, load=1.0).batch.next_step(0, 64) == Step(0, 12)
    assert Restored(32, 1, start=0, load=1.1).batch.next_step(0, 64) == Step(0, 17)
    assert Restored(32, 8, start=0, load=1.1).batch.next_step(0, 64) == Step(0, 16)


def test_what_is_left_of_a_granule_is_asked_for_while_all_of_it_comes_in_time() -> None:
    """The device computes the first four units of sixteen, and is at the eighth after as many seconds."""
    for load, left in ((0.4, range(4, 8)), (0.6, range(0))):
        one = Restored(16, 8, start=0, load=load)
        one.flight.take(Step(0, 4))
        one.batch.set_computing(0, True)
        assert one.ask(8) == range(8, 16)
        assert one.ask(8) == left, load
