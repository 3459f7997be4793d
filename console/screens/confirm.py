"""Before a command is sent: what it is, and what will happen."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Label

from swift_tiers.radix_tiering.bus.hear.figures import text


class ConfirmScreen(ModalScreen[bool]):
    """True if it is to be done. Enter alone does nothing: `y`, or the button, does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape", "dismiss(False)", "no"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, what: str, effect: str, command: str) -> None:
        super().__init__()
        self._what = what
        self._effect = effect
        self._command = command

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(f"{text(self._what)}?", classes="dialog--title", markup=False)
            yield Label(text(self._effect), classes="dialog--text", markup=False)
            yield Label(text(self._command), classes="dialog--command", markup=False)
            with Horizontal(classes="dialog--buttons"):
                yield Button("No (n)", id="no", compact=True)
                yield Button("Yes (y)", id="yes", variant="error", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")
