"""What a console shows, and to whom: everything that decides the screen, without the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.style import Style

from .feeds.feed import Feed, Look, ViewAnswers, ViewQuestion
from .feeds.watching import Watcher
from .model.glyphs import Glyphs
from .model.moment import Moment
from .model.navigation import Navigation
from .model.palette import Palette
from .model.table import Row, Table
from .views import VIEWS
from .views.parts.view import Answered, ConsoleView, OfferedAction, Scene

#: What `m` goes through.
LAYOUTS = {"both": "table", "table": "lines", "lines": "both"}


class ShownTable(Protocol):
    """The table on the screen, and the cursor in it. Whoever draws it keeps it."""

    @property
    def table(self) -> Table: ...

    @property
    def rows(self) -> Sequence[Row]:
        """As they are shown: sifted and sorted."""

    @property
    def cursor(self) -> int: ...

    @property
    def row(self) -> Row | None:
        """The row under the cursor."""

    @property
    def is_hidden(self) -> bool: ...


class Reply(NamedTuple):
    """What became of a question, and when by the console's clock."""

    answers: ViewAnswers
    at: float
    failed: str = ""


def _views() -> dict[str, ConsoleView]:
    return {view.NAME: view() for view in VIEWS}


@dataclass
class Session:
    """One of each console. Only its own thread changes it."""

    feed: Feed
    shown: ShownTable
    palette: Palette
    glyphs: Glyphs
    interval: float  # seconds between two looks
    readonly: bool
    monotonic: Callable[[], float]  # the console's clock, for ages
    now: Callable[[], datetime]  # for what people read
    folder: Path | None = None  # where exports go; None: the current directory
    views: dict[str, ConsoleView] = field(default_factory=_views)
    width: int = 80  # cells of the whole screen
    height: int = 24
    layout: str = "both"
    paused: bool = False
    lost: str = ""  # why there is no newer look, also while the screen is paused
    answers: dict[ViewQuestion, Reply] = field(default_factory=dict)
    looked_at: float | None = None  # when the last look came; None: none has

    def __post_init__(self) -> None:
        self.navigation = Navigation(tuple(self.views))
        self._watcher = Watcher()
        self.moment = Moment(None, 0.0, "", self._watcher.history, (), self._watcher.events)

    # ---- what is on the screen ----

    @property
    def view(self) -> ConsoleView:
        return self.views[self.navigation.place.view]

    @property
    def layout_words(self) -> str:
        """Empty where both the table and the lines are shown."""
        return "" if self.layout == "both" else f"{self.layout} alone (m)"

    def scene(self) -> Scene:
        """What is to be seen now, with the row under the cursor."""
        now = self.monotonic()
        answers = {
            question: Answered(reply.answers, now - reply.at, reply.failed) for question, reply in self.answers.items()
        }
        return Scene(
            moment=self.moment,
            place=self.navigation.place,
            only=self.navigation.only,
            width=max(20, self.width - 2),
            height=max(4, self.height - 4),
            alone=self.layout == "lines",
            palette=self.palette,
            glyphs=self.glyphs,
            answers=answers,
            selected=self.shown.row,
        )

    def offers(self) -> tuple[OfferedAction, ...]:
        """What the operator may do here; nothing where nothing may be steered."""
        if self.readonly or self.moment.snapshot is None:
            return ()
        return self.view.offers(self.scene())

    def style(self, name: str, action: str = "") -> Style:
        """Of a meaning; with an action, it can be clicked."""
        style = self.palette[name]
        return style + Style(meta={"@click": action}) if action else style

    # ---- what comes from the feed ----

    def take_look(self, look: Look, at: float) -> None:
        """While the session is paused the moment on the screen stays, and what is watched goes on."""
        watcher = self._watcher
        alarms = watcher.take(look)
        self.looked_at, self.lost = at, ""
        self._show(Moment(look.snapshot, self._age(), "", watcher.history, alarms, watcher.events))

    def take_loss(self, reason: str) -> None:
        """There is no newer look, for this reason."""
        self.lost = reason
        self._show(replace(self.moment, age=self._age(), lost=reason))

    def grow_old(self) -> None:
        """Ages grow while nothing comes."""
        self._show(replace(self.moment, age=self._age()))

    def take_answers(self, question: ViewQuestion, reply: Reply) -> Reply | None:
        """Keep the reply, and forget those that the view does not ask for any more; the former reply.

        What was answered before stays where servers fail to answer again.
        """
        former = self.answers.get(question)
        if reply.failed and former is not None and not former.failed:
            reply = former._replace(failed=reply.failed)
        self.answers[question] = reply
        wanted = set(self.view.questions(self.scene()))
        self.answers = {one: said for one, said in self.answers.items() if one in wanted}
        return former

    def _show(self, moment: Moment) -> None:
        if not self.paused:
            self.moment = moment

    def _age(self) -> float:
        return 0.0 if self.looked_at is None else max(0.0, self.monotonic() - self.looked_at)
