"""The page table's rules, asserted over all of its pages; see `page_table`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.slot_map import SlotState
from .held_page import HOST, Page, host_slot_state
from .page_table import PageTable
from .tier_copies import TierCopies


def check_rules(table: PageTable) -> None:
    """Raise AssertionError where a rule is broken or a count is wrong, once what is leaving has left. Looks at every
    page, and is for tests therefore. The caller holds the table's lock."""
    table.clean_up()
    table.summary.check(table.all_pages())
    table.operator_pins.check(table.all_pages())
    pages = list(table.all_pages())
    for page in pages:
        assert table.find(page.namespace, page.key) is page
        assert not page.dropped
        assert page.parent is None or (not page.parent.dropped and page in page.parent.children)
        assert page.in_host or page.saved, "a page without a copy"
        assert page.held_children == sum(child.held for child in page.children)
        assert page.held == (page.in_host or page.pins > 0 or page.held_children > 0)
    for copies in table.of:
        _check_tier(table, copies, pages)
    _check_slots(table, pages)
    assert sum(page.pinned for page in pages) <= table.pinned_pages
    if table.of[HOST].pages and not table.pinned_pages:
        assert table.victim(HOST) is not None, "nothing may leave host memory, and nothing can come in"


def _check_tier(table: PageTable, copies: TierCopies, pages: Sequence[Page]) -> None:
    number, size = copies.number, copies.keeper.size_of
    whole = [page for page in pages if page.whole_in(number)]
    coming = [page for page in pages if page.copies[number] is not None and not page.whole_in(number)]
    # Pages that were dropped keep their host slots, and are written to their end, while they are pinned.
    exact = number != HOST
    assert copies.pages == len(whole) if exact else copies.pages >= len(whole)
    assert copies.bytes == sum(size(page.length) for page in whole) if exact else True
    assert copies.coming_bytes >= sum(size(page.length) for page in coming)
    places = [page.copies[number].place for page in whole]  # type: ignore[union-attr]
    assert len({repr(place) for place in places}) == len(places), "two pages in one place"
    if not copies.durable:
        assert not copies.gaps
        assert {page for page in copies.listed() if not page.dropped} == {*whole, *coming}, "the book is wrong"
        for page in whole:
            assert page in copies.under(copies.keeper.part_of(page.copies[number].place))  # type: ignore[union-attr]
        return
    for page in pages:
        behind = sum(child.whole_in(number) for child in page.children)
        assert behind == (0 if page.behind is None else page.behind[number])
        if page.whole_in(number) and page.parent is not None:
            parent = page.parent
            assert parent.copies[number] is not None or parent in copies.gaps, "unreachable after a restart"
    assert all(not page.whole_in(number) and page.has_behind(number) and not page.dropped for page in copies.gaps), (
        "a gap that is none"
    )


def _check_slots(table: PageTable, pages: Sequence[Page]) -> None:
    """Every slot of host memory is told as what it is."""
    states = table.host.states()
    slots = {page.slot for page in pages if page.in_host}
    assert len(slots) == sum(page.in_host for page in pages), "two pages in one slot"
    assert all(states[page.slot] == host_slot_state(page) for page in pages if page.in_host)
    assert len(slots) <= table.host.used_slots
    assert (states == SlotState.FREE).sum() == table.host.slots - table.host.used_slots
    others = np.delete(states, sorted(slots))
    assert np.isin(others, [SlotState.FREE, SlotState.PRIVATE, SlotState.LOADING]).all(), "a page that is gone"
