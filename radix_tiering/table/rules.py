"""The page table's rules, asserted over all of its pages; see `page_table`. Shares no code with the kernels."""

from __future__ import annotations

import numpy as np

from ..base.slot_map import SlotState
from . import directory
from .kernels import (
    BEGUN,
    BITS,
    CHILD,
    COUNTS,
    DEPTH,
    DROPPED,
    FLAGS,
    FREE,
    FREE_ROWS,
    GAP,
    HELD,
    HIGH,
    IS_HELD,
    KEEP,
    KEPT,
    KEPT_PAGES,
    KIND,
    KINDS,
    NEXT,
    PARENT,
    PINS,
    PLACES,
    PREV,
    QUEUED,
    ROOT_PAGES,
    SPACE,
    TIERS,
    USED,
    WHOLE,
)
from .page_table import PageTable
from .rows import PageRows
from .tier_copies import HOST, BookedCopies, HostCopies, TierCopies


def check_rules(table: PageTable) -> None:
    """Raise AssertionError where a rule is broken or a count is wrong, once what is leaving has left. Looks at every
    page, and is for tests therefore. The caller holds the table's lock."""
    table.clean_up()
    rows = table.book.rows
    held = rows.used()
    _check_tree(table, rows, held)
    _check_counts(table, rows, held)
    for copies in table.of:
        _check_tier(table, copies, held)
    _check_slots(table, held)
    if table.of[HOST].pages and not table.pinned_pages:
        assert table.victim(HOST) is not None, "nothing may leave host memory, and nothing can come in"


def _check_tree(table: PageTable, rows: PageRows, held: np.ndarray) -> None:
    words = rows.words
    for row in held.tolist():
        namespace, key = table.book.digests[int(words[row, SPACE])], rows.longs[row, :4].tobytes()
        page = table.find(namespace, key)
        assert page is not None
        assert page.row == row, "two pages of one key"
        siblings = words[:, CHILD], words[:, NEXT], words[:, PREV]
        before = siblings[2][row]
        assert (siblings[0][words[row, PARENT]] if before < 0 else siblings[1][before]) == row, "not its parent's child"
    up = words[held, PARENT]
    assert (words[up, FLAGS] & (USED | DROPPED) == USED).all(), "a page that outlived its prefix"
    assert (words[held, DEPTH] == words[up, DEPTH] + 1).all()
    assert (words[held, SPACE] == np.where(words[up, DEPTH] > 0, words[up, SPACE], up)).all()
    copies = _any(words[held, TIERS], BEGUN | WHOLE, rows.tiers)
    in_host = words[held, TIERS] & (BEGUN | WHOLE) != 0
    assert (in_host | _any(words[held, TIERS], WHOLE, rows.tiers)).all(), "a page without a copy"
    assert copies.all()
    is_held = words[held, FLAGS] & IS_HELD != 0
    assert (words[held, HELD] == _children(rows, held, is_held)).all()
    assert (is_held == (in_host | (words[held, PINS] > 0) | (words[held, HELD] > 0))).all()
    kept = (words[held, FLAGS] & KEEP != 0) | (words[held, KEPT] > 0)
    assert (words[held, KEPT] == _children(rows, held, kept)).all()
    assert rows.count[KEPT_PAGES] == kept.sum()
    pinned = set(table.operator_pins.pinned)
    assert all(page.keep and not page.dropped and page.key == key for page, key in table.operator_pins.pinned.items())
    assert {page.row for page in pinned} <= set(held.tolist())


def _check_counts(table: PageTable, rows: PageRows, held: np.ndarray) -> None:
    words = rows.words
    assert table.pages == len(held)
    free, row = 0, rows.count[FREE]
    while row >= 0:
        assert not words[row, FLAGS], "a row that is free, and has a page"
        free, row = free + 1, int(words[row, NEXT])
    assert rows.count[FREE_ROWS] == free
    in_use = (words[: rows.count[HIGH], FLAGS] != 0).sum()
    assert rows.count[HIGH] == free + in_use, "rows are lost"
    kinds = np.zeros(len(held), np.int64)
    for tier in range(rows.tiers):
        kinds |= rows.whole(held, tier).astype(np.int64) << tier
    pinned = (words[held, PINS] > 0) | (words[held, KEPT] > 0) | (words[held, FLAGS] & KEEP != 0)
    kinds |= pinned.astype(np.int64) << rows.tiers
    assert (words[held, FLAGS] >> KIND & KINDS == kinds).all()
    counts = rows.meta[COUNTS : COUNTS + (2 << rows.tiers)]
    assert (np.bincount(kinds, minlength=len(counts)) == counts).all()
    found = directory.snapshot(rows, 0)
    assert found.deepest_pages == (words[held, DEPTH].max() if len(held) else 0)
    assert found.first_pages == (words[held, DEPTH] == 1).sum()
    assert pinned.sum() <= table.pinned_pages
    for root in table.book.roots.values():
        assert words[root, ROOT_PAGES] == (words[held, SPACE] == root).sum()


