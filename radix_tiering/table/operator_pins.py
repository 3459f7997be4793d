"""Pins that operators set: a page and the whole path to it, kept where they are until the pin is taken back.

A page is *kept* if `keep` is set on it or any child of it is kept, so that setting and taking back a pin stops at the
first page where paths join, and dropping any subtree costs no more than the subtree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .held_page import Page


class OperatorPins:
    """Not thread-safe: used under the page table's lock."""

    def __init__(self, changed: Callable[[Page], None], lost: Callable[[Page], None]) -> None:
        """`changed(page)`: it is kept now, or no longer. `lost(page)`: a pinned page leaves the table."""
        self._changed = changed
        self._lost = lost
        self.pinned: set[Page] = set()  # by name, not those on the way to them
        self.kept_pages = 0

    def keep(self, page: Page) -> None:
        """Set `keep`: costs as many steps as there are pages up to the next one that is kept already."""
        was_kept = page.kept
        page.keep = True
        current = page
        while not was_kept:
            self.kept_pages += 1
            self._changed(current)
            if current.parent is None:
                return
            current = current.parent
            was_kept = current.kept
            current.kept_children += 1

    def let_go(self, page: Page) -> None:
        """Take `keep` back: costs as many steps as there are pages up to the next one that stays kept."""
        page.keep = False
        current = page
        while not current.kept:
            self.kept_pages -= 1
            self._changed(current)
            if current.parent is None:
                return
            current = current.parent
            current.kept_children -= 1

    def leave(self, page: Page) -> None:
        """`page`, on which `keep` is set, leaves the table, and nothing is behind it any more."""
        self.let_go(page)
        if page in self.pinned:
            self.pinned.discard(page)
            self._lost(page)

    def check(self, pages: Iterable[Page]) -> None:
        """Assert that all of this is true of a table with these pages, by looking at every one."""
        held = list(pages)
        assert all(page.kept_children == sum(child.kept for child in page.children) for page in held)
        assert self.kept_pages == sum(page.kept for page in held)
        assert all(page.keep for page in self.pinned)
        assert self.pinned <= set(held)
