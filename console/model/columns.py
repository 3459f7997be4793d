"""Which columns of a table have room, and how texts fill them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from .glyphs import Glyphs
from .table import Column

#: Cells between two columns.
GAP = 2


class Fitted(NamedTuple):
    """The columns that have room, by their numbers, and how wide each of all is drawn."""

    shown: list[int]
    widths: list[int]


def fitted(columns: Sequence[Column], widths: Sequence[int], room: int) -> Fitted:
    """Those that can are narrowed first; then those of the lowest rank go, and of these the last."""
    narrow = [min(width, column.least or width) for column, width in zip(columns, widths, strict=True)]
    shown = list(range(len(columns)))
    while len(shown) > 1 and _taken(shown, narrow) > room:
        shown.remove(min(shown, key=lambda number: (columns[number].rank, -number)))
    left = max(0, room - _taken(shown, narrow))
    for number in shown:
        more = min(left, widths[number] - narrow[number])
        narrow[number] += more
        left -= more
    return Fitted(shown, narrow)


def _taken(shown: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[number] + GAP for number in shown) - GAP


def fit(text: str, width: int, right: bool, glyphs: Glyphs) -> str:
    """Exactly `width` cells."""
    if cell_len(text) > width:
        return set_cell_size(set_cell_size(text, max(0, width - len(glyphs.ellipsis))) + glyphs.ellipsis, width)
    return " " * (width - cell_len(text)) + text if right else text + " " * (width - cell_len(text))
