"""A rate is kept over any time, whatever the sizes, and rest is no credit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.donation.pace import BURST_SECONDS, Pace


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(None)
    pace.take(2**40, 5.0)
    assert pace.wait(5.0) == 0


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_is_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        Pace(rate)


@given(
    rate=st.floats(1e3, 1e10),
    moves=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 2**24)), min_size=1, max_size=50),
)
def test_who_waits_as_told_keeps_to_the_rate(rate: float, moves: list[tuple[float, int]]) -> None:
    pace, now, begun = Pace(rate), 100.0, []
    for rest, size in moves:
        now += rest
        now += pace.wait(now)
        assert pace.wait(now) <= 1e-9 * now
        pace.take(size, now)
        begun.append((now, size))
    for first in range(len(begun)):
        moved = 0
        for at, size in begun[first:]:
            # All that was begun before this one has passed, but for the burst.
            assert moved <= rate * (at - begun[first][0] + BURST_SECONDS) * (1 + 1e-6) + 1
            moved += size


@given(rate=st.floats(1e3, 1e10), sizes=st.lists(st.integers(1, 2**24), min_size=1, max_size=50))
def test_and_gets_all_of_it(rate: float, sizes: list[int]) -> None:
    pace, now = Pace(rate), 100.0
    for size in sizes:
        now += pace.wait(now)
        pace.take(size, now)
    now += pace.wait(now)
    assert now - 100.0 <= sum(sizes) / rate * (1 + 1e-6) + 1e-6
