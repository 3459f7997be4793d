"""One question with a line to answer it in."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from swift_tiers.radix_tiering.bus.hear.figures import text


class AskScreen(ModalScreen[str | None]):
    """Gives what was typed; None: the operator went back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "back")]

    def __init__(self, question: str, hint: str = "", value: str = "", problem: str = "") -> None:
        """`hint`: what is to be typed; `problem`: what was wrong with the value."""
        super().__init__()
        self._question = question
        self._hint = hint
        self._value = value
        self._problem = problem

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(text(self._question), classes="dialog--title", markup=False)
            yield Label(self._hint, classes="dialog--text", markup=False)
            yield Input(value=self._value, select_on_focus=False, compact=True)
            if self._problem:
                yield Label(text(self._problem), classes="dialog--problem", markup=False)
            yield Label("enter: go on    esc: back", classes="dialog--keys")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
