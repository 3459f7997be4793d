"""A scroll bar without box characters."""

from __future__ import annotations

from typing import ClassVar

from textual.scrollbar import ScrollBarRender
from textual.widget import Widget


class PlainBars(ScrollBarRender):
    """Its ends are whole cells."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


def draw_plainly(widget: Widget) -> None:
    """For terminals that have ASCII only."""
    widget.vertical_scrollbar.renderer = PlainBars  # type: ignore[misc]  # this one bar alone
    widget.horizontal_scrollbar.renderer = PlainBars  # type: ignore[misc]  # this one bar alone