def _check_tier(table: PageTable, copies: TierCopies, held: np.ndarray) -> None:
    rows, number, size = table.book.rows, copies.number, copies.keeper.size_of
    words = rows.words
    is_whole, begun = rows.whole(held, number), rows.begun(held, number)
    whole, coming = held[is_whole], held[begun & ~is_whole]
    pages = [page for page in table.listed() if page.whole_in(number)]
    # Pages that were dropped keep their host slots, and are written to their end, while they are pinned.
    exact = number != HOST
    assert copies.pages == len(whole) if exact else copies.pages >= len(whole)
    assert rows.whole_bytes(number) == sum(size(page.length) for page in pages) if exact else True
    coming_bytes = sum(int(words[words[row, SPACE], PLACES + number]) for row in coming.tolist())
    assert copies.coming_bytes >= coming_bytes
    places = [copy.place for page in pages if (copy := page.copy_in(number))]
    assert len({repr(place) for place in places}) == len(places) == len(whole), "two pages in one place"
    assert (words[held[~begun], PLACES + number] == -1).all()
    _check_queue(rows, number, held, durable=copies.durable)
    if isinstance(copies, BookedCopies):
        listed = copies.listed().tolist()
        assert {row for row in listed if not words[row, FLAGS] & DROPPED} == {*whole.tolist(), *coming.tolist()}
        for row, place in zip(whole.tolist(), places, strict=True):
            assert row in copies.under(copies.keeper.part_of(place)).tolist(), "the book is wrong"
    gaps = words[held, TIERS] >> (BITS * number) & GAP != 0
    if not copies.durable:
        assert not gaps.any()
        return
    behind = rows.behind(held, number)
    assert (behind == _children(rows, held, is_whole)).all()
    assert not (gaps & (is_whole | (behind == 0))).any(), "a gap that is none"
    up = words[whole, PARENT]
    reached = rows.begun(up, number) | (words[up, DEPTH] == 0) | (words[up, TIERS] >> (BITS * number) & GAP != 0)
    assert reached.all(), "unreachable after a restart"


def _check_queue(rows: PageRows, number: int, held: np.ndarray, *, durable: bool) -> None:
    """Every page that may leave has an entry, whose rank is no higher than the page's."""
    words = rows.words
    ranks, whose = rows.heap(number)
    pairs = ranks.tolist()
    assert all(pairs[(at - 1) >> 1] <= pairs[at] for at in range(1, len(pairs))), "the heap is none"
    alive = set(whose[whose >= 0].tolist())
    queued = set(held[words[held, TIERS] >> (BITS * number) & QUEUED != 0].tolist())
    assert queued <= alive, "marked as one that may leave, and no entry says so"
    free = (words[held, PINS] == 0) & (words[held, KEPT] == 0) & (words[held, FLAGS] & KEEP == 0)
    free &= rows.whole(held, number)
    others = _any(words[held, TIERS] & ~(WHOLE << (BITS * number)), WHOLE, rows.tiers)
    if durable:
        free &= rows.behind(held, number) == 0
    elif number == HOST:
        free &= others | (words[held, HELD] == 0)
    else:
        free &= others | (words[held, CHILD] < 0)
    assert set(held[free].tolist()) <= queued, "may leave, and nobody knows"


def _check_slots(table: PageTable, held: np.ndarray) -> None:
    """Every slot of host memory is told as what it is."""
    rows, host = table.book.rows, table.of[HOST]
    assert isinstance(host, HostCopies)
    begun = held[rows.begun(held, HOST)]
    slots = rows.words[begun, PLACES]
    assert len(set(slots.tolist())) == len(slots), "two pages in one slot"
    assert (host.owners[slots] == begun).all()
    states = table.host_states()
    assert len(slots) <= table.host.used_slots
    assert (states == SlotState.FREE).sum() == table.host.slots - table.host.used_slots
    assert (states[slots] != SlotState.FREE).all()
    others = np.delete(states, slots)
    assert np.isin(others, [SlotState.FREE, SlotState.PRIVATE, SlotState.LOADING]).all(), "a page that is gone"


def _any(tiers: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Which of these have one of the bits for any tier: bool."""
    mask = sum(bits << BITS * tier for tier in range(count))
    found: np.ndarray = tiers & mask != 0
    return found


def _children(rows: PageRows, held: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """How many children of each of the pages are counted, by a look at every child."""
    found = np.bincount(rows.words[held[counted], PARENT], minlength=rows.count[HIGH])
    return found[held]
