"""All slots of a tier as rows of a table, without making them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np

from ...model.sieve import Tests
from ...model.table import Row
from .block_holders import HeldCells, no_one
from .slot_map import SlotCells
from .slot_sieve import Cells, sieved


class SlotRows(Sequence[Row]):
    """A row for each cell of a map, made when it is drawn. Orders are orders of stretches of cells."""

    def __init__(
        self, slots: SlotCells, make: Callable[[int], Row], columns: Sequence[str] = ("slot", "state"),
        held: Callable[[], HeldCells] = no_one, *, stretches: tuple[Cells, Cells] | None = None,
        backwards: bool = False,
    ) -> None:  # fmt: skip
        """`columns`: names of the rows' cells. `held`: the cells that requests hold, where that is asked for.

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
        """By slot within the parts, or by state; by another column: those that requests hold, then all others."""
        firsts, lengths = self._firsts, self._lengths
        if column == "state":
            runs = self._slots.ends.searchsorted(firsts, "right") - 1
            _, state = np.unique(np.array(self._slots.states)[self._slots.codes[runs]], return_inverse=True)
            order = np.argsort(-state if descending else state, kind="stable")
            return self._with(firsts[order], lengths[order])
        if column in ("slot", "part"):
            return self._with(firsts[::-1], lengths[::-1], backwards=True) if descending else self
        held = self._held()
        value = held.alike.get(column, held.cells)
        order = np.argsort(-value if descending else value, kind="stable")
        before, behind = np.concatenate(([-1], held.cells)), np.concatenate((held.cells, [self._slots.cells]))
        gaps, between = before + 1, behind - before - 1
        firsts = np.concatenate((held.cells[order], gaps[between > 0]))
        return self._with(firsts, np.concatenate((np.ones_like(order), between[between > 0])))

    def sifted(self, name: str, tests: Tests) -> SlotRows:
        """Those that pass, found without making the others. `name` stands for the tests."""
        edges, kept = sieved(self._slots, tests, self._columns, self._held(), self._make)
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
        return SlotRows(self._slots, self._make, self._columns, self._held, stretches=stretches, backwards=backwards)

    def _cell(self, at: int) -> int:
        stretch = int(self._ends.searchsorted(at, "right")) - 1
        within = at - int(self._ends[stretch])
        if self._backwards:
            within = int(self._lengths[stretch]) - 1 - within
        return int(self._firsts[stretch]) + within
