"""Whatever a test of the engine opens is closed before the next one begins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.engine import end_all


@pytest.fixture(autouse=True)
def _nothing_outlives_a_test() -> Iterator[None]:
    """Set up before every other fixture, so that theirs have ended what they opened when this one looks."""
    yield
    end_all()
