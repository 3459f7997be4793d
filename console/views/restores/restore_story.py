"""The whole story of one restore: its bar, what was decided and why, what was estimated and what happened."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import RequestView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, seconds, text
from swift_tiers.radix_tiering.bus.hear.request_words import (
    FACTS,
    age,
    device_slots,
    explain_request,
    request_facts,
)
from swift_tiers.radix_tiering.bus.hear.restore_words import comparison, explain_restore, when
from swift_tiers.radix_tiering.bus.hear.troubles import request_troubles
from swift_tiers.radix_tiering.figures.story import RestoreStory

from ...model.charts import fitting
from ...model.palette import MARKS
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.view import Scene
from ..stripes.stripe_device import prefix_place
from .restore_bar import LETTERS, bar, course, legend, letters
from .restored import Restored, find, verdict

NOT_LOOKED_FOR = "nothing was looked for below the device: its prompt has no whole page, or it has not had its turn yet"
#: Letters of a key that are shown.
DIGITS = 16
#: Cells at the right that may be covered: a long story scrolls.
SCROLLBAR = 2


class _Line(NamedTuple):
    """One fact, of each rank."""

    what: str
    estimated: str
    real: tuple[str, ...]
    place: Place | None = None


def lines(scene: Scene, rid: str) -> list[Text]:
    one = find(scene.moment, scene.server, rid)
    if one is None:
        return [
            scene.line((f"no server knows request {text(rid)}", "warning")),
            scene.line("requests stay on the bus for five minutes after their end, the last 256 of each rank"),
        ]
    view, story, said = one.worst, one.story, one.verdict
    of = f", the slowest of {len(one.views)} ranks" if len(one.views) > 1 else ""
    head = fitting(
        scene.width,
        [(said.word, said.style), "  ", (text(view.rid), "title")],
        [f"  {text(view.state)} at {text(view.server)} {text(view.rank)}{of}"],
        [f"; prompt of {count(view.prompt_tokens)} tokens"],
        [f"; first token after {seconds(view.first_token_seconds)}"] if view.first_token_seconds is not None else [],
    )
    shown = [scene.line(*head)]
    for rank in one.views:
        name = f"{text(rank.rank)}: " if len(one.views) > 1 else ""
        for trouble in request_troubles(rank):
            remedy = f"; {trouble.remedy}" if trouble.remedy else ""
            shown += _wrapped(scene, f"{trouble.mark!s:>7} {name}{trouble.what}{remedy}", MARKS[trouble.mark])
    if story.found:
        shown += _bar_lines(scene, one)
    told = view.restore_story
    why = explain_restore(view, told) if told is not None else (NOT_LOOKED_FOR,)
    for sentence in why:
        shown += _wrapped(scene, sentence, "text")
    for sentence in explain_request(_slowest(one)):
        shown += _wrapped(scene, sentence, "text")
    return [*shown, *_where(scene, one), Text()]


def _slowest(one: Restored) -> RequestView:
    """The rank whose first token came last, or has not come for longest."""
    return max(one.views, key=lambda view: view.first_token_seconds or age(view) or 0.0)


def _where(scene: Scene, one: Restored) -> list[Text]:
    """Its pages on the device at each rank, and the whole key of the last one: what is too long for a table."""
    shown: list[Text] = []
    for view in one.views:
        name = f"{text(view.rank)}: " if len(one.views) > 1 else ""
        if view.block_table:
            shown += _wrapped(scene, f"{name}on the device now: {device_slots(view)}", "muted")
    for page in dict.fromkeys(view.last_page for view in one.views if view.last_page):
        shown += _wrapped(scene, f"last page of its prompt: {text(page)}", "muted")
    return shown


def _bar_lines(scene: Scene, one: Restored) -> list[Text]:
    shown, width = course(one.story), scene.width - SCROLLBAR
    lasts = one.lasts(scene.moment)
    figures = [f"{UNKNOWN if lasts is None else seconds(lasts)}"]
    if one.story.estimated_seconds is not None:
        figures.append(f"estimated {seconds(one.story.estimated_seconds)}")
    if shown.met is not None:
        figures.append(f"met at {count(shown.met)}")
    if shown.planned is not None:
        figures.append(f"planned {count(shown.planned)}")
    parts = fitting(
        scene.width,
        *legend(scene.glyphs, shown),
        [f"of {count(shown.whole)} {shown.unit}"],
        ["  ", (", ".join(figures), "text")],
    )
    kinds = {LETTERS.get(stretch.kind) for stretch in shown.stretches} - {None, "C", ".", "a", "l"}
    named = [scene.line(letters(shown, width))] if len(kinds) > 1 or "D" in kinds else []
    return [scene.line(*bar(scene.glyphs, shown, width)), *named, scene.line(*parts)]


def _wrapped(scene: Scene, words: str, style: str) -> list[Text]:
    """A sentence, in as many lines as it needs."""
    width = max(20, scene.width - SCROLLBAR)
    lines = textwrap.wrap(words, width, subsequent_indent="  ", break_on_hyphens=False)
    return [scene.line((line, style)) for line in lines]


# ---- the table ----


def table(scene: Scene, rid: str) -> Table:
    """What was estimated beside what happened at each rank, the slowest first; then where its pages are."""
    one = find(scene.moment, scene.server, rid)
    if one is None:
        return Table((), ())
    names = [text(view.rank) for view in one.views] if len(one.views) > 1 else ["real"]
    columns = (
        Column("what", widest=32, rank=9),
        Column("estimated", right=True, rank=8, unit="s"),
        *(
            Column("real" if len(names) == 1 else name, right=True, widest=60, rank=7 - min(7, at), unit="s")
            for at, name in enumerate(names)
        ),
    )
    return Table(columns, [_row(scene, line, one.worst) for line in _facts(one)])


def _facts(one: Restored) -> list[_Line]:
    """Each rank may have had other sources."""
    said = [
        {fact.what: fact for fact in comparison(view.restore_story)} if view.restore_story is not None else {}
        for view in one.views
    ]
    order: dict[str, None] = {}
    for facts in said:
        order.update(dict.fromkeys(facts))
    shown = [
        _Line(
            what,
            next((facts[what].estimated for facts in said if what in facts), NONE),
            tuple(facts[what].real if what in facts else NONE for facts in said),
        )
        for what in order
    ]  # fmt: skip
    stories = [view.restore_story or RestoreStory() for view in one.views]
    if len(stories) > 1:
        shown.append(_Line("estimated, all there after", NONE, tuple(when(one.estimated_seconds) for one in stories)))
    shown += [
        _Line("verdict", NONE, tuple(verdict(view).word for view in one.views)),
        _Line("decided", NONE, tuple(text(story.strategy) or NONE for story in stories)),
        _Line("fell behind", NONE, tuple(text(story.late) or NONE for story in stories)),
        _Line("pages lost on the way", NONE, tuple(_lost(view) for view in one.views)),
        _Line("tokens of a page", NONE, tuple(_count(story.page_tokens) for story in stories)),
    ]
    page = next((view.last_page for view in one.views if view.last_page), "")
    if page:
        key = tuple(text(page)[:DIGITS] if view.last_page else NONE for view in one.views)
        shown += [
            _Line("last page: its life", NONE, key, Place("blocks", (PlaceStep("page", page),))),
            _Line("where its stripe units lie", NONE, key, prefix_place(one.worst.server, page)),
        ]
    # Where its pages lead comes first: the rest is read, not entered.
    shown += [
        _Line(what, NONE, tuple(values)) for what, *values in zip(FACTS, *map(request_facts, one.views), strict=True)
    ]
    return shown


def _count(value: int) -> str:
    return count(value) if value else NONE


def _lost(view: RequestView) -> str:
    story = view.restore_story
    return NONE if story is None else count(sum(story.lost_pages.values()))


def _row(scene: Scene, line: _Line, view: RequestView) -> Row:
    style = "accent" if line.place is not None else ""
    cells = (Cell(line.what, style=style), Cell(line.estimated), *(Cell(word) for word in line.real))
    stale = bool(scene.moment.lost) or (view.live and scene.moment.is_old(view))
    return Row(line.what, cells, line.place, view, stale)
