"""The line in which filters and commands are typed, and the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .export import ExportError
from .model.actions import ActionError, read_action
from .model.sieve import FilterError, Sieve
from .model.table import Sorting

if TYPE_CHECKING:
    from .app import ConsoleApp


class Sifting:
    """One of each console, on its thread."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self._before = Sieve()  # as it was when the line was opened

    # ---- what is typed ----

    def open_filter(self) -> None:
        app = self._app
        self._before = app.navigation.sieve
        columns = [f"{column.name}:" for column in app.grid.table.columns]
        app.said.silence()
        app.entry.open("/", app.navigation.sieve.text, "words, /regex/, field:value, field>number, !not", columns)

    def open_command(self) -> None:
        self._app.said.silence()
        hint = "a view, or server, sort, export, control ...; `help` lists all"
        self._app.entry.open(":", "", hint, self._app.typed.suggestions())

    def changed(self, words: str) -> None:
        """A filter is being typed: the table follows as far as it can be understood."""
        try:
            self._app.navigation.sieve = Sieve(words)
        except FilterError as error:
            self._app.tell(str(error), bad=True, stays=True)
            return
        self._app.said.silence()
        self._app.paint()

    def cancelled(self, kind: str) -> None:
        if kind == "/":
            self._app.navigation.sieve = self._before
        self._close()

    def done(self, kind: str, words: str) -> None:
        """What cannot be understood stays, to be mended."""
        app = self._app
        try:
            if kind == "/":
                app.navigation.sieve = Sieve(words)
                self._close()
            elif words.strip():
                action = read_action(words, tuple(app.views))
                self._close()  # what it does may open something else
                app.typed.perform(action)
            else:
                self._close()
        except (ActionError, ExportError, FilterError) as error:
            if not app.entry.is_open:
                app.entry.open(kind, words, "", app.typed.suggestions())
            app.tell(str(error), bad=True, stays=True)

    def _close(self) -> None:
        self._app.said.silence()
        self._app.entry.close()
        self._app.grid.focus()
        self._app.paint()

    # ---- the order ----

    def step(self, by: int) -> None:
        """By the next column, or by one before."""
        names = [None, *(column.name for column in self._app.grid.table.columns)]
        sorting = self._app.navigation.sorting
        at = names.index(sorting.column) if sorting.column in names else 0
        self.sort(names[(at + by) % len(names)], True)

    def reverse(self) -> None:
        sorting = self._app.navigation.sorting
        self.sort(sorting.column, not sorting.descending)

    def headed(self, column: str) -> None:
        sorting = self._app.navigation.sorting
        self.sort(column, not sorting.descending if sorting.column == column else True)

    def sort(self, column: str | None, descending: bool) -> None:
        """By this column; None: as the view has them."""
        self._app.navigation.sorting = Sorting(column, descending)
        self._app.paint()
