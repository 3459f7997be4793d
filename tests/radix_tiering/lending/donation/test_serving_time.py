"""The time by which a donor's needs grow old: it passes as the clock does, but for pauses of everything."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.lending.donation.serving_time import MOST_BETWEEN, ServingTime
from swift_tiers.radix_tiering.lending.donation.sizing import ElasticSizer

from support.engine import Clock


@pytest.mark.parametrize("between", [0.001, 1.0, 1.1])
def test_it_passes_as_the_clock_does_for_a_scheduler_that_works_or_idles(between: float) -> None:
    clock = Clock()
    time = ServingTime(lambda: clock.now)
    began, rounds = time.look(), round(60.0 / between)
    for _ in range(rounds):
        clock.now += between
        time.look()
    assert time.look() - began == pytest.approx(rounds * between)


def test_a_pause_lends_nothing_that_requests_need_time_and_again() -> None:
    """They need three quarters of the pool every ten seconds."""
    clock, sizer = Clock(), ElasticSizer(1000, 16, window_seconds=60.0)
    time = ServingTime(lambda: clock.now)
    for second in range(300):
        clock.now += 1.0
        sizer.demand((750 if second % 10 < 5 else 250) * 16, time.look())
    before = sizer.spare(time.look())
    assert before == 175
    began = time.look()
    clock.now += 61.0
    sizer.demand(250 * 16, time.look())
    assert time.look() - began == MOST_BETWEEN
    assert sizer.spare(time.look()) == before
