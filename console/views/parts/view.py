"""What a view is: pure functions from a scene to lines, a table, and what may be done about it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand

from ...feeds.feed import ViewAnswers, ViewQuestion
from ...model.glyphs import UNICODE, Glyphs
from ...model.moment import Moment
from ...model.palette import Palette
from ...model.place import Place
from ...model.table import Row, Table

#: Lines of a table beside its rows: its heading, and one that sets it apart.
HEADING = 2


class Answered(NamedTuple):
    """What became of a question: the answers, or why there are none. `age`, seconds: since they came."""

    answers: ViewAnswers
    age: float
    failed: str = ""


@dataclass(frozen=True)
class Scene:
    """Everything that decides what is on the screen."""

    moment: Moment
    place: Place
    only: str | None = None  # the one server that the operator wants to see
    width: int = 80  # cells for the view
    height: int = 20
    alone: bool = False  # the operator wants the lines without the table
    palette: Palette = field(default_factory=Palette)
    glyphs: Glyphs = UNICODE
    answers: Mapping[ViewQuestion, Answered] = field(default_factory=dict)
    selected: Row | None = None  # the row under the cursor

    @property
    def server(self) -> str | None:
        """The server that this place is about; None: all."""
        return self.place.name("server") or self.only

    def room(self, share: float, rows: int | None = None) -> int:
        """Lines that there is room for above a table: this share of the height, or all of it.

        `rows`: of the table; what it does not need the lines may have, too.
        """
        if self.alone:
            return self.height
        return max(int(self.height * share), 0 if rows is None else self.height - rows - HEADING)

    def line(self, *parts: tuple[str, str] | str) -> Text:
        """One line of (text, meaning) pairs; a text alone is muted."""
        line = Text(no_wrap=True, overflow="crop", end="")
        for part in parts:
            text, style = (part, "muted") if isinstance(part, str) else part
            words = text.lstrip(" ")
            line.append(" " * (len(text) - len(words)))  # apart: pictures of the screen lose spaces before words
            line.append(words, self.palette[style])
        return line


class OfferedAction(NamedTuple):
    """Something that the operator may do here, at a key. It is confirmed before it is done."""

    key: str
    label: str  # of the key line: `drain`
    server: str
    what: str  # `drain device 2 (/ssd2) of alpha`
    effect: str  # what will happen, and what will not
    make: Callable[[str], AnyCommand]  # from what was typed in; raises CommandRefusedError
    prompt: str = ""  # what is asked for before; empty: nothing, and `make` gets an empty text


class ConsoleView(ABC):
    """One view. It keeps nothing: what it shows follows from the scene."""

    NAME: ClassVar[str]  # in places and on the command line
    TITLE: ClassVar[str]
    QUESTION: ClassVar[str]  # what it answers
    #: Whether `lines` depends on the row under the cursor.
    FOLLOWS_CURSOR: ClassVar[bool] = False
    #: Whether it shows requests as they run: then every look reads them.
    SHOWS_REQUESTS: ClassVar[bool] = False
    #: The most of the height that lines take where there is a table beneath them.
    LINES_SHARE: ClassVar[float] = 0.6
    #: No table.
    EMPTY: ClassVar[Table] = Table((), ())

    def windows(self, place: Place) -> str:
        """Which time the figures are of that are shown at this place, where they are of some time: `/s: 2 s`."""
        return ""

    def lines(self, scene: Scene) -> list[Text]:
        """What stands above the table."""
        return []

    def table(self, scene: Scene) -> Table:
        """The table; one without columns: there is none at this place."""
        return self.EMPTY

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        """What may be done about the row under the cursor, or about the place."""
        return ()

    def questions(self, scene: Scene) -> tuple[ViewQuestion, ...]:
        """What must be asked of servers, again and again, while somebody looks at this place."""
        return ()
