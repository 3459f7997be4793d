"""All slots of a tier as rows of a table, without making them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np

from swift_tiers.console.model.sieve import Tests
from swift_tiers.console.model.table import Row
from swift_tiers.console.views.slot_map import SlotMap
from swift_tiers.console.views.slot_sieve import Cells, sieved


class SlotRows(Sequence[Row]):
    """A row for each cell of a map, made when it is drawn. Orders are orders of stretches of cells."""

    def __init__(
        self, slots: SlotMap, make: Callable[[int], Row], columns: Sequence[str] = ("slot", "state"),
        held: Sequence[tuple[int, int]] = (), *, stretches: tuple[Cells, Cells] | None = None, backwards: bool = False,
    ) -> None:  # fmt: skip
        """`columns`: names of the rows' cells. `held`: first and last cells of those that requests hold.

        `stretches`: the first cells and the lengths of what is shown, in order; None: the map's runs. `backwards`: each
        from its end.
        """
        self._slots = slots
        self._make = make
        self._columns = columns
        self._held = held
        runs: tuple[Cells, Cells] = (slots.ends[:-1], np.diff(slots.ends))
        self._firsts, self._lengths = runs if stretches is None else stretches
        self._backwards = backwards
        self._ends = np.concatenate(([0], np.cumsum(self._lengths)))

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        if isinstance(at, slice):
            return [self._make(self._cell(number)) for number in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._make(self._cell(at % len(self)))

    def index_of(self, key: str) -> int | None:
        """Where the row of a cell is."""
        cell = int(key) if key.isdecimal() else -1
        found = np.flatnonzero((self._firsts <= cell) & (cell < self._firsts + self._lengths))
        if not len(found):
            return None
        within = cell - int(self._firsts[found[0]])
        if self._backwards:
            within = int(self._lengths[found[0]]) - 1 - within
        return int(self._ends[found[0]]) + within

    def ordered(self, column: str, descending: bool) -> SlotRows:
        """By slot within the parts, by state, or those that requests hold before all others."""
        firsts, lengths = self._firsts, self._lengths
        if column == "state":
            runs = self._slots.ends.searchsorted(firsts, "right") - 1
            _, state = np.unique(np.array(self._slots.states)[self._slots.codes[runs]], return_inverse=True)
            order = np.argsort(-state if descending else state, kind="stable")
            return self._with(firsts[order], lengths[order])
        if column in ("slot", "part"):
            return self._with(firsts[::-1], lengths[::-1], backwards=True) if descending else self
        held = _merged(self._held)
        others = _between(held, self._slots.cells)
        stretches = np.array([*held, *others], np.int64).reshape(-1, 2)
        return self._with(stretches[:, 0], stretches[:, 1] - stretches[:, 0] + 1)

    def sifted(self, name: str, tests: Tests) -> SlotRows:
        """Those that pass, found without making the others. `name` stands for the tests."""
        edges, kept = sieved(self._slots, tests, self._columns, _merged(self._held), self._make)
        # Each stretch is cut at the edges of what is kept, and what is kept of it stays in its order.
        order = np.argsort(self._firsts, kind="stable")
        firsts, ends = self._firsts[order], (self._firsts + self._lengths)[order]
        cuts = np.unique(np.concatenate((edges, firsts, ends)))
        pieces, lengths = cuts[:-1], np.diff(cuts)
        stretch = np.clip(firsts.searchsorted(pieces, "right") - 1, 0, None)
        inside = (pieces < ends[stretch]) & kept[np.clip(edges.searchsorted(pieces, "right") - 1, 0, len(kept) - 1)]
        pieces, lengths, rank = pieces[inside], lengths[inside], order[stretch[inside]]
        shown = np.lexsort((-pieces if self._backwards else pieces, rank))
        return self._with(pieces[shown], lengths[shown], self._backwards)

    def _with(self, firsts: Cells, lengths: Cells, backwards: bool = False) -> SlotRows:
        stretches = firsts, lengths
        return SlotRows(
            self._slots, self._make, self._columns, self._held, stretches=stretches, backwards=backwards,
        )  # fmt: skip

    def _cell(self, at: int) -> int:
        stretch = int(self._ends.searchsorted(at, "right")) - 1
        within = at - int(self._ends[stretch])
        if self._backwards:
            within = int(self._lengths[stretch]) - 1 - within
        return int(self._firsts[stretch]) + within


def _merged(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """First and last cells, in order, none of them twice."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _between(runs: Sequence[tuple[int, int]], cells: int) -> list[tuple[int, int]]:
    """The cells before, between and behind runs that are in order."""
    gaps, at = [], 0
    for first, last in runs:
        if first > at:
            gaps.append((at, first - 1))
        at = last + 1
    return [*gaps, (at, cells - 1)] if at < cells else gaps
