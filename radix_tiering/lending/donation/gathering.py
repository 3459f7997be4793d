"""Makes room in a pool for what is to be lent, a few pages at a time: it is the scheduler's thread that evicts."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Protocol

from .extents import Span

#: Pages that one look evicts at most, but for the last prefix, which goes whole. SGLang's scheduler deals with as many
#: at one time elsewhere, too: a leaf costs it more than 20 us, and may be one page, so that they take 12 ms.
MOST_EVICTED = 512


class PagePool(Protocol):
    """The allocator of a server's pages, as the lender sees it. Scheduler's thread."""

    @property
    def pages(self) -> int:
        """Of the whole pool, whoever has them."""
        ...

    @property
    def free_pages(self) -> int:
        """That nobody has, in spans or not."""
        ...

    def arrange(self, span_pages: int) -> None:
        """Keep free spans of so many pages together from now on; 0: none."""
        ...

    def take(self, spans: int) -> list[Span]:
        """Take free spans out of the pool: so many, or what there is."""
        ...

    def put_back(self, spans: Collection[Span]) -> None:
        """Spans that were taken are the pool's again."""
        ...

    def evict(self, pages: int, *, kept: bool = False) -> None:
        """Free so many pages of cached prefixes that no request uses, least valuable first; or all there are. `kept`:
        of those that are kept, too."""
        ...


class _Stage(IntEnum):
    """What is evicted for: as many pages as are wanted, ..."""

    WANTED = 0
    AGAIN = 1  # ... as many again, where those were scattered, ...
    PROMISED = 2  # ... and what is promised, of what is kept
    OVER = 3


class Gathering:
    """One attempt to lend so many pages, over as many looks as it takes.

    Free spans are taken; where there are not enough, cached prefixes are evicted, a few at each look, and what lies
    together by then is there to be lent. If their pages are scattered, as many again are evicted, and no more in all: a
    cache is not given away for a few pages that happen to be neighbours. What is kept is evicted only for what is
    promised to be lent.

    All that it decides by is the pool, which is as full on every rank of a server, and what it is told. Scheduler's
    thread.
    """

    def __init__(self, pool: PagePool, pages: int) -> None:
        self._pool = pool
        self._pages = pages
        self._gave = 0
        self._stage = _Stage.WANTED
        self._may_evict = max(0, 2 * pages - pool.free_pages)  # pages

    @property
    def pages(self) -> int:
        """That are still to be lent."""
        return self._pages - self._gave

    @property
    def is_over(self) -> bool:
        """Whether another look would find no more."""
        return self._stage is _Stage.OVER

    def gave(self, pages: int) -> None:
        """So many are lent."""
        self._gave += pages

    def look(self, spans: int, span_pages: int, promised_pages: int) -> list[Span]:
        """Take free spans out of the pool, of so many that are to be lent now. `promised_pages`: of what is kept."""
        found: list[Span] = []
        left = MOST_EVICTED
        while not self.is_over:
            most = min(spans, promised_pages // span_pages) if self._stage is _Stage.PROMISED else spans
            wanted = max(0, most - len(found))
            short = min(self._short(wanted * span_pages, len(found) * span_pages), self._may_evict)
            if short > 0:
                if left <= 0:
                    break
                freed = self._evict(min(short, left))
                left -= freed
                short = min(short - freed, self._may_evict)
            if wanted:
                found += self._pool.take(wanted)
            if len(found) == spans:
                self._stage = _Stage.OVER
            elif short > 0:
                break  # the next look goes on
            else:
                self._stage = _Stage(self._stage + 1)
                if self._stage is _Stage.PROMISED:
                    self._may_evict = (min(spans, promised_pages // span_pages) - len(found)) * span_pages
        return found

    def _short(self, wanted: int, found: int) -> int:
        """Pages to evict, so that so many more are free; `found`: at this look."""
        if self._stage is _Stage.PROMISED:
            return wanted
        again = self._gave + found + wanted if self._stage is _Stage.AGAIN else 0
        return wanted + again - self._pool.free_pages

    def _evict(self, pages: int) -> int:
        """How many it has freed. Where there were no more, none are asked for again."""
        before = self._pool.free_pages
        self._pool.evict(pages, kept=self._stage is _Stage.PROMISED)
        freed = self._pool.free_pages - before
        self._may_evict = max(0, self._may_evict - freed) if freed >= pages else 0
        return freed
