"""What commands write: no word of others may steer a terminal, and a reader that leaves early is no error.

Names on a bus, paths on a disk and errors of other programs are whatever somebody made up. `spelled` is the one way on
which they go to a terminal: `Terminal` takes it for all that commands print as tables and lines, `ops.cli` for errors.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from swift_tiers.radix_tiering.bus.hear.figures import text


def spelled(lines: str) -> str:
    """Several lines for a terminal: what could move its cursor, or turn its letters around, is spelled out."""
    return lines if lines.isprintable() else "\n".join(text(line) for line in lines.split("\n"))


class Terminal(Console):
    """The console of every command that prints. It does not guess what words mean: no markup, emoji or highlighting."""

    def __init__(self, *, width: int | None = None, markup: bool = False) -> None:
        super().__init__(highlight=False, markup=markup, emoji=False, width=width)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for words, style, control in super().render(renderable, options):
            yield Segment(words if control else spelled(words), style, control)

    def on_broken_pipe(self) -> None:
        """The reader has left: `ops.cli` knows what that means for any command."""
        raise BrokenPipeError
