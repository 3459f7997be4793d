"""The lines around a view: what is looked at and how old it is, the views, the breadcrumbs, the keys."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget


class StatusLine(Widget):
    """One line of text, cut at the right where there is no room."""

    auto_links = False  # what can be clicked has the style that its meaning gives it

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = Text()

    @property
    def text(self) -> str:
        return self._text.plain

    def show(self, text: Text) -> None:
        if text != self._text:
            self._text = text
            self.refresh()

    def render(self) -> Text:
        return self._text
