"""Tables of results, in which the paper's number stands beside ours: for terminals, for Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

Cell = str | float | int | None


class Compared(msgspec.Struct, frozen=True):
    """A result beside the paper's, which is `low` to `high`."""

    what: str
    ours: float
    low: float
    high: float
    within: float  # by this part of the paper's number ours may lie outside of it
    reproduced: bool  # as the table says; a test holds it against the numbers

    @property
    def holds(self) -> bool:
        return self.low * (1 - self.within) <= self.ours <= self.high * (1 + self.within)

    @property
    def shown(self) -> str:
        return f"within {self.within:.0%}" if self.reproduced else "not reproduced"


#: The column that says whether the paper's number is held.
HELD = "held"
#: By how much of the paper's number ours may differ from it, where a table says nothing else.
TOLERANCE = 0.15


def compared(
    what: str, ours: float, low: float, high: float | None = None, *, within: float = TOLERANCE, reproduced: bool = True
) -> Compared:
    """`high`: `low`, if None."""
    return Compared(what, ours, low, low if high is None else high, within, reproduced)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One result. Numbers are rounded where the table is made, so that it says the same on every machine."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    #: What is assumed, and an honest word on how it differs from the paper; one paragraph each.
    notes: tuple[str, ...] = ()
    #: Every number of a paper that is shown.
    compared: tuple[Compared, ...] = ()


def table(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    notes: Sequence[str] = (),
    against: Sequence[Compared] = (),
) -> Table:
    """Raises ValueError for a row that does not fit."""
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"{name}: rows and columns differ")
    cells = tuple(tuple(row) for row in rows)
    return Table(
        name=name, title=title, columns=tuple(columns), rows=cells, notes=tuple(notes), compared=tuple(against)
    )


def shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


def as_text(result: Table) -> str:
    cells = [result.columns, *(tuple(shown(cell) for cell in row) for row in result.rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(result.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([result.title, *(f"  {line}" for line in lines), *(f"  {note}" for note in result.notes)])


def as_markdown(result: Table) -> str:
    lines = [
        f"### {result.title}", "",
        "| " + " | ".join(result.columns) + " |",
        "|" + "---|" * len(result.columns),
        *("| " + " | ".join(shown(cell) for cell in row) + " |" for row in result.rows),
    ]  # fmt: skip
    for note in result.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def as_json(result: Table) -> Any:
    return msgspec.to_builtins(result)
