"""Rows that are made when they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

from swift_tiers.console.model.table import Row

Subject = TypeVar("Subject")


class LazyRows(Sequence[Row], Generic[Subject]):
    """One row for each subject, and only for those that are asked for."""

    def __init__(
        self, subjects: Sequence[Subject], key: Callable[[Subject], str], make: Callable[[Subject], Row]
    ) -> None:
        self._subjects = subjects
        self._key = key
        self._make = make

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
