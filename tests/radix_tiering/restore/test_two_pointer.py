"""Restores under way: any order of arrivals, failures and abandoned loads ends with every chunk there exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swift_tiers.radix_tiering.restore.batch import Batch
from swift_tiers.radix_tiering.restore.two_pointer import PRESENT, Chunk, TwoPointer

SOURCES = ("host", "ssd")


def test_the_pointers_meet_in_the_middle() -> None:
    one = TwoPointer(["ssd"] * 6)
    assert [one.take_compute(), one.take_load("ssd"), one.take_load("ssd")] == [0, 5, 4]
    one.computed(0)
    assert one.take_compute() == 1
    one.loaded(5)
    assert one.take_load("ssd") == 3
    one.computed(1)
    assert one.next_load("ssd") is None  # chunk 2 is computed next
    assert one.next_load("ssd", computing=False) == 2  # unless the device is busy with others
    assert one.take_compute() == 2
    one.computed(2)
    assert one.next_compute() is None  # 3 is on its way
    assert not one.done
    one.loaded(4)
    one.loaded(3)
    assert one.done


def test_a_load_that_fails_is_computed_and_what_was_loaded_behind_it_is_kept() -> None:
    one = TwoPointer(["ssd"] * 4)
    for _ in range(3):
        one.take_load("ssd")
    one.loaded(3)
    one.computed(one.take_compute())
    one.abandon(2)
    one.abandon(1)
    assert [one.take_compute(), one.next_load("ssd")] == [1, None]
    one.computed(1)
    one.computed(one.take_compute())
    assert one.state == [Chunk.COMPUTED] * 3 + [Chunk.LOADED]
    assert one.done


def test_the_lead_is_loaded_from_the_front_before_anything_is_computed() -> None:
    one = TwoPointer(["host", "host", "ssd", "ssd"], lead=2)
    assert one.next_compute() is None
    assert [one.take_load("host"), one.take_load("host"), one.take_load("ssd")] == [0, 1, 3]
    one.loaded(0)
    assert one.next_compute() is None
    one.abandon(1)  # then it has to be computed after all
    assert one.take_compute() == 1
    with pytest.raises(ValueError, match="cannot all be loaded"):
        TwoPointer([None, "ssd"], lead=1)


def test_moves_that_cannot_be_are_refused() -> None:
    one = TwoPointer(["ssd", None])
    with pytest.raises(ValueError, match="is ABSENT, not LOADING"):
        one.loaded(0)
    with pytest.raises(ValueError, match="no chunk to load"):
        one.take_load("host")
    one.take_compute()
    with pytest.raises(ValueError, match="no chunk to compute"):
        one.take_compute()


class Restoring(RuleBasedStateMachine):
    """A device and two sources that work, fail, and are abandoned in any order."""

    @initialize(sources=st.lists(st.sampled_from([*SOURCES, None]), min_size=1, max_size=12), lead=st.integers(0, 12))
    def start(self, sources: list[str | None], lead: int) -> None:
        while lead and (lead > len(sources) or None in sources[:lead]):
            lead -= 1
        self.one = TwoPointer(sources, lead)
        self.times_taken = [0] * len(sources)
        self.abandoned: set[int] = set()

    @precondition(lambda self: self.one.next_compute() is not None)
    @rule()
    def compute(self) -> None:
        chunk = self.one.take_compute()
        assert all(state in PRESENT for state in self.one.state[:chunk])
        self.times_taken[chunk] += 1

    @rule()
    def computing_ends(self) -> None:
        for chunk, state in enumerate(self.one.state):
            if state is Chunk.COMPUTING:
                self.one.computed(chunk)

    @rule(source=st.sampled_from(SOURCES), computing=st.booleans())
    def load(self, source: str, computing: bool) -> None:
        if self.one.next_load(source, computing) is not None:
            chunk = self.one.take_load(source, computing)
            assert self.one.source(chunk) == source
            assert chunk not in self.abandoned
            self.times_taken[chunk] += 1

    @rule(data=st.data(), well=st.booleans())
    def loading_ends(self, data: st.DataObject, well: bool) -> None:
        under_way = [chunk for chunk, state in enumerate(self.one.state) if state is Chunk.LOADING]
        if under_way:
            chunk = data.draw(st.sampled_from(under_way))
            if well:
                self.one.loaded(chunk)
            else:
                self.one.abandon(chunk)
                self.abandoned.add(chunk)

    @rule(source=st.sampled_from(SOURCES))
    def source_dies(self, source: str) -> None:
        self.abandoned.update(self.one.abandon_source(source))
        assert self.one.next_load(source) is None

    @invariant()
    def no_chunk_is_taken_twice(self) -> None:
        if hasattr(self, "one"):
            for chunk, taken in enumerate(self.times_taken):
                assert taken <= 1 + (chunk in self.abandoned)

    def teardown(self) -> None:
        if not hasattr(self, "one"):
            return
        # Whatever has happened: with everything that is under way coming in, it ends.
        for _ in range(3 * len(self.one)):
            self.computing_ends()
            for chunk, state in enumerate(self.one.state):
                if state is Chunk.LOADING:
                    self.one.loaded(chunk)
            for source in SOURCES:
                if self.one.next_load(source) is not None:
                    self.one.take_load(source)
            if self.one.next_compute() is not None:
                self.one.take_compute()
        assert self.one.done


TestRestoring = Restoring.TestCase
TestRestoring.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_source_serves_who_has_most_recomputation_left() -> None:
    batch = Batch()
    batch.add("short", TwoPointer(["ssd"] * 3), lambda chunk: 1.0)
    batch.add("long", TwoPointer(["ssd"] * 9), lambda chunk: 1.0 + chunk)
    served = [batch.next_load("ssd") for _ in range(4)]
    assert [work.request for work in served if work] == ["long"] * 4
    assert [work.chunk for work in served if work] == [8, 7, 6, 5]
    first = batch.next_compute()
    assert first is not None
    assert first.request == "short"  # computing goes by age


def test_a_request_that_ends_is_served_no_more() -> None:
    batch = Batch()
    batch.add("one", TwoPointer(["ssd"] * 3), lambda chunk: 1.0)
    with pytest.raises(ValueError, match="already"):
        batch.add("one", TwoPointer(["ssd"]), lambda chunk: 1.0)
    batch.remove("one")
    batch.remove("one")
    assert batch.next_load("ssd") is None
    assert batch.next_compute() is None


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.integers(1, 8))
def test_nobody_is_passed_over_for_longer_than_patience(lengths: list[int], patience: int) -> None:
    """A device that is never free, so that everything comes from one source: nobody waits without a bound."""
    batch = Batch(patience)
    for number, length in enumerate(lengths):
        batch.add(str(number), TwoPointer(["ssd"] * length), lambda chunk: 1.0 + chunk)
    batch.next_compute()
    waited = dict.fromkeys(map(str, range(len(lengths))), 0)
    while (work := batch.next_load("ssd")) is not None:
        for request in waited:
            needs = batch.pointers(request).next_load("ssd", computing=False) is not None
            waited[request] = 0 if request == work.request else waited[request] + needs
            # Those that starve are served one after the other.
            assert waited[request] <= patience + len(lengths)
        batch.pointers(work.request).loaded(work.chunk)
    assert all(batch.pointers(str(number)).computed_to for number in range(1, len(lengths)))
