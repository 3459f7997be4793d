"""What only the application can do, as those beneath it see it; and what its screen is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from textual.message import Message
from textual.screen import Screen

from .feeds.feed import ViewQuestion
from .widgets.entry import Entry
from .widgets.grid import Grid
from .widgets.notice import Notice
from .widgets.panel import Panel
from .widgets.status import StatusLine


class Widgets(NamedTuple):
    """From the top of the screen to its bottom."""

    status: StatusLine
    tabs: StatusLine
    crumbs: StatusLine
    panel: Panel
    grid: Grid
    said: Notice
    entry: Entry
    keys: StatusLine


class PaletteCommand(NamedTuple):
    """One line of the palette."""

    name: str
    what: str
    run: Callable[[], Any]


class Application(Protocol):
    """Everything here is called on the application's thread but `post_message`, which any thread may call."""

    @property
    def is_open(self) -> bool:
        """Whether there is something to draw on."""

    @property
    def dialog_is_open(self) -> bool:
        """Whether something lies above the view."""

    @property
    def available_themes(self) -> Any:
        """By their names."""

    def paint(self) -> None:
        """Draw everything anew."""

    def tell(self, text: str, bad: bool = False, stays: bool = False) -> None:
        """Say something that goes away by itself, unless it stays until it is silenced."""

    def ask(self, questions: tuple[ViewQuestion, ...]) -> None:
        """Ask servers this from now on, again and again."""

    def look_soon(self) -> None:
        """What is shown has changed by the operator's doing."""

    def set_rate(self, seconds: float) -> None:
        """Look every so many seconds."""

    def set_theme(self, name: str) -> None: ...

    def fail(self, error: Exception) -> None:
        """Write a fault of ours to the log."""

    def do(self, action: str) -> None:
        """An action by its name, after what is being done."""

    def commands(self) -> Iterator[PaletteCommand]:
        """What the palette offers here and now."""

    def push_screen(self, screen: Screen[Any], callback: Callable[[Any], None] | None = None, /) -> Any:
        """Open a dialog."""

    def when_line_has_gone(self, does: Callable[[], object]) -> None:
        """Call this once the screen is without the line that has been typed."""

    def export_screenshot(self, *, title: str | None = None) -> str: ...

    def post_message(self, message: Message, /) -> bool: ...
