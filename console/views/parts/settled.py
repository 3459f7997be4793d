"""Cells of what does not change any more: made once, and looked through at each look without being made again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

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
