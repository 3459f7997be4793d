"""Checksums of many pages at once are those of one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base import checksum
from swift_tiers.radix_tiering.base.page import page_digest

from support.examples import examples

MEMORY = np.random.default_rng(7).integers(0, 256, 1 << 20, dtype=np.uint8)
BEGIN = MEMORY.ctypes.data


@settings(max_examples=examples(60), deadline=None)
@given(
    length=st.integers(1, 70_000),
    unit_bytes=st.one_of(st.none(), st.sampled_from([4096, 8192, 65536])),
    starts=st.lists(st.integers(0, MEMORY.nbytes - 70_000), max_size=9),
    native=st.booleans(),
)
def test_they_are_the_package_s(length: int, unit_bytes: int | None, starts: list[int], native: bool) -> None:
    """Also where it does not show the function that it is built on."""
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(checksum, "FUNCTION", 0)
        found = checksum.digests_at(BEGIN + np.array(starts, np.int64), length, unit_bytes)
    assert found == [page_digest(MEMORY[start : start + length], unit_bytes) for start in starts]


def test_the_checksum_of_units_is_that_of_their_checksums() -> None:
    page = MEMORY[:10_000]
    units = [page_digest(page[start : start + 4096]) for start in range(0, 10_000, 4096)]
    assert page_digest(page, 4096) == page_digest(b"".join(units)) != page_digest(page)


def test_the_function_is_found_where_the_locked_package_is() -> None:
    assert checksum.FUNCTION


def test_a_function_that_does_something_else_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another version of the package computed something else."""
    monkeypatch.setattr(checksum, "page_digest", lambda data: bytes(16))
    assert checksum._checked(checksum.FUNCTION) == 0


def test_a_package_that_shows_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum.ctypes, "CDLL", lambda path: object())
    assert checksum._function() == 0
    assert checksum._checked(0) == 0
