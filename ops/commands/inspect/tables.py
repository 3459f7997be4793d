"""Tables whose worst rows come first, beneath lines that say what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import RankedView, RankState, Snapshot, View
from swift_tiers.radix_tiering.bus.hear.figures import seconds, text
from swift_tiers.radix_tiering.bus.hear.troubles import Mark, Trouble, Troubles

#: Columns of the terminal between two columns of a table.
GUTTER = 3
#: What a column of text needs at least; the rest of it is folded.
NARROWEST = 16

_STYLES = {Mark.OK: "green", Mark.NOTE: "cyan", Mark.WARNING: "yellow", Mark.WRONG: "bold red"}


class Look(NamedTuple):
    """What one look at the bus gave."""

    content: dict[str, Any]  # for JSON
    shown: list[RenderableType]


class Row(NamedTuple):
    """One row and the views that it shows: their troubles are its own."""

    views: Sequence[View]
    cells: Sequence[str]


class FittingTable:
    """A table that leaves out its last columns where there is no room for them, and says which."""

    def __init__(self, columns: str) -> None:
        """`columns`: their names, the more important first, joined by `|`. Those that begin with a blank hold text,
        which is folded if need be; the others hold figures, which never are."""
        self._columns = columns.split("|")
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: Text | str) -> None:
        self._rows.append([cell if isinstance(cell, Text) else Text(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._fitting(options.max_width)
        result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for name in self._columns[:shown]:
            if name.startswith(" "):
                result.add_column(Text(name.strip()), overflow="fold")
            else:
                result.add_column(Text(name), justify="right", no_wrap=True)
        for cells in self._rows:
            result.add_row(*cells[:shown])
        yield result
        if shown < len(self._columns):
            left_out = ", ".join(name.strip() for name in self._columns[shown:])
            yield Text(f"no room here for: {left_out}", "dim")

    def _fitting(self, width: int) -> int:
        """How many columns there is room for."""
        taken = -GUTTER
        for index, name in enumerate(self._columns):
            needed = max([cell_len(name.strip()), *(row[index].cell_len for row in self._rows)])
            taken += GUTTER + (min(needed, NARROWEST) if name.startswith(" ") else needed)
            if taken > width:
                return max(1, index)
        return len(self._columns)


def table(columns: str, rows: Iterable[Row], troubles: Troubles) -> FittingTable:
    """The rows with the worst trouble first, and a mark before each; `columns` as of `FittingTable`."""
    result = FittingTable(f" |{columns}")
    marked = [(troubles.mark(*row.views), row) for row in rows]
    for mark, row in sorted(marked, key=lambda pair: -pair[0]):
        result.add_row(_mark(mark), *row.cells)
    return result


def lines(found: Iterable[Trouble]) -> list[RenderableType]:
    """One for each trouble, the worst first."""
    result: list[RenderableType] = []
    for trouble in sorted(found, key=lambda one: -one.mark):
        line = Text.assemble(_mark(trouble.mark), f" {trouble.place}: {trouble.what}")
        if trouble.remedy:
            line.append(f"; {trouble.remedy}")
        result.append(line)
    if result:
        result.append(Text(""))
    return result


def describe(views: Iterable[msgspec.Struct]) -> list[Any]:
    """For JSON."""
    return [msgspec.to_builtins(view) for view in views]


def describe_troubles(found: Iterable[Trouble]) -> list[dict[str, str]]:
    return [
        {"mark": str(trouble.mark), "place": trouble.place, "what": trouble.what, "remedy": trouble.remedy}
        for trouble in found
    ]


def make_look(
    snapshot: Snapshot, troubles: Troubles, views: dict[str, list[Any]], shown: Sequence[RenderableType]
) -> Look:
    """Before the tables, what is wrong with what is in them, and with the servers that said it."""
    servers: list[View] = [state.server for state in snapshot.servers]
    others = [view for name, listed in views.items() if name != "servers" for view in listed]
    found = troubles.of([*servers, *others])
    content = {name: describe(listed) for name, listed in views.items()}
    return Look(
        {"time": snapshot.time, **content, "troubles": describe_troubles(found)},
        [*lines(found), *shown] if servers else [Text("no server has been on this bus within the last hour")],
    )


def ranks_of(snapshot: Snapshot) -> Iterator[RankState]:
    for state in snapshot.servers:
        yield from state.ranks


def place(view: RankedView) -> str:
    return f"{text(view.server)} {text(view.rank)}"


def how_old(view: View) -> str:
    return seconds(view.age_seconds)


def _mark(mark: Mark) -> Text:
    return Text(str(mark), _STYLES[mark])
