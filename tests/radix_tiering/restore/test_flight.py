"""Restores under way: any order of arrivals, failures and abandoned loads ends with every unit there exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swift_tiers.radix_tiering.restore.batch import AGAIN_SECONDS, Batch, Pick
from swift_tiers.radix_tiering.restore.flight import Flight, Step, Unit

from support.examples import examples

SOURCES = ("host", "ssd")


def load(one: Flight, source: str, most: int = 1) -> list[int]:
    units = one.next_load(source, most)
    one.take_load(units)
    return list(units)


def arrive(one: Flight, *units: int) -> None:
    for unit in units:
        one.arrived(unit)


def test_the_pointers_meet_in_the_middle() -> None:
    one = Flight(["ssd"] * 12)
    assert one.step(4) == Step(0, 4)
    one.take(one.step(4))
    assert one.step(4) == Step(4, 4)  # computing
    assert load(one, "ssd", 3) == [9, 10, 11]
    one.computed()
    arrive(one, 10, 11)
    one.take(one.step(4))
    assert load(one, "ssd", 3) == [8]  # 4 to 7 are being computed
    one.computed()
    assert one.step(4) == Step(8, 8)  # 8 is on its way: computing it as well would be in vain
    assert not one.done
    arrive(one, 9, 8)
    assert one.step(4) == Step(12, 12)
    assert one.done
    one.take(one.step(4))
    assert one.front == 12


def test_the_last_chunk_is_shortened_to_what_is_left() -> None:
    one = Flight(["ssd"] * 8)
    assert load(one, "ssd", 2) == [6, 7]
    assert one.step(100) == Step(0, 6)


def test_a_load_that_fails_is_computed_and_what_was_loaded_behind_it_is_kept() -> None:
    one = Flight(["ssd"] * 4)
    assert load(one, "ssd", 3) == [1, 2, 3]
    arrive(one, 3)
    one.take(one.step(4))
    one.computed()
    one.failed(2)
    one.failed(1)
    assert not load(one, "ssd")
    assert one.step(4) == Step(1, 3)
    one.take(Step(1, 3))
    one.computed()
    assert one.step(4) == Step(4, 4)


def test_what_lies_in_the_middle_is_jumped_over_if_that_is_worth_it() -> None:
    for island, expected in ((1, Step(0, 2)), (2, Step(0, 2)), (3, Step(0, 6))):
        one = Flight([None, None, "host", "host", None, None], island=island)
        load(one, "host", 2)
        arrive(one, 2, 3)
        assert one.step(10) == expected
        # A step that would end within them ends before them: the next one jumps.
        assert [one.step(most) for most in (2, 3, 4)] == [Step(0, 2)] * 3
    one.take(Step(0, 2))
    one.computed()
    assert one.step(10) == Step(4, 6)


def test_what_is_computed_through_is_not_waited_for() -> None:
    one = Flight([None, "host", None], island=5)
    load(one, "host")
    assert one.step(10) == Step(0, 1)  # it is on its way
    arrive(one, 1)
    one.take(Step(0, 3))
    one.computed()
    assert one.done
    assert one.front == 3


def test_the_lead_is_loaded_from_the_front_before_anything_is_computed() -> None:
    one = Flight(["host", "host", "ssd", "ssd"], lead=2)
    assert one.step(4) == Step(0, 0)
    assert [load(one, "host", 5), load(one, "ssd")] == [[0, 1], [3]]
    arrive(one, 0)
    assert one.step(4) == Step(1, 1)
    one.failed(1)  # then it has to be computed after all
    assert one.step(4) == Step(1, 3)


def test_a_step_of_another_rank_that_has_less_can_be_taken() -> None:
    one = Flight(["ssd"] * 8)
    load(one, "ssd", 8)
    arrive(one, *range(8))
    assert one.step(8) == Step(8, 8)
    one.take(Step(2, 6))
    one.computed()
    assert one.step(8) == Step(8, 8)


def test_the_device_may_have_gained_units_meanwhile() -> None:
    one = Flight(["ssd"] * 6)
    load(one, "ssd", 5)
    one.begin(3)
    assert one.front == 3
    arrive(one, *range(1, 6))
    assert one.step(8) == Step(6, 6)


def test_what_is_about_to_be_computed_is_not_loaded() -> None:
    one = Flight(["ssd"] * 6)
    step = one.step(4)
    one.reserve(step.end)
    assert [load(one, "ssd", 6), load(one, "ssd", 6)] == [[4, 5], []]
    assert one.step(4) == step
    one.take(Step(0, 3))  # another rank has got less
    assert load(one, "ssd", 6) == [3]
    one.computed()
    one.reserve(6)
    one.reserve(0)
    assert one.step(4) == Step(3, 3)


def test_moves_that_cannot_be_are_refused() -> None:
    one = Flight(["ssd", "ssd", None])
    with pytest.raises(ValueError, match="cannot be loaded from anywhere"):
        one.take_load(range(2, 3))
    assert load(one, "ssd") == [1]
    with pytest.raises(ValueError, match="is LOADING, not ABSENT"):
        one.take_load(range(1, 2))
    with pytest.raises(ValueError, match="can be computed"):
        one.take(Step(0, 2))
    with pytest.raises(ValueError, match="have arrived"):
        one.take(Step(1, 1))
    with pytest.raises(ValueError, match="cannot be taken"):
        one.take(Step(2, 1))
    one.begin(1)
    with pytest.raises(ValueError, match="can still come from anywhere"):
        one.redirect(range(0, 2), "host", Unit.PRESENT)
    with pytest.raises(ValueError, match="a lead of 4"):
        Flight(["ssd"], lead=4)


class Restoring(RuleBasedStateMachine):
    """A device and two sources that work, fail, and are abandoned in any order."""

    @initialize(
        sources=st.lists(st.sampled_from([*SOURCES, None]), min_size=1, max_size=24),
        lead=st.integers(0, 24),
        island=st.integers(1, 4),
    )
    def start(self, sources: list[str | None], lead: int, island: int) -> None:
        self.one = Flight(sources, lead=min(lead, len(sources)), island=island)
        self.computed = [0] * len(sources)
        self.loaded = [0] * len(sources)
        self.copied = [0] * len(sources)
        self.forsaken: set[int] = set()

    @rule(most=st.integers(1, 8), less=st.integers(0, 3))
    def compute(self, most: int, less: int) -> None:
        step, front = self.one.step(most), self.one.front
        assert step.end - step.jump <= most
        if self.one.computing or step.end == step.jump < len(self.one):
            return
        if less:  # another rank has got less
            step = Step(max(front, step.jump - less), step.end)
        before = [self.one[unit] for unit in range(len(self.one))]
        self.one.take(step)
        for unit in range(front, step.jump):
            assert before[unit] is Unit.PRESENT
            self.copied[unit] += 1
        for unit in range(step.jump, step.end):
            assert before[unit] in (Unit.ABSENT, Unit.PRESENT)
            self.computed[unit] += 1

    @rule()
    def computing_ends(self) -> None:
        self.one.computed()

    @rule(source=st.sampled_from(SOURCES), most=st.integers(1, 5))
    def load(self, source: str, most: int) -> None:
        units = self.one.next_load(source, most)
        assert len(units) <= most
        self.one.take_load(units)
        for unit in units:
            assert self.one.source(unit) == source
            assert unit not in self.forsaken
            self.loaded[unit] += 1

    @precondition(lambda self: self.one.loading)
    @rule(data=st.data(), well=st.booleans())
    def loading_ends(self, data: st.DataObject, well: bool) -> None:
        unit = data.draw(st.sampled_from([one for one in range(len(self.one)) if self.one[one] is Unit.LOADING]))
        if well:
            self.one.arrived(unit)
        else:
            self.one.failed(unit)
            self.forsaken.add(unit)

    @rule(source=st.sampled_from(SOURCES))
    def source_dies(self, source: str) -> None:
        self.forsaken.update(
            unit
            for unit in range(len(self.one))
            if self.one.source(unit) == source and self.one[unit] in (Unit.ABSENT, Unit.LOADING)
        )
        self.one.abandon_source(source)
        assert not self.one.next_load(source)
        assert source not in self.one.sources()

    @rule(data=st.data(), source=st.sampled_from(SOURCES), there=st.booleans())
    def comes_from_elsewhere(self, data: st.DataObject, source: str, there: bool) -> None:
        """Neighbours that have come are to be loaded after all, or those that have not are there at once."""
        before = (Unit.ABSENT, Unit.LOADING) if there else (Unit.PRESENT,)
        found = [unit for unit in range(self.one.front, len(self.one)) if self.one[unit] in before]
        if not found:
            return
        first = end = data.draw(st.sampled_from(found))
        while end in found:
            end += 1
        self.one.redirect(range(first, end), source, Unit.PRESENT if there else Unit.ABSENT)
        for unit in range(first, end):
            assert self.one[unit] is (Unit.PRESENT if there else Unit.ABSENT)
            assert self.one.source(unit) == source
            self.loaded[unit] = 0
            self.forsaken.discard(unit)

    @rule()
    def patience_ends(self) -> None:
        self.forsaken.update(unit for unit in range(len(self.one)) if self.one[unit] is Unit.LOADING)
        self.one.abandon_loading()
        assert not self.one.loading

    @invariant()
    def no_unit_is_there_twice(self) -> None:
        if hasattr(self, "one"):
            for unit in range(len(self.one)):
                assert self.loaded[unit] <= 1
                assert self.computed[unit] + self.copied[unit] <= 1

    def teardown(self) -> None:
        if not hasattr(self, "one"):
            return
        # Whatever has happened: with everything that is under way coming in, it ends.
        for _ in range(3 * len(self.one) + 3):
            self.computing_ends()
            for unit in range(len(self.one)):
                self.one.arrived(unit)
            for source in SOURCES:
                self.load(source, 4)
            self.compute(8, 0)
        assert self.one.done
        assert self.one.front == len(self.one)
        assert all(a + b == 1 for a, b in zip(self.computed, self.copied, strict=True))


TestRestoring = Restoring.TestCase
TestRestoring.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


def per_unit(start: int, end: int) -> float:
    return float(end - start)


def test_a_source_serves_who_has_most_recomputation_left() -> None:
    batch: Batch[str] = Batch()
    batch.add("short", Flight(["ssd"] * 3), per_unit)
    batch.add("long", Flight(["ssd"] * 6), per_unit)
    picks = [batch.next_load("ssd") for _ in range(9)]
    assert picks[:4] == [Pick("long", range(5, 6)), Pick("long", range(4, 5)), Pick("long", range(3, 4)),
                         Pick("short", range(2, 3))]  # fmt: skip
    assert batch.next_load("ssd") is None
    assert batch.under_way("ssd") == 9


def test_a_source_serves_the_oldest_where_it_is_told_so() -> None:
    batch: Batch[str] = Batch(by_age=True)
    batch.add("short", Flight(["ssd"] * 2), per_unit)
    batch.add("long", Flight(["ssd"] * 6), per_unit)
    picks = [batch.next_load("ssd") for _ in range(3)]
    assert picks == [Pick("short", range(1, 2)), Pick("short", range(1)), Pick("long", range(5, 6))]
    batch.by_age = False
    batch.add("longest", Flight(["ssd"] * 9), per_unit)
    assert batch.next_load("ssd") == Pick("longest", range(8, 9)), "it may be changed while requests are under way"


def test_a_longer_prefix_costs_more_for_each_unit_than_a_short_one() -> None:
    batch: Batch[str] = Batch()
    batch.add("four", Flight(["ssd"] * 4), lambda a, b: b**2 - a**2)
    batch.add("late four", Flight(["ssd"] * 4), lambda a, b: (100 + b) ** 2 - (100 + a) ** 2)
    pick = batch.next_load("ssd")
    assert pick is not None
    assert pick.request == "late four"


def test_what_would_come_later_than_it_is_computed_is_not_loaded() -> None:
    batch: Batch[str] = Batch()
    flight = Flight(["ssd"] * 10)
    batch.add("one", flight, per_unit, {"ssd": 4.0}.get)
    batch.set_computing("one", True)
    # The tenth unit would be computed after 10 s, and is loaded in 4; a second one behind it would take 8 of 9.
    assert [batch.next_load("ssd"), batch.next_load("ssd")] == [Pick("one", range(9, 10)), Pick("one", range(8, 9))]
    assert batch.next_load("ssd") is None  # 12 s, but the device is there within 8
    batch.set_computing("one", False)
    assert batch.next_load("ssd") is not None  # the device works for others


def test_a_source_that_seems_too_slow_is_tried_again_after_a_while() -> None:
    now = 0.0
    batch: Batch[str] = Batch(lambda: now)
    batch.add("one", Flight(["ssd"] * 4), per_unit, {"ssd": 100.0}.get)
    assert batch.next_load("ssd") is not None, "nobody computes it"
    batch.answered("ssd")
    batch.set_computing("one", True)
    assert batch.next_load("ssd") is None
    now = AGAIN_SECONDS
    batch.set_computing("one", True)
    pick = batch.next_load("ssd")
    assert pick == Pick("one", range(2, 3))
    assert batch.next_load("ssd") is None, "once at a time"
    now += AGAIN_SECONDS
    batch.set_computing("one", True)
    assert batch.next_load("ssd") is None, "it has not answered"
    batch.answered("ssd")
    assert batch.next_load("ssd") is None, "it has just brought something"


@settings(deadline=None, max_examples=examples(100))
@given(lengths=st.lists(st.integers(1, 40), min_size=2, max_size=8), patience=st.integers(1, 6), most=st.integers(1, 5))
def test_no_request_waits_longer_than_its_share(lengths: list[int], patience: int, most: int) -> None:
    batch: Batch[int] = Batch(patience=patience)
    for request, length in enumerate(lengths):
        batch.add(request, Flight(["ssd"] * length), per_unit)
    since = dict.fromkeys(range(len(lengths)), 0)
    picked = dict.fromkeys(range(len(lengths)), 0)
    while (pick := batch.next_load("ssd", most)) is not None:
        picked[pick.request] += len(pick.units)
        for request in since:
            waits = request != pick.request and picked[request] < lengths[request]
            since[request] = since[request] + 1 if waits else 0
            # Others may be starving, too; each of them is served once before it.
            assert since[request] <= patience + len(lengths)
    assert list(picked.values()) == lengths


def test_units_are_found_by_their_state() -> None:
    flight = Flight(["peer"] * 5)
    flight.take_load(range(1, 2))
    flight.take_load(range(3, 5))
    flight.arrived(3)
    assert list(flight.units(Unit.LOADING)) == [1, 4]
    assert list(flight.units(Unit.PRESENT)) == [3]
    assert list(flight.units(Unit.DONE)) == []


@given(st.lists(st.sampled_from(["a", "b", None]), max_size=40), st.data())
def test_where_units_come_from_is_said_for_each(sources: list[str | None], data: st.DataObject) -> None:
    flight = Flight(sources)
    for unit, source in enumerate(sources):
        if source is not None and data.draw(st.booleans()):
            flight.take_load(range(unit, unit + 1))
            if data.draw(st.booleans()):
                flight.arrived(unit)
    start = data.draw(st.integers(0, len(sources)))
    said = ["here" if flight[unit] is Unit.PRESENT else source for unit, source in enumerate(sources)]
    assert flight.whereabouts(start, "here") == said[start:]
    end = data.draw(st.integers(start, len(sources)))
    loading = {sources[unit] for unit in range(start, end) if flight[unit] is Unit.LOADING}
    assert flight.awaited(start, end) == loading
    flight.fail_from(start)
    assert all(flight[unit] is Unit.ABSENT and flight.source(unit) is None for unit in range(start, len(sources)))
    assert all(not range(*flight.absent_span) or unit < start for unit in flight.units(Unit.LOADING))
    assert [flight.absent_from(source) for source in ("a", "b")] == [
        sum(flight[unit] is Unit.ABSENT and sources[unit] == source for unit in range(start)) for source in ("a", "b")
    ]


def test_who_waits_is_known_without_counting_what_each_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, counted = Batch[int](), list[str]()
    for number in range(64):
        batch.add(number, Flight(["ssd"] * 100))
    monkeypatch.setattr(Flight, "absent_from", lambda self, source, start=0: counted.append(source) or 100)
    assert batch.next_load("ssd", 8) == Pick(0, range(92, 100))
    assert len(counted) < 8
