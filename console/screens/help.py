"""The keys that live here and now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ..widgets.scroll_bar import draw_plainly

#: Cells for the keys, at most.
KEYS = 30
#: A heading and its lines: what to press or type, and what that does.
Section = tuple[str, Sequence[tuple[str, str]]]


class HelpScreen(ModalScreen[None]):
    """Scrolls; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "back")]

    def __init__(self, sections: Sequence[Section], plain: bool = False) -> None:
        """`plain`: for terminals that have ASCII only."""
        super().__init__()
        self._plain = plain
        self._sections = sections

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog dialog--wide"):
            yield Static(self._content())

    def on_mount(self) -> None:
        if self._plain:
            draw_plainly(self.query_one(VerticalScroll))

    def _content(self) -> RenderableType:
        parts: list[RenderableType] = []
        for heading, lines in self._sections:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(width=min(KEYS, 3 + max((len(key) for key, _ in lines), default=0)), style="bold")
            grid.add_column(ratio=1)
            for key, what in lines:
                grid.add_row(Text(f"  {key}"), Text(what))
            parts += [Text(heading, "bold underline"), grid, Text()]
        return Group(*parts)
