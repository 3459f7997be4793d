"""Fitting finds what made the samples, and says how well it explains them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.cost import ComputeCost, SourceCost
from swift_tiers.radix_tiering.restore.fitting import (
    ComputeSample,
    LoadSample,
    compute_residuals,
    fit_compute,
    fit_source,
    most_fixed_seconds,
    source_residuals,
)

terms = st.one_of(st.just(0.0), st.floats(1e-3, 1e-1))


@settings(deadline=None)
@given(terms, terms, terms)
def test_fitting_finds_the_cost_that_made_the_samples(fixed: float, linear: float, quadratic: float) -> None:
    assume(fixed + linear + quadratic)
    true = ComputeCost(fixed_seconds=fixed, token_seconds=linear / 100, pair_seconds=quadratic / 1e5)
    spans = [(0, 64), (0, 512), (512, 1024), (0, 4096), (4096, 4608), (0, 8192)]
    samples = [ComputeSample(start, end, true.seconds(start, end)) for start, end in spans]
    found = fit_compute(samples)
    for start, end in [(0, 300), (2000, 6000), (8000, 8192)]:
        assert found.seconds(start, end) == pytest.approx(true.seconds(start, end), rel=0.02)
    assert compute_residuals(found, samples).worst < 0.02


def test_what_was_computed_in_pieces_counts_a_launch_for_each() -> None:
    true = ComputeCost(fixed_seconds=0.05, token_seconds=1e-4, pair_seconds=1e-9)
    samples = [ComputeSample(0, n, true.seconds(0, n)) for n in (64, 256, 512)]
    samples += [
        ComputeSample(0, 512 * k, sum(true.seconds(512 * i, 512 * i + 512) for i in range(k)), forwards=k)
        for k in (2, 4, 8)
    ]
    found = fit_compute(samples)
    assert found.fixed_seconds == pytest.approx(true.fixed_seconds, rel=1e-3)
    assert found.token_seconds == pytest.approx(true.token_seconds, rel=1e-3)
    assert found.pair_seconds == pytest.approx(true.pair_seconds, rel=1e-2)
    assert compute_residuals(found, samples).worst < 1e-3


#: A tenth of a second whatever a forward computes, as on a small model's CPU server.
FIXED = ComputeCost(fixed_seconds=0.1, token_seconds=1.2e-3, pair_seconds=1e-8)


def noisy(seed: int, lengths: list[int], noise: float) -> list[ComputeSample]:
    random = np.random.default_rng(seed)
    each = [(n, FIXED.seconds(0, n) * float(random.lognormal(0, noise))) for n in lengths]
    return [ComputeSample(0, n, seconds) for n, seconds in each]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 0.2))
def test_what_is_fixed_is_at_least_what_the_fit_says_and_at_most_the_quickest_forward(seed: int, noise: float) -> None:
    samples = noisy(seed, [64, 128, 256, 512, 1024, 96, 768, 1536], noise)
    cost = fit_compute(samples)
    most = most_fixed_seconds(cost, samples)
    assert cost.fixed_seconds <= most
    assert most <= max(cost.fixed_seconds, min(one.seconds for one in samples))


def test_lengths_that_lie_apart_leave_little_open_of_what_is_fixed_and_others_much() -> None:
    apart = noisy(0, [16, 32, 64, 256, 512, 1024, 96, 1536] * 4, 0.02)
    alike = noisy(0, [1000, 1010, 1020, 1030, 1040, 1050, 1060, 1070], 0.02)
    assert most_fixed_seconds(fit_compute(apart), apart) == pytest.approx(0.1, rel=0.1)
    quickest = min(one.seconds for one in alike)
    assert most_fixed_seconds(fit_compute(alike), alike) == quickest, "all of it may be fixed, as far as these tell"


def test_as_a_rule_the_truth_lies_within_what_is_left_open() -> None:
    within = 0
    for seed in range(200):
        samples = noisy(seed, [64, 128, 256, 512, 1024, 96, 768, 1536], 0.1)
        within += most_fixed_seconds(fit_compute(samples), samples) >= FIXED.fixed_seconds
    assert within >= 180


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 0.5))
def test_noise_makes_no_term_negative(seed: int, noise: float) -> None:
    random = np.random.default_rng(seed)
    spans = [(start, start + n) for start in (0, 512, 4096) for n in (16, 64, 256, 512)]
    samples = [ComputeSample(*span, 0.01 * float(random.uniform(1 - noise, 1 + noise))) for span in spans]
    found = fit_compute(samples)
    assert min(found.fixed_seconds, found.token_seconds, found.pair_seconds) >= 0
    assert found.seconds(0, 256) == pytest.approx(0.01, rel=0.1 + 2 * noise)


def test_a_source_is_its_latency_and_its_bandwidth() -> None:
    samples = [LoadSample(n, 0.002 + n / 1e9) for n in (10**5, 10**6, 10**7, 10**8)]
    found = fit_source(samples)
    assert found.latency_seconds == pytest.approx(0.002, rel=0.01)
    assert found.bytes_per_second == pytest.approx(1e9, rel=0.01)
    assert source_residuals(found, samples).worst < 0.01
    flat = fit_source([LoadSample(10**5, 0.01), LoadSample(10**6, 0.01)])
    assert flat.latency_seconds == pytest.approx(0.01)
    assert flat.bytes_per_second >= 10**8


@given(st.lists(st.tuples(st.integers(10**6, 2 * 10**6 - 1), st.floats(0.009, 0.011)), min_size=1, max_size=8))
def test_loads_of_one_size_are_not_taken_for_latency(loads: list[tuple[int, float]]) -> None:
    found = fit_source([LoadSample(*load) for load in loads])
    assert found.latency_seconds == 0
    assert found.seconds(10**9) > 100 * found.seconds(10**6)


def test_forwards_of_one_length_are_not_taken_for_launches() -> None:
    found = fit_compute([ComputeSample(0, 512, seconds) for seconds in (0.1, 0.11, 0.09)])
    assert found.fixed_seconds == 0
    assert found.seconds(0, 5120) == pytest.approx(10 * found.seconds(0, 512))


def test_residuals_are_relative() -> None:
    cost = SourceCost(latency_seconds=0.0, bytes_per_second=100.0)
    found = source_residuals(cost, [LoadSample(100, 1.0), LoadSample(100, 2.0), LoadSample(1000, 12.5)])
    assert (found.samples, found.median, found.worst) == (3, pytest.approx(0.2), pytest.approx(0.5))


def test_what_cannot_be_fitted_is_refused() -> None:
    for bad in ([], [ComputeSample(0, 10, 0.0)], [ComputeSample(0, 512, 0.0)]):
        with pytest.raises(ValueError, match="at least one sample"):
            fit_compute(bad)
    with pytest.raises(ValueError, match="at least one sample"):
        fit_source([])
    with pytest.raises(ValueError, match="moved nothing"):
        fit_source([LoadSample(0, 1.0)])
    with pytest.raises(ValueError, match="without samples"):
        compute_residuals(ComputeCost(fixed_seconds=1, token_seconds=0, pair_seconds=0), [])


def test_the_shortest_forwards_say_what_one_takes_at_least_and_nothing_else() -> None:
    """As on a GPU, which reads the weights for a token as long as for three hundred; and as on a CPU, where a forward
    over one takes half of what is fixed in longer ones."""
    true = ComputeCost(fixed_seconds=6e-3, token_seconds=3e-5, pair_seconds=1e-9)
    long = [ComputeSample(0, tokens, true.seconds(0, tokens)) for tokens in (256, 512, 1024, 4096)]
    for least in (11e-3, 3e-3):
        found = fit_compute([*long, ComputeSample(0, 16, least), ComputeSample(64, 65, 1.2 * least)])
        assert found.least_seconds == least
        assert found.fixed_seconds == pytest.approx(true.fixed_seconds)
        assert found.seconds(0, 1) == pytest.approx(max(least, true.seconds(0, 1)))
    only = fit_compute([ComputeSample(0, tokens, 0.01) for tokens in (1, 8, 16)])
    assert only.seconds(0, 16) == pytest.approx(0.01, rel=0.1), "where there are no others, they are all that is known"
