"""Charts of figures over time, drawn with the signs of a sparkline, several lines high."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .glyphs import Glyphs

#: Cells of the smallest sparkline that shows something.
LEAST_SPARK = 4
#: Cells for the figures at the left of a chart.
AXIS = 11

#: One line, or a part of one, as (text, meaning); see `Scene.line`.
Drawn = list[tuple[str, str] | str]


class ChartSeries(NamedTuple):
    """What one chart shows."""

    title: str
    style: str
    values: Sequence[float | None]  # of the last looks, the newest last; None: not said
    figure: Callable[[float], str]  # a value in words
    now: float | None = None  # what is said to be now: as the table beneath says it; None: the newest value


def condensed(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values for the same time: means of as many as needed, the newest last. A mean leaves out what is
    not known."""
    each = -(-len(values) // width) if width > 0 else 0
    if each <= 1:
        return list(values)
    # Cut from the newest on, so that what is complete stays as it is from one look to the next.
    cuts = range(len(values), 0, -each)
    return [_mean(values[max(0, cut - each) : cut]) for cut in reversed(cuts)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def columns(glyphs: Glyphs, values: Sequence[float | None], height: int, top: float) -> list[str]:
    """Lines from the top: each value a column, `top` as high as all of them."""
    steps = len(glyphs.sparks) - 1
    highest = height * steps
    levels = [None if value is None else _level(value, top, highest) for value in values]
    lines = []
    for line in range(height - 1, -1, -1):
        cells = []
        for level in levels:
            if level is None:
                cells.append(glyphs.unknown if line == 0 else " ")
            else:
                cells.append(glyphs.sparks[max(0, min(steps, level - line * steps))])
        lines.append("".join(cells))
    return lines


def _level(value: float, top: float, highest: int) -> int:
    """What is little is seen; nothing is not."""
    if value <= 0 or top <= 0:
        return 0
    return max(1, min(highest, round(value / top * highest)))


def chart(glyphs: Glyphs, series: ChartSeries, width: int, height: int, top: float | None = None) -> list[Drawn]:
    """Lines of (text, meaning), each exactly `width` cells wide: a title with the value of now, then `height` lines
    with the scale at their left. `top` is that of the scale; None: the largest value."""
    room = max(1, width - AXIS - 1)
    values = condensed(series.values, room)
    known = [value for value in values if value is not None]
    top = max(known, default=0.0) if top is None else top
    title = glyphs.cut(series.title, width)
    words = f"  {_now(series)}" if known else "  nothing was said yet"
    words = glyphs.cut(words, width - len(title)).ljust(width - len(title))
    drawn: list[Drawn] = [[(title, "title"), words]]
    for number, line in enumerate(columns(glyphs, values, height, top)):
        label = series.figure(top) if number == 0 and top > 0 else "0" if number == height - 1 else ""
        drawn.append([f"{label:>{AXIS}} ", (line.rjust(room), series.style)])
    return drawn


def _now(series: ChartSeries) -> str:
    newest = series.values[-1] if series.values else None
    now = newest if series.now is None else series.now
    return "?" if now is None else series.figure(now)


def lane(glyphs: Glyphs, series: ChartSeries, width: int, top: float) -> Drawn:
    """The same in one line of exactly `width` cells, where there is no room for a chart; the scale ends at `top`."""
    now = _now(series)
    title = glyphs.cut(series.title, max(1, width - len(now) - LEAST_SPARK - 2))
    room = max(0, width - len(title) - len(now) - 2)
    return [
        (title, "title"),
        " ",
        (glyphs.spark(series.values, room, top).rjust(room), series.style),
        " ",
        (now, "text"),
    ]


def beside(*charts: Sequence[Drawn], gap: int = 2) -> list[Drawn]:
    """Charts of the same height in one."""
    return [
        [part for number, line in enumerate(lines) for part in ([" " * gap] if number else []) + line]
        for lines in zip(*charts, strict=True)
    ]


def fitting(width: int, *parts: Drawn) -> Drawn:
    """Parts of a line beside each other, as many as have room, from the first on."""
    line: Drawn = []
    used = 0
    for part in parts:
        used += sum(len(piece if isinstance(piece, str) else piece[0]) for piece in part)
        if line and used > width:
            break
        line += part
    return line
