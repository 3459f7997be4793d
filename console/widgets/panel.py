"""Lines above a table. They scroll where there are more of them than room."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip


class Panel(ScrollView, can_focus=False):
    """Draws the lines that are visible."""

    auto_links = False

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: Sequence[Text] = ()

    @property
    def lines(self) -> Sequence[Text]:
        return self._lines

    def show(self, lines: Sequence[Text]) -> None:
        self._lines = lines
        self.virtual_size = Size(self.size.width, len(lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, ground = self.size.width, self.rich_style
        number = y + self.scroll_offset.y
        if number >= len(self._lines):
            return Strip.blank(width, ground)
        segments = list(self._lines[number].render(self.app.console, end=""))
        return Strip(segments).apply_style(ground).adjust_cell_length(width, ground)

    async def on_click(self, event: events.Click) -> None:
        """On a line of signs that stand for cells: to the row of the cell. A style each sign would be too many."""
        left, first, step = event.style.meta.get("cells", (0, 0, 0))
        if step:
            at = event.get_content_offset_capture(self).x - left
            await self.run_action(f"app.select('{first + at * step}')")
