"""The garbage collector and pages."""

from __future__ import annotations

import gc
import weakref

from swift_tiers.radix_tiering.base.page import ROOT_KEY, PageRecord
from swift_tiers.radix_tiering.table.garbage import PAGES, Garbage
from swift_tiers.radix_tiering.table.held_page import Page


def test_pages_are_looked_at_once_more_only_when_many_have_come() -> None:
    pages, frozen = 10, []
    garbage = Garbage(lambda: pages, lambda: frozen.append(pages))
    try:
        assert frozen == [10], "what was recovered at the start"
        pages = 10 + PAGES - 1
        gc.collect()
        assert frozen == [10]
        pages += 1
        gc.collect(1)
        assert frozen == [10], "after a full collection alone nothing is garbage"
        gc.collect()
        gc.collect()
        assert frozen == [10, 10 + PAGES]
        pages = 0
        gc.collect()
        pages = PAGES
        gc.collect()
        assert frozen == [10, 10 + PAGES, PAGES], "others have come in the place of those that left"
    finally:
        garbage.end()
    garbage.end()
    gc.collect()
    assert len(frozen) == 3


def test_what_is_left_alone_is_counted_as_such_until_the_end() -> None:
    before = gc.get_freeze_count()
    garbage = Garbage(lambda: 0)
    assert gc.get_freeze_count() > before
    garbage.end()
    assert gc.get_freeze_count() == 0


def test_a_page_that_has_left_needs_no_collector() -> None:
    class Seen(Page):
        """One that can be watched."""

        __slots__ = ("__weakref__",)

    gc.disable()
    try:
        parent = Page(PageRecord(b"a" * 32, ROOT_KEY, b"n" * 32, 1, 4096), None, 1)
        page = Seen(PageRecord(b"b" * 32, parent.key, b"n" * 32, 2, 4096), parent, 1)
        parent.children[page] = None
        seen = weakref.ref(page)
        parent.children.pop(page)
        del page
        assert seen() is None
    finally:
        gc.enable()
