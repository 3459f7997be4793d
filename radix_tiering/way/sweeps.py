"""Changes of many pages, a bounded number of them in each hold of the page table's lock.

A sweep is a generator: between two of its steps the lock is free, and whoever waits for it has its turn. What comes in
meanwhile may stay. It returns how many pages it has changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from ..table.held_page import Page
from ..table.page_table import PAGES_PER_HOLD, PageTable
from .down import Mover

Result = TypeVar("Result")
Item = TypeVar("Item")
Sweep = Generator[None, None, int]

#: Pages in one step that enters pages only, and in any other `PAGES_PER_HOLD`: a page that is entered changes once or
#: twice, one that leaves up to six times.
ENTERED_TOGETHER = 3 * PAGES_PER_HOLD


def run(steps: Generator[None, None, Result]) -> Result:
    """All of it at once, on this thread."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def drop(table: PageTable, page: Page) -> Sweep:
    """`page` and everything behind it leave every tier; nobody finds any of it from the first step on."""
    with table.lock:
        dropped = table.drop(page)
    return dropped + (yield from clean(table))


def clean(table: PageTable) -> Sweep:
    """Give back what pages have that nobody finds any more."""
    left, more = 0, True
    while more:
        with table.lock:
            left += table.clean_up(PAGES_PER_HOLD)
            more = table.leaving
        yield
    return left


def settle_memory(table: PageTable) -> Sweep:
    """What `PageTable.forget_memory` has begun: copies in host memory and at peers leave; pages with an ssd copy stay,
    and so do pinned slots. Returns how many pages have left."""
    flushes = table.flushes
    emptied = 0
    for batch in batches(table.in_memory()):
        with table.lock:
            emptied += sum(not page.dropped and table.settle(page) for page in batch)
        yield
    with table.lock:
        table.emptied(flushes)
    yield from clean(table)
    return emptied


def offer(table: PageTable, mover: Mover, pages: Iterable[Page]) -> Sweep:
    """Have written what host memory has of `pages`, in this order."""
    offered = 0
    for batch in batches(pages):
        with table.lock:
            there = [page for page in batch if not page.dropped and page.resident]
            mover.offer(there)
            offered += len(there)
        yield
    return offered


def batches(all_of_them: Iterable[Item]) -> Iterator[list[Item]]:
    """So many at a time as one step handles."""
    rest = iter(all_of_them)
    while batch := list(itertools.islice(rest, PAGES_PER_HOLD)):
        yield batch


def shed(table: PageTable) -> Sweep:
    """Evict what tiers hold beyond their limits; what is pinned stays until it no longer is."""
    evicted = 0
    while True:
        with table.lock:
            step = table.shed(PAGES_PER_HOLD)
        evicted += step
        if not step:
            break
        yield
    for tier in range(len(table.of)):
        if table.over(tier):
            evicted += yield from _shed_with_followers(table, tier)
    return evicted


def _shed_with_followers(table: PageTable, tier: int) -> Sweep:
    """Pages that only this tier has, and that others follow elsewhere, leave with all of those, the coldest first."""
    left = 0
    for batch in batches(table.kept_by_followers(tier)):
        with table.lock:
            for page in batch:
                if table.over(tier):
                    left += table.give_up(page, tier)
        yield
    return left + (yield from clean(table))


def keep(table: PageTable, page: Page) -> Sweep:
    """Keep `page` and the path to it, from the beginning of the sequence on; returns the pages of the path.

    Each step holds the path up to a page further on and lets go of the one before, which that path holds as well.
    Returns 0, and keeps nothing, if `page` has left meanwhile.
    """
    path = list(prefix_of(page))[::-1]
    before: Page | None = None
    for stop in [*path[PAGES_PER_HOLD - 1 : -1 : PAGES_PER_HOLD], page]:
        with table.lock:
            if stop.dropped:
                # Those before it may be there still.
                if before is not None and before.keep:
                    table.operator_pins.let_go(before)
                return 0
            already = stop.keep
            table.operator_pins.keep(stop)
            if before is not None:
                table.operator_pins.let_go(before)
            before = None if already else stop
            if stop is page:
                table.operator_pins.remember(page)
        yield
    return len(path)


def let_go(table: PageTable, page: Page) -> Sweep:
    """Take back `keep`; returns the pages of the path, or 0 if it was not pinned."""
    with table.lock:
        if page not in table.operator_pins.pinned:
            return 0
        del table.operator_pins.pinned[page]
    path = list(prefix_of(page))
    for start in range(0, len(path), PAGES_PER_HOLD):
        stop = path[start + PAGES_PER_HOLD] if start + PAGES_PER_HOLD < len(path) else None
        with table.lock:
            if path[start].dropped:
                break  # and with it what it kept
            ends_here = stop is None or stop.keep
            if stop is not None:
                table.operator_pins.keep(stop)
            table.operator_pins.let_go(path[start])
        yield
        if ends_here:
            break
    return len(path)


def prefix_of(page: Page) -> Iterator[Page]:
    """`page` and the pages before it. Safe without the lock: a page never changes its parent."""
    current: Page | None = page
    while current is not None:
        yield current
        current = current.parent
