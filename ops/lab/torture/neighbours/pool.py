"""A model of a server's allocator of pages: it knows of every page who has it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection

import numpy as np

from swift_tiers.radix_tiering.lending.donation.extents import Span
from swift_tiers.radix_tiering.lending.donation.free_spans import FreeSpans

FREE, CACHED, IN_USE, LENT = "free", "cached", "in use", "lent"


class ModelPool:
    """Knows of every page who has it. Page 0 is nobody's, as in SGLang."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.owner = dict.fromkeys(range(1, pages + 1), FREE)
        self.cache: deque[list[int]] = deque()  # prefixes, least valuable first
        self.kept = 0  # prefixes, the most valuable ones
        self.evicted = 0
        self.searches = 0
        self._spans: FreeSpans | None = None
        self._list: list[int] = list(self.owner)

    @property
    def free_pages(self) -> int:
        return len(self._list) + (self._spans.pages if self._spans is not None else 0)

    def arrange(self, span_pages: int) -> None:
        if self._spans is not None:
            self._list += self._spans.all_pages().tolist()
        self._spans = FreeSpans(span_pages) if span_pages else None

    def take(self, spans: int) -> list[Span]:
        assert self._spans is not None
        self.searches += 1
        self._list = self._spans.gather(np.array(self._list, np.int64)).tolist()
        taken = self._spans.take_highest(spans)
        for span in taken:
            self._move(range(span.first, span.first + span.pages), FREE, LENT)
        return taken

    def put_back(self, spans: Collection[Span]) -> None:
        for span in spans:
            self._move(range(span.first, span.first + span.pages), LENT, FREE)
        others = self._spans.put(spans) if self._spans is not None else spans
        self._list += [page for span in others for page in range(span.first, span.first + span.pages)]

    def evict(self, pages: int, *, kept: bool = False) -> None:
        while pages > 0 and len(self.cache) > (0 if kept else self.kept):
            prefix = self.cache.popleft()
            self._move(prefix, CACHED, FREE)
            self._list += prefix
            self.evicted += len(prefix)
            pages -= len(prefix)

    # What the server does

    def alloc(self, pages: int) -> list[int] | None:
        """For a request; evicts for it as SGLang does."""
        if pages > self.free_pages:
            self.evict(pages - self.free_pages, kept=True)
        if pages > self.free_pages:
            return None
        if pages > len(self._list):
            assert self._spans is not None
            self._list += self._spans.take_lowest(pages - len(self._list)).tolist()
        taken, self._list = self._list[:pages], self._list[pages:]
        self._move(taken, FREE, IN_USE)
        return taken

    def finish(self, pages: list[int], *, keep: bool) -> None:
        """A request has ended; its pages stay as a cached prefix, or not."""
        self._move(pages, IN_USE, CACHED if keep else FREE)
        if keep:
            self.cache.append(pages)
        else:
            self._list = [*pages, *self._list]

    @property
    def kept_pages(self) -> int:
        """Of the prefixes that are kept and still there."""
        first = max(0, len(self.cache) - self.kept)
        return sum(len(prefix) for prefix in list(self.cache)[first:])

    def flush(self) -> None:
        """/flush_cache: all that is not lent is free."""
        self.cache.clear()
        for page, owner in self.owner.items():
            assert owner != IN_USE
            if owner == CACHED:
                self.owner[page] = FREE
        span_pages = self._spans.span_pages if self._spans is not None else 0
        self._spans = None
        self._list = [page for page, owner in self.owner.items() if owner == FREE]
        self.arrange(span_pages)

    def count(self, owner: str) -> int:
        return Counter(self.owner.values())[owner]

    def check(self) -> None:
        """The list and the spans are the free pages, each once."""
        listed = [*self._list, *(self._spans.all_pages().tolist() if self._spans is not None else [])]
        assert sorted(listed) == [page for page, owner in self.owner.items() if owner == FREE]

    def _move(self, pages: Collection[int], before: str, after: str) -> None:
        for page in pages:
            assert self.owner[page] == before, f"page {page} is {self.owner[page]}, not {before}"
            self.owner[page] = after
