"""Where the two pointers meet: neither the device nor a source rests while the other does what it could have done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.batch import Batch, Forward
from swift_tiers.radix_tiering.restore.flight import Flight, Step, Unit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def batch_of(*flights: Flight, load: float | None = 1.0, fixed: float = 0.0, clock: Clock | None = None) -> Batch[int]:
    """Flights of units that take a second each to compute, and `load` seconds to load."""
    result: Batch[int] = Batch(clock=clock or Clock())
    for number, flight in enumerate(flights):
        result.add(number, flight, lambda a, b: fixed + (b - a) if b > a else 0.0, lambda source: load)
    return result


def test_a_chunk_ends_where_the_source_will_have_brought_the_rest() -> None:
    assert batch_of(Flight(["ssd"] * 100)).next_step(0, 32) == Step(0, 32)  # far from the end
    assert batch_of(Flight(["ssd"] * 40)).next_step(0, 32) == Step(0, 20)
    assert batch_of(Flight(["ssd"] * 40), load=0.25).next_step(0, 32) == Step(0, 8)
    assert batch_of(Flight(["ssd"] * 40), load=0.25, fixed=5.0).next_step(0, 32) == Step(0, 4)


def test_a_step_is_cut_without_a_look_at_each_of_its_units() -> None:
    """Of pages of one token it has thousands, and the scheduler waits for it."""
    asked: list[int] = []

    def seconds(a: int, b: int) -> float:
        asked.append(b)
        return float(b - a)

    batch = Batch[int](clock=Clock())
    batch.add(0, Flight(["ssd"] * 10_000), seconds, lambda source: 0.25)
    assert batch.next_step(0, 8192) == Step(0, 2000)
    assert len(asked) < 100


def test_what_others_of_the_batch_want_counts_as_well() -> None:
    batch = batch_of(Flight(["ssd"] * 40), Flight(["ssd"] * 40))
    assert batch.next_step(0, 32) == Step(0, 32)


def test_what_has_no_source_is_computed_in_any_case() -> None:
    assert batch_of(Flight([None] * 8 + ["ssd"] * 4), load=0.1).next_step(0, 32) == Step(0, 8)


def test_the_device_holds_only_while_something_is_under_way() -> None:
    one = Flight(["ssd"] * 4)
    batch = batch_of(one, load=0.1, fixed=5.0)
    assert batch.next_step(0, 32) == Step(0, 1)  # nobody would ever wake it
    assert batch.next_load("ssd", 2) is not None
    assert batch.next_step(0, 32) == Step(0, 0)


def waiting_for(
    units: int, load: float, *, fixed: float, fixed_at_worst: float, under_way: int = 2
) -> tuple[Flight, Batch[int]]:
    """A flight of which some units are being loaded, and the batch it is in."""
    flight, batch = Flight(["ssd"] * units), Batch[int](clock=Clock())

    def one(fixed: float) -> Callable[[int, int], float]:
        return lambda a, b: fixed + (b - a)

    batch.add(0, flight, one(fixed), lambda source: load, Forward(one(fixed), one(fixed_at_worst)))
    assert batch.next_load("ssd", under_way) is not None
    return flight, batch


def test_what_comes_sooner_than_one_more_forward_is_waited_for() -> None:
    _, batch = waiting_for(10, load=1.0, fixed=11.0, fixed_at_worst=11.0)
    assert batch.next_step(0, 32) == Step(0, 0)
    _, batch = waiting_for(10, load=1.0, fixed=2.0, fixed_at_worst=2.0)
    assert batch.next_step(0, 32) == Step(0, 4)  # in 6 seconds all is there


def test_a_forward_that_may_save_nothing_is_not_begun() -> None:
    """Four units in six seconds beside six from the source are sooner than ten seconds of waiting; not for sure."""
    _, batch = waiting_for(10, load=1.0, fixed=2.0, fixed_at_worst=5.9)
    assert batch.next_step(0, 32) == Step(0, 4)
    _, batch = waiting_for(10, load=1.0, fixed=2.0, fixed_at_worst=6.1)
    assert batch.next_step(0, 32) == Step(0, 0)


def test_what_follows_joins_a_forward_that_gets_to_the_end() -> None:
    """Seven units in nine seconds beside one from the source, and a forward for what follows; or all in ten."""
    flight, batch = Flight(["ssd"] * 8), Batch[int](clock=Clock())
    one = Forward(lambda a, b: 2.0 + b - a, lambda a, b: 2.0 + b - a, lambda units: 2.0)
    batch.add(0, flight, one.seconds, lambda source: 5.0, one)
    assert batch.next_step(0, 32) == Step(0, 8)
    batch.remove(0)
    batch.add(0, flight, one.seconds, lambda source: 5.0, one._replace(joined=lambda units: 0.0))
    assert batch.next_step(0, 32) == Step(0, 7)


def slow_end(joined: float, *, arrived: bool) -> tuple[Flight, Batch[int]]:
    """Eight units at a slow source, the last of which it was asked for. A forward takes two seconds and one for each
    unit; `joined` are saved where what follows joins it."""
    load = 20.0 if arrived else 5.0
    flight, batch = Flight(["ssd"] * 8), Batch[int](clock=Clock())
    one = Forward(lambda a, b: 2.0 + b - a, lambda a, b: 2.0 + b - a, lambda units: joined)
    batch.add(0, flight, one.seconds, lambda source: load, one)
    assert batch.next_load("ssd") == (0, range(7, 8))
    if arrived:
        flight.arrived(7)
        batch.answered("ssd")
    return flight, batch


@pytest.mark.parametrize("arrived", [False, True])
def test_a_last_unit_is_computed_with_the_rest_where_that_is_sooner_than_one_forward_more(arrived: bool) -> None:
    """Seven units in nine seconds, then one that was copied, and a forward for what follows; or all in ten."""
    flight, batch = slow_end(joined=2.0, arrived=arrived)
    step = batch.next_step(0, 32)
    assert step == Step(0, 8)
    flight.abandon_loading(step.jump, step.end)
    flight.take(step)
    _, batch = slow_end(joined=0.5, arrived=arrived)  # what follows takes nearly as long in any case
    assert batch.next_step(0, 32) == Step(0, 7)
    _, batch = slow_end(joined=2.0, arrived=arrived)
    assert batch.next_step(0, 7) == Step(0, 7), "no forward takes all of it"


def test_a_unit_that_is_late_is_not_waited_for_where_it_is_sooner_computed() -> None:
    flight, batch = slow_end(joined=0.0, arrived=False)
    flight.take(Step(0, 7))
    flight.computed()
    assert batch.next_step(0, 32) == Step(7, 8), "in three seconds, and not in five"
    clock = Clock()
    batch = Batch(clock=clock)
    flight = Flight(["ssd"] * 8)
    one = Forward(lambda a, b: 2.0 + b - a, lambda a, b: 2.0 + b - a)
    batch.add(0, flight, one.seconds, lambda source: 5.0, one)
    batch.next_load("ssd")
    clock.now = 2.5
    flight.begin(7)
    assert batch.next_step(0, 32) == Step(7, 7), "half of it has come"


def test_until_its_first_unit_begins_to_come_a_source_takes_its_latency() -> None:
    """All eight units are computed in eight seconds. A source that takes one for all of them, but begins only after
    ten, has nothing to bring that would come sooner."""
    flight, batch = Flight(["ssd"] * 8), Batch[int](clock=Clock())
    one = Forward(lambda a, b: float(b - a), lambda a, b: float(b - a))
    batch.add(0, flight, one.seconds, lambda source: 0.125, one, lambda source: 10.0)
    assert batch.next_step(0, 32) == Step(0, 8)
    batch.set_computing(0, True)
    assert batch.next_load("ssd", 8) is None
    batch.set_computing(0, False)
    assert batch.next_load("ssd", 8) is not None, "while others are computed"
    flight.begin(1)
    assert batch.next_step(0, 32) == Step(1, 8), "seven seconds, and not eleven"


def test_what_arrives_while_the_device_is_busy_is_not_computed_after_that() -> None:
    """Ten units in ten seconds: a forward that begins at once leaves six of them; one that begins when the device is
    done, in seven, is not worth it; and all of it is there before a device that is busy for longer."""
    _, batch = waiting_for(10, load=1.0, fixed=2.0, fixed_at_worst=2.0)
    assert batch.next_step(0, 32) == Step(0, 4)
    assert batch.next_step(0, 32, free_in=3.0).end in (2, 3)
    assert batch.next_step(0, 32, free_in=7.0) == Step(0, 0)
    assert batch.next_step(0, 32, free_in=100.0) == Step(0, 0)
    # What loading takes far longer for is computed all the same.
    _, batch = waiting_for(100, load=1.0, fixed=2.0, fixed_at_worst=2.0)
    assert batch.next_step(0, 32, free_in=7.0) == Step(0, 32)


@given(
    units=st.integers(3, 60),
    load=st.floats(0.05, 20.0),
    fixed=st.floats(0.0, 20.0),
    open_=st.floats(0.0, 20.0),
    most=st.integers(1, 80),
)
def test_in_doubt_nothing_is_done_that_could_be_worse_than_one_way(
    units: int, load: float, fixed: float, open_: float, most: int
) -> None:
    flight, batch = waiting_for(units, load, fixed=fixed, fixed_at_worst=fixed + open_)
    step, own = batch.next_step(0, most), flight.step(most)
    if own.end in (0, step.end) or load * (units - own.end) >= fixed + own.end:
        return  # the whole step, which nothing is saved by cutting
    assert step.end == 0 or max(fixed + open_ + step.end, load * (units - step.end)) < load * units + 1e-9


def test_costs_that_are_not_known_change_nothing() -> None:
    assert batch_of(Flight(["ssd"] * 40), load=None).next_step(0, 32) == Step(0, 32)
    plain: Batch[int] = Batch()
    plain.add(0, Flight(["ssd"] * 40))
    assert plain.next_step(0, 32) == Step(0, 32)


def test_a_run_is_loaded_as_far_as_it_comes_before_the_device_would() -> None:
    clock = Clock()
    one = Flight(["ssd"] * 16)
    batch = batch_of(one, clock=clock)
    one.take(Step(0, 4))
    batch.set_computing(0, True)
    pick = batch.next_load("ssd", 16)
    assert pick is not None
    assert pick.units == range(8, 16)  # the last of eight comes after 8 s, and the device is at unit 8 by then
    assert batch.next_load("ssd", 16) is None
    for unit in pick.units:
        one.arrived(unit)
        batch.answered("ssd")


@pytest.mark.parametrize(
    ("island", "peer", "expected"),
    [
        (2, 2.0, range(7, 8)),
        (3, 2.0, None),
        (3, 1.0, range(7, 8)),  # the other source brings all that follows, and nothing behind them is computed
    ],
)
def test_a_few_units_between_others_that_are_computed_are_not_loaded(
    island: int, peer: float, expected: range | None
) -> None:
    """The slow source has the first eight of sixteen, and by the time at which the device gets there brings two: as
    many as are not worth a jump, where three are."""
    one = Flight(["ssd"] * 8 + ["peer"] * 8, island=island)
    batch: Batch[int] = Batch(clock=Clock())
    batch.add(0, one, lambda a, b: float(b - a), {"ssd": 3.0, "peer": peer}.get)
    batch.set_computing(0, True)
    pick = batch.next_load("ssd")
    assert (pick.units if pick is not None else None) == expected
    batch.set_computing(0, False)
    assert pick is not None or batch.next_load("ssd") is not None, "nobody computes them meanwhile"


def test_a_source_knows_that_a_forward_under_way_takes_no_more() -> None:
    """The device computes the first unit, and every forward takes it 10 s more than a second a unit: of the others it
    gets to none before 20 s have gone."""
    one = Flight(["ssd"] * 4)
    batch: Batch[int] = Batch(clock=Clock())
    batch.add(0, one, lambda a, b: 10.0 + (b - a) if b > a else 0.0, {"ssd": 5.0}.get)
    one.take(Step(0, 1))
    batch.set_computing(0, True)
    assert batch.next_load("ssd", 3) == (0, range(1, 4))


def test_a_source_does_not_count_the_lead_as_computed() -> None:
    """Units 0 to 3 come from elsewhere in three seconds; the device gets to unit 3 one second later."""
    one = Flight(["peer"] * 3 + ["ssd"] * 3, lead=3)
    batch: Batch[int] = Batch(clock=Clock())
    batch.add(0, one, lambda a, b: 10.0 * (b - a), {"ssd": 10.0, "peer": 1.0}.get)
    batch.set_computing(0, True)
    assert batch.next_load("peer", 3) == (0, range(0, 3))
    assert batch.next_load("ssd", 3) == (0, range(4, 6)), "the first would come in 30 s, and is computed in 13"


def test_how_far_a_chunk_has_come_is_known_by_the_clock() -> None:
    clock = Clock()
    one = Flight(["ssd"] * 10)
    batch = batch_of(one, clock=clock)
    one.take(Step(0, 8))
    batch.set_computing(0, True)
    clock.now = 7.5
    assert batch.next_load("ssd", 2) == (0, range(9, 10))  # unit 8 will be computed before it could come


def test_the_lead_is_loaded_whatever_computing_it_would_take() -> None:
    one = Flight(["ssd"] * 4, lead=2)
    batch = batch_of(one, load=100.0)
    batch.set_computing(0, True)
    assert batch.next_load("ssd", 4) == (0, range(0, 2))


@given(
    units=st.integers(1, 200),
    most=st.integers(1, 40),
    load=st.floats(0.01, 100.0),
    fixed=st.floats(0.0, 20.0),
    wanted=st.integers(0, 40),
)
def test_a_step_is_one_that_can_be_taken_and_no_longer_than_the_flights_own(
    units: int, most: int, load: float, fixed: float, wanted: int
) -> None:
    one = Flight(["ssd"] * units)
    batch = batch_of(one, load=load, fixed=fixed)
    if wanted:
        batch.next_load("ssd", wanted)
    step, own = batch.next_step(0, most), one.step(most)
    assert step.jump == own.jump
    # No longer, but where it computes all that is left, whatever is on its way, or the first part of that.
    assert step.end <= own.end or step.end == min(units, step.jump + most)
    if own.end < step.end < units:
        computing = units - step.jump + fixed * -(-(units - step.jump) // most)
        assert computing < one.absent_from("ssd", step.end) * load + batch.under_way("ssd") * load
    if step.end == step.jump < units:
        assert batch.under_way("ssd")  # whose arrival wakes the device
    one.abandon_loading(step.jump, step.end)
    one.take(step)
    assert all(one[unit] == Unit.COMPUTING for unit in range(step.jump, step.end))


def test_a_batch_without_patience_is_refused() -> None:
    with pytest.raises(ValueError, match="patience"):
        Batch(patience=0)
