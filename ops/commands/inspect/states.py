"""Tables of the console, printed: servers, tiers, devices, links with GPUs, leases, trees and requests just now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from swift_tiers.console.feeds.feed import Look as ConsoleLook
from swift_tiers.console.feeds.watching import Watcher
from swift_tiers.console.model.moment import Moment
from swift_tiers.console.model.place import Place
from swift_tiers.console.model.table import Row, Table
from swift_tiers.console.views import Overview
from swift_tiers.console.views.leases.view import lease_table, lending_table, pair_table
from swift_tiers.console.views.links.gpu_tables import gpu_table, reach_table
from swift_tiers.console.views.links.view import link_table
from swift_tiers.console.views.overview.rank_tables import directory_table, engine_table, remote_table, tier_table
from swift_tiers.console.views.parts.drawn import drawn
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.console.views.stripes.view import lane_table, set_table
from swift_tiers.console.views.tree.view import tree_table
from swift_tiers.radix_tiering.bus.contract.views import RankState, Snapshot, View
from swift_tiers.radix_tiering.bus.hear.figures import count
from swift_tiers.radix_tiering.bus.hear.lease_pairs import leases_of, pairs_of, views_of
from swift_tiers.radix_tiering.bus.hear.reader import BusReader, Part
from swift_tiers.radix_tiering.bus.hear.troubles import Troubles

from .looks import HEIGHT, MOST_ROWS, Inspection, describe, describe_troubles, glyphs_of, lines
from .requests import chosen_requests, request_table

#: Cells that a text may take: what is printed is not cut.
WIDEST = 200

ConsoleTable = Callable[[Scene], Table]
#: The views that programs get, by their names.
Described = Callable[[Snapshot], dict[str, list[Any]]]


class Subject(NamedTuple):
    """What to read for it, the views that programs get, and the tables that are printed: the first even if empty."""

    parts: Part
    views: Described
    tables: Sequence[ConsoleTable]
    missing: Callable[[Snapshot], Sequence[str]] = lambda snapshot: ()  # which rows of the last table are not there


class StateLooker:
    """Looks at one subject, and remembers the looks before for what has grown since."""

    def __init__(self, subject: Subject, server: str | None) -> None:
        self._subject = subject
        self._server = server
        self._watcher = Watcher()

    def __call__(self, reader: BusReader) -> Inspection:
        subject, watcher = self._subject, self._watcher
        snapshot = reader.snapshot(subject.parts, self._server)
        alarms = watcher.take(ConsoleLook(snapshot=snapshot))
        moment = Moment(snapshot, 0.0, "", watcher.history, alarms, watcher.events)
        troubles = Troubles(snapshot, subject.parts, watcher.history.lately)
        views = subject.views(snapshot)
        servers: list[View] = [state.server for state in snapshot.servers]
        others = [view for name, listed in views.items() if name != "servers" for view in listed]
        found = troubles.of([*servers, *others])
        described = {name: describe(listed) for name, listed in views.items()}
        shown: list[RenderableType] = [Text("no server has been on this bus within the last hour")]
        if servers:
            shown = [*lines(found), PrintedTables(moment, subject.tables)]
            shown += map(Text, subject.missing(snapshot))
        return Inspection({"time": snapshot.time, **described, "troubles": describe_troubles(found)}, shown)


class PrintedTables(NamedTuple):
    """Tables of the console, the worst rows of each first, as wide as there is room for."""

    moment: Moment
    tables: Sequence[ConsoleTable]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        scene = Scene(self.moment, Place("inspect"), width=options.max_width, height=HEIGHT, glyphs=glyphs_of(options))
        for number, make in enumerate(self.tables):
            table = _for_print(make(scene))
            if number and not table.rows:
                continue
            if number:
                yield Text()
            for line in drawn(scene, table, MOST_ROWS):
                line.end = "\n"
                yield line


def _for_print(table: Table) -> Table:
    """The worst rows first; without columns that are empty in each row, and nothing is cut."""
    rows = list(islice(_worst_first(table), MOST_ROWS))
    numbers = range(len(table.columns))
    kept = [number for number in numbers if not rows or any(row.cells[number].text.strip() for row in rows)]
    columns = tuple(table.columns[number]._replace(widest=WIDEST) for number in kept)
    return table._replace(
        columns=columns, rows=[row._replace(cells=tuple(row.cells[number] for number in kept)) for row in rows]
    )


def _worst_first(table: Table) -> Iterable[Row]:
    if table.columns and table.columns[0].name == "state":
        return sorted(table.rows, key=lambda row: -row.cells[0].value)
    return table.rows


def subject_named(name: str, limit: int) -> Subject:
    """One of those that are states. `limit`: leases, or requests that have ended, at most."""
    if name == "leases":
        tables = (pair_table, lending_table, partial(_first, limit, lease_table))
        return Subject(Part.RANKS | Part.LEASES, _of_leases, tables, partial(_missing_leases, limit))
    if name == "requests":
        return Subject(
            Part.REQUESTS,
            lambda snapshot: {"requests": [view for views in chosen_requests(snapshot, limit).shown for view in views]},
            (partial(request_table, limit),),
            lambda snapshot: _more(chosen_requests(snapshot, limit).left_out),
        )
    return _SUBJECTS[name]


def _first(most: int, make: ConsoleTable, scene: Scene) -> Table:
    table = make(scene)
    return table._replace(rows=list(islice(_worst_first(table), most)))


def _more(left_out: int) -> list[str]:
    return [f"and {count(left_out)} more; --limit shows more of them"] if left_out > 0 else []


def _of_leases(snapshot: Snapshot) -> dict[str, list[Any]]:
    ranks = [state.rank for state in _ranks(snapshot) if state.rank is not None]
    lending = [rank for rank in ranks if rank.lent_bytes is not None]
    return {"ranks": lending, "leases": views_of(_ranks(snapshot))}


def _missing_leases(limit: int, snapshot: Snapshot) -> list[str]:
    pairs = pairs_of(views_of(_ranks(snapshot)))
    listed = sum(len(leases_of(pair)) for pair in pairs)
    there = sum(max(view.leases or 0 for view in pair.views) for pair in pairs)
    not_listed = f"and {count(there - listed)} of which the bus has no more than their number"
    return [*_more(listed - limit), *([not_listed] if there > listed else [])]


def _ranks(snapshot: Snapshot) -> list[RankState]:
    return [rank for state in snapshot.servers for rank in state.ranks]


def _of_ranks(**fields: str) -> Described:
    """For each name the views that this field of the ranks has: one, several, or none."""

    def of(snapshot: Snapshot) -> dict[str, list[Any]]:
        ranks = _ranks(snapshot)
        return {
            name: [view for rank in ranks for view in _listed(getattr(rank, field))] for name, field in fields.items()
        }

    return of


def _listed(value: Any) -> tuple[Any, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


_SUBJECTS = {
    "servers": Subject(
        Part.RANKS,
        lambda snapshot: {
            "servers": [state.server for state in snapshot.servers],
            **_of_ranks(ranks="rank")(snapshot),
        },
        (Overview().table, engine_table, remote_table),
    ),
    "tiers": Subject(
        Part.RANKS | Part.TIERS | Part.DIRECTORIES,
        _of_ranks(tiers="tiers", directories="directory"),
        (tier_table, directory_table),
    ),
    "devices": Subject(
        Part.RANKS | Part.DEVICES, _of_ranks(devices="devices", stripe_sets="stripe_set"), (lane_table, set_table)
    ),
    "links": Subject(
        Part.RANKS | Part.LINKS,
        _of_ranks(links="links", gpus="gpu", reaches="reaches"),
        (link_table, gpu_table, reach_table),
    ),
    "tree": Subject(Part.RANKS | Part.TREES, _of_ranks(trees="tree"), (tree_table,)),
}
