"""The console's views, printed: what ranks answer about pages, tiers, sequences and the tree; and one restore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from swift_tiers.console import plain
from swift_tiers.console.feeds.feed import ViewAnswers as ViewAnswers
from swift_tiers.console.feeds.watching import Watcher
from swift_tiers.console.model.moment import Moment
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.model.wrapping import wrapped
from swift_tiers.console.views import Blocks, Restores, TreeShape
from swift_tiers.console.views.parts.view import Answered, ConsoleView, Scene
from swift_tiers.console.views.restores.restore_story import NOT_LOOKED_FOR
from swift_tiers.radix_tiering.bus.contract.views import (
    MapView,
    NodesView,
    PageView,
    PrefixView,
    RankedView,
    RankState,
    RequestView,
    ServerState,
    ServerView,
    Snapshot,
)
from swift_tiers.radix_tiering.bus.hear.asking import Answers
from swift_tiers.radix_tiering.bus.hear.figures import text
from swift_tiers.radix_tiering.bus.hear.request_words import age, explain_request
from swift_tiers.radix_tiering.bus.hear.restore_words import explain_restore
from swift_tiers.radix_tiering.bus.hear.troubles import request_troubles

from .looks import HEIGHT, MOST_ROWS, Inspection, describe, describe_troubles, glyphs_of

#: Of a sequence, which its table tells page by page.
SEQUENCE_HEIGHT = 10


class Viewed(NamedTuple):
    """One place of a view, as wide as there is room for. It is rendered when the width is known."""

    view: ConsoleView
    place: Place
    snapshot: Snapshot
    answers: tuple[RankedView, ...]
    height: int = HEIGHT  # lines that there are for it
    table: bool = True  # or its lines alone

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        watcher = Watcher()
        moment = Moment(self.snapshot, 0.0, "", watcher.history, (), watcher.events)
        scene = Scene(
            moment,
            self.place,
            width=options.max_width,
            height=self.height,
            alone=not self.table,
            glyphs=glyphs_of(options),
        )
        said = Answered(ViewAnswers(views=self.answers), 0.0)
        scene = replace(scene, answers=dict.fromkeys(self.view.questions(scene), said))
        shown = plain.plain(self.view, scene)
        if not self.table:
            shown = shown._replace(table=ConsoleView.EMPTY)
        elif self.place.name("prefix") is not None:
            # Of a long sequence a rank tells the last pages; nothing is known of the others.
            told = [row for row in shown.table.rows if row.subject is not None]
            shown = shown._replace(table=shown.table._replace(rows=told))
        for line in wrapped(shown.drawn(scene, MOST_ROWS), scene.width):
            line.end = "\n"
            yield line


def show_page(page: str, answers: Answers[PageView], snapshot: Snapshot) -> Inspection:
    """Who holds it, its copies and its life at each rank."""
    shown = Viewed(Blocks(), Place("blocks", (PlaceStep("page", page),)), snapshot, answers.answers)
    return _look({"page": page}, answers, [shown])


def show_prefix(page: str, answers: Answers[PrefixView], snapshot: Snapshot) -> Inspection:
    """The sequence that the page ends, as far as each rank knows it."""
    title = Text(f"the sequence that page {page} ends")
    shown = [
        Viewed(Blocks(), _at("blocks", view, PlaceStep("prefix", page)), snapshot, (view,), SEQUENCE_HEIGHT)
        for view in answers.answers
    ]
    return _look({"page": page}, answers, [title, *_apart(shown)])


def show_map(tier: str, answers: Answers[MapView], snapshot: Snapshot) -> Inspection:
    """The slots of a tier at each rank: how many there are of each state, and all of them as signs."""
    shown = [
        Viewed(Blocks(), _at("blocks", view, PlaceStep("tier", tier)), snapshot, (view,), table=False)
        for view in answers.answers
    ]
    return _look({"tier": tier}, answers, _apart(shown))


def show_nodes(answers: Answers[NodesView], snapshot: Snapshot) -> Inspection:
    """What each rank says of its tree in sum, and its largest subtrees."""
    shown = [Viewed(TreeShape(), Place("tree"), _only(snapshot, view), (view,)) for view in answers.answers]
    return _look({}, answers, _apart(shown))


def show_request(views: Sequence[RequestView]) -> Inspection:
    """One request as every rank saw it, and what its time to the first token went into; at least one rank did."""
    slowest = max(views, key=lambda view: view.first_token_seconds or age(view) or 0.0)
    return _one("request", views, list(explain_request(slowest)))


def show_restore(views: Sequence[RequestView]) -> Inspection:
    """How a request's prefix came back, as every rank saw it; at least one did."""
    views = sorted(views, key=_lasted, reverse=True)
    told = next(((view, view.restore_story) for view in views if view.restore_story is not None), None)
    return _one("restore of request", views, [NOT_LOOKED_FOR] if told is None else list(explain_restore(*told)))


def _one(what: str, views: Sequence[RequestView], why: list[str]) -> Inspection:
    """The console's page of a request, which tells its restore, too."""
    found = [trouble for view in views for trouble in request_troubles(view)]
    content = {"requests": describe(views), "troubles": describe_troubles(found), "why": why}
    snapshot = _of_requests(views)
    shown = [
        Viewed(
            Restores(),
            Place("restores", (PlaceStep("server", server), PlaceStep("request", views[0].rid))),
            snapshot,
            (),
        )
        for server in dict.fromkeys(view.server for view in views)
    ]
    return Inspection(content, [Text(f"{what} {text(views[0].rid)}, {text(views[0].state)}"), *_apart(shown)])


def _lasted(view: RequestView) -> float:
    """How long the restore took, or has taken so far."""
    story = view.restore_story
    if story is None:
        return -1.0
    return story.there_seconds if story.there_seconds is not None else age(view) or view.restore_seconds or 0.0


def _of_requests(views: Sequence[RequestView]) -> Snapshot:
    """Nothing but these."""
    servers = [
        ServerState(
            server=ServerView(server=server, alive=True),
            ranks=tuple(RankState(name=view.rank, requests=(view,)) for view in views if view.server == server),
        )
        for server in dict.fromkeys(view.server for view in views)
    ]
    return Snapshot(time=0.0, servers=tuple(servers))


def _at(view: str, answer: RankedView, step: PlaceStep) -> Place:
    """Of the rank that answered."""
    return Place(view, (PlaceStep("server", answer.server), PlaceStep("rank", answer.rank), step))


def _apart(shown: Sequence[RenderableType]) -> list[RenderableType]:
    """With a line between each two."""
    return [part for one in shown for part in (Text(), one)][1:]


def _only(snapshot: Snapshot, view: RankedView) -> Snapshot:
    """Of this view's rank alone."""
    servers = [
        msgspec.structs.replace(state, ranks=tuple(rank for rank in state.ranks if rank.name == view.rank))
        for state in snapshot.servers
        if state.server.server == view.server
    ]
    return msgspec.structs.replace(snapshot, servers=tuple(servers))


def _look(asked: dict[str, Any], answers: Answers[Any], shown: Sequence[RenderableType]) -> Inspection:
    silent = [{"server": server, "rank": rank} for server, rank in answers.silent]
    return Inspection(
        {**asked, "answers": describe(answers.answers), "silent": silent},
        [*(Text(f"WRONG {text(server)} {text(rank)}: did not answer") for server, rank in answers.silent), *shown],
    )
