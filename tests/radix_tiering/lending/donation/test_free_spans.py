"""Free spans: every free page is in exactly one place, and spans are whole and aligned."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.lending.donation.extents import Span
from swift_tiers.radix_tiering.lending.donation.free_spans import FreeSpans

pages = st.lists(st.integers(1, 200), unique=True).map(lambda numbers: np.array(numbers, np.int64))


@given(pages, st.integers(1, 9))
def test_gathering_finds_all_whole_spans_and_loses_no_page(free: np.ndarray, span_pages: int) -> None:
    spans = FreeSpans(span_pages)
    rest = spans.gather(free)
    assert sorted([*rest.tolist(), *spans.all_pages().tolist()]) == sorted(free.tolist())
    assert spans.pages == len(spans.all_pages())
    taken = spans.take_highest(10**6)
    assert not spans.pages
    assert all(span.first % span_pages == 0 and span.pages == span_pages for span in taken)
    left = set(rest.tolist())
    assert not any(set(range(first, first + span_pages)) <= left for first in range(0, 200, span_pages))
    assert [page for page in free.tolist() if page in left] == rest.tolist(), "their order has changed"


def test_its_owner_takes_the_lowest_and_the_highest_are_lent() -> None:
    spans = FreeSpans(4)
    assert spans.gather(np.arange(1, 40)).tolist() == [1, 2, 3]
    assert spans.take_highest(2) == [Span(36, 4), Span(32, 4)]
    assert spans.take_lowest(5).tolist() == list(range(4, 12))
    assert spans.take_lowest(0).tolist() == []
    assert spans.take_lowest(1000).tolist() == list(range(12, 32))
    assert not spans.pages
    assert not len(spans.take_lowest(1))


def test_what_was_taken_comes_back_and_what_was_cut_otherwise_does_not() -> None:
    spans = FreeSpans(4)
    others = spans.put([Span(8, 4), Span(8, 8), Span(6, 4)])
    assert others == [Span(8, 8), Span(6, 4)]
    assert spans.all_pages().tolist() == [8, 9, 10, 11]
    # What is gathered later is in order with what was there.
    spans.gather(np.array([3, 4, 5, 6, 7]))
    assert spans.take_highest(2) == [Span(8, 4), Span(4, 4)]
