"""The line in which filters and commands are typed, and the order of the table."""

from __future__ import annotations

from .application import Application, Widgets
from .export import ExportError
from .model.actions import ActionError, read_action
from .model.sieve import FilterError, Sieve
from .model.table import Sorting
from .session import Session
from .typed import Typed


class Sifting:
    """One of each console, on its thread."""

    def __init__(self, session: Session, app: Application, widgets: Widgets, typed: Typed) -> None:
        self._session, self._navigation = session, session.navigation
        self._app = app
        self._entry, self._grid, self._said = widgets.entry, widgets.grid, widgets.said
        self._typed = typed
        self._before = Sieve()  # as it was when the line was opened

    # ---- what is typed ----

    def open_filter(self) -> None:
        self._before = self._navigation.sieve
        columns = [f"{column.name}:" for column in self._grid.table.columns]
        self._said.silence()
        self._entry.open("/", self._before.text, "words, /regex/, field:value, field>number, !not", columns)

    def open_command(self) -> None:
        self._said.silence()
        hint = "a view, or server, sort, export, control ...; `help` lists all"
        self._entry.open(":", "", hint, self._typed.suggestions())

    def changed(self, words: str) -> None:
        """A filter is being typed: the table follows as far as it can be understood."""
        try:
            self._navigation.sieve = Sieve(words)
        except FilterError as error:
            self._app.tell(str(error), bad=True, stays=True)
            return
        self._said.silence()
        self._app.paint()

    def cancelled(self, kind: str) -> None:
        if kind == "/":
            self._navigation.sieve = self._before
        self._close()

    def done(self, kind: str, words: str) -> None:
        """What cannot be understood stays, to be mended."""
        try:
            if kind == "/":
                self._navigation.sieve = Sieve(words)
                self._close()
            elif words.strip():
                action = read_action(words, tuple(self._session.views))
                self._close()  # what it does may open something else
                self._typed.perform(action)
            else:
                self._close()
        except (ActionError, ExportError, FilterError) as error:
            if not self._entry.is_open:
                self._entry.open(kind, words, "", self._typed.suggestions())
            self._app.tell(str(error), bad=True, stays=True)

    def _close(self) -> None:
        self._said.silence()
        self._entry.close()
        self._grid.focus()
        self._app.paint()

    # ---- the order ----

    def step(self, by: int) -> None:
        """By the next column, or by one before."""
        names = [None, *(column.name for column in self._grid.table.columns)]
        sorting = self._navigation.sorting
        at = names.index(sorting.column) if sorting.column in names else 0
        self.sort(names[(at + by) % len(names)], True)

    def reverse(self) -> None:
        sorting = self._navigation.sorting
        self.sort(sorting.column, not sorting.descending)

    def headed(self, column: str) -> None:
        sorting = self._navigation.sorting
        self.sort(column, not sorting.descending if sorting.column == column else True)

    def sort(self, column: str | None, descending: bool) -> None:
        """By this column; None: as the view has them."""
        self._navigation.sorting = Sorting(column, descending)
        self._app.paint()
