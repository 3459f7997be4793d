"""Requests: all of them as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import RequestView, Snapshot
from swift_tiers.radix_tiering.bus.hear.figures import UNKNOWN, count, seconds, short, text
from swift_tiers.radix_tiering.bus.hear.reader import Part
from swift_tiers.radix_tiering.bus.hear.request_words import age, sources, when
from swift_tiers.radix_tiering.bus.hear.troubles import Troubles

from .tables import Look, Row, describe, describe_troubles, lines, table


def show_requests(snapshot: Snapshot, limit: int) -> Look:
    """Those that are there, the longest first, then at most `limit` that have ended, the latest first."""
    troubles = Troubles(snapshot, Part.REQUESTS)
    servers = [state.server for state in snapshot.servers]
    requests = [request for state in snapshot.servers for rank in state.ranks for request in rank.requests]
    live = [views for views in by_request(requests) if views[0].live]
    ended = [views for views in by_request(requests) if not views[0].live]
    live.sort(key=lambda views: views[0].arrived or 0.0)
    ended.sort(key=lambda views: -(views[0].ended or 0.0))
    chosen = [*live, *ended[:limit]]
    found = troubles.of([*servers, *(view for views in chosen for view in views)])
    columns = (
        " rank| request|state|age|prompt|device|peer|host|ssd|computed|first token|queued|restoring| restore|output"
    )
    shown: list[RenderableType] = [*lines(found), table(columns, map(_row, chosen), troubles)]
    if len(ended) > limit:
        shown.append(Text(f"and {len(ended) - limit} that ended before; --limit shows more"))
    if not servers:
        shown = [Text("no server has been on this bus within the last hour")]
    content = {
        "time": snapshot.time,
        "requests": describe(view for views in chosen for view in views),
        "troubles": describe_troubles(found),
    }
    return Look(content, shown)


def by_request(requests: Iterable[RequestView]) -> list[list[RequestView]]:
    """What the tensor ranks of one server say of the same request belongs together."""
    groups: dict[tuple[str, str, str], list[RequestView]] = {}
    for request in requests:
        group = request.rank.partition("-")[0]
        groups.setdefault((request.server, group, request.rid), []).append(request)
    return list(groups.values())


def _row(views: Sequence[RequestView]) -> Row:
    view = views[0]
    others = f" +{len(views) - 1}" if len(views) > 1 else ""
    return Row(
        views,
        [
            f"{text(view.server)} {text(view.rank)}{others}", short(view.rid), text(view.state), seconds(age(view)),
            count(view.prompt_tokens), *map(count, sources(view)), when(view.first_token_seconds),
            when(view.queue_seconds),
            seconds(view.restore_seconds), text(view.restore) or UNKNOWN, count(view.output_tokens),
        ],
    )  # fmt: skip
