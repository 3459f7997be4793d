"""Pages that have left the table without everything that was theirs being given back yet.

Behind a page there may be any number of others, and so may there be in a namespace. Whoever drops one holds the page
table's lock, which the scheduler waits for. So what leaves is hidden at once: nobody finds it any more. Its places are
given back later, a few in each hold of the lock.
"""

from __future__ import annotations

from collections.abc import Callable

from .held_page import Page

#: Pages behind one that is dropped that leave with it: most have no more, and nobody need wait for another thread.
AT_ONCE = 16


class Leaving:
    """Used under the page table's lock, but for `hides`, which any thread may ask at any time."""

    def __init__(self, give_back: Callable[[Page], None], ask: Callable[[], object]) -> None:
        """`give_back(page)`: it leaves the table with everything that is its own. `ask()`: there is something to
        do, and somebody should call `step` until there is not."""
        self._give_back = give_back
        self._ask = ask
        self._asked = False
        self._roots: list[Page] = []  # that have left; those behind them have not
        self._spaces: list[dict[bytes, Page]] = []  # that nobody looks into any more
        self._drops = 1  # how often a page has left that others are behind

    @property
    def pending(self) -> bool:
        """Whether something is left to do."""
        return bool(self._roots or self._spaces)

    def behind(self, root: Page) -> int:
        """What is behind `root`, which is dropped, is to leave as well. How many have left at once."""
        self._roots.append(root)
        self._drops += 1
        left = self.step(AT_ONCE)
        if self.pending:
            self._ask_once()
        return left

    def whole(self, space: dict[bytes, Page]) -> None:
        """All these pages, which can be found no longer, are to leave."""
        self._spaces.append(space)
        self._ask_once()

    def _ask_once(self) -> None:
        if not self._asked:
            self._asked = True
            self._ask()

    def hides(self, page: Page) -> bool:
        """Whether a page before `page` has left.

        Each page is looked at once for each drop, however long the sequence is: what was found to be there is noted.
        """
        if not self._roots:
            return False
        drops = self._drops  # before the look: a drop meanwhile has it looked at again
        path = []
        current: Page | None = page
        while current is not None and current.found_at != drops:
            if current.dropped:
                return True
            path.append(current)
            current = current.parent
        for one in path:
            one.found_at = drops
        return False

    def step(self, count: float) -> int:
        """Look at up to `count` pages that are to leave; how many have."""
        looked = left = 0
        while looked < count and self.pending:
            looked += 1
            page = self._next()
            if page is not None and not page.dropped:
                self._give_back(page)
                left += 1
        if not self.pending:
            self._asked = False
        return left

    def _next(self) -> Page | None:
        """One more that is to leave; None: look again."""
        if not self._roots:
            return self._spaces[-1].popitem()[1] if self._spaces[-1] else self._done(self._spaces)
        if not self._roots[-1].children:
            return self._done(self._roots)
        child = self._roots[-1].children.popitem()[0]
        if child.children:
            self._roots.append(child)
        return child

    @staticmethod
    def _done(work: list[Page] | list[dict[bytes, Page]]) -> None:
        work.pop()
