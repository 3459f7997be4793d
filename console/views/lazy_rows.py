"""Rows that are made when they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

from swift_tiers.console.model.sieve import Tests
from swift_tiers.console.model.table import Cell, Column, Row, arranged

Subject = TypeVar("Subject")


class LazyRows(Sequence[Row], Generic[Subject]):
    """One row for each subject, and only for those that are asked for. Sorting and sifting make the cells that they
    look at, no rows."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        key: Callable[[Subject], str],
        make: Callable[[Subject], Row],
        columns: Sequence[Column] = (),
        cells: Sequence[Callable[[Subject], Cell]] = (),
    ) -> None:
        """`columns`: what it can be sorted by. `cells`: how each cell of a row is made by itself; where that is not
        given, whole rows are made."""
        self._subjects = subjects
        self._key = key
        self._make = make
        self._columns = columns
        self._cells = cells

    def __len__(self) -> int:
        return len(self._subjects)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        if isinstance(at, slice):
            return [self._make(subject) for subject in self._subjects[at]]
        return self._make(self._subjects[at])

    def index_of(self, key: str) -> int | None:
        """Where the row with this key is."""
        return next((number for number, one in enumerate(self._subjects) if self._key(one) == key), None)

    def ordered(self, column: str, descending: bool) -> Sequence[Row]:
        """By the contents of this column."""
        at = [one.name for one in self._columns].index(column)
        return self._of(arranged(self._subjects, lambda subject: self._cell(subject, at).content, descending))

    def sifted(self, text: str, tests: Tests) -> Sequence[Row]:
        """Those that pass all tests; `text` is what was typed."""
        if not self._cells:
            return [row for row in self if tests(row)]
        every = range(len(self._cells))

        def passes(subject: Subject) -> bool:
            return all(
                any(test.passes(self._cell(subject, at)) for at in (every if test.column is None else (test.column,)))
                == test.wanted
                for test in tests
            )

        return self._of([subject for subject in self._subjects if passes(subject)])

    def _cell(self, subject: Subject, at: int) -> Cell:
        return self._cells[at](subject) if self._cells else self._make(subject).cells[at]

    def _of(self, subjects: Sequence[Subject]) -> LazyRows[Subject]:
        return LazyRows(subjects, self._key, self._make, self._columns, self._cells)
