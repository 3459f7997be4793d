"""Cells of what does not change any more: made once, and looked through at each look without being made again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from swift_tiers.radix_tiering.bus.contract.views import RequestView

from ...model.table import Cell

#: Subjects of which cells are kept: beyond, those that came first go.
MOST = 10_000


class SettledCells(NamedTuple):
    """Those of one subject. `said`: all that they say, in one text for words to be looked for."""

    cells: tuple[Cell, ...]
    said: str


class Settled:
    """One thread."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, SettledCells] = {}

    def of(self, key: Hashable, make: Callable[[], tuple[Cell, ...]]) -> SettledCells:
        """What was made for this key before."""
        kept = self._kept.get(key)
        if kept is None:
            cells = make()
            kept = SettledCells(cells, "\n".join(cell.text for cell in cells).casefold())
            while len(self._kept) >= MOST:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = kept
        return kept


def request_key(view: RequestView) -> Hashable:
    """Of one that has ended: nothing of it changes any more. A client may use its id again."""
    return view.server, view.rank, view.rid, view.arrived, view.ended


# ---- what was worked out of an answer, kept until the next one comes: a screen is painted many times between two ----

Source = TypeVar("Source")
Made = TypeVar("Made")


class Remembered(Generic[Source, Made]):
    """A pure function of something that never changes, with the last results. One thread."""

    def __init__(self, make: Callable[[Source], Made], kept: int = 16) -> None:
        self._make = make
        self._most = kept
        self._kept: OrderedDict[int, tuple[Source, Made]] = OrderedDict()

    def of(self, source: Source) -> Made:
        """By identity: answers are long, and comparing them would cost what they cost."""
        kept = self._kept.pop(id(source), None)
        # The source is held, too: as long as it is, nothing else has its address.
        if kept is None:
            kept = (source, self._make(source))
        self._kept[id(source)] = kept
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return kept[1]
