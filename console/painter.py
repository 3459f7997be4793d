"""What is on the screen: the view's lines and table, how much room each has, and the lines around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from swift_tiers.radix_tiering.bus.hear.figures import text

from . import looker
from .keys import key_line
from .model.table import Row, Table, ordered
from .model.wrapping import wrapped
from .status import crumbs_line, status_line, tabs_line
from .views.parts.view import Answered, Scene
from .widgets.status import Line

if TYPE_CHECKING:
    from .app import ConsoleApp

#: Lines of a table that are there whatever is said beneath it.
LEAST_ROWS = 3
#: What `m` goes through.
LAYOUTS = {"both": "table", "table": "lines", "lines": "both"}


class Painter:
    """One of each console, on its thread. Everything that it paints follows from the scene."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self.layout = "both"

    @property
    def is_open(self) -> bool:
        """Whether there is something to draw on. While the console is being left its widgets go one after the other,
        and messages of its threads still come."""
        app = self._app
        return app.is_running and bool(app._screen_stack) and bool(app.screen_stack[0].query("#keys"))

    @property
    def layout_words(self) -> str:
        """Empty where both the table and the lines are shown."""
        return "" if self.layout == "both" else f"{self.layout} alone (m)"

    def scene(self) -> Scene:
        """What is to be seen now, with the row under the cursor."""
        app = self._app
        size, now = app.screen_stack[0].size, app.monotonic()
        answers = {
            question: Answered(said.answers, now - said.at, said.failed) for question, said in app.answers.items()
        }
        return Scene(
            moment=app.moment, place=app.navigation.place, only=app.navigation.only, width=max(20, size.width - 2),
            height=max(4, size.height - 4), alone=self.layout == "lines", palette=app.palette, glyphs=app.glyphs,
            answers=answers, selected=app.grid.row,
        )  # fmt: skip

    def paint(self) -> None:
        """Everything anew. What a view fails at is said in its place: the others go on."""
        if not self.is_open:
            return
        app, view, scene = self._app, self._app.view, self.scene()
        grid = app.grid
        grid.palette, grid.dimmed = app.palette, bool(app.moment.lost)
        rows: Sequence[Row] = ()
        try:
            table = view.table(scene)
            rows = app.navigation.sieve.sift(table, ordered(table, app.navigation.sorting))
            if table.columns:
                grid.show(table, rows, app.navigation.sorting)
            scene = replace(scene, selected=grid.row if table.columns else None)
            lines = view.lines(scene)
        except Exception as error:  # noqa: BLE001 - one view's fault must not take the console from the operator
            app.log.error(error)
            lines = [scene.line((f"this view failed: {type(error).__name__}: {error}", "wrong"))]
            lines.append(scene.line("please report it; the other views go on"))
            table = view.EMPTY
        lines = wrapped([*self._lost(scene), *self._aged(lines)], scene.width)
        room = scene.room(view.LINES_SHARE, len(rows)) if table.columns else scene.height
        beneath = app.said.lines(scene.width) + app.entry.is_open
        self._lay_out(scene, lines, table, max(1, min(room, scene.height - beneath - LEAST_ROWS)))
        app.ask(view.questions(scene))
        app.feed.requests_seconds = 0.0 if view.SHOWS_REQUESTS else looker.REQUESTS_SECONDS
        self.edges()

    def edges(self) -> None:
        """Only the lines around the view."""
        if not self.is_open:
            return
        app, root = self._app, self._app.screen_stack[0]
        width = root.size.width - 2
        root.query_one("#status", Line).show(status_line(app, width))
        root.query_one("#tabs", Line).show(tabs_line(app, width))
        root.query_one("#crumbs", Line).show(crumbs_line(app, width))
        root.query_one("#keys", Line).show(key_line(app, width))

    # ---- a bus that is lost ----

    def _lost(self, scene: Scene) -> list[Text]:
        """The reason is as fresh as can be; what the view says is not."""
        moment = scene.moment
        if not moment.lost or moment.snapshot is None:
            return []
        return [
            scene.line((text(moment.lost), "wrong")),
            scene.line("what is shown is as it was then; servers go on without it, and it is tried again and again"),
        ]

    def _aged(self, lines: list[Text]) -> list[Text]:
        moment = self._app.moment
        if not moment.lost or moment.snapshot is None:
            return lines
        return [Text(line.plain, self._app.palette["stale"], no_wrap=True, end="") for line in lines]

    # ---- room ----

    def _lay_out(self, scene: Scene, lines: list[Text], table: Table, room: int) -> None:
        """`m` leaves the table or the lines alone where there are both. `room`: the most that the lines take."""
        app, grid, panel = self._app, self._app.grid, self._app.panel
        has_table, both = bool(table.columns), bool(table.columns) and bool(lines)
        alone = not has_table or (both and self.layout == "lines")
        if not alone and len(lines) > room:
            # Beside a table they have no cursor to scroll them by.
            more = scene.line(f"{len(lines) - room + 1} more lines: m shows them")
            lines = [*lines[: room - 1], more]
        panel.set_class(not lines or (both and self.layout == "table"), "-hidden")
        grid.set_class(alone, "-hidden")
        panel.can_focus = alone
        wanted = "1fr" if alone else str(min(len(lines), room))
        if str(panel.styles.height) != wanted:
            panel.styles.height = wanted
        if not app.entry.is_open and len(app.screen_stack) == 1:
            target = panel if alone else grid
            if app.focused is not target:
                target.focus()
        panel.show(lines)
