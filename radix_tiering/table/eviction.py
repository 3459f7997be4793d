"""The order in which a tier's pages leave it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from .policy import EvictionPolicy

if TYPE_CHECKING:
    from .held_page import Page


class EvictionQueue:
    """Pages that may leave a tier, the next victim first. Not thread-safe: used under the page table's lock.

    A heap with lazy deletion: each push invalidates the page's earlier entry by giving it a new ticket, and entries
    of pages that may no longer leave are dropped when they surface. Pushing and popping are O(log n); nothing is ever
    searched for.
    """

    def __init__(self, policy: EvictionPolicy, evictable: Callable[[Page], bool]) -> None:
        self.policy = policy  # may be replaced: pages get the place that it gives them when they are pushed again
        self._evictable = evictable
        self._heap: list[tuple[tuple[int, ...], int, Page]] = []
        self._tickets: dict[Page, int] = {}
        self._next_ticket = 0

    def push(self, page: Page) -> None:
        """Enter `page`, or move it to its new place after a use."""
        self._next_ticket += 1
        self._tickets[page] = self._next_ticket
        heapq.heappush(self._heap, (self.policy.rank(page), self._next_ticket, page))
        if len(self._heap) > 64 + 4 * len(self._tickets):
            self._heap = [entry for entry in self._heap if self._tickets.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def remove(self, page: Page) -> None:
        """`page` may not leave for now (or has left)."""
        self._tickets.pop(page, None)

    def peek(self) -> Page | None:
        """The next victim, or None if nothing may leave."""
        while self._heap:
            _, ticket, page = self._heap[0]
            if self._tickets.get(page) == ticket:
                if self._evictable(page):
                    return page
                del self._tickets[page]
            heapq.heappop(self._heap)
        return None

    def coldest(self, count: int) -> list[Page]:
        """Up to `count` pages in the order in which they would leave; they stay in the queue."""
        taken: list[tuple[tuple[int, ...], int, Page]] = []
        while len(taken) < count and self.peek() is not None:
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return [entry[2] for entry in taken]

    def __len__(self) -> int:
        """Pages entered, at most; some may turn out not to be evictable."""
        return len(self._tickets)
