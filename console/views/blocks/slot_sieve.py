"""A filter on all slots of a tier: what it keeps, from runs of states and parts, without a row for each slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from swift_tiers.radix_tiering.bus.hear.figures import NONE

from ...model.sieve import Test, Tests
from ...model.table import Cell, Row
from .block_holders import HeldCells
from .slot_map import SlotCells

#: Where there are more cells, a slot is found by its whole number only, and not by a regular expression.
MOST_NUMBERS = 300_000

Cells = NDArray[np.int64]
Kept = NDArray[np.bool_]


def sieved(
    slots: SlotCells, tests: Tests, columns: Sequence[str], held: HeldCells, make: Callable[[int], Row]
) -> tuple[Cells, Kept]:
    """Edges of cells from 0 to their end, and whether what is between two of them passes."""
    numbers = [_numbers(slots, test) if test.column in (None, 0) else np.zeros(0, np.int64) for test in tests]
    edges = np.unique(np.concatenate((slots.ends, slots.starts, held.cells, held.cells + 1, *numbers)))
    edges = edges[(edges >= 0) & (edges <= slots.cells)]
    at = edges[:-1]
    kept = np.ones(len(at), bool)
    if not len(at):
        return np.array([0, 0], np.int64), np.zeros(1, bool)
    of_held = at.searchsorted(held.cells)

    def says(test: Test, number: int, cells: Cells, alike: NDArray[np.int64]) -> Kept:
        """Of cells that say the same one is asked."""
        _, firsts, kind = np.unique(alike, return_index=True, return_inverse=True)
        return np.array([test.passes(make(int(cell)).cells[number]) for cell in cells[firsts]], bool)[kind]

    alike = {
        "state": slots.codes[slots.ends.searchsorted(at, "right") - 1],
        "part": slots.starts.searchsorted(at, "right") - 1,
    }
    for test, found in zip(tests, numbers, strict=True):
        # The edges of what is found alternate: after the first it is found, after the second no more.
        passed = found.searchsorted(at, "right") % 2 == 1
        for number, name in enumerate(columns):
            if number == 0 or test.column not in (None, number):
                continue
            if name in alike:
                passed |= says(test, number, at, alike[name])
            else:
                others = np.full(len(at), test.passes(Cell(NONE)))
                if name in held.alike:
                    others[of_held] = says(test, number, held.cells, held.alike[name])
                passed |= others
        kept &= passed == test.wanted
    return edges, kept


def _numbers(slots: SlotCells, test: Test) -> Cells:
    """Where the cells whose number passes begin and end, in turns."""
    if test.between is not None:
        return _between(slots, *test.between)
    if test.word and not any(sign.isdecimal() or sign == "-" for sign in test.word):
        return np.zeros(0, np.int64)
    if test.term not in slots.searched:
        slots.searched[test.term] = _searched(slots, test)
    return slots.searched[test.term]


def _searched(slots: SlotCells, test: Test) -> Cells:
    if slots.cells > MOST_NUMBERS:
        slot = int(test.word) if test.word.isdecimal() else -1
        found = [slots.cell_of(slot, part.name) for part in slots.parts]
        mask_at = sorted(cell for cell in found if cell is not None)
        return np.array([edge for cell in mask_at for edge in (cell, cell + 1)], np.int64)
    passes = np.zeros(slots.cells + 2, bool)
    if test.word and slots.per_cell == 1 and slots.one_piece:
        base = slots.slots_of(0)[0] if slots.cells else 0
        texts = np.arange(base, base + slots.cells).astype(str)
        passes[1:-1] = np.char.find(texts, test.word) >= 0
        return np.flatnonzero(np.diff(passes)).astype(np.int64)
    for number in range(slots.cells):
        first, last = slots.slots_of(number)
        passes[number + 1] = test.passes(Cell(str(first) if first == last else f"{first}-{last}", first))
    return np.flatnonzero(np.diff(passes)).astype(np.int64)


def _between(slots: SlotCells, low: float, high: float) -> Cells:
    """Cells whose first slot lies between these, part by part."""
    edges: list[int] = []
    for number in range(len(slots.parts)):
        begin, end = int(slots.starts[number]), int(slots.starts[number + 1])
        if begin == end:
            continue
        base = slots.slots_of(begin)[0]
        # The first cell above `low`, and the first that is not below `high`.
        first = begin + max(0, int(np.floor(min(max((low - base) / slots.per_cell, -1), end - begin))) + 1)
        last = begin + max(0, int(np.ceil(min(max((high - base) / slots.per_cell, -1), end - begin))))
        first, last = min(first, end), min(last, end)
        if first < last:
            edges += (first, last)
    return np.array(edges, np.int64)
