"""How many random examples the tests that draw them try."""

from __future__ import annotations

import os
from typing import Any

import pytest

#: Set while everything is to be tested, by `--all`; processes that are started inherit it.
ALL_VARIABLE = "SWIFT_TESTS_ALL"
#: The default run tries one of so many, other ones each time, and never fewer than `FEWEST`.
SHARE, FEWEST = 5, 10


def exhaustive() -> bool:
    """Whether the suite runs with `--all`."""
    return bool(os.environ.get(ALL_VARIABLE))


def examples(most: int) -> int:
    """Of `most` examples, those that this run tries: all with `--all`, else a part."""
    return most if exhaustive() else min(most, max(FEWEST, most // SHARE))


def seeds(count: int, first: int = 0) -> list[Any]:
    """So many, for `parametrize`: of them, the default run tries the first."""
    return [
        pytest.param(seed, marks=[pytest.mark.exhaustive] if seed > first else [])
        for seed in range(first, first + count)
    ]
