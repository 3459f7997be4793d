"""Rows that are made when they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar, overload

from ...model.sieve import Test, Tests
from ...model.table import Cell, Column, Row, arranged
from .settled import SettledCells

Subject = TypeVar("Subject")
NOTHING: Mapping[int, frozenset[str]] = MappingProxyType({})


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
        settled: Callable[[Subject], SettledCells | None] = lambda subject: None,
        moving: Mapping[int, frozenset[str]] = NOTHING,
    ) -> None:
        """`columns`: what it can be sorted by. `cells`: how each cell of a row is made by itself; where that is not
        given, whole rows are made. `settled`: the cells of what does not change any more, but for those with the
        numbers in `moving`, each with all signs that it may be written with."""
        self._subjects = subjects
        self._key = key
        self._make = make
        self._columns = columns
        self._cells = cells
        self._settled = settled
        self._moving = moving

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
        #: The moving cells that could have a word, by the word.
        could = {test.word: [at for at, signs in self._moving.items() if signs >= {*test.word}] for test in tests}

        def has(test: Test, subject: Subject, numbers: Sequence[int]) -> bool:
            return any(test.passes(self._cell(subject, at)) for at in numbers)

        def found(test: Test, subject: Subject, known: SettledCells | None) -> bool:
            if known is None or test.column in self._moving:
                return has(test, subject, every if test.column is None else (test.column,))
            if test.column is not None:
                return test.passes(known.cells[test.column])
            if test.word:
                return test.word in known.said or has(test, subject, could[test.word])
            return any(map(test.passes, known.cells)) or has(test, subject, [*self._moving])

        def passes(subject: Subject) -> bool:
            known = self._settled(subject)
            return all(found(test, subject, known) == test.wanted for test in tests)

        return self._of([subject for subject in self._subjects if passes(subject)])

    def _cell(self, subject: Subject, at: int) -> Cell:
        return self._cells[at](subject) if self._cells else self._make(subject).cells[at]

    def _of(self, subjects: Sequence[Subject]) -> LazyRows[Subject]:
        return LazyRows(subjects, self._key, self._make, self._columns, self._cells, self._settled, self._moving)
