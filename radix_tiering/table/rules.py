"""The page table's rules, asserted over all of its pages; see `page_table`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base.slot_map import SlotState
from .held_page import HostState, host_slot_state

if TYPE_CHECKING:
    from .page_table import PageTable


def check_rules(table: PageTable) -> None:
    """Raise AssertionError where a rule is broken or a count is wrong. The caller holds the table's lock."""
    resident = stored = stored_bytes = writing_bytes = pinned = 0
    slots: set[int] = set()
    states = table.host.states()
    for page in table.all_pages():
        assert table.find(page.namespace, page.key) is page
        assert not page.dropped
        assert page.parent is None or (not page.parent.dropped and page in page.parent.children)
        assert page.stored_children == sum(child.stored is not None for child in page.children)
        assert page.host is not HostState.NONE or page.saved, "a page without a copy"
        assert page.held_children == sum(child.held for child in page.children)
        assert page.held == (page.host is not HostState.NONE or page.pins > 0 or page.held_children > 0)
        if page.stored is not None and page.parent is not None:
            parent = page.parent
            assert parent.stored is not None or parent.writing or parent in table.gaps, "unreachable after a restart"
        if page.slot >= 0:
            assert page.slot not in slots, "two pages in one slot"
            slots.add(page.slot)
            assert states[page.slot] == host_slot_state(page), "a slot is not told as what it is"
        size = table.size_on_ssd(page.length)
        resident += page.host is HostState.RESIDENT
        stored += page.stored is not None
        stored_bytes += size if page.stored is not None else 0
        writing_bytes += size if page.writing else 0
        pinned += page.pinned
    assert all(page.stored is None and page.stored_children and not page.dropped for page in table.gaps)
    assert stored == table.stored_pages
    assert stored_bytes == table.stored_bytes
    if resident and not table.pinned_pages:
        assert table.host_victim() is not None, "nothing may leave host memory, and nothing can come in"
    table.peer_copies.check()
    # Pages that were dropped keep their slots, and are written to their end, while they are pinned.
    assert resident <= table.resident_pages
    assert writing_bytes <= table.writing_bytes
    assert pinned <= table.pinned_pages
    assert len(slots) <= table.host.used_slots
    assert (states == SlotState.FREE).sum() == table.host.slots - table.host.used_slots
    others = np.delete(states, list(slots))
    assert np.isin(others, [SlotState.FREE, SlotState.PRIVATE, SlotState.LOADING]).all(), "a page that is gone"
