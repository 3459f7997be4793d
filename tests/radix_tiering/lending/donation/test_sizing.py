"""Algorithm 1 of the paper, and the sizer that calls it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swift_tiers.radix_tiering.lending.donation.sizing import (
    ElasticSizer,
    WindowMaximum,
    missing_pages,
    pages_for,
    spare_pages,
)

from support.examples import examples

units = st.integers(1, 50)


def test_scaling_up_by_hand() -> None:
    # 100 tokens are 7 pages of 16; 5 are there; the 2 that are missing come as one unit of 4.
    assert missing_pages(5, 16, 4, 100) == 4
    assert missing_pages(7, 16, 4, 100) == 0
    assert missing_pages(0, 16, 4, 100) == 8


def test_scaling_down_by_hand() -> None:
    # 7 pages are needed of 18; of the 11 that are spare, two units of 4 can go.
    assert spare_pages(18, 16, 4, 100) == 8
    assert spare_pages(7, 16, 4, 100) == 0
    assert spare_pages(10, 16, 4, 100) == 0  # 3 spare pages are no whole unit


@given(st.integers(0, 5000), st.integers(1, 128), units, st.integers(0, 200_000))
def test_scaling_up_is_enough_whole_and_no_more(pages: int, page_tokens: int, unit: int, tokens: int) -> None:
    missing = missing_pages(pages, page_tokens, unit, tokens)
    assert (pages + missing) * page_tokens >= tokens
    assert missing % unit == 0
    if missing:
        assert (pages + missing - unit) * page_tokens < tokens


@given(st.integers(0, 5000), st.integers(1, 128), units, st.integers(0, 200_000))
def test_scaling_down_leaves_what_was_needed(pages: int, page_tokens: int, unit: int, tokens: int) -> None:
    spare = spare_pages(pages, page_tokens, unit, tokens)
    assert spare % unit == 0
    if spare:
        assert (pages - spare) * page_tokens >= tokens
    # What was just given is never asked back for the same demand.
    assert missing_pages(pages - spare, page_tokens, unit, min(tokens, pages * page_tokens)) == 0


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
    return ElasticSizer(1000, 16, 4, window_seconds=60.0, reserve=0.0, **options)  # type: ignore[arg-type]


def test_nothing_is_lent_that_the_window_needed() -> None:
    donor = sizer()
    donor.demand(400 * 16, now=0.0)
    assert donor.spare(now=1.0) == 600
    donor.gave(600)
    assert donor.spare(now=2.0) == 0
    assert donor.spare(now=61.0) == 400  # the demand has left the window


def test_demand_takes_back_at_once_and_what_was_taken_back_stays_for_a_window() -> None:
    donor = sizer()
    donor.gave(900)
    assert donor.demand(300 * 16, now=10.0) == 200
    assert donor.demand(300 * 16, now=10.1) == 200  # it is not there yet
    donor.came_back(200)
    assert donor.demand(300 * 16, now=10.2) == 0
    assert donor.spare(now=70.0) == 0
    assert donor.spare(now=71.0) == 300


def test_what_borrowers_return_can_be_lent_again_at_once_and_what_others_recalled_cannot() -> None:
    donor = sizer()
    donor.gave(1000)
    donor.came_back(500)
    assert donor.spare(now=1.0) == 500
    donor.rest(now=1.0)
    assert donor.spare(now=60.0) == 0
    assert donor.spare(now=61.0) == 500


def test_bounds_hold() -> None:
    donor = sizer(least_lent=100, most_lent=500)
    assert donor.spare(now=0.0) == 500
    donor.gave(500)
    assert donor.spare(now=0.0) == 0
    assert donor.demand(10_000 * 16, now=1.0) == 500  # never more than is lent
    with pytest.raises(ValueError, match="501 pages came back, 500 were lent"):
        donor.came_back(501)
    with pytest.raises(ValueError, match="0 to 0"):
        donor.gave(4)
    with pytest.raises(ValueError, match="units of 4"):
        sizer().gave(3)
    with pytest.raises(ValueError, match="does not hold"):
        sizer(least_lent=600, most_lent=500)


def test_the_lower_bound_is_lent_unless_it_is_needed_now() -> None:
    donor = sizer(least_lent=100)
    donor.demand(1000 * 16, now=0.0)
    assert donor.spare(now=1.0) == 0
    donor.demand(950 * 16, now=2.0)
    assert donor.spare(now=2.0) == 48  # of the 50 that are not needed
    donor.demand(10 * 16, now=3.0)
    assert donor.spare(now=3.0) == 100  # the window's maximum counts for all beyond
    donor.most_lent = 40
    assert donor.spare(now=3.0) == 40


def test_what_is_kept_is_neither_lent_nor_missing_and_counts_for_no_longer_than_it_is_kept() -> None:
    donor = sizer()
    assert donor.demand(100 * 16, now=0.0, kept=500 * 16) == 0
    assert donor.spare(now=0.0) == 400
    donor.gave(400)
    assert donor.demand(100 * 16, now=1.0, kept=540 * 16) == 40
    donor.came_back(40)
    assert donor.demand(0, now=61.5, kept=0) == 0
    assert donor.spare(now=61.5) == 640, "prefixes that are not kept any more are of no window"


def test_what_requests_used_and_left_behind_counts_once() -> None:
    donor = sizer()
    donor.demand(600 * 16, now=0.0, kept=0)
    donor.demand(0, now=1.0, kept=600 * 16)
    assert donor.spare(now=1.0) == 400


def test_the_lower_bound_goes_before_what_is_kept() -> None:
    donor = sizer(least_lent=100)
    donor.demand(100 * 16, now=0.0, kept=900 * 16)
    assert (donor.spare(now=0.0), donor.promised_pages) == (100, 100)
    donor.gave(100)
    assert donor.promised_pages == 0
    assert donor.spare(now=0.0) == 0
    assert donor.demand(100 * 16, now=1.0, kept=900 * 16) == 0, "it would be lent again at once"
    assert donor.demand(940 * 16, now=2.0, kept=60 * 16) == 40  # requests go before it


def test_what_is_left_of_another_unit_is_taken_back_too() -> None:
    donor = sizer()
    donor.gave(12)
    donor.unit_pages = 8
    assert donor.demand(1000 * 16, now=0.0) == 12
    assert donor.demand(989 * 16, now=0.0) == 8


def test_a_wave_within_the_reserve_takes_nothing_back() -> None:
    donor = ElasticSizer(1000, 16, 4, reserve=0.25)
    donor.demand(400 * 16, now=0.0)
    donor.gave(donor.spare(now=0.0))
    assert donor.own_pages >= 500
    assert donor.demand(480 * 16, now=1.0) == 0


class Sizing(RuleBasedStateMachine):
    """Any history: accounts balance, demand fits, and nothing goes to and fro within a window."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.last_taken = float("-inf")
        self.sizer = ElasticSizer(997, 16, 4, least_lent=40, most_lent=800, window_seconds=60.0)

    @rule(pause=st.floats(0, 100))
    def wait(self, pause: float) -> None:
        self.now += pause

    @rule(tokens=st.integers(0, 20_000), kept=st.integers(0, 20_000))
    def need(self, tokens: int, kept: int) -> None:
        pages = self.sizer.demand(tokens, self.now, kept)
        if pages:
            self.sizer.came_back(pages)
            self.last_taken = self.now
        assert self.sizer.own_pages >= min(pages_for(tokens, 16), 997) or self.sizer.lent == 0
        assert self.sizer.own_pages >= min(pages_for(tokens + kept, 16), 997 - 40) or self.sizer.lent == 0

    @rule()
    def lend(self) -> None:
        pages = self.sizer.spare(self.now)
        if pages:
            assert self.now - self.last_taken >= 60.0
        self.sizer.gave(pages)

    @rule(unit=st.integers(1, 30))
    def others_borrow(self, unit: int) -> None:
        self.sizer.unit_pages = unit

    @invariant()
    def accounts_balance(self) -> None:
        assert 0 <= self.sizer.lent <= 800
        assert self.sizer.own_pages + self.sizer.lent == 997


TestSizing = Sizing.TestCase
TestSizing.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
