"""The keys that live here and now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

#: A heading and its lines: what to press or type, and what that does.
Section = tuple[str, Sequence[tuple[str, str]]]


class HelpScreen(ModalScreen[None]):
    """Scrolls; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "back")]

    def __init__(self, sections: Sequence[Section]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog dialog--wide"):
            yield Static(self._text(), markup=False)

    def _text(self) -> Text:
        text = Text()
        wide = max((len(key) for _, lines in self._sections for key, _ in lines), default=0)
        for number, (heading, lines) in enumerate(self._sections):
            text.append(f"{chr(10) if number else ''}{heading}\n", "bold")
            for key, what in lines:
                text.append(f"  {key.ljust(wide)}  ", "bold")
                text.append(f"{what}\n")
        return text
