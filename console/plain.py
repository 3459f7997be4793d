"""One look as plain lines, or as data for programs: without a screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from rich.text import Text

from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.bus.hear.figures import text

from .feeds.feed import Feed, Look, ViewAnswers
from .feeds.watching import Watcher
from .model.alarms import how_many
from .model.moment import Moment
from .model.table import Row, Table, exported
from .status import SIGNS
from .views.events.event_rows import time_words
from .views.parts.drawn import drawn
from .views.parts.view import Answered, ConsoleView, Scene

#: Rows that are printed, or given to programs, at most.
MOST_ROWS, MOST_DATA_ROWS = 200, 10_000
#: How often a view is asked what it wants to know: what it asks may follow from what it was answered.
ASKINGS = 3


def watch(feed: Feed, seconds: float, sleep: Callable[[float], object] = time.sleep) -> Moment:
    """Two looks so far apart, so that there are rates; one where a look brings those before it. Raises BusError."""
    watcher = Watcher()
    look: Look = feed.look()
    alarms = watcher.take(look)
    if not look.passed:
        sleep(seconds)
        look = feed.look()
        alarms = watcher.take(look)
    return Moment(look.snapshot, 0.0, "", watcher.history, alarms, watcher.events)


def asked(view: ConsoleView, scene: Scene, feed: Feed) -> Scene:
    """The scene with the answers to what the view asks, and its first row selected."""
    for _ in range(ASKINGS):
        rows = view.table(scene).rows
        scene = replace(scene, selected=rows[0] if rows else None)
        new = [question for question in view.questions(scene) if question not in scene.answers]
        if not new:
            break
        answers = dict(scene.answers)
        for question in new:
            try:
                answers[question] = Answered(feed.ask(question), 0.0)
            except BusError as error:
                answers[question] = Answered(ViewAnswers(), 0.0, str(error))
        scene = replace(scene, answers=answers)
    return scene


class Plain(NamedTuple):
    """What one view shows, and which time its figures are of."""

    lines: list[Text]
    table: Table
    windows: str = ""

    def drawn(self, scene: Scene, most: int = MOST_ROWS) -> list[Text]:
        """Its lines, then at most so many rows of its table, as wide as the scene at most."""
        table = drawn(scene, self.table, most) if self.table.columns else []
        apart = [Text()] if self.lines and table and self.lines[-1].plain.strip() else []
        return [*self.lines, *apart, *table, *([Text(), scene.line(self.windows)] if self.windows else [])]


def plain(view: ConsoleView, scene: Scene) -> Plain:
    return Plain(view.lines(scene), view.table(scene), view.windows(scene.place))


def heading(feed: Feed, scene: Scene) -> Text:
    """What was looked at, when, and how many alarms there are."""
    moment = scene.moment
    assert moment.snapshot is not None
    said = how_many(moment.alarms, len(moment.servers))
    when = time_words(moment.snapshot.time, True)
    return scene.line(
        ("swift-tiers ", "title"),
        (SIGNS.get(feed.nature, ""), "warning"),
        f"{text(feed.name)}  {when}  ",
        said[0],
        *((f"  {words}", style) for words, style in said[1:]),
    )


def data(feed: Feed, view: ConsoleView, scene: Scene) -> dict[str, Any]:
    """For programs: what is wrong, what the view shows, and everything that was seen. Only what JSON knows."""
    moment, shown = scene.moment, plain(view, scene)
    assert moment.snapshot is not None
    return {
        "time": moment.snapshot.time,
        "source": feed.name,
        "nature": feed.nature.value,
        "alarms": [
            {
                "mark": str(alarm.mark), "place": alarm.place, "what": alarm.what, "remedy": alarm.remedy,
                "since": alarm.since, "server": alarm.target.name("server"),
            }
            for alarm in moment.alarms
        ],
        "view": {
            "name": view.NAME,
            "lines": [line.plain.rstrip() for line in shown.lines],
            "units": {column.name: column.unit for column in shown.table.columns if column.unit},
            "rows": [_row(shown.table, row) for row in islice(shown.table.rows, MOST_DATA_ROWS)],
        },
        "snapshot": msgspec.to_builtins(moment.snapshot),
    }  # fmt: skip


def _row(table: Table, row: Row) -> dict[str, Any]:
    cells = {column.name: exported(column, cell) for column, cell in zip(table.columns, row.cells, strict=True)}
    return cells | {"stale": row.stale}
