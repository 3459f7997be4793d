"""Costs: what they add up to, and what scaling does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.cost import ComputeCost, SourceCost

COMPUTE = ComputeCost(fixed_seconds=0.01, token_seconds=1e-4, pair_seconds=1e-9)
SOURCE = SourceCost(latency_seconds=0.002, bytes_per_second=1e9)


def test_a_forward_costs_its_launch_its_tokens_and_their_pairs() -> None:
    assert COMPUTE.seconds(0, 100) == pytest.approx(0.01 + 100 * 1e-4 + 100**2 * 1e-9)
    assert COMPUTE.seconds(1000, 1100) == pytest.approx(0.01 + 100 * 1e-4 + (1100**2 - 1000**2) * 1e-9)
    assert COMPUTE.seconds(5, 5) == 0


def test_a_short_forward_takes_no_less_than_reading_the_weights_does() -> None:
    cost = ComputeCost(fixed_seconds=0.01, token_seconds=1e-4, pair_seconds=0.0, least_seconds=0.02)
    assert cost.seconds(0, 1) == cost.seconds(5000, 5100) == 0.02
    assert cost.seconds(0, 200) == pytest.approx(0.03)
    assert cost.seconds(5, 5) == 0
    assert cost.in_forwards(0, 200, 0) == pytest.approx(0.02), "what joins another one is its tokens alone"
    assert cost.in_forwards(0, 200, 3) == pytest.approx(0.06)


@given(st.integers(0, 10_000), st.lists(st.integers(1, 4000), min_size=1, max_size=5))
def test_in_pieces_only_the_launches_are_dearer(start: int, pieces: list[int]) -> None:
    at, total = start, 0.0
    for piece in pieces:
        total += COMPUTE.seconds(at, at + piece)
        at += piece
    further = COMPUTE.fixed_seconds * (len(pieces) - 1)
    assert total == pytest.approx(COMPUTE.seconds(start, at) + further)


def test_a_load_costs_its_latency_and_its_bytes() -> None:
    assert SOURCE.seconds(10**9) == pytest.approx(1.002)
    assert SOURCE.seconds(0) == 0


@given(st.floats(0.01, 100), st.integers(1, 10**9))
def test_scaled_is_so_many_times_as_slow(factor: float, nbytes: int) -> None:
    assert SOURCE.scaled(factor).seconds(nbytes) == pytest.approx(factor * SOURCE.seconds(nbytes))
    assert COMPUTE.scaled(factor).seconds(7, 7 + nbytes) == pytest.approx(factor * COMPUTE.seconds(7, 7 + nbytes))
