"""The palette of ctrl+p: what may be done here, by a few letters of its name."""

from __future__ import annotations

from textual.command import CommandList, CommandPalette

from ..widgets.scroll_bar import draw_plainly


class CommandsScreen(CommandPalette):
    """Textual's own, with our commands alone."""

    def __init__(self, plain: bool = False) -> None:
        """`plain`: for terminals that have ASCII only."""
        super().__init__(placeholder="a view, a server, what may be done here", id="--command-palette")
        self._plain = plain

    def on_mount(self) -> None:
        if self._plain:
            draw_plainly(self.query_one(CommandList))
