"""Costs: fitting finds what made the samples, and corrections follow reality within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.cost import (
    ComputeCost,
    ComputeSample,
    Correction,
    CostModel,
    LiveCosts,
    LoadSample,
    SourceCost,
    fit_compute,
    fit_source,
)

terms = st.one_of(st.just(0.0), st.floats(1e-3, 1e-1))


@settings(deadline=None)
@given(terms, terms, terms)
def test_fitting_finds_the_cost_that_made_the_samples(fixed: float, linear: float, quadratic: float) -> None:
    true = ComputeCost(fixed_seconds=fixed, token_seconds=linear / 100, pair_seconds=quadratic / 1e5)
    if not fixed + linear + quadratic:
        return
    spans = [(0, 64), (0, 512), (512, 1024), (0, 4096), (4096, 4608), (0, 8192)]
    found = fit_compute([ComputeSample(start, end, true.seconds(start, end)) for start, end in spans])
    for start, end in [(0, 300), (2000, 6000), (8000, 8192)]:
        assert found.seconds(start, end) == pytest.approx(true.seconds(start, end), rel=0.02)


def test_noise_makes_no_term_negative() -> None:
    random = np.random.default_rng(3)
    samples = [ComputeSample(0, n, 0.01 * float(random.uniform(0.7, 1.4))) for n in (16, 64, 256, 512, 1024, 2048)]
    found = fit_compute(samples)
    assert min(found.fixed_seconds, found.token_seconds, found.pair_seconds) >= 0
    assert found.seconds(0, 512) == pytest.approx(0.01, rel=0.4)


def test_a_source_is_its_latency_and_its_bandwidth() -> None:
    found = fit_source([LoadSample(n, 0.002 + n / 1e9) for n in (10**5, 10**6, 10**7, 10**8)])
    assert found.latency_seconds == pytest.approx(0.002, rel=0.01)
    assert found.bytes_per_second == pytest.approx(1e9, rel=0.01)
    flat = fit_source([LoadSample(10**5, 0.01), LoadSample(10**6, 0.01)])
    assert flat.latency_seconds == pytest.approx(0.01)
    assert flat.bytes_per_second >= 10**8


def test_what_cannot_be_fitted_is_refused() -> None:
    for bad in ([], [ComputeSample(0, 10, 0.0)]):
        with pytest.raises(ValueError, match="at least one sample"):
            fit_compute(bad)
    with pytest.raises(ValueError, match="moved nothing"):
        fit_source([LoadSample(0, 1.0)])


def test_a_correction_follows_within_a_few_samples_and_is_bounded() -> None:
    correction = Correction()
    for _ in range(5):
        correction.observe(1.0, 10.0)
    assert correction.factor > 8
    for _ in range(50):
        correction.observe(1.0, 1e9)
    assert correction.factor == pytest.approx(Correction.BOUND, rel=1e-6)
    for _ in range(5):
        correction.observe(1.0, 1.0)
    assert correction.factor < 1.4
    before = correction.factor
    correction.observe(0.0, 1.0)
    correction.observe(1.0, 0.0)
    assert correction.factor == before


def test_live_costs_move_only_what_was_seen() -> None:
    profile = CostModel(
        compute=ComputeCost(fixed_seconds=0.01, token_seconds=1e-4, pair_seconds=1e-9),
        sources={name: SourceCost(latency_seconds=0.001, bytes_per_second=1e9) for name in ("host", "ssd")},
    )
    live = LiveCosts(profile)
    for _ in range(8):
        live.loaded("ssd", 10**7, 10 * profile.sources["ssd"].seconds(10**7))
    now = live.now()
    assert now.compute == profile.compute
    assert now.sources["host"] == profile.sources["host"]
    assert now.sources["ssd"].seconds(10**8) == pytest.approx(10 * profile.sources["ssd"].seconds(10**8), rel=0.1)
    live.computed(0, 512, 2 * profile.compute.seconds(0, 512))
    assert 1 < live.factors["compute"] < 2
    with pytest.raises(KeyError):
        live.loaded("peer", 1, 1.0)
