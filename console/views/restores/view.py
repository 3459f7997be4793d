"""How do prefixes come back: what is computed, what is loaded, and where do both meet?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rich.text import Text

from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, seconds, text
from swift_tiers.radix_tiering.figures.story import COMPUTED

from ...model.charts import fitting
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.lazy_rows import LazyRows
from ..parts.measures import seconds_cell
from ..parts.settled import Settled, SettledCells, request_key
from ..parts.view import ConsoleView, Scene
from . import restore_story
from .restore_bar import ARRIVED, LOADING, RestoreCourse, bar, course, key
from .restored import Restored, restores, saved, since

#: Cells left of a bar, and right of it; of a bar, at most.
LEFT, RIGHT, WIDEST = 22, 20, 120
#: Restores that are over and have a bar all the same, at most.
RECENT = 8

RESTORES = (
    Column("verdict", rank=9, words=True),
    Column("server", widest=20, rank=8),
    Column("request", widest=14, rank=8),
    Column("pages", right=True, rank=5),
    Column("strategy", widest=16, rank=4),
    Column("estimated", right=True, rank=6, unit="s"),
    Column("took", right=True, rank=9, unit="s"),
    Column("of it", right=True, rank=3, unit="share of the estimate"),
    Column("met at", right=True, rank=7, unit="pages or layers"),
    Column("planned", right=True, rank=5, unit="pages or layers"),
    Column("computed", right=True, rank=3, unit="pages"),
    Column("loaded", right=True, rank=3, unit="pages"),
    Column("tokens saved", right=True, rank=7),
    Column("s saved", right=True, rank=2, unit="s"),
    Column("lost", right=True, rank=1, unit="pages"),
    Column("ago", right=True, rank=2, unit="s"),
    Column("ranks", right=True, rank=0),
    Column("why late", widest=48, rank=1),
)


class Restores(ConsoleView):
    """Top: a bar for each restore that runs and for the last ones, and all of them. In one: its story."""

    NAME = "restores"
    TITLE = "Restores"
    QUESTION = "how do prefixes come back, and do both sides meet as planned?"
    SHOWS_REQUESTS = True

    def lines(self, scene: Scene) -> list[Text]:
        rid = scene.place.name("request")
        if rid is not None:
            return restore_story.lines(scene, rid)
        running, over = restores(scene.moment, scene.server)
        return _bars(scene, running, over) if running or over else []

    def table(self, scene: Scene) -> Table:
        rid = scene.place.name("request")
        if rid is not None:
            return restore_story.table(scene, rid)
        running, over = restores(scene.moment, scene.server)
        cells = [partial(cell, scene) for cell in CELLS]
        settled = partial(_settled, scene)
        rows = LazyRows([*running, *over], _key, partial(_row, scene), RESTORES, cells, settled, MOVING)
        return Table(RESTORES, rows, empty=_nothing(scene))


def _nothing(scene: Scene) -> str:
    if scene.moment.snapshot is None:
        return ""
    state = scene.moment.server(scene.server)
    if scene.server is not None and (state is None or not state.server.alive):
        return f"{text(scene.server)} is gone, and what it restored with it"
    return "nothing was restored within the last five minutes: no prefix was found below the device"


# ---- bars ----


def _bars(scene: Scene, running: list[Restored], over: list[Restored]) -> list[Text]:
    """Those that run, with the reason of their plan where there is room for it; then the last ones."""
    room = scene.room(Restores.LINES_SHARE) - 2
    lines = [scene.line(*fitting(scene.width, *key(scene.glyphs)))]
    each = 2 if 2 * len(running) <= room else 1
    shown = running if len(running) * each <= room else running[: room - 1]
    for one in shown:
        lines.append(_bar_line(scene, one))
        if each > 1:
            lines.append(_why_line(scene, one))
    if len(shown) < len(running):
        lines.append(scene.line(f"and {len(running) - len(shown)} more that run"))
    if not running:
        lines.append(scene.line(("none runs just now", "text"), "; the last ones:" if over else ""))
    left = room + 1 - len(lines)
    lines += [_bar_line(scene, one) for one in over[: max(0, min(RECENT, left))]]
    return [*lines, Text()]


def _bar_line(scene: Scene, one: Restored) -> Text:
    shown, verdict = course(one.story), one.verdict
    width = max(4, min(WIDEST, scene.width - LEFT - RIGHT - 2))
    name = scene.glyphs.cut(f"{text(one.worst.server)} {text(one.worst.rid)}", LEFT - 1)
    lasts = one.lasts(scene.moment)
    took = UNKNOWN if lasts is None else seconds(lasts)
    estimated = one.story.estimated_seconds
    of = f" of {seconds(estimated)}" if estimated is not None else ""
    word = f"{took}{of}" if one.running else f"{verdict.word}, {took}"
    line = scene.line(
        (f"{name:<{LEFT}}", "title" if one.running else "text"),
        *bar(scene.glyphs, shown, width),
        (f" {word}", "text" if one.running else verdict.style),
    )
    if scene.width > LEFT + WIDEST + RIGHT + 20:
        line.append_text(scene.line(f"  {_met(shown)}"))
    line.truncate(scene.width)
    return line


def _why_line(scene: Scene, one: Restored) -> Text:
    """How far it is, and why it was planned so."""
    story, shown = one.story, course(one.story)
    sums = {kind: sum(part.pages for part in shown.stretches if part.kind == kind) for kind in (ARRIVED, LOADING)}
    done = [(story.pages(COMPUTED), "computed"), (sums[ARRIVED] + story.loaded, "loaded"), (sums[LOADING], "coming")]
    far = ", ".join(f"{count(pages)} {what}" for pages, what in done if pages) or "nothing has come"
    why = ": ".join(text(word) for word in (story.strategy, story.why) if word) or "nothing was decided yet"
    left = 2 if scene.width < 2 * LEFT + len(why) else LEFT
    line = scene.line(*fitting(scene.width, [" " * left, why], ["  ", (f"{far} of {count(story.found)}", "text")]))
    line.truncate(scene.width)
    return line


def _met(shown: RestoreCourse) -> str:
    if shown.met is None:
        return ""
    planned = f", planned {count(shown.planned)}" if shown.planned is not None else ""
    return f"met at {count(shown.met)} of {count(shown.whole)}{planned}"


# ---- rows ----


def _key(one: Restored) -> str:
    return one.key


#: A cell of each column, by itself: who sorts wants one column of all.
CELLS: tuple[Callable[[Scene, Restored], Cell], ...] = (
    lambda scene, one: Cell(one.verdict.word, None if one.running else one.verdict.badness, one.verdict.style),
    lambda scene, one: Cell(text(one.worst.server), style="title"),
    lambda scene, one: Cell(text(one.worst.rid)),
    lambda scene, one: Cell(count(one.story.found), one.story.found),
    lambda scene, one: Cell(text(one.story.strategy) or NONE),
    lambda scene, one: seconds_cell(one.story.estimated_seconds),
    lambda scene, one: seconds_cell(one.lasts(scene.moment), "warning" if one.verdict.badness > 2 else ""),
    lambda scene, one: _share_cell(one.lasts(scene.moment), one.story.estimated_seconds),
    lambda scene, one: _met_cell(course(one.story), course(one.story).met),
    lambda scene, one: _met_cell(course(one.story), course(one.story).planned),
    lambda scene, one: Cell(count(one.story.pages(COMPUTED)), one.story.pages(COMPUTED)),
    lambda scene, one: Cell(count(one.story.loaded), one.story.loaded),
    lambda scene, one: _count_cell(None if one.running else saved(one.story).tokens),
    lambda scene, one: seconds_cell(None if one.running else saved(one.story).seconds),
    lambda scene, one: _lost_cell(sum(one.story.lost_pages.values())),
    lambda scene, one: seconds_cell(since(scene.moment, one.worst, one.worst.ended)),
    lambda scene, one: Cell(str(len(one.views)), len(one.views)),
    lambda scene, one: Cell(text(one.story.late) or NONE),
)


#: Of what is over, only that goes on; and what a time is written with.
MOVING = {number: frozenset("0123456789. mshdin-") for number, column in enumerate(RESTORES) if column.name == "ago"}
_SETTLED = Settled()


def _settled(scene: Scene, one: Restored) -> SettledCells | None:
    """Restores of requests that have ended; the app's thread only."""
    if any(view.live for view in one.views):
        return None
    key = scene.glyphs.ascii, *map(request_key, one.views)
    return _SETTLED.of(
        key, lambda: tuple(Cell("") if at in MOVING else cell(scene, one) for at, cell in enumerate(CELLS))
    )


def _share_cell(lasts: float | None, estimated: float | None) -> Cell:
    share = lasts / estimated if lasts is not None and estimated else None
    return Cell(NONE if share is None else f"{share:.0%}", share)


def _met_cell(shown: RestoreCourse, where: int | None) -> Cell:
    unit = "L" if shown.unit == "layers" else ""
    return Cell(NONE if where is None else f"{unit}{count(where)}", where)


def _count_cell(value: int | None) -> Cell:
    return Cell(NONE if value is None else count(value), value)


def _lost_cell(lost: int) -> Cell:
    return Cell(count(lost), lost, "warning" if lost else "")


def _row(scene: Scene, one: Restored) -> Row:
    view = one.worst
    cells = tuple(cell(scene, one) for cell in CELLS)
    place = Place("restores", (PlaceStep("server", view.server), PlaceStep("request", view.rid)))
    # What is over does not get old: it is not said again.
    stale = bool(scene.moment.lost) or (view.live and scene.moment.is_old(view))
    return Row(one.key, cells, place, view, stale)
