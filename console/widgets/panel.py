"""Lines above a table. They scroll where there are more of them than room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip


class Panel(ScrollView, can_focus=False):
    """Draws the lines that are visible. Alone on the screen, it has the keys that scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "up", show=False),
        Binding("j", "scroll_down", "down", show=False),
        Binding("g", "scroll_home", "top", show=False),
        Binding("G", "scroll_end", "end", show=False),
    ]

    auto_links = False

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: Sequence[Text] = ()
        self._strips: dict[int, Strip] = {}  # of lines that were drawn, as wide as the panel
        self._width = 0
        self._ground = Style()  # that they were drawn on

    @property
    def lines(self) -> Sequence[Text]:
        return self._lines

    def show(self, lines: Sequence[Text]) -> None:
        """Only lines that are not what they were are drawn again."""
        before, self._lines = self._lines, lines
        size = Size(self.size.width, len(lines))
        changed = [number for number, (old, new) in enumerate(zip(before, lines, strict=False)) if old != new]
        for number in (*changed, *range(len(before), len(lines))):
            self._strips.pop(number, None)
        if size != self.virtual_size or size.width != self._width:
            if size.width != self._width:
                self._strips, self._width = {}, size.width
            self.virtual_size = size
            self.refresh()
            return
        top = self.scroll_offset.y
        seen = [number - top for number in changed if 0 <= number - top < self.size.height]
        if seen:
            self.refresh(*(Region(0, y, size.width, 1) for y in seen))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.rich_style != self._ground:
            self._strips = {}

    def render_line(self, y: int) -> Strip:
        width, ground = self.size.width, self.rich_style
        self._ground = ground
        number = y + self.scroll_offset.y
        if number >= len(self._lines):
            return Strip.blank(width, ground)
        strip = self._strips.get(number) if width == self._width else None
        if strip is None:
            line = self._lines[number]
            segments = plain_segments(line, ground)
            if segments is None:
                strip = Strip(line.render(self.app.console, end="")).apply_style(ground)
            else:
                strip = Strip(segments)
            strip = strip.adjust_cell_length(width, ground)
            if width == self._width:
                self._strips[number] = strip
        return strip

    async def on_click(self, event: events.Click) -> None:
        """On a line of signs that stand for cells: to the row of the cell. A style each sign would be too many."""
        left, first, step = event.style.meta.get("cells", (0, 0, 0))
        at = event.get_content_offset_capture(self).x - left
        if step and at >= 0:
            await self.run_action(f"app.select('{first + at * step}')")


def plain_segments(line: Text, ground: Style) -> list[Segment] | None:
    """The segments of a line whose styles follow one another, on this ground; None where they lie over each other.
    Rich's own way, which knows of more, takes several times as long."""
    if isinstance(line.style, Style):
        ground += line.style
    elif line.style:
        return None
    plain, segments, at = line.plain, [], 0
    for start, end, style in line.spans:
        if start < at or not isinstance(style, Style):
            return None
        if start > at:
            segments.append(Segment(plain[at:start], ground))
        segments.append(Segment(plain[start:end], ground + style))
        at = end
    if at < len(plain):
        segments.append(Segment(plain[at:], ground))
    return segments
