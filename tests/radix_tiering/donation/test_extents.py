"""How lent runs are cut: every byte of a slot exactly once, in order, and no two slots share one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.donation.elastic_unit import elastic_unit
from swift_tiers.radix_tiering.donation.extents import CutRun, Extent, pool_extents, run_pages
from swift_tiers.radix_tiering.page import PageGeometry

shapes = st.builds(
    PageGeometry,
    layers=st.integers(1, 6),
    planes=st.sampled_from([1, 2]),
    tokens=st.sampled_from([1, 4, 16]),
    row_bytes=st.sampled_from([32, 64, 96]),
)


@given(shapes, shapes, st.integers(0, 3), st.integers(1, 3))
def test_a_run_of_whole_units_is_cut_without_a_rest(
    donor: PageGeometry, borrower: PageGeometry, first: int, units: int
) -> None:
    unit = elastic_unit(donor, borrower)
    planes, plane_bytes = donor.layers * donor.planes, donor.tokens * donor.row_bytes
    run = CutRun(pool_extents(first, units * unit.donor_pages, plane_bytes, planes), borrower.page_bytes)
    assert run.slots == units * unit.borrower_pages
    # Number every byte of the donor's pool, and look at what the slots cover.
    pages = first + units * unit.donor_pages
    used = np.zeros((planes, pages * plane_bytes), dtype=int)
    for slot in range(run.slots):
        pieces = run.pieces(slot)
        assert sum(piece.length for piece in pieces) == borrower.page_bytes
        for piece in pieces:
            used[piece.buffer, piece.offset : piece.offset + piece.length] += 1
    assert (used[:, first * plane_bytes :] == 1).all()
    assert (used[:, : first * plane_bytes] == 0).all()


@given(st.data())
def test_a_part_of_a_page_lies_where_the_whole_page_says(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=5))
    page_bytes = data.draw(st.integers(1, sum(lengths)))
    run = CutRun([Extent(number, 100 * number, length) for number, length in enumerate(lengths)], page_bytes)
    slot = data.draw(st.integers(0, run.slots - 1))
    start = data.draw(st.integers(0, page_bytes - 1))
    length = data.draw(st.integers(1, page_bytes - start))

    def bytes_of(pieces: list[Extent]) -> list[tuple[int, int]]:
        return [(piece.buffer, at) for piece in pieces for at in range(piece.offset, piece.offset + piece.length)]

    assert bytes_of(run.pieces(slot, start, length)) == bytes_of(run.pieces(slot))[start : start + length]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        CutRun([Extent(0, 0, 10), Extent(0, 9, 10)], 4)
    with pytest.raises(ValueError, match="hold no page"):
        CutRun([Extent(0, 0, 10)], 11)
    with pytest.raises(ValueError, match="not negative"):
        CutRun([Extent(0, -1, 10)], 4)
    run = CutRun([Extent(0, 0, 10)], 4)
    for slot, start, length in ((2, 0, 4), (-1, 0, 4), (0, 1, 4), (0, 0, 0)):
        with pytest.raises(IndexError):
            run.pieces(slot, start, length)


def test_runs_are_long_enough_for_one_transfer_in_each_plane() -> None:
    # Qwen3-14B, pages of 64 tokens: 128 KiB in a plane, so 2 MiB take 16 pages, here in units of 5.
    assert run_pages(128 * 2**10, unit_pages=5) == 20
    assert run_pages(4 * 2**20, unit_pages=3) == 3
