"""The line at the bottom in which a filter or a command is typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widgets import Input, Label

#: Commands that are remembered.
REMEMBERED = 50


class Entry(Horizontal):
    """Closed until it is opened for one of both."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "back", show=False),
        Binding("up", "former(-1)", show=False),
        Binding("down", "former(1)", show=False),
    ]

    class Changed(Message):
        """A filter is being typed."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Done(Message):
        """Enter: `kind` is `/` or `:`."""

        def __init__(self, kind: str, text: str) -> None:
            super().__init__()
            self.kind = kind
            self.text = text

    class Cancelled(Message):
        """Esc: what was before is to be again."""

        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._kind = ""
        self._former: list[str] = []
        self._at = 0

    def compose(self) -> ComposeResult:
        yield Label("", id="kind", markup=False)
        yield Input(select_on_focus=False)

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    def open(self, kind: str, text: str, hint: str, suggestions: Sequence[str] = ()) -> None:
        self._kind, self._at = kind, len(self._former)
        self.query_one("#kind", Label).update(kind)
        line = self.query_one(Input)
        line.placeholder = hint
        line.suggester = SuggestFromList(suggestions, case_sensitive=False) if suggestions else None
        line.value = text
        line.cursor_position = len(text)
        self.add_class("-open")
        line.focus()

    def close(self) -> None:
        self.remove_class("-open")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open and self._kind == "/":
            self.post_message(self.Changed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._kind == ":" and event.value.strip():
            self._former = [*(one for one in self._former if one != event.value), event.value][-REMEMBERED:]
        self.post_message(self.Done(self._kind, event.value))

    def action_cancel(self) -> None:
        self.post_message(self.Cancelled(self._kind))

    def action_former(self, by: int) -> None:
        """Through the commands that were typed before."""
        if self._kind != ":" or not self._former:
            return
        self._at = max(0, min(len(self._former), self._at + by))
        line = self.query_one(Input)
        line.value = self._former[self._at] if self._at < len(self._former) else ""
        line.cursor_position = len(line.value)
