"""What the tiers count."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.counters import LATENCY_BOUNDS, LatencyHistogram


def test_a_latency_falls_into_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = LatencyHistogram()
    for seconds in (0.0, LATENCY_BOUNDS[0], LATENCY_BOUNDS[0] * 1.01, LATENCY_BOUNDS[-1], LATENCY_BOUNDS[-1] * 2):
        histogram.observe(seconds)
    counts = histogram.snapshot().counts
    assert len(counts) == len(LATENCY_BOUNDS) + 1
    assert {bucket: count for bucket, count in enumerate(counts) if count} == {0: 2, 1: 1, 19: 1, 20: 1}
    assert histogram.snapshot().sum_seconds == pytest.approx(LATENCY_BOUNDS[0] * 2.01 + LATENCY_BOUNDS[-1] * 3)
