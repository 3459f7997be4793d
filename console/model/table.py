"""A table as data: what a grid draws, a filter sifts, an export writes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size

from .glyphs import Glyphs
from .place import Place

#: What spreadsheets take for the beginning of a formula.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")

Subject = TypeVar("Subject")


class Column(NamedTuple):
    """One column. Its `name` is its heading, and what a filter calls it."""

    name: str
    right: bool = False
    widest: int = 40  # cells; longer texts are cut
    rank: int = 0  # columns with the lowest rank go first where the terminal is narrow
    least: int = 0  # cells; it is narrowed so far before others go; 0: it is not
    unit: str = ""  # of its values, and the time that they are of, for exports; empty: it counts, or names
    words: bool = False  # exports have what is shown: the value only orders the rows

    @property
    def heading(self) -> str:
        """Of an export: `p99 (s of a request, last 60 s)`."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


class Cell(NamedTuple):
    """What one row says in one column."""

    text: str
    value: Any = None  # what it is sorted by and exported as; None: the text
    style: str = ""  # a name of the palette

    @property
    def content(self) -> Any:
        return self.text if self.value is None else self.value


class Row(NamedTuple):
    """One row. `key` tells it from the others from one look to the next."""

    key: str
    cells: tuple[Cell, ...]
    place: Place | None = None  # where Enter leads
    subject: Any = None  # the view that it is about: what orders act upon
    stale: bool = False  # what it says is older than it should be


class Table(NamedTuple):
    """Rows under columns. `rows` may make its rows as they are asked for: nobody walks over all of them to draw."""

    columns: tuple[Column, ...]
    rows: Sequence[Row]
    empty: str = "nothing here"
    follow: bool = False  # new rows come first: a cursor on the first row stays on the first
    start: str = ""  # key of the row that the cursor begins at; empty: the first


class Sorting(NamedTuple):
    """By which column, and whether the largest come first. Column None: as the view has them."""

    column: str | None = None
    descending: bool = True


def ordered(table: Table, sorting: Sorting) -> Sequence[Row]:
    """The rows in this order; what has no value comes last, either way. Rows that can do it themselves are asked."""
    names = [column.name for column in table.columns]
    if sorting.column not in names:
        return table.rows
    order = getattr(table.rows, "ordered", None)
    if order is not None:
        rows: Sequence[Row] = order(sorting.column, sorting.descending)
        return rows
    at = names.index(sorting.column)
    return arranged(table.rows, lambda row: row.cells[at].content, sorting.descending)


def arranged(subjects: Iterable[Subject], content: Callable[[Subject], Any], descending: bool) -> list[Subject]:
    """In the order of their contents, each of which is asked for once; what has none comes last."""
    found = [(content(subject), subject) for subject in subjects]
    with_value = [(_order(value), subject) for value, subject in found if value not in ("", "-", "?")]
    with_value.sort(key=lambda pair: pair[0], reverse=descending)
    without = (subject for value, subject in found if value in ("", "-", "?"))
    return [*(subject for _, subject in with_value), *without]


def _order(value: Any) -> tuple[int, Any]:
    if isinstance(value, (int, float)):
        return 0, value
    return 1, str(value).casefold()


def exported(column: Column, cell: Cell) -> Any:
    """What a program gets of a cell: None where nothing is known."""
    if cell.value is not None and not column.words:
        return cell.value
    return None if cell.text in ("", "-", "?") else cell.text


def as_csv(table: Table, rows: Sequence[Row]) -> str:
    """With a line of headings; values as they are, not as they are shown. A text that a spreadsheet would take for a
    formula has an apostrophe in front. What is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.heading for column in table.columns])
    writer.writerows([_no_formula(value) for value in _exported(table, row)] for row in rows)
    return out.getvalue()


def _no_formula(value: Any) -> Any:
    """Clients choose what some cells have, as the ids of requests."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def as_json(table: Table, rows: Sequence[Row]) -> str:
    """A list of objects, one a row."""
    names = [column.heading for column in table.columns]
    content = [dict(zip(names, _exported(table, row), strict=True)) for row in rows]
    return json.dumps(content, indent=1, default=str)


def _exported(table: Table, row: Row) -> list[Any]:
    return [exported(column, cell) for column, cell in zip(table.columns, row.cells, strict=True)]


# ---- which columns of a table have room, and how texts fill them ----

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
