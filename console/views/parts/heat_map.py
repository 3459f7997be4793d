"""Drawing many cells as few signs: how many a sign stands for, which line it is on, and what a click on it means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Span, Text

from .view import Scene


class Stretch(NamedTuple):
    """Cells that are drawn apart from others, from the beginning of a line."""

    first: int
    cells: int
    label: str = ""


class MapLayout(NamedTuple):
    """Where the signs are. A stretch begins on a line of its own."""

    step: int  # cells of one sign; the last of a stretch may stand for fewer
    width: int  # signs of a line
    stretches: tuple[Stretch, ...]

    @property
    def lines(self) -> int:
        return sum(_lines(stretch.cells, self.step, self.width) for stretch in self.stretches)


def layout(stretches: Sequence[Stretch], width: int, height: int, near: int = 0) -> MapLayout:
    """The smallest step at which everything fits `width` x `height`.

    Where there are more stretches than lines, those around the cell `near` are shown, a line each.
    """
    width, height = max(1, width), max(1, height)
    shown = [stretch for stretch in stretches if stretch.cells > 0]
    if len(shown) > height:
        at = next((number for number, one in enumerate(shown) if near < one.first + one.cells), len(shown) - 1)
        first = max(0, min(at - height // 2, len(shown) - height))
        shown = shown[first : first + height]
    low, high = 1, max((stretch.cells for stretch in shown), default=1)
    while low < high:
        step = (low + high) // 2
        if sum(_lines(stretch.cells, step, width) for stretch in shown) <= height:
            high = step
        else:
            low = step + 1
    return MapLayout(low, width, tuple(shown))


def _lines(cells: int, step: int, width: int) -> int:
    signs = -(-cells // step)
    return -(-signs // width)


#: What stands between each two edges, as numbers of names; -1: nothing.
Strongest = Callable[[NDArray[np.int64]], NDArray[np.int64]]
#: What stands before a line: of a stretch, and the line's first cell.
Label = Callable[[Stretch, int], str]


def strongest_of(codes: NDArray[np.int64], names: int) -> Strongest:
    """What most cells are, of cells that are all at hand."""
    below = np.zeros((names, len(codes) + 1), np.int64)
    below[codes, np.arange(1, len(codes) + 1)] = 1
    below = np.cumsum(below, axis=1)
    return lambda edges: np.argmax(np.diff(below[:, edges], axis=1), axis=0)


def draw(
    scene: Scene, plan: MapLayout, names: Sequence[str], strongest: Strongest, *, gutter: int = 0,
    label: Label = lambda stretch, cell: stretch.label if cell == stretch.first else "",
    cursor: int | None = None, marked: Sequence[tuple[int, int]] = (), click: str = "",
) -> list[Text]:  # fmt: skip
    """The lines. `cursor` is a cell, `marked` are first and last cells; both are seen without colour.

    `click` is what a click does; without it, the cursor goes to the row whose key is the number of the cell.
    """
    signs = [scene.glyphs.signs.get(name, "?") for name in names] + [" "]
    styles = [scene.palette[name] for name in names] + [Style.null()]
    lines = []
    for stretch in plan.stretches:
        end = stretch.first + stretch.cells
        edges = np.minimum(np.arange(stretch.first, end + plan.step, plan.step), end)
        codes = strongest(edges)
        marks = _marks(stretch, plan.step, len(codes), marked)
        for first in range(0, len(codes), plan.width):
            here = codes[first : first + plan.width]
            at = None if cursor is None or not stretch.first <= cursor < end else (cursor - stretch.first) // plan.step
            at = None if at is None or not first <= at < first + plan.width else at - first
            cell = stretch.first + first * plan.step
            before = label(stretch, cell)[:gutter].ljust(gutter)
            text = _line(scene, before, here, signs, styles, at, marks[first : first + plan.width])
            meta = {"@click": click} if click else {"cells": (gutter, cell, plan.step)}
            text.style = Style(meta=meta)
            lines.append(text)
    return lines


def _line(
    scene: Scene, label: str, codes: NDArray[np.int64], signs: Sequence[str], styles: Sequence[Style],
    cursor: int | None, marks: NDArray[np.bool_],
) -> Text:  # fmt: skip
    """Signs of one kind that stand together are one span: what is drawn costs what changes along the line."""
    drawn = [signs[code] for code in codes.tolist()]
    for at in marks.nonzero()[0].tolist():
        drawn[at] = scene.glyphs.marked
    if cursor is not None:
        drawn[cursor] = scene.glyphs.marked
    left = len(label)
    spans = [Span(0, left, scene.palette["muted"])] if left else []
    edges = np.flatnonzero(np.diff(codes)) + 1
    bounds = [0, *edges.tolist(), len(drawn)]
    spans += [Span(left + a, left + b, styles[codes[a]]) for a, b in pairwise(bounds) if b > a]
    if marks.any():
        bounds = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(drawn)]
        spans += [Span(left + a, left + b, scene.palette["title"]) for a, b in pairwise(bounds) if marks[a]]
    if cursor is not None:
        spans.append(Span(left + cursor, left + cursor + 1, scene.palette["title"] + Style(reverse=True)))
    return Text(label + "".join(drawn), spans=spans, no_wrap=True, overflow="crop", end="")


def _marks(stretch: Stretch, step: int, signs: int, marked: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    marks = np.zeros(signs, bool)
    for first, last in marked:
        first, last = max(first, stretch.first), min(last, stretch.first + stretch.cells - 1)
        if first <= last:
            marks[(first - stretch.first) // step : (last - stretch.first) // step + 1] = True
    return marks
