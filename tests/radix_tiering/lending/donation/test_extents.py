"""How lent runs are cut: every byte of a slot exactly once, in order, and no two slots share one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.lending.donation.extents import CutRun, Extent, PoolLayout, RunShape, Span, run_shape
from swift_tiers.radix_tiering.lending.leases import elastic_unit

shapes = st.builds(
    PageGeometry,
    layers=st.integers(1, 6),
    planes=st.sampled_from([1, 2]),
    tokens=st.sampled_from([1, 4, 16]),
    row_bytes=st.sampled_from([32, 64, 96]),
)


@given(shapes, shapes, st.booleans(), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
def test_a_run_of_whole_units_is_cut_without_a_rest(
    donor: PageGeometry, borrower: PageGeometry, block_major: bool, places: list[int]
) -> None:
    unit = elastic_unit(donor.page_bytes, borrower.page_bytes)
    unit_pages = unit // donor.page_bytes
    planes, plane_bytes = donor.layers * donor.planes, donor.tokens * donor.row_bytes
    pool_pages = 10 * unit_pages
    layout = PoolLayout((0,), donor.page_bytes)
    if not block_major:
        layout = PoolLayout(tuple(plane * pool_pages * plane_bytes for plane in range(planes)), plane_bytes)
    assert layout.page_bytes == donor.page_bytes
    spans = [Span(place * unit_pages, unit_pages) for place in places]
    extents = layout.extents(spans)
    run = CutRun(extents, borrower.page_bytes)
    assert run.slots == len(places) * (unit // borrower.page_bytes)
    # Number every byte of the donor's pool, and look at what the slots cover.
    used = np.zeros(pool_pages * donor.page_bytes, dtype=int)
    for slot in range(run.slots):
        pieces = run.pieces(slot)
        assert sum(piece.length for piece in pieces) == borrower.page_bytes
        for piece in pieces:
            assert piece.buffer == 0
            used[piece.offset : piece.offset + piece.length] += 1
    lent = np.zeros(pool_pages, dtype=int)
    for span in spans:
        lent[span.first : span.first + span.pages] = 1
    # A page's bytes are one piece, or one in each plane.
    assert (used.reshape(len(layout.planes), pool_pages, -1) == lent[None, :, None]).all()
    # What lies together is one extent.
    neighbours = sum(place + 1 in places for place in places)
    assert len(extents) == (len(places) - neighbours) * len(layout.planes)


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
    target = data.draw(st.integers(0, 50))
    copied = [
        (offset + index, at + index)
        for offset, at, count in run.pieces_of(slot, target).tolist()
        for index in range(count)
    ]
    assert copied == [(at, target + index) for index, (_, at) in enumerate(bytes_of(run.pieces(slot)))]


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


def test_extents_are_long_enough_for_one_transfer() -> None:
    # Qwen3-14B, pages of 64 tokens: 128 KiB in a plane, so 2 MiB take 16 pages, here in units of 5.
    layer_major = PoolLayout((0, 1), 128 * 2**10)
    assert run_shape(layer_major, 5, 10_000) == RunShape(20, 1)
    # A longer unit is made of several spans of at least so many pages.
    assert run_shape(layer_major, 60, 10_000) == RunShape(20, 3)
    assert run_shape(layer_major, 61, 10_000) == RunShape(61, 1)
    # In a small pool they are shorter.
    assert run_shape(layer_major, 5, 500) == RunShape(10, 1)
    assert run_shape(layer_major, 1, 10) == RunShape(1, 1)
    # Block-major, a page is long enough.
    assert run_shape(PoolLayout((0,), 4 * 2**20), 3, 10_000) == RunShape(1, 3)


@given(st.integers(1, 10**7), st.integers(1, 5000), st.integers(1, 10**6))
def test_runs_are_whole_units_of_whole_spans(plane_bytes: int, unit_pages: int, pool_pages: int) -> None:
    shape = run_shape(PoolLayout((0, 1), plane_bytes), unit_pages, pool_pages)
    assert shape.pages % unit_pages == 0
    assert shape.span_pages * plane_bytes >= 2 * 2**20 or shape.span_pages >= pool_pages // 64
