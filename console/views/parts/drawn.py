"""A table as lines: what is printed without a screen, and small tables above the one of a view."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.cells import cell_len
from rich.text import Text

from ...model.table import GAP, Column, Row, Table, fit, fitted
from ...model.wrapping import wrapped
from .view import Scene


def drawn(scene: Scene, table: Table, most: int, *, whole: bool = True) -> list[Text]:
    """A heading and at most so many rows, as wide as the scene at most. `whole`: columns without room are named."""
    columns, rows = table.columns, list(islice(table.rows, most))
    if not rows:
        return [scene.line(table.empty)]
    widths = [
        max(cell_len(column.name), min(column.widest, max(cell_len(row.cells[number].text) for row in rows)))
        for number, column in enumerate(columns)
    ]
    shown, widths = fitted(columns, widths, scene.width)
    heads = [(fit(columns[one].name, widths[one], columns[one].right, scene.glyphs), "muted") for one in shown]
    lines = [_line(scene, heads), *(_line(scene, _cells(scene, columns, row, shown, widths)) for row in rows)]
    if len(table.rows) > len(rows):
        lines.append(scene.line(f"and {len(table.rows) - len(rows)} more"))
    if whole and len(shown) < len(columns):
        left_out = ", ".join(column.name for number, column in enumerate(columns) if number not in shown)
        lines += wrapped([scene.line(f"no room here for: {left_out}")], scene.width)
    return lines


def _cells(
    scene: Scene, columns: Sequence[Column], row: Row, shown: Sequence[int], widths: Sequence[int]
) -> list[tuple[str, str]]:
    return [
        (
            fit(row.cells[one].text, widths[one], columns[one].right, scene.glyphs),
            "stale" if row.stale else row.cells[one].style or "text",
        )
        for one in shown
    ]


def _line(scene: Scene, cells: Sequence[tuple[str, str]]) -> Text:
    line = Text(no_wrap=True, end="")
    for words, style in cells:
        line.append(words, scene.palette[style])
        line.append(" " * GAP)
    line.rstrip()
    return line
