"""What is on the screen: the view's lines and table, how much room each has, and the lines around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from swift_tiers.radix_tiering.bus.hear.figures import text

from . import looker
from .application import Application, Widgets
from .keys import key_line
from .model.table import Row, Table, ordered
from .model.wrapping import wrapped
from .session import Session
from .status import crumbs_line, status_line, tabs_line
from .views.parts.view import Scene

#: Lines of a table that are there whatever is said beneath it.
LEAST_ROWS = 3


class Painter:
    """One of each console, on its thread. Everything that it paints follows from the scene."""

    def __init__(self, session: Session, app: Application, widgets: Widgets) -> None:
        self._session = session
        self._app = app
        self._widgets = widgets

    def paint(self) -> None:
        """Everything anew. What a view fails at is said in its place: the others go on."""
        if not self._app.is_open:
            return
        session, grid = self._session, self._widgets.grid
        session.width, session.height = grid.screen.size
        view, scene, navigation = session.view, session.scene(), session.navigation
        grid.palette, grid.dimmed = session.palette, bool(session.moment.lost)
        rows: Sequence[Row] = ()
        try:
            table = view.table(scene)
            rows = navigation.sieve.sift(table, ordered(table, navigation.sorting))
            if table.columns:
                grid.show(table, rows, navigation.sorting)
            scene = replace(scene, selected=grid.row if table.columns else None)
            lines = view.lines(scene)
        except Exception as error:  # noqa: BLE001 - one view's fault must not take the console from the operator
            self._app.fail(error)
            lines = [scene.line((f"this view failed: {type(error).__name__}: {error}", "wrong"))]
            lines.append(scene.line("please report it; the other views go on"))
            table = view.EMPTY
        lines = wrapped([*self._lost(scene), *self._aged(lines)], scene.width)
        room = scene.room(view.LINES_SHARE, len(rows)) if table.columns else scene.height
        beneath = self._widgets.said.lines(scene.width) + self._widgets.entry.is_open
        self._lay_out(scene, lines, table, max(1, min(room, scene.height - beneath - LEAST_ROWS)))
        self._app.ask(view.questions(scene))
        session.feed.requests_seconds = 0.0 if view.SHOWS_REQUESTS else looker.REQUESTS_SECONDS
        self.edges()

    def edges(self) -> None:
        """Only the lines around the view."""
        if not self._app.is_open:
            return
        session, widgets = self._session, self._widgets
        width = widgets.keys.screen.size.width - 2
        widgets.status.show(status_line(session, width))
        widgets.tabs.show(tabs_line(session, width))
        widgets.crumbs.show(crumbs_line(session, width))
        widgets.keys.show(key_line(session, width))

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
        moment = self._session.moment
        if not moment.lost or moment.snapshot is None:
            return lines
        return [Text(line.plain, self._session.palette["stale"], no_wrap=True, end="") for line in lines]

    # ---- room ----

    def _lay_out(self, scene: Scene, lines: list[Text], table: Table, room: int) -> None:
        """`m` leaves the table or the lines alone where there are both. `room`: the most that the lines take."""
        layout, grid, panel = self._session.layout, self._widgets.grid, self._widgets.panel
        has_table, both = bool(table.columns), bool(table.columns) and bool(lines)
        alone = not has_table or (both and layout == "lines")
        if not alone and len(lines) > room:
            # Beside a table they have no cursor to scroll them by.
            more = scene.line(f"{len(lines) - room + 1} more lines: m shows them")
            lines = [*lines[: room - 1], more]
        panel.set_class(not lines or (both and layout == "table"), "-hidden")
        grid.set_class(alone, "-hidden")
        panel.can_focus = alone
        wanted = "1fr" if alone else str(min(len(lines), room))
        if str(panel.styles.height) != wanted:
            panel.styles.height = wanted
        if not self._widgets.entry.is_open and not self._app.dialog_is_open:
            target = panel if alone else grid
            if target.screen.focused is not target:
                target.focus()
        panel.show(lines)
