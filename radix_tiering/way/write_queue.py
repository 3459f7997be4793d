"""Pages that wait to be written to a tier."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..table.held_page import Page


class WriteQueue:
    """In the order in which they came, each once. Pages that leave host memory meanwhile can be written no more, and
    leave it as well: with each that comes two others are looked at, so that there are never many more than host memory
    has slots, however long nothing is written. Under the page table's lock."""

    def __init__(self) -> None:
        #: What goes before the first one, in order: pages of its prefix, which are not in the queue by themselves.
        self.ahead: deque[Page] = deque()
        self._pages: set[Page] = set()
        # Those that this round has looked at come before those that it has not.
        self._looked_at: deque[Page] = deque()
        self._others: deque[Page] = deque()

    def __len__(self) -> int:
        return len(self._pages) + len(self.ahead)

    def __contains__(self, page: object) -> bool:
        return page in self._pages

    def append(self, page: Page) -> None:
        """`page`, which is not in it."""
        self._others.append(page)
        self._pages.add(page)
        self.trim(2)

    def popleft(self) -> Page:
        """The first one, with nothing ahead of it. Raises IndexError where there is none."""
        page = (self._looked_at or self._others).popleft()
        self._pages.remove(page)
        return page

    def put_back(self, page: Page, ahead: Iterable[Page] = ()) -> None:
        """`page`, which was the first one, is so again, with these ahead of it."""
        self._looked_at.appendleft(page)
        self._pages.add(page)
        self.ahead.extend(ahead)

    def trim(self, count: int) -> None:
        """Look at so many more, and leave out those that have left host memory."""
        for _ in range(min(count, len(self._pages))):
            if not self._others:
                self._others, self._looked_at = self._looked_at, self._others
            page = self._others.popleft()
            if page.resident and not page.dropped:
                self._looked_at.append(page)
            else:
                self._pages.remove(page)

    def without(self, pages: Iterable[Page]) -> list[Page]:
        """Those of `pages` that are not in it."""
        return [page for page in pages if page not in self._pages]
