"""SGLang's allocators with free spans kept together, and pages that are lent out of them.

For pages of several tokens the platform hands it to SGLang (`get_paged_allocator_cls`), or on a GPU a hook does; for
pages of one a hook does. On a GPU SGLang's list is on the device, and what is kept here is not. While nobody borrows an
allocator is SGLang's own: no spans are kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.allocator import (
    BaseTokenToKVPoolAllocator,
    PagedTokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)

from swift_tiers.kernels.pool_planes import uploaded
from swift_tiers.radix_tiering.lending.donation.extents import Span
from swift_tiers.radix_tiering.lending.donation.free_spans import FreeSpans


class LendingAllocator(BaseTokenToKVPoolAllocator):
    """In front of one of SGLang's. Free pages are in SGLang's list, or whole spans of them in `FreeSpans`; spans are
    broken up when the list runs short. What is lent is in neither, and stays out of both when SGLang clears the
    allocator (/flush_cache)."""

    free_pages: torch.Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before the base's, which calls `clear`.
        self._spans: FreeSpans | None = None
        self._lent: set[Span] = set()
        #: Tokens that fit in what is lent.
        self.lent_tokens = 0
        #: Set when a request was refused for want of free pages; the lender takes notice.
        self.refused = False
        super().__init__(*args, **kwargs)

    # ---- for the lender ----

    def arrange(self, span_pages: int) -> None:
        """Keep free spans of so many pages together from now on; 0: none."""
        if self._spans is not None:
            self._append(self._spans.all_pages())
        self._spans = FreeSpans(span_pages) if span_pages else None
        self._gather()

    def take(self, spans: int) -> list[Span]:
        """Take free spans out: so many, or what there is. The list is looked through only if those kept do not do."""
        if self._spans is None:
            return []
        taken = self._spans.take_highest(spans)
        if len(taken) < spans and self._listed() >= self._spans.span_pages:
            self._gather()
            taken += self._spans.take_highest(spans - len(taken))
        self._lent.update(taken)
        self.lent_tokens += sum(span.pages for span in taken) * self.page_size
        return taken

    def put_back(self, spans: Collection[Span]) -> None:
        """What was taken is free again."""
        self._lent.difference_update(spans)
        self.lent_tokens -= sum(span.pages for span in spans) * self.page_size
        self._append(_pages_of(self._spans.put(spans) if self._spans is not None else spans))

    def lent_pages(self) -> np.ndarray:
        """What is taken out: int64, in no order."""
        return _pages_of(self._lent)

    def _listed(self) -> int:
        """Pages in SGLang's list."""
        return int(super().available_size()) // self.page_size

    def _gather(self) -> None:
        if self._spans is not None:
            self.merge_and_sort_free()
            self.free_pages = self._list_of(self._spans.gather(self.free_pages.cpu().numpy()))

    def _list_of(self, pages: np.ndarray) -> torch.Tensor:
        """Pages as SGLang keeps them."""
        return uploaded(torch.from_numpy(pages), torch.device(self.device))

    def _append(self, pages: np.ndarray) -> None:
        """The whole list is copied: to be called once for all pages that come at one time."""
        if len(pages):
            self.free_pages = torch.cat((self.free_pages, self._list_of(pages)))

    def _refill(self, pages: int) -> None:
        """Have so many in the list, if they are there at all."""
        short = pages - self._listed()
        if short > 0 and self._spans is not None:
            self._append(self._spans.take_lowest(short))

    # ---- SGLang's interface ----

    def available_size(self) -> int:
        kept = self._spans.pages * self.page_size if self._spans is not None else 0
        return super().available_size() + kept

    def get_all_free_pages(self) -> torch.Tensor:
        free: torch.Tensor = super().get_all_free_pages()
        return free if self._spans is None else torch.cat((free, self._list_of(self._spans.all_pages())))

    def merge_and_sort_free(self) -> None:
        # SGLang's own lists alone, which it takes from `get_all_free_pages`: what is in spans would be free twice.
        spans, self._spans = self._spans, None
        try:
            super().merge_and_sort_free()
        finally:
            self._spans = spans

    def alloc(self, need_size: int) -> torch.Tensor | None:
        self._refill(need_size // self.page_size)
        return super().alloc(need_size)

    def clear(self) -> None:
        super().clear()
        if self._lent:
            self.free_pages = self.free_pages[~torch.isin(self.free_pages, self._list_of(self.lent_pages()))]
        if self._spans is not None:
            self._spans = FreeSpans(self._spans.span_pages)
            self._gather()


def _pages_of(spans: Collection[Span]) -> np.ndarray:
    """int64."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(one.first, one.first + one.pages) for one in spans)])


class PagedLendingAllocator(LendingAllocator, PagedTokenToKVPoolAllocator):
    """Of pages of several tokens."""

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        self._refill(extend_num_tokens // self.page_size + len(prefix_lens) + 1)
        return super().alloc_extend(
            prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens, num_new_pages
        )

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        self._refill(len(seq_lens))
        return super().alloc_decode(seq_lens, seq_lens_cpu, last_loc)


class TokenLendingAllocator(LendingAllocator, TokenToKVPoolAllocator):
    """Of pages of one token, as SGLang has them unless told otherwise."""
