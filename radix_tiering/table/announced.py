"""Pages that others outside were told of, and those of them that have left since, of which they are to be told, too.

Routers in front of several servers send a request to where its prefix lies. They know a page by a number of their own,
which is kept by its row: 9 bytes for every row of the table, from the first page on that anybody is told of. A page
leaves in one place only (`kernels._drop_one`), which notes it: so each that they were told of is told of as gone once,
in the order in which pages come and go.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from . import kernels
from .rows import PageRows


class Announced:
    """Not thread-safe: used under the page table's lock, but for what says otherwise."""

    def __init__(self, rows: PageRows) -> None:
        self._rows = rows
        #: Numbers of those that have left and of which nobody was told so yet, in order, and of how many pages.
        self._left: dict[int, int] = {}
        self.clear()

    def clear(self) -> None:
        """Nobody knows of any page any more. Takes no longer because there are more pages: rows keep their mark, and
        what leaves is not known."""
        #: By row: whether anybody knows of its page, and by which number.
        self._known = np.zeros(0, np.bool_)
        self._numbers = np.zeros(0, np.int64)
        self._left.clear()

    def tell(self, rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The pages in these rows, a part of a chain that is here, are told of by these numbers, int64. Which of them
        were not known yet: bool. None is, where the page before them is not known: no page is without its prefix. One
        that had left, and is back before anybody was told so, is known still."""
        words = self._rows.words
        if not len(rows) or not self._follow(words, rows[0]):
            return np.zeros(len(rows), np.bool_)
        if len(self._known) < len(words):
            self._known, self._numbers = _longer(self._known, len(words)), _longer(self._numbers, len(words))
        fresh: np.ndarray = ~self._known[rows]
        self._known[rows] = True
        self._numbers[rows[fresh]] = numbers[fresh]
        words[rows, kernels.FLAGS] |= kernels.TOLD
        if self._left:
            for at in np.flatnonzero(fresh).tolist():
                fresh[at] = not self._come_back(int(numbers[at]))
        return fresh

    def _come_back(self, number: int) -> bool:
        """Whether a page of this number was to be told of as gone: it is not."""
        pages = self._left.pop(number, 0)
        if pages > 1:
            self._left[number] = pages - 1
        return pages > 0

    def _follow(self, words: np.ndarray, first: int) -> bool:
        before = words[first, kernels.PARENT]
        return bool(words[before, kernels.DEPTH] == 0 or self.knows(before))

    def knows(self, row: int) -> bool:
        """Whether the page in this row was told of. A hint without the lock."""
        known = self._known
        return row < len(known) and bool(known[row])

    def leave(self, row: int) -> None:
        """The page in this row, which has the mark, has left."""
        if self.knows(row):
            self._known[row] = False
            number = int(self._numbers[row])
            self._left[number] = self._left.get(number, 0) + 1

    @property
    def some_left(self) -> bool:
        """Whether `take_left` has something. A hint without the lock."""
        return bool(self._left)

    def take_left(self, most: int) -> list[int]:
        """Up to `most` numbers of pages that have left, and of which nobody was told so yet, in order; one of several
        pages as often."""
        numbers = list(islice(self._left, most))
        return [number for number in numbers for _ in range(self._left.pop(number))]


def _longer(array: np.ndarray, length: int) -> np.ndarray:
    """Its entries, and zeros behind them, which cost no memory before they are written."""
    longer = np.zeros(length, array.dtype)
    longer[: len(array)] = array
    return longer
