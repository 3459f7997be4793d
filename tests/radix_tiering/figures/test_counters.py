"""What the tiers count."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.figures.counters import LATENCY_BOUNDS, LatencyHistogram, LinkCounters, LinkSnapshot


def test_a_latency_falls_into_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = LatencyHistogram()
    for seconds in (0.0, LATENCY_BOUNDS[0], LATENCY_BOUNDS[0] * 1.01, LATENCY_BOUNDS[-1], LATENCY_BOUNDS[-1] * 2):
        histogram.observe(seconds)
    counts = histogram.snapshot().counts
    assert len(counts) == len(LATENCY_BOUNDS) + 1
    assert {bucket: count for bucket, count in enumerate(counts) if count} == {0: 2, 1: 1, 19: 1, 20: 1}
    assert histogram.snapshot().sum_seconds == pytest.approx(LATENCY_BOUNDS[0] * 2.01 + LATENCY_BOUNDS[-1] * 3)


def test_a_quantile_lies_within_its_bucket_as_prometheus_has_it() -> None:
    histogram = LatencyHistogram()
    assert (histogram.snapshot().count, histogram.snapshot().quantile(0.5)) == (0, None)
    for seconds in (LATENCY_BOUNDS[3],) * 80 + (LATENCY_BOUNDS[7] * 0.9,) * 19 + (LATENCY_BOUNDS[-1] * 2,):
        histogram.observe(seconds)
    seen = histogram.snapshot()
    assert seen.count == 100
    low, high = LATENCY_BOUNDS[2], LATENCY_BOUNDS[3]
    assert [seen.quantile(share) for share in (0, 0.4, 0.8)] == pytest.approx([low, (low + high) / 2, high])
    assert seen.quantile(0.99) == pytest.approx(LATENCY_BOUNDS[7])
    assert seen.quantile(0.895) == pytest.approx(LATENCY_BOUNDS[7] * 0.75), "p50 and p99 of one bucket differ"
    assert seen.quantile(1) == LATENCY_BOUNDS[-1], "above all bounds, nothing is known but that"


def test_what_came_after_is_the_difference() -> None:
    histogram = LatencyHistogram()
    histogram.observe(1.0)
    before = histogram.snapshot()
    histogram.observe(0.5)
    after = histogram.snapshot().since(before)
    assert (after.count, after.sum_seconds) == (1, 0.5)
    assert histogram.snapshot().contains(before)
    assert not before.contains(histogram.snapshot())


def test_a_link_counts_copies_pages_bytes_and_seconds() -> None:
    link = LinkCounters()
    link.count(3, 12_288, 0.5)
    link.count(1, 4096, 0.25)
    latency = link.snapshot().latency
    assert link.snapshot() == LinkSnapshot(transfers=2, pages=4, bytes=16_384, seconds=0.75, latency=latency)
    assert (latency.count, latency.sum_seconds) == (2, 0.75)
    bound = next(bound for bound in LATENCY_BOUNDS if bound >= 0.25)
    assert bound / 2 <= (latency.quantile(0.5) or 0.0) <= bound
