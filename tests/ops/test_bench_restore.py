"""The figures of `./swift bench restore`; the bench itself needs a real server and a quiet machine."""

from __future__ import annotations

import pytest

from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.lab.bench.restore import RATIOS, SOURCES, Cell, expected_seconds, whole_lengths
from swift_tiers.radix_tiering.restore.plan import two_pointer_bound


def cell(recompute: list[float], load: list[float], auto: list[float]) -> Cell:
    return Cell(1024, 1.0, recompute, load, auto, 512)


def test_each_round_is_compared_with_what_was_better_in_it() -> None:
    assert cell([2.0], [1.0], [1.1]).of_better == pytest.approx(1.1)
    # A slow round is slow for all; the better one may be another one.
    assert cell([2.0, 20.0, 2.0], [1.0, 30.0, 3.0], [1.0, 22.0, 2.4]).of_better == pytest.approx(1.1)


def test_the_bound_is_of_the_rounds_own_times() -> None:
    one = cell([2.0, 4.0, 2.0], [2.0, 4.0, 2.0], [1.2, 2.4, 1.2])
    assert two_pointer_bound(2.0, 2.0) == 1.0
    assert one.of_bound == pytest.approx(1.2)


def test_what_it_takes_is_said_before_and_grows_with_what_is_asked_for() -> None:
    short, long = expected_seconds(1e-3, [1024], 1), expected_seconds(1e-3, [1024, 2048], 1)
    assert short < long < expected_seconds(1e-3, [1024, 2048], 3)
    assert expected_seconds(2e-3, [1024], 1) == pytest.approx(2 * short)
    # At least the loads of the rounds, and of the one that is not counted.
    assert short > 2 * sum(RATIOS) * 1.024


def test_lengths_are_what_the_source_has_together() -> None:
    assert SOURCES["ssd"].together(737_280) == 1
    run = SOURCES["remote"].together(737_280)
    assert run == 30, "of 512 tokens, what is whole objects of 5 pages, less than 4 MiB"
    assert whole_lengths([992, 8128], 16) == [992, 8128]
    assert whole_lengths([992, 8128], 16 * run) == [960, 7680]
    with pytest.raises(CommandError, match="480 tokens at least"):
        whole_lengths([464, 992], 16 * run)
