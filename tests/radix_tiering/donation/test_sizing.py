"""Algorithm 1 of the paper, and the sizer that calls it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swift_tiers.radix_tiering.donation.elastic_unit import ElasticUnit
from swift_tiers.radix_tiering.donation.sizing import NOTHING, ElasticSizer, Resize, pages_for, scale_down, scale_up
from swift_tiers.radix_tiering.donation.window import WindowMaximum

UNIT = ElasticUnit(bytes=4 * 4096, donor_pages=4, borrower_pages=3)
units = st.builds(ElasticUnit, bytes=st.just(1), donor_pages=st.integers(1, 50), borrower_pages=st.integers(1, 50))


def test_scaling_up_by_hand() -> None:
    # 100 tokens are 7 pages of 16; 5 are there; the 2 that are missing come as one unit of 4.
    assert scale_up(5, 16, UNIT, 100) == Resize(4, 3)
    assert scale_up(7, 16, UNIT, 100) == NOTHING
    assert scale_up(0, 16, UNIT, 100) == Resize(8, 6)


def test_scaling_down_by_hand() -> None:
    # 7 pages are needed of 18; of the 11 that are spare, two units of 4 can go.
    assert scale_down(18, 16, UNIT, 100) == Resize(8, 6)
    assert scale_down(7, 16, UNIT, 100) == NOTHING
    assert scale_down(10, 16, UNIT, 100) == NOTHING  # 3 spare pages are no whole unit


@given(st.integers(0, 5000), st.integers(1, 128), units, st.integers(0, 200_000))
def test_scaling_up_is_enough_whole_and_no_more(pages: int, page_tokens: int, unit: ElasticUnit, tokens: int) -> None:
    change = scale_up(pages, page_tokens, unit, tokens)
    assert (pages + change.donor_pages) * page_tokens >= tokens
    assert change.donor_pages % unit.donor_pages == 0
    assert change.borrower_pages * unit.donor_pages == change.donor_pages * unit.borrower_pages
    if change.donor_pages:
        assert (pages + change.donor_pages - unit.donor_pages) * page_tokens < tokens


@given(st.integers(0, 5000), st.integers(1, 128), units, st.integers(0, 200_000))
def test_scaling_down_leaves_what_was_needed(pages: int, page_tokens: int, unit: ElasticUnit, tokens: int) -> None:
    change = scale_down(pages, page_tokens, unit, tokens)
    assert change.donor_pages % unit.donor_pages == 0
    if change.donor_pages:
        assert (pages - change.donor_pages) * page_tokens >= tokens
    # What was just given is never asked back for the same demand.
    assert scale_up(pages - change.donor_pages, page_tokens, unit, min(tokens, pages * page_tokens)) == NOTHING


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 100)), max_size=60), st.floats(0, 50))
def test_the_window_is_the_largest_value_of_its_seconds(steps: list[tuple[float, int]], later: float) -> None:
    window, now, seen = WindowMaximum(30.0), 0.0, []
    for pause, value in steps:
        now += pause
        window.observe(value, now)
        seen.append((now, value))
        assert window.maximum(now) == max(value for when, value in seen if when > now - 30.0)
    now += later
    assert window.maximum(now) == max((value for when, value in seen if when > now - 30.0), default=0)


def sizer(**options: object) -> ElasticSizer:
    return ElasticSizer(1000, 16, UNIT, window_seconds=60.0, reserve=0.0, **options)  # type: ignore[arg-type]


def test_nothing_is_lent_that_the_window_needed() -> None:
    donor = sizer()
    donor.demand(400 * 16, now=0.0)
    assert donor.spare(now=1.0) == Resize(600, 450)
    donor.gave(600)
    assert donor.spare(now=2.0) == NOTHING
    assert donor.spare(now=61.0) == Resize(400, 300)  # the demand has left the window


def test_demand_takes_back_at_once_and_what_was_taken_back_stays_for_a_window() -> None:
    donor = sizer()
    donor.gave(900)
    assert donor.demand(300 * 16, now=10.0) == Resize(200, 150)
    donor.took_back(200, now=10.0)
    assert donor.spare(now=69.0) == NOTHING
    assert donor.spare(now=71.0) == Resize(300, 225)


def test_bounds_hold() -> None:
    donor = sizer(least_lent=100, most_lent=500)
    assert donor.spare(now=0.0) == Resize(500, 375)
    donor.gave(500)
    assert donor.spare(now=0.0) == NOTHING
    assert donor.demand(10_000 * 16, now=1.0) == Resize(500, 375)  # never more than is lent
    with pytest.raises(ValueError, match="units of 4"):
        donor.took_back(3, now=1.0)
    with pytest.raises(ValueError, match="0 to 0"):
        donor.gave(4)
    with pytest.raises(ValueError, match="does not hold"):
        sizer(least_lent=600, most_lent=500)


def test_a_wave_within_the_reserve_takes_nothing_back() -> None:
    donor = ElasticSizer(1000, 16, UNIT, reserve=0.25)
    donor.demand(400 * 16, now=0.0)
    donor.gave(donor.spare(now=0.0).donor_pages)
    assert donor.own_pages >= 500
    assert donor.demand(480 * 16, now=1.0) == NOTHING


class Sizing(RuleBasedStateMachine):
    """Any history: accounts balance, demand fits, and nothing goes to and fro within a window."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.last_taken = float("-inf")
        self.sizer = ElasticSizer(997, 16, UNIT, least_lent=40, most_lent=800, window_seconds=60.0)

    @rule(pause=st.floats(0, 100))
    def wait(self, pause: float) -> None:
        self.now += pause

    @rule(tokens=st.integers(0, 20_000))
    def need(self, tokens: int) -> None:
        change = self.sizer.demand(tokens, self.now)
        if change.donor_pages:
            self.sizer.took_back(change.donor_pages, self.now)
            self.last_taken = self.now
        assert self.sizer.own_pages >= min(pages_for(tokens, 16), 997) or self.sizer.lent == 0

    @rule()
    def lend(self) -> None:
        change = self.sizer.spare(self.now)
        if change.donor_pages:
            assert self.now - self.last_taken >= 60.0
        self.sizer.gave(change.donor_pages)

    @invariant()
    def accounts_balance(self) -> None:
        assert 0 <= self.sizer.lent <= 800
        assert self.sizer.lent % UNIT.donor_pages == 0
        assert self.sizer.own_pages + self.sizer.lent == 997


TestSizing = Sizing.TestCase
TestSizing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
