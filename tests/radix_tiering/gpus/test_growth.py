"""Counters of the hardware that wrap around and begin anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.gpus.watch import Growth, growth

KIB = 1024


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (0, 0, 0),
        (5 * KIB, 7 * KIB, 2 * KIB),
        ((1 << 42) - 3 * KIB, 4 * KIB, 7 * KIB),  # 32 bits of KiB wrapped around
        ((1 << 74) - 3 * KIB, 4 * KIB, 7 * KIB),  # 64 bits of KiB
        (90 * KIB, 4 * KIB, 4 * KIB),  # began anew
        (1 << 41, 4 * KIB, 4 * KIB),  # half of 32 bits: began anew
        ((1 << 42) - KIB, 1 << 41, 1 << 41),  # too far for one that wrapped around
        (1 << 50, 0, 0),
    ],
)
def test_growth(before: int, now: int, grown: int) -> None:
    assert growth(before, now) == grown


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1 << 60)), max_size=30))
def test_the_sum_of_counters_that_only_grow_is_what_they_grew(steps: list[tuple[str, int]]) -> None:
    total, counters = Growth(), {"a": 100, "b": 7}
    assert total.add(dict(counters)) == 0
    for which, step in steps:
        counters[which] += step
        grown = total.add(dict(counters))
    assert (grown if steps else 0) == sum(step for _, step in steps)


def test_it_never_shrinks() -> None:
    total, seen = Growth(), []
    for value in (10, 5, 1 << 42, 3, 3, 0, 8):
        seen.append(total.add({"one": value}))
    assert seen == sorted(seen)
    assert seen[0] == 0


def test_what_is_not_said_is_not_known_and_goes_on_later() -> None:
    total = Growth()
    assert total.add({"a": None}) is None
    assert total.add({}) is None
    assert total.add({"a": 10, "b": None}) == 0
    assert total.add({"a": None, "b": 50}) == 0
    assert total.add({"a": 15, "b": 51}) == 6
