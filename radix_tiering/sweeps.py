"""Changes of many pages, a bounded number of them in each hold of the page table's lock.

A sweep is a generator: between two of its steps the lock is free, and whoever waits for it has its turn. What comes in
meanwhile may stay. It returns how many pages it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from swift_tiers.radix_tiering.held_page import Page
from swift_tiers.radix_tiering.page_table import PageTable

Result = TypeVar("Result")
Sweep = Generator[None, None, int]

#: Pages handled in one step.
STEP_PAGES = 64


def run(steps: Generator[None, None, Result]) -> Result:
    """All of it at once, on this thread."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def drop(table: PageTable, page: Page) -> Sweep:
    """`page` and everything behind it leave every tier, from the ends of sequences on: no page outlives its prefix."""
    pending, dropped = [page], 0
    while pending:
        with table.lock:
            dropped += table.drop_some(pending, STEP_PAGES)
        yield
    return dropped


def drop_namespace(table: PageTable, namespace: bytes) -> Sweep:
    """Every page of `namespace` leaves every tier."""
    return _each(table, namespace, table.drop)


def empty_memory(table: PageTable, namespace: bytes | None = None) -> Sweep:
    """Copies in host memory and at peers leave, of one namespace or of all; pages with an ssd copy stay, and so do
    pinned slots. Returns how many pages have left."""
    return _each(table, namespace, table.evict_memory)


def requeue(table: PageTable) -> Sweep:
    """Every page gets the place among those that leave that the eviction policy gives it now."""
    return _each(table, None, table.reconsider)


def shed(table: PageTable) -> Sweep:
    """Evict what tiers hold beyond their limits; what is pinned stays until it no longer is."""
    evicted = 0
    while True:
        with table.lock:
            step = table.shed(STEP_PAGES)
        evicted += step
        if not step:
            return evicted
        yield


def keep(table: PageTable, page: Page) -> Sweep:
    """Keep `page` and the path to it, from the beginning of the sequence on; returns the pages of the path.

    Each step holds the path up to a page further on and lets go of the one before, which that path holds as well.
    Returns 0, and keeps nothing, if `page` has left meanwhile.
    """
    path = list(prefix_of(page))[::-1]
    before: Page | None = None
    for stop in [*path[STEP_PAGES - 1 : -1 : STEP_PAGES], page]:
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
                table.operator_pins.pinned.add(page)
        yield
    return len(path)


def let_go(table: PageTable, page: Page) -> Sweep:
    """Take back `keep`; returns the pages of the path, or 0 if it was not pinned."""
    with table.lock:
        if page not in table.operator_pins.pinned:
            return 0
        table.operator_pins.pinned.discard(page)
    path = list(prefix_of(page))
    for start in range(0, len(path), STEP_PAGES):
        stop = path[start + STEP_PAGES] if start + STEP_PAGES < len(path) else None
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


def _each(table: PageTable, namespace: bytes | None, change: Callable[[Page], bool | None]) -> Sweep:
    """`change` every page that is there now, those behind before those they follow. One of which it says False is not
    counted: there was nothing to change."""
    with table.lock:
        pages = table.listed(namespace)
    changed = 0
    for stop in range(len(pages), 0, -STEP_PAGES):
        with table.lock:
            for page in reversed(pages[max(0, stop - STEP_PAGES) : stop]):
                if not page.dropped and change(page) is not False:
                    changed += 1
        yield
    return changed
