"""What became of a command: the acknowledgement or the refusal, rank by rank."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label

from swift_tiers.radix_tiering.bus.hear.figures import text


class OutcomeScreen(ModalScreen[None]):
    """Stays until it was read."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,space,q", "dismiss", "back")]

    def __init__(self, title: str, lines: list[str], bad: bool) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._bad = bad

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -bad" if self._bad else "dialog -good"):
            yield Label(text(self._title), classes="dialog--title", markup=False)
            for line in self._lines:
                yield Label(text(line), classes="dialog--text", markup=False)
            yield Label("enter: back", classes="dialog--keys")
