"""Which columns of a table have room, and how texts fill them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from swift_tiers.console.model.glyphs import Glyphs
from swift_tiers.console.model.table import Column

#: Cells between two columns.
GAP = 2


def fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """The columns that have room; those of the lowest rank go first, and of these the last."""
    shown = list(range(len(columns)))
    while len(shown) > 1 and sum(widths[number] + GAP for number in shown) - GAP > room:
        shown.remove(min(shown, key=lambda number: (columns[number].rank, -number)))
    return shown


def fit(text: str, width: int, right: bool, glyphs: Glyphs) -> str:
    """Exactly `width` cells."""
    if cell_len(text) > width:
        return set_cell_size(set_cell_size(text, max(0, width - len(glyphs.ellipsis))) + glyphs.ellipsis, width)
    return " " * (width - cell_len(text)) + text if right else text + " " * (width - cell_len(text))
