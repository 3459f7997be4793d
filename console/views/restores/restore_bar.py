"""A restore as one bar over its found pages: computing comes from the left, what is loaded from the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.hear.figures import count, text
from swift_tiers.radix_tiering.figures.story import COMPUTED, ON_DEVICE, RestoreStory

from ...model.charts import Drawn
from ...model.glyphs import Glyphs

#: Kinds of a stretch beside tiers, `COMPUTED` and `ON_DEVICE`: lies in host memory and is not on the device yet; on its
#: way there; nobody has begun with it.
ARRIVED, LOADING, OPEN = "arrived", "loading", "open"

#: How stretches are called, and which meaning of the palette they have.
NAMES = {
    COMPUTED: "computed", ON_DEVICE: "found on the device", "host": "from host memory", "peer": "from peers",
    "ssd": "from ssd", ARRIVED: "come up", LOADING: "on the way", OPEN: "open",
}  # fmt: skip
_STYLES = {COMPUTED: "compute", ON_DEVICE: "device", ARRIVED: "host", LOADING: "loading", OPEN: "muted"}
#: For those who see no colours: which tier brought a page.
LETTERS = {COMPUTED: "C", ON_DEVICE: "D", "host": "H", "peer": "P", "ssd": "S", ARRIVED: "a", LOADING: "l", OPEN: "."}


class BarStretch(NamedTuple):
    """Pages beside each other that came in the same way, or have come equally far."""

    kind: str
    pages: int

    @property
    def style(self) -> str:
        return _STYLES.get(self.kind, self.kind)

    def sign(self, glyphs: Glyphs) -> str:
        signs = {COMPUTED: glyphs.full, ON_DEVICE: glyphs.full, LOADING: glyphs.coming, OPEN: glyphs.open}
        return signs.get(self.kind, glyphs.arrived)


class RestoreCourse(NamedTuple):
    """How far a restore has come. Layers, where lower layers are computed and upper ones copied; else pages."""

    unit: str
    whole: int
    stretches: tuple[BarStretch, ...]  # from the left; together they are the whole
    planned: int | None  # behind so many, all were to be loaded
    met: int | None  # behind so many, all were loaded; None while it is not over, or one side did it all


def course(story: RestoreStory) -> RestoreCourse:
    """What the bar shows."""
    if story.layers and story.met_layer is not None:
        sides = (BarStretch(COMPUTED, story.met_layer), BarStretch("host", story.layers - story.met_layer))
        return RestoreCourse(
            "layers", story.layers, _some(sides), story.planned_layer, _inner(story.met_layer, story.layers)
        )
    whole = story.found
    came = [BarStretch(how, pages) for how, pages in story.runs]
    left = max(0, whole - story.covered)
    # Which pages have arrived is not told, only how many: loading comes from the back.
    arrived = min(left, story.arrived_pages or 0)
    loading = min(left - arrived, story.loading_pages or 0)
    rest = (BarStretch(OPEN, left - arrived - loading), BarStretch(LOADING, loading), BarStretch(ARRIVED, arrived))
    planned = _inner(story.planned_meeting_pages, whole)
    return RestoreCourse("pages", whole, _some((*came, *rest)), planned, _inner(story.meeting_pages, whole))


def _some(stretches: Sequence[BarStretch]) -> tuple[BarStretch, ...]:
    return tuple(one for one in stretches if one.pages > 0)


def _inner(at: int | None, whole: int) -> int | None:
    """A point between the two sides; at an end nobody meets."""
    return at if at is not None and 0 < at < whole else None


def divided(parts: Sequence[int], width: int) -> list[int]:
    """Cells for each part, `width` together: however small a part is, it has one, if there are enough."""
    whole = sum(parts)
    if not whole or width <= 0:
        return [0] * len(parts)
    cells, done = [], 0
    at = 0
    for part in parts:
        done += part
        end = round(width * done / whole)
        cells.append(end - at)
        at = end
    for number, part in enumerate(parts):
        if part > 0 and cells[number] == 0 and max(cells) > 1:
            cells[cells.index(max(cells))] -= 1
            cells[number] = 1
    return cells


def bar(glyphs: Glyphs, shown: RestoreCourse, width: int) -> Drawn:
    """`width` cells, with the planned meeting point and the real one marked."""
    cells: list[tuple[str, str]] = []
    room = divided([one.pages for one in shown.stretches], width)
    for one, share in zip(shown.stretches, room, strict=True):
        cells += [(one.sign(glyphs), one.style)] * share
    cells += [(" ", "muted")] * (width - len(cells))
    if shown.planned is not None:
        cells[_cell(shown.planned, shown.whole, width)] = (glyphs.planned, "title")
    if shown.met is not None:
        cells[min(width - 1, sum(room[: _sides(shown)]))] = (glyphs.met, "title")
    return _joined(cells)


def letters(shown: RestoreCourse, width: int) -> str:
    """Beneath a bar: a letter for each of its cells."""
    room = divided([one.pages for one in shown.stretches], width)
    return "".join(LETTERS.get(one.kind, "?") * share for one, share in zip(shown.stretches, room, strict=True))


def _sides(shown: RestoreCourse) -> int:
    """How many stretches lie before the meeting point: computing left the last one of them behind."""
    done = 0
    for number, one in enumerate(shown.stretches):
        if shown.met is not None and done >= shown.met:
            return number
        done += one.pages
    return max(0, len(shown.stretches) - 1)


def _cell(at: int, whole: int, width: int) -> int:
    return max(0, min(width - 1, round(width * at / whole)))


def _joined(cells: Sequence[tuple[str, str]]) -> Drawn:
    """Neighbours of one meaning in one part."""
    parts: list[tuple[str, str] | str] = []
    words, meaning = "", ""
    for sign, style in cells:
        if style != meaning and words:
            parts.append((words, meaning))
            words = ""
        words, meaning = words + sign, style
    return [*parts, (words, meaning)] if words else parts


def legend(glyphs: Glyphs, shown: RestoreCourse) -> list[Drawn]:
    """How many of each kind there are, as parts of a line: first those that the bar begins with."""
    sums: dict[str, int] = {}
    for one in shown.stretches:
        sums[one.kind] = sums.get(one.kind, 0) + one.pages
    parts: list[Drawn] = []
    for kind, pages in sums.items():
        one = BarStretch(kind, pages)
        parts.append([(one.sign(glyphs), one.style), f" {count(pages)} {NAMES.get(kind, text(kind))}  "])
    return parts


def key(glyphs: Glyphs) -> list[Drawn]:
    """What the signs mean."""
    kinds = ((COMPUTED, "computed"), (ARRIVED, "loaded"), (LOADING, "on the way"), (OPEN, "open"))
    parts: list[Drawn] = [
        [(BarStretch(kind, 1).sign(glyphs), BarStretch(kind, 1).style), f" {what}  "] for kind, what in kinds
    ]
    return [*parts, [(glyphs.planned, "title"), " to meet  "], [(glyphs.met, "title"), " met"]]
