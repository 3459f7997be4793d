"""What was typed after `:`, done."""

from __future__ import annotations

import math

from .application import Application
from .export import Export, ExportError, begin, content
from .looker import FASTEST, SLOWEST
from .model.actions import Action, ActionError, read_action
from .model.place import Place, PlaceStep
from .model.sieve import FilterError, Sieve
from .model.table import Sorting
from .screens.ask import AskScreen
from .session import Session
from .steering import Steering

#: Themes by short names.
THEMES = {"dark": "textual-dark", "light": "textual-light"}


class Typed:
    """One of each console, on its thread."""

    def __init__(self, session: Session, app: Application, steering: Steering) -> None:
        self._session = session
        self._app = app
        self._steering = steering

    def perform(self, action: Action) -> None:
        """Raises ActionError, ExportError, FilterError: nothing was done."""
        self._perform(action.name, action.words)
        self._app.paint()

    def _perform(self, name: str, words: tuple[str, ...]) -> None:
        if name == "view":
            if len(words) > 1:
                self._limit(words[1])
            self._session.navigation.turn(words[0])
        elif name == "server":
            self._limit(words[0])
        elif name == "filter":
            self._session.navigation.sieve = Sieve(" ".join(words))
        elif name == "sort":
            self._sort_by(words)
        elif name == "rate":
            self._set_rate(_number(words[0], "rate SECONDS"))
        elif name == "export":
            self._export(words)
        elif name == "theme":
            name = THEMES.get(words[0], words[0])
            if name not in self._app.available_themes:
                known = ", ".join([*THEMES, *self._app.available_themes])
                raise ActionError(f"theme {words[0][:40]}: there are {known}")
            self._app.set_theme(name)
        elif name == "control":
            self._steering.typed(words)
        elif name == "page":
            self._session.navigation.enter(Place("blocks", (PlaceStep("page", words[0].lower()),)))
        elif name == "request":
            self._session.navigation.enter(Place("restores", (PlaceStep("request", words[0]),)))
        elif name in ("seek", "speed"):
            self._play(name, words[0])
        else:
            self._app.do(name)  # pause, help, quit

    def ask_export(self, value: str, problem: str = "") -> None:
        """What to write and where, until it could be written."""

        def chosen(answer: str | None) -> None:
            if answer is None:
                return
            try:
                self._export(tuple(answer.split(None, 1)) or ("csv",))
            except ExportError as error:
                self.ask_export(answer, str(error))

        hint = "csv or json: the table; svg: the screen. Then a file, if you like"
        self._app.push_screen(AskScreen("Export what is shown", hint, value, problem), chosen)

    def _export(self, words: tuple[str, ...]) -> None:
        made = begin(self._session, words[0], words[1].strip() if len(words) > 1 else None)
        if made.kind == "svg":
            # What was typed to get it is no part of the picture.
            self._app.when_line_has_gone(lambda: self._write(made))
        else:
            self._write(made)

    def _write(self, made: Export) -> None:
        shown = self._session.shown
        try:
            picture = made.kind == "svg"
            made.write(self._app.export_screenshot(title="swift-tiers") if picture else content(shown, made.kind))
            self._app.tell(f"written: {made.path}")
        except ExportError as error:
            self._app.tell(str(error), bad=True)

    def _set_rate(self, seconds: float) -> None:
        if not FASTEST <= seconds <= SLOWEST:
            raise ActionError(f"rate {seconds:g}: it is between {FASTEST:g} and {SLOWEST:g} seconds")
        self._app.set_rate(seconds)

    def line(self, line: str) -> None:
        """As if it had been typed. What is wrong with it is said."""
        try:
            self.perform(read_action(line, tuple(self._session.views)))
        except (ActionError, ExportError, FilterError) as error:
            self._app.tell(str(error), bad=True)

    def _limit(self, server: str) -> None:
        names = [state.server.server for state in self._session.moment.servers]
        if server in ("all", "*"):
            self._session.navigation.limit(None)
        elif server in names:
            self._session.navigation.limit(server)
        else:
            raise ActionError(f"server {server[:40]}: there is none; there are all, {', '.join(names)}")

    def _sort_by(self, words: tuple[str, ...]) -> None:
        descending = True
        if words and words[-1] in ("up", "down"):
            descending, words = words[-1] == "down", words[:-1]
        if not words:
            self._session.navigation.sorting = Sorting()
            return
        wanted = " ".join(words).casefold()
        names = [column.name for column in self._session.shown.table.columns]
        found = [name for name in names if name.casefold().startswith(wanted)]
        if not found:
            raise ActionError(f"sort {wanted[:40]}: there are the columns {', '.join(names)}")
        self._session.navigation.sorting = Sorting(found[0], descending)

    def _play(self, name: str, word: str) -> None:
        player = self._session.feed.player
        if player is None:
            raise ActionError(f"{name}: this is no recording")
        value = _number(word, f"{name} NUMBER")
        if name == "speed":
            player.set_speed(value)
        else:
            player.seek(player.position + value if word[0] in "+-" else value)
        self._app.look_soon()

    def suggestions(self) -> list[str]:
        """Whole command lines that could be meant."""
        servers = [state.server.server for state in self._session.moment.servers]
        lines = [*self._session.views, *(f"{view} {server}" for view in self._session.views for server in servers)]
        lines += [f"server {server}" for server in servers]
        lines += [f"sort {column.name}" for column in self._session.shown.table.columns]
        lines += ["export csv", "export json", "export svg", "theme dark", "theme light", "rate 1", "help", "quit"]
        if not self._session.readonly:
            lines += [f"control {line}" for line in self._steering.lines(servers)]
        return lines


def _number(word: str, usage: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ActionError(f"usage: {usage}")
    return number
