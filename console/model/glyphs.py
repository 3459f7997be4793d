"""The signs that the console draws with: Unicode's, or those that every terminal has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Glyphs(NamedTuple):
    """One set of signs."""

    full: str
    empty: str
    eighths: str  # of a bar's last cell, from nothing to nearly full
    sparks: str  # from the lowest to the highest
    unknown: str  # in a sparkline: nothing was said then
    right: str  # between breadcrumbs
    ellipsis: str
    up: str
    down: str
    arrived: str  # of a restore's bar: pages that lie in host memory
    coming: str  # pages that are on their way
    open: str  # pages that nobody has begun with
    planned: str  # where both sides were to meet
    met: str  # where they met
    signs: Mapping[str, str]  # of states of slots, and of places of pages: one for each, all different
    marked: str  # the cell under the cursor
    branch: str  # of a tree
    last_branch: str
    trunk: str
    ascii: bool

    def bar(self, share: float | None, width: int) -> str:
        """`share` (0..1) of `width` cells."""
        if share is None:
            return self.unknown * width
        eighths = round(max(0.0, min(1.0, share)) * width * 8)
        whole, rest = divmod(eighths, 8)
        last = self.eighths[rest] if whole < width and rest else ""
        return (self.full * whole + last).ljust(width, self.empty)

    def spark(self, values: Sequence[float | None], width: int, highest: float | None = None) -> str:
        """The last `width` values, the newest at the right; `highest` is the top of the scale, or the largest value."""
        shown = list(values[-width:])
        top = max((value for value in shown if value is not None), default=0.0) if highest is None else highest
        steps = len(self.sparks) - 1
        cells = [self.unknown if value is None else self.sparks[_step(value, top, steps)] for value in shown]
        return "".join(cells).rjust(width)

    def cut(self, text: str, width: int) -> str:
        """At most `width` cells of a text of single-width characters."""
        return text if len(text) <= width else text[: max(0, width - len(self.ellipsis))] + self.ellipsis[:width]


def _step(value: float, top: float, steps: int) -> int:
    """The lowest sign is for nothing at all: what is little is seen."""
    if value <= 0 or top <= 0:
        return 0
    return max(1, min(steps, round(value / top * steps)))


_SIGNS = {
    "free": "·", "private": "█", "cached": "▒", "pinned": "▚", "lent": "▄", "borrowed": "▀", "loading": "▼",
    "recomputing": "▲", "out": "×", "device": "█", "peer": "▚", "host": "▒", "ssd": "▄", "compute": "▲", "nowhere": "×",
}  # fmt: skip
_ASCII_SIGNS = {
    "free": ".", "private": "o", "cached": "c", "pinned": "P", "lent": "L", "borrowed": "B", "loading": "+",
    "recomputing": "*", "out": "X", "device": "d", "peer": "p", "host": "h", "ssd": "s", "compute": "*", "nowhere": "x",
}  # fmt: skip

UNICODE = Glyphs(
    full="█",
    empty="░",
    eighths=" ▏▎▍▌▋▊▉",
    sparks=" ▁▂▃▄▅▆▇█",
    unknown="·",
    right="›",
    ellipsis="…",
    up="▲",
    down="▼",
    ascii=False,
    arrived="▓",
    coming="▒",
    open="·",
    planned="┆",
    met="╋",
    signs=_SIGNS,
    marked="╋",
    branch="├ ",
    last_branch="└ ",
    trunk="│ ",
)
ASCII = Glyphs(
    full="#",
    empty=".",
    eighths="........",
    sparks=" .:-=+*#@",
    unknown="?",
    right=">",
    ellipsis="~",
    up="^",
    down="v",
    ascii=True,
    arrived="=",
    coming="-",
    open=".",
    planned=":",
    met="X",
    signs=_ASCII_SIGNS,
    marked="@",
    branch="|-",
    last_branch="`-",
    trunk="| ",
)
