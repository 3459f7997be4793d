"""The slots of a tier as one rank told them: runs of cells, and arithmetic on them that never walks over slots.

A tier of a terabyte has millions of slots, and few runs. Everything here costs what its runs cost.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from swift_tiers.radix_tiering.bus.contract.views import MapPart, MapView
from swift_tiers.radix_tiering.bus.hear.figures import text

from ..parts.settled import Remembered

#: The order of legends; and what is wanted most where several states share a sign comes last.
STATES = ("free", "private", "cached", "pinned", "lent", "borrowed", "recomputing", "loading", "out")
#: States that are soon over, or a fault: where there are few of them, they are seen wherever one cell has them.
RARE = ("recomputing", "loading", "out")
#: Few: at most this share of what is drawn would show them. More of them would hide everything else.
FEW = 0.1


class SlotCells:
    """One answer. Cells are numbered from 0; a part's first cell stands for its slot 0.

    Where the tier is of one piece there is one part without a name, and its first slot is `first_slot`.
    """

    def __init__(self, view: MapView) -> None:
        """`view.slots` is known. What does not fit together in it is shown as far as its runs go."""
        self.view = view
        self.per_cell = max(1, view.slots_per_cell or 1)
        words, told = zip(*view.cells, strict=True) if view.cells else ((), ())
        self.states = (*STATES, *(word for word in dict.fromkeys(words) if word not in STATES))
        number = {state: code for code, state in enumerate(self.states)}
        self.codes = np.fromiter(map(number.__getitem__, words), np.int64, len(words))
        lengths = np.array(told, np.int64)
        #: Before which cell each run ends, with a zero before the first one.
        self.ends: NDArray[np.int64] = np.concatenate(([0], np.cumsum(lengths)))
        self.cells = int(self.ends[-1])
        self.parts = view.parts
        in_parts = [-(-part.slots // self.per_cell) for part in view.parts]
        if not view.parts or sum(in_parts) != self.cells:
            self.parts = (MapPart("", min(view.slots or 0, self.cells * self.per_cell)),)
            in_parts = [self.cells]
        #: The first cell of each part, and the end of the last one.
        self.starts: NDArray[np.int64] = np.concatenate(([0], np.cumsum(np.array(in_parts, np.int64))))
        #: What filters found among the numbers of slots, by their terms: an answer is sifted many times.
        self.searched: dict[str, NDArray[np.int64]] = {}
        self._below: NDArray[np.int64] | None = None
        self.counts = self._counts()

    @property
    def one_piece(self) -> bool:
        return len(self.parts) == 1 and not self.parts[0].name

    def name(self, part: int) -> str:
        """Of a part, as people call it; empty where the tier is of one piece."""
        name = text(self.parts[part].name)
        return f"device {name}" if name and self.view.tier == "ssd" else name

    def state(self, cell: int) -> str:
        return self.states[self.codes[self.ends.searchsorted(cell, "right") - 1]]

    def part(self, cell: int) -> int:
        """The number of the part that a cell is in."""
        return 0 if len(self.parts) == 1 else int(self.starts.searchsorted(cell, "right")) - 1

    def slots_of(self, cell: int) -> tuple[int, int]:
        """The first and the last slot that a cell stands for, as they are numbered in its part."""
        part = self.part(cell)
        first = (cell - int(self.starts[part])) * self.per_cell
        last = min(first + self.per_cell, max(self.parts[part].slots, first + 1)) - 1
        base = (self.view.first_slot or 0) if self.one_piece else 0
        return base + first, base + last

    def cell_of(self, slot: int, part: str = "") -> int | None:
        """The cell of a slot; None where there is no such slot or part."""
        if self.one_piece:
            slot -= self.view.first_slot or 0
        number = next((at for at, one in enumerate(self.parts) if one.name == part), None)
        if number is None or not 0 <= slot < self.parts[number].slots:
            return None
        return int(self.starts[number]) + slot // self.per_cell

    def cells_of(self, runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """First and last cells of runs of slots, as block tables have them, of a tier of one piece."""
        base, last = self.view.first_slot or 0, self.cells - 1
        cells = [((first - base) // self.per_cell, (end - base) // self.per_cell) for first, end in runs]
        return [(max(0, first), min(last, end)) for first, end in cells if first <= last and end >= 0]

    def strongest(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """The state of each stretch of cells between two edges: what most of them are, or one of RARE that is among
        them. Of an empty stretch: -1."""
        within = np.diff(self._count_below(edges), axis=1)
        most = np.argmax(within, axis=0)
        for state in RARE:
            code = STATES.index(state)
            there = within[code] > 0
            if there.sum() <= max(1.0, FEW * len(most)):
                most[there] = code
        most[np.diff(edges) <= 0] = -1
        return most

    def _count_below(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many cells of each state there are before each edge: a row each state."""
        if not len(self.codes):
            return np.zeros((len(self.states), len(edges)), np.int64)
        if self._below is None:
            lengths = np.diff(self.ends)
            every = np.zeros((len(self.states), len(lengths) + 1), np.int64)
            every[self.codes, np.arange(1, len(lengths) + 1)] = lengths
            self._below = np.cumsum(every, axis=1)
        run = np.clip(self.ends.searchsorted(edges, "right") - 1, 0, len(self.codes) - 1)
        found = self._below[:, run]
        found[self.codes[run], np.arange(len(edges))] += np.minimum(edges, self.cells) - self.ends[run]
        return found

    def _counts(self) -> dict[str, int]:
        """Slots of each state that there is; where a cell stands for several, about."""
        lengths = np.diff(self.ends) * self.per_cell
        counts = np.bincount(self.codes, weights=lengths, minlength=len(self.states)).astype(np.int64)
        for number, part in enumerate(self.parts):
            first, end = int(self.starts[number]), int(self.starts[number + 1])
            if end > first:  # the last cell of a part may stand for fewer
                counts[self.states.index(self.state(end - 1))] -= (end - first) * self.per_cell - part.slots
        return {state: int(slots) for state, slots in zip(self.states, counts, strict=True) if slots > 0}


_MAPS: Remembered[MapView, SlotCells] = Remembered(SlotCells)


def slot_map(view: MapView) -> SlotCells:
    """The map of an answer whose `slots` are known. The app's thread only."""
    return _MAPS.of(view)
