"""Requests: all of them as a table, one of them in full, with what made it slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import RequestView, Snapshot
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, runs, seconds, share, short, text
from swift_tiers.radix_tiering.bus.hear.reader import Part
from swift_tiers.radix_tiering.bus.hear.troubles import Troubles, request_troubles

from .tables import FittingTable, Look, Row, describe, describe_troubles, lines, table

#: Runs of a block table that are shown.
BLOCK_RUNS = 40


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
            count(view.prompt_tokens), *map(count, _sources(view)), _when(view.first_token_seconds),
            _when(view.queue_seconds),
            seconds(view.restore_seconds), text(view.restore) or UNKNOWN, count(view.output_tokens),
        ],
    )  # fmt: skip


def _sources(view: RequestView) -> tuple[int | None, ...]:
    """Tokens of its prompt, by where they came from."""
    return view.device_tokens, view.peer_tokens, view.host_tokens, view.ssd_tokens, view.recomputed_tokens


def age(view: RequestView) -> float | None:
    """Since its arrival."""
    if view.time is None or view.arrived is None or view.age_seconds is None:
        return None
    return max(0.0, view.time - view.arrived + view.age_seconds)


def _when(value: float | None) -> str:
    """Empty on the bus as long as it has not come to that."""
    return NONE if value is None else seconds(value)


def show_request(views: Sequence[RequestView]) -> Look:
    """One request as every rank saw it; at least one did."""
    found = [trouble for view in views for trouble in request_troubles(view)]
    facts = FittingTable("|".join([" ", *(f" {view.server} {view.rank}" for view in views)]))
    for name, values in zip(FACTS, zip(*map(_facts, views), strict=True), strict=True):
        facts.add_row(name, *values)
    slowest = max(views, key=lambda view: view.first_token_seconds or age(view) or 0.0)
    shown = [Text(f"request {text(views[0].rid)}"), *lines(found), facts, Text("")]
    why = list(explain(slowest))
    content = {"requests": describe(views), "troubles": describe_troubles(found), "why": why}
    return Look(content, [*shown, *map(Text, why)])


FACTS = (
    "state", "arrived", "prompt tokens", "  found on the device", "  loaded from peers", "  loaded from host",
    "  loaded from ssd", "  computed", "output tokens", "restore", "  waited for pages", "queued", "first token after",
    "ended after", "pages", "  where they were", "  on the device now", "last page of its prompt", "seen",
)  # fmt: skip


def _facts(view: RequestView) -> list[Text]:
    """The values of `FACTS`."""
    lasted = None if view.ended is None or view.arrived is None else view.ended - view.arrived
    table_runs = " ".join(
        str(first) if first == last else f"{first}-{last}" for first, last in view.block_table[:BLOCK_RUNS]
    )
    more = len(view.block_table) - BLOCK_RUNS
    values = (
        text(view.state) or UNKNOWN, f"{seconds(age(view))} ago", count(view.prompt_tokens),
        *(f"{count(tokens)} ({share(tokens, view.prompt_tokens)})" for tokens in _sources(view)),
        count(view.output_tokens),
        text(view.restore) or UNKNOWN, seconds(view.restore_seconds), _when(view.queue_seconds),
        _when(view.first_token_seconds), _when(lasted), count(view.pages), runs(view.tiers),
        (table_runs or NONE) + (f" and {more} more runs" if more > 0 else ""),
        text(view.last_page) or NONE, f"{seconds(view.age_seconds)} ago",
    )  # fmt: skip
    return [Text(value) for value in values]


def explain(view: RequestView) -> Iterator[str]:
    """What its time to the first token went into, and where to look further."""
    if view.queue_seconds is None:
        if view.live:
            what = "waits for its pages from below the device" if view.state == "restoring" else "waits for its turn"
            yield f"nothing is computed yet: it {what}, since {seconds(age(view))}"
            yield "where to look: `inspect servers` (running and waiting requests), `inspect devices` (slow ones)"
        return
    stages = _stages(view)
    whole = sum(stage.seconds for stage in stages)
    spent = ", ".join(f"{seconds(stage.seconds)} ({share(stage.seconds, whole)}) {stage.what}" for stage in stages)
    if view.first_token_seconds is None:
        yield f"no token yet; until its computation began: {spent}"
    else:
        yield f"first token after {seconds(view.first_token_seconds)}: {spent}"
    longest = max(stages, key=lambda stage: stage.seconds)
    if longest.seconds:
        yield f"most of it went into {longest.what}; where to look: {longest.where}"


class Stage(NamedTuple):
    """A part of a request's way to its first token."""

    what: str
    seconds: float
    where: str  # to look if it is long


def _stages(view: RequestView) -> list[Stage]:
    """Those that are behind it, in order; it has at least begun to be computed."""
    queued, restoring = view.queue_seconds or 0.0, view.restore_seconds or 0.0
    stages = [
        Stage("waiting for pages from below the device", restoring, "`inspect devices` (slow ones), `inspect links`"),
        Stage("waiting for its turn", max(0.0, queued - restoring), "`inspect servers` (running and waiting requests)"),
    ]
    if view.first_token_seconds is not None:
        what = f"computing {count(view.recomputed_tokens)} tokens of its prompt"
        if 2 * (view.recomputed_tokens or 0) >= (view.prompt_tokens or 0):
            where = "`inspect tiers` (misses, evictions), if they had been computed before"
        else:
            where = "`inspect requests` (others in the same batches), `inspect links` (its pages are copied meanwhile)"
        stages.append(Stage(what, max(0.0, view.first_token_seconds - queued), where))
    return stages
