"""The two pointers against what no schedule can beat, without noise: costs are exactly what is planned with."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.ops.simulate.bounds import batch_bound, granularity
from swift_tiers.ops.simulate.restoring import IN_TURN, LOAD, RECOMPUTE, SWIFT_TIERS, Method
from swift_tiers.ops.simulate.scenarios.bounds import CHUNK, COSTS, LENGTHS, LINEAR, RATIOS, batch, batches, single
from swift_tiers.radix_tiering.restore.cost import ComputeCost

PAGE = 16


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_one_restore_takes_at_most_a_twentieth_longer_than_the_bound(tokens: int, ratio: float) -> None:
    assert 1 - 1e-9 <= single(tokens, ratio) <= 1.05


@given(pages=st.integers(1, 256), ratio=st.floats(0.05, 20.0))
@settings(max_examples=50, deadline=None)
def test_shorter_ones_miss_the_bound_by_what_pages_are_whole(pages: int, ratio: float) -> None:
    tokens = pages * PAGE
    compute = LINEAR.seconds(0, tokens)
    assert single(tokens, ratio) <= 1 + granularity(tokens, PAGE, compute, compute * ratio) + 1e-9


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_a_batch_takes_at_most_a_tenth_longer_than_its_lower_bound(ratio: float, size: int, cost: ComputeCost) -> None:
    for seed in (1, 2):
        for prefixes in batches(size, seed):
            over_bound, over_pure = batch(prefixes, ratio, cost, IN_TURN)
            assert 1 - 1e-9 <= over_bound <= 1.10, prefixes
            assert over_pure < 1.0, prefixes


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_as_sglang_orders_chunks_it_is_still_faster_than_either_pure_strategy(
    ratio: float, size: int, cost: ComputeCost
) -> None:
    for prefixes in batches(size, seed=1):
        over_bound, over_pure = batch(prefixes, ratio, cost, SWIFT_TIERS)
        assert over_bound <= 1.20, prefixes
        assert over_pure < 1.0, prefixes


@given(
    tokens=st.integers(1, 512).map(lambda pages: pages * PAGE),
    ratio=st.floats(0.01, 100.0),
    fixed=st.sampled_from([0.0, 1e-3, 1e-2, 0.1]),
    pair=st.sampled_from([0.0, 5e-9, 5e-8]),
)
@settings(max_examples=150, deadline=None)
def test_no_restore_is_slower_than_the_better_pure_strategy(
    tokens: int, ratio: float, fixed: float, pair: float
) -> None:
    cost = ComputeCost(fixed_seconds=fixed, token_seconds=1e-4, pair_seconds=pair)
    _, over_pure = batch([tokens], ratio, cost, SWIFT_TIERS)
    assert over_pure <= 1 + 1e-9


@pytest.mark.parametrize(("method", "seconds"), [(RECOMPUTE, 2.0), (LOAD, 1.0)])
def test_pure_strategies_take_what_they_take(method: Method, seconds: float) -> None:
    cost = ComputeCost(fixed_seconds=0.0, token_seconds=1e-3, pair_seconds=0.0)
    _, over_pure = batch([1600, 400], 0.5, cost, method)
    assert over_pure == pytest.approx(seconds)


def test_the_lower_bound_of_one_linear_prefix_is_the_papers() -> None:
    assert batch_bound([8192], LINEAR, CHUNK, 1e-4) == pytest.approx(8192 * 1e-4 / 2)


def test_the_lower_bound_is_no_more_than_what_the_best_of_all_splits_takes() -> None:
    """Every split of small prefixes at whole tokens, as if device and source always worked."""
    cost = ComputeCost(fixed_seconds=0.0, token_seconds=1.0, pair_seconds=0.05)
    prefixes = [12, 7, 3]
    for load in (0.3, 1.0, 3.0):
        best = min(
            max(
                sum(cost.seconds(0, part) for part in parts),
                load * (sum(prefixes) - sum(parts)),
            )
            for parts in itertools.product(*(range(tokens + 1) for tokens in prefixes))
        )
        bound = batch_bound(prefixes, cost, 1 << 30, load)
        assert bound <= best + 1e-9
        assert bound >= 0.9 * best  # and it is not far below
