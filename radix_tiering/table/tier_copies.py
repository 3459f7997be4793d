"""The copies that one tier has of the page table's pages: how many, which leave first, and which count no more.

The same for every tier. Tiers differ in what they say of themselves (`Keeper`): whether they are durable, how large a
page is there, who leaves first, and which part of them holds a place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from ..base.page import PageGeometry
from ..base.slot_map import SlotState
from ..figures.counters import TierCounters
from .held_page import Copy, Page
from .policy import EvictionPolicy

#: A part of a tier that goes away as a whole: a lease, a device.
Part = Hashable


class Keeper(Protocol):
    """What the page table must know of a tier. See `tiers.tier.Tier` for the rest."""

    @property
    def name(self) -> str: ...

    @property
    def durable(self) -> bool:
        """Whether its copies survive a restart. They are then closed under prefixes by themselves: rule 2."""
        ...

    def size_of(self, length: int) -> int:
        """Bytes that a page of `length` bytes takes there."""
        ...

    @property
    def near(self) -> bool:
        """Whether a page comes up from it about as soon as from host memory, and need not be in both."""
        ...

    def order(self, policy: EvictionPolicy) -> EvictionPolicy:
        """Who leaves it first, where the configuration says `policy`."""
        ...

    def release(self, places: Sequence[Any]) -> None:
        """Give places of whole copies back. Called under the page table's lock."""
        ...

    def part_of(self, place: Any) -> Part | None:
        """The part that pages are looked up by when it goes; None: the tier itself says which they were."""
        ...

    def uses(self, place: Any, part: Part) -> bool:
        """Whether `place` lies on `part`, wholly or with some of its bytes."""
        ...


class HostSlots(Keeper, Protocol):
    """Host memory, as the page table needs it: slots of one page each. The table itself says who leaves it first."""

    @property
    def slots(self) -> int: ...

    @property
    def used_slots(self) -> int: ...

    @property
    def limit_slots(self) -> int: ...

    @property
    def geometry(self) -> PageGeometry: ...

    def allocate(self) -> int | None:
        """A slot; None where all are taken, or as many as may be."""
        ...

    def mark(self, slot: int, state: SlotState) -> None:
        """What a slot that is not free is used for."""
        ...

    def states(self) -> np.ndarray:
        """What each slot is used for: uint8 [slots]."""
        ...


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


class TierCopies:
    """Used under the page table's lock."""

    def __init__(
        self,
        number: int,
        keeper: Keeper,
        order: EvictionPolicy,
        counters: TierCounters,
        may_leave: Callable[[Page, int], bool],
    ) -> None:
        """`order`: who leaves first; `may_leave(page, number)`: by the page table's rules."""
        self.number = number
        self.keeper = keeper
        self.counters = counters
        self.name = keeper.name
        self.durable = keeper.durable
        self._may_leave = may_leave
        self.queue = EvictionQueue(order, lambda page: may_leave(page, number))
        self.pages = 0  # with a whole copy
        self.bytes = 0  # that these take
        self.coming_bytes = 0  # that copies on their way take
        self.limit: int | None = None  # bytes that all of them may take, if an operator has said so
        self.gaps: set[Page] = set()  # of a durable tier: without a copy there, which pages behind them have
        self._parts: dict[Part, dict[Page, None]] = {}  # what a tier that is not durable holds, or is to hold

    def begun(self, page: Page, copy: Copy) -> None:
        """A copy is on its way."""
        self.coming_bytes += self.keeper.size_of(page.length)
        self._note(page, copy)

    def ended(self, page: Page, copy: Copy) -> None:
        """It is not on its way any more."""
        self.coming_bytes -= self.keeper.size_of(page.length)
        self._strike(page, copy)

    def entered(self, page: Page, copy: Copy) -> None:
        """There is a whole copy now."""
        copy.whole = True
        self.pages += 1
        self.bytes += self.keeper.size_of(page.length)
        self._note(page, copy)
        self.gaps.discard(page)

    def left(self, page: Page, copy: Copy) -> None:
        """A whole copy is there no more."""
        self.pages -= 1
        self.bytes -= self.keeper.size_of(page.length)
        self._strike(page, copy)
        self.queue.remove(page)

    def _note(self, page: Page, copy: Copy) -> None:
        if not self.durable:
            self._parts.setdefault(self.keeper.part_of(copy.place), {})[page] = None

    def _strike(self, page: Page, copy: Copy) -> None:
        if not self.durable:
            part = self.keeper.part_of(copy.place)
            pages = self._parts[part]
            pages.pop(page, None)
            if not pages:
                del self._parts[part]

    def under(self, part: Part) -> list[Page]:
        """The pages with a whole copy on a part of a tier that is not durable."""
        return [page for page in self._parts.get(part, ()) if page.whole_in(self.number)]

    def listed(self) -> list[Page]:
        """The pages that a tier that is not durable has, or is to have. Any thread."""
        return [page for pages in list(self._parts.values()) for page in list(pages)]

    def reconsider(self, page: Page) -> None:
        """Put `page` at its place in the queue, or out of it."""
        if self._may_leave(page, self.number):
            self.queue.push(page)
        else:
            self.queue.remove(page)

    def may_take(self, nbytes: int) -> bool:
        """Whether its limit, if it has one, has room for so many bytes more."""
        return self.limit is None or self.bytes + self.coming_bytes + nbytes <= self.limit
