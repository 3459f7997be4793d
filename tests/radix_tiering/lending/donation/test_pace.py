"""A rate, and a share of the time, are kept over any time, whatever the sizes, and rest is no credit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.lending.donation.pace import BURST_SECONDS, REST_SECONDS, MovePace


def test_without_a_rate_nobody_waits() -> None:
    pace = MovePace(None)
    pace.take(2**40, 5.0)
    assert pace.wait(5.0) == 0


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_is_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        MovePace(rate)


@given(
    rate=st.floats(1e3, 1e10),
    moves=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 2**24)), min_size=1, max_size=50),
)
def test_who_waits_as_told_keeps_to_the_rate(rate: float, moves: list[tuple[float, int]]) -> None:
    pace, now, begun = MovePace(rate), 100.0, []
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
    pace, now = MovePace(rate), 100.0
    for size in sizes:
        now += pace.wait(now)
        pace.take(size, now)
    now += pace.wait(now)
    assert now - 100.0 <= sum(sizes) / rate * (1 + 1e-6) + 1e-6


@given(
    share=st.floats(0.01, 1),
    moves=st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 0.005)), min_size=1, max_size=50),
)
def test_who_waits_as_told_keeps_to_the_share(share: float, moves: list[tuple[float, float]]) -> None:
    pace, now, begun, spent = MovePace(None, share), 100.0, [], 0.0
    for rest, cost in moves:
        now += rest
        now += pace.wait(now)
        begun.append((now, spent))
        now += cost
        spent += cost
        pace.spent(cost, now)
    now += pace.wait(now)
    for at, before in begun:
        assert spent - before <= share * (now - at) * (1 + 1e-6) + 1e-6


def test_one_move_keeps_the_next_waiting_for_so_long_at_most() -> None:
    pace = MovePace(None, 1e-6)
    pace.spent(0.5, 10.0)
    assert pace.wait(10.0) == REST_SECONDS


def test_when_the_share_is_lifted_nobody_waits_for_it_any_more_but_for_the_rate() -> None:
    pace = MovePace(1.0, 0.001)
    pace.take(2, 10.0)
    pace.spent(0.005, 10.0)
    pace.share = None
    assert pace.wait(10.0) == pytest.approx(2 - BURST_SECONDS)
    pace.spent(5.0, 10.0)
    assert pace.wait(12.0) == 0


@given(
    rate=st.one_of(st.none(), st.floats(1e3, 1e9)),
    share=st.one_of(st.none(), st.floats(0.01, 1)),
    moves=st.integers(1, 20),
    size=st.integers(1, 2**24),
    cost=st.floats(0, 0.01),
)
def test_what_many_moves_will_wait_is_known_before(
    rate: float | None, share: float | None, moves: int, size: int, cost: float
) -> None:
    pace, now = MovePace(rate, share), 100.0
    for _ in range(2):
        pace.take(size, now)
        now += cost
        pace.spent(cost, now)
    told = pace.seconds(moves, size, now)
    began = now
    for number in range(moves):
        now += pace.wait(now)
        if number < moves - 1:
            pace.take(size, now)
            now += cost
            pace.spent(cost, now)
    assert now - began <= told + moves * cost + 1e-6 * now
    burst = BURST_SECONDS if rate is not None else 0.0
    assert now - began >= told - burst - 1e-6 * now
    if rate is None and share is None:
        assert told == 0


def test_moves_made_at_once_share_their_cost() -> None:
    pace = MovePace(None, 0.1)
    pace.spent(0.08, 100.0, moves=8)
    assert pace.seconds(2, 1, 200.0) == pytest.approx(0.1)
