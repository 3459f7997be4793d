"""Pins that operators set: a page and the whole path to it, kept where they are until the pin is taken back.

A page is *kept* if `keep` is set on it or any child of it is kept, so that setting and taking back a pin stops at the
first page where paths join, and dropping any subtree costs no more than the subtree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import kernels
from .held_page import Page
from .rows import PageRows


class OperatorPins:
    """Not thread-safe: used under the page table's lock."""

    def __init__(self, call: Callable[..., Any], rows: PageRows, lost: Callable[[bytes], None]) -> None:
        """`call(kernel, ...)`: has a kernel change pages. `lost(key)`: a pinned page has left the table."""
        self._call = call
        self._rows = rows
        self._lost = lost
        self.pinned: dict[Page, bytes] = {}  # by name, not those on the way to them; with their keys

    @property
    def kept_pages(self) -> int:
        """Those on the way to them included."""
        return self._rows.count[kernels.KEPT_PAGES]

    def keep(self, page: Page) -> None:
        """Set `keep`: costs as many steps as there are pages up to the next one that is kept already."""
        self._call(kernels.keep, page.row)

    def let_go(self, page: Page) -> None:
        """Take `keep` back: costs as many steps as there are pages up to the next one that stays kept."""
        self._call(kernels.let_go, page.row)

    def remember(self, page: Page) -> None:
        """`page` is pinned by name."""
        self.pinned[page] = page.key

    def left(self, page: Page) -> None:
        """`page`, on which `keep` was set, has left the table."""
        key = self.pinned.pop(page, None)
        if key is not None:
            self._lost(key)
