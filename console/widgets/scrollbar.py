"""Scrollbars for terminals that have no parts of blocks."""

from __future__ import annotations

from typing import ClassVar

from textual.scrollbar import ScrollBarRender


class WholeCells(ScrollBarRender):
    """Its ends are drawn by colour alone, a cell at a time."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "]
