"""Free pages of a pool that lie together, kept apart so that lending them, and taking them back, costs nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from .extents import Span


class FreeSpans:
    """Whole free spans, aligned to their length: span `i` is the pages from `i * span_pages` on.

    An allocator's free list is a list: which of its pages are neighbours takes a look at all of them. So that is done
    once, by `gather`; from then on whole spans stay here until somebody needs them. The owner takes the lowest ones for
    itself, the highest are lent, so that neither breaks up what the other could use. Taking and putting are O(1) in the
    number of pages that there are.
    """

    def __init__(self, span_pages: int) -> None:
        self.span_pages = span_pages
        self._firsts: deque[int] = deque()  # pages

    @property
    def pages(self) -> int:
        """Pages in all spans together."""
        return len(self._firsts) * self.span_pages

    def take_highest(self, spans: int) -> list[Span]:
        """So many, or all if there are less."""
        return [Span(self._firsts.pop(), self.span_pages) for _ in range(min(spans, len(self._firsts)))]

    def take_lowest(self, pages: int) -> np.ndarray:
        """Spans of at least so many pages together, or all, as their pages: int64."""
        spans = min(-(-pages // self.span_pages), len(self._firsts))
        return self._pages_of([self._firsts.popleft() for _ in range(spans)])

    def put(self, spans: Iterable[Span]) -> list[Span]:
        """Take spans in; those of another length, which are not kept here, are returned."""
        others = []
        for span in spans:
            if span.pages == self.span_pages and span.first % self.span_pages == 0:
                self._firsts.append(span.first)
            else:
                others.append(span)
        return others

    def gather(self, pages: np.ndarray) -> np.ndarray:
        """Take in all whole spans among free `pages`, int64; the others, in their order. O(pages), vectorised."""
        numbers = pages // self.span_pages
        whole = np.bincount(numbers) == self.span_pages
        self._firsts = deque(sorted([*self._firsts, *(np.flatnonzero(whole) * self.span_pages).tolist()]))
        return pages[~whole[numbers]] if len(pages) else pages

    def all_pages(self) -> np.ndarray:
        """The pages of all spans: int64."""
        return self._pages_of(list(self._firsts))

    def _pages_of(self, firsts: list[int]) -> np.ndarray:
        starts = np.array(firsts, np.int64)
        return (starts[:, None] + np.arange(self.span_pages)).reshape(-1)
