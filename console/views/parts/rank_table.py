"""Tables with one row for each thing that a rank says: a tier, a link, its tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from swift_tiers.radix_tiering.bus.contract.views import RankedView
from swift_tiers.radix_tiering.bus.hear.figures import count, seconds, size, text
from swift_tiers.radix_tiering.bus.hear.trouble import Mark, Trouble

from ...model.palette import MARKS
from ...model.place import Place
from ...model.table import Cell, Column, Row, Table
from .view import Scene

Ranked = TypeVar("Ranked", bound=RankedView)

#: In front of what ranks say of themselves.
STATE = Column("state", rank=9, words=True)
HOME = (Column("server", widest=24, rank=9), Column("rank", rank=9))
SAID = Column("said", right=True, rank=0, unit="s ago")


class RankColumn(NamedTuple):
    """One column of such a table, and how its cell is made of what a rank says."""

    column: Column
    cell: Callable[[Any], Cell]


def rank_table(
    scene: Scene,
    views: Iterable[Ranked],
    fields: Sequence[RankColumn],
    troubles: Callable[[Ranked], Iterable[Trouble]] = lambda view: (),
    place: Callable[[Ranked], Place | None] = lambda view: None,
    empty: str = "nothing here",
) -> Table:
    """How each is, whose it is unless the scene is of one server, the fields, and how long ago the rank said so."""
    home = HOME if scene.server is None else HOME[1:]

    def row(view: Ranked) -> Row:
        names = (Cell(text(view.server), style="title"), Cell(text(view.rank)))
        fixed = (mark_cell(troubles(view)), *names[-len(home) :])
        cells = (*fixed, *(field.cell(view) for field in fields), said_cell(scene, view))
        key = " ".join(cell.text for cell in cells[1 : 2 + len(home)])
        return Row(key, cells, place(view), view, scene.moment.is_old(view))

    columns = (STATE, *home, *(field.column for field in fields), SAID)
    return Table(columns, [row(view) for view in views], empty=empty)


def mark_cell(troubles: Iterable[Trouble]) -> Cell:
    """The worst of them."""
    mark = max((trouble.mark for trouble in troubles), default=Mark.OK)
    return Cell(str(mark), int(mark), MARKS[mark])


def said_cell(scene: Scene, view: RankedView) -> Cell:
    age = scene.moment.age_of(view)
    return Cell(seconds(age), age)


def count_cell(value: float | None) -> Cell:
    return Cell(count(value), value)


def size_cell(value: float | None) -> Cell:
    return Cell(size(value), value)


def counted(name: str, field: str, rank: int = 1, unit: str = "") -> RankColumn:
    """A field of the view that counts something."""
    return RankColumn(Column(name, right=True, rank=rank, unit=unit), lambda view: count_cell(getattr(view, field)))


def sized(name: str, field: str, rank: int = 1, unit: str = "B") -> RankColumn:
    """A field of the view that is of bytes."""
    return RankColumn(Column(name, right=True, rank=rank, unit=unit), lambda view: size_cell(getattr(view, field)))
