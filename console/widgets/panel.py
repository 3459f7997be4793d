"""Lines above a table. They scroll where there are more of them than room."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import events
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip


class Panel(ScrollView, can_focus=False):
    """Draws the lines that are visible."""

    auto_links = False

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: Sequence[Text] = ()
        self._strips: dict[int, Strip] = {}  # of lines that were drawn, as wide as the panel
        self._width = 0

    @property
    def lines(self) -> Sequence[Text]:
        return self._lines

    def show(self, lines: Sequence[Text]) -> None:
        """Only lines that are not what they were are drawn again."""
        before, self._lines = self._lines, lines
        size = Size(self.size.width, len(lines))
        if size != self.virtual_size or size.width != self._width:
            self._strips, self._width, self.virtual_size = {}, size.width, size
            self.refresh()
            return
        changed = [number for number, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new]
        for number in changed:
            self._strips.pop(number, None)
        top = self.scroll_offset.y
        seen = [number - top for number in changed if 0 <= number - top < self.size.height]
        if seen:
            self.refresh(*(Region(0, y, size.width, 1) for y in seen))

    def notify_style_update(self) -> None:
        self._strips = {}
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        width, ground = self.size.width, self.rich_style
        number = y + self.scroll_offset.y
        if number >= len(self._lines):
            return Strip.blank(width, ground)
        strip = self._strips.get(number) if width == self._width else None
        if strip is None:
            segments = list(self._lines[number].render(self.app.console, end=""))
            strip = Strip(segments).apply_style(ground).adjust_cell_length(width, ground)
            if width == self._width:
                self._strips[number] = strip
        return strip

    async def on_click(self, event: events.Click) -> None:
        """On a line of signs that stand for cells: to the row of the cell. A style each sign would be too many."""
        left, first, step = event.style.meta.get("cells", (0, 0, 0))
        if step:
            at = event.get_content_offset_capture(self).x - left
            await self.run_action(f"app.select('{first + at * step}')")
