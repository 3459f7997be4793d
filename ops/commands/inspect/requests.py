"""Requests: all of them as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from swift_tiers.console.model.table import Cell, Column, Row, Table
from swift_tiers.console.views.parts.rank_table import HOME, STATE, count_cell, mark_cell
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.radix_tiering.bus.contract.views import RequestView, Snapshot
from swift_tiers.radix_tiering.bus.hear.figures import UNKNOWN, seconds, short, text
from swift_tiers.radix_tiering.bus.hear.request_words import age, sources, when
from swift_tiers.radix_tiering.bus.hear.troubles import request_troubles

_COUNTS = (("prompt", 8), ("device", 6), ("peer", 5), ("host", 6), ("ssd", 6), ("remote", 4), ("computed", 6))
_TIMES = (("first token", 8), ("queued", 4), ("restoring", 5))
REQUESTS = (
    STATE._replace(name="mark"), *HOME, Column("request", rank=9), Column("state", rank=9),
    Column("age", right=True, rank=8), *(Column(name, right=True, rank=rank) for name, rank in (*_COUNTS, *_TIMES)),
    Column("restore", rank=3), Column("output", right=True, rank=3),
)  # fmt: skip


class Chosen(NamedTuple):
    """Requests, as each of their ranks saw them, and how many others ended before."""

    shown: list[list[RequestView]]
    left_out: int


def chosen_requests(snapshot: Snapshot, limit: int) -> Chosen:
    """Those that are there, the longest first, then at most `limit` that have ended, the latest first."""
    groups = by_request(view for state in snapshot.servers for rank in state.ranks for view in rank.requests)
    live = sorted((views for views in groups if views[0].live), key=lambda views: views[0].arrived or 0.0)
    ended = sorted((views for views in groups if not views[0].live), key=lambda views: -(views[0].ended or 0.0))
    return Chosen([*live, *ended[:limit]], max(0, len(ended) - limit))


def by_request(requests: Iterable[RequestView]) -> list[list[RequestView]]:
    """What the tensor ranks of one server say of the same request belongs together."""
    groups: dict[tuple[str, str, str], list[RequestView]] = {}
    for request in requests:
        group = request.rank.partition("-")[0]
        groups.setdefault((request.server, group, request.rid), []).append(request)
    return list(groups.values())


def request_table(limit: int, scene: Scene) -> Table:
    """One row for each request, however many ranks saw it; those in trouble first."""
    assert scene.moment.snapshot is not None
    rows = [_row(views) for views in chosen_requests(scene.moment.snapshot, limit).shown]
    rows.sort(key=lambda row: -row.cells[0].value)
    return Table(REQUESTS, rows, empty="no request has been there within the last five minutes")


def _row(views: list[RequestView]) -> Row:
    view = views[0]
    others = f" +{len(views) - 1}" if len(views) > 1 else ""
    cells = (
        mark_cell(trouble for one in views for trouble in request_troubles(one)), Cell(text(view.server)),
        Cell(f"{text(view.rank)}{others}"), Cell(short(view.rid)), Cell(text(view.state)), Cell(seconds(age(view))),
        count_cell(view.prompt_tokens), *map(count_cell, sources(view)), Cell(when(view.first_token_seconds)),
        Cell(when(view.queue_seconds)), Cell(seconds(view.restore_seconds)), Cell(text(view.restore) or UNKNOWN),
        count_cell(view.output_tokens),
    )  # fmt: skip
    return Row(f"{view.server} {view.rank} {view.rid}", cells)
