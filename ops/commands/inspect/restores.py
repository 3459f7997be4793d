"""One restore: which part of a prefix was loaded from where, which was recomputed, where both met, and why so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import RequestView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, count, text
from swift_tiers.radix_tiering.bus.hear.restore_words import (
    NEW,
    TO_COME,
    comparison,
    explain_restore,
    pages_or_none,
    parts_of,
    real_seconds,
    when,
)
from swift_tiers.radix_tiering.bus.hear.troubles import request_troubles
from swift_tiers.radix_tiering.figures.story import COMPUTED, ON_DEVICE, RestoreStory

from .requests import age
from .tables import FittingTable, Look, describe, describe_troubles, lines, place

#: Characters of the bar.
BAR = 72


class Part(NamedTuple):
    """What one kind of page is called, in the bar and beneath it."""

    letter: str
    style: str
    name: str


PARTS = {
    ON_DEVICE: Part("D", "green", "on the device"),
    "host": Part("H", "cyan", "from host memory"),
    "peer": Part("P", "magenta", "from peers"),
    "ssd": Part("S", "blue", "from ssd"),
    COMPUTED: Part("C", "yellow", "computed"),
    TO_COME: Part(".", "dim", "have not come"),
    NEW: Part("N", "dim yellow", "held nowhere, computed"),
}


def show_restore(views: Sequence[RequestView]) -> Look:
    """Of one request as every rank saw it, the slowest in full; at least one did."""
    views = sorted(views, key=_lasted, reverse=True)
    found = [trouble for view in views for trouble in request_troubles(view)]
    told = [(view, view.restore_story) for view in views if view.restore_story is not None]
    shown: list[RenderableType] = [Text(f"restore of request {text(views[0].rid)}, {text(views[0].state)}")]
    shown += lines(found)
    why: list[str] = []
    if told:
        view, story = told[0]
        slowest = f", the slowest of {len(told)} ranks" if len(told) > 1 else ""
        why = list(explain_restore(view, story))
        shown += [Text(f"{place(view)}{slowest}"), Text(""), bar(story), legend(story), Text("")]
        if story.found:
            shown += [_comparison(story), Text("")]
        shown += map(Text, why)
        if len(told) > 1:
            shown += [Text(""), _ranks(told)]
    else:
        why = ["nothing was looked for below the device: its prompt has no whole page, or it has not had its turn yet"]
        shown += map(Text, why)
    content = {"requests": describe(views), "troubles": describe_troubles(found), "why": why}
    return Look(content, shown)


def _lasted(view: RequestView) -> float:
    """How long the restore took, or has taken so far."""
    story = view.restore_story
    if story is None:
        return -1.0
    return story.there_seconds if story.there_seconds is not None else age(view) or view.restore_seconds or 0.0


def bar(story: RestoreStory) -> Text:
    """The prompt from left to right. However short a part is, it can be seen."""
    parts = parts_of(story)
    whole = sum(pages for _, pages in parts)
    line = Text("|")
    for name, pages in parts:
        part = PARTS.get(name, Part("?", "", name))
        line.append(part.letter * max(1, round(BAR * pages / whole)), part.style)
    return line.append("|")


def legend(story: RestoreStory) -> Text:
    """What the letters of the bar mean, with how many pages there are of each."""
    sums: dict[str, int] = {}
    for name, pages in parts_of(story):
        sums[name] = sums.get(name, 0) + pages
    words = []
    for name, pages in sums.items():
        part = PARTS.get(name, Part("?", "", name))
        words.append(f"{part.letter} {count(pages)} {text(part.name)}")
    return Text(f"pages of {count(story.page_tokens)} tokens: {', '.join(words) or 'none'}")


def _comparison(story: RestoreStory) -> FittingTable:
    facts = FittingTable(" |estimated|real")
    for fact in comparison(story):
        facts.add_row(*fact)
    return facts


def _met(story: RestoreStory) -> str:
    return pages_or_none(story.meeting_pages) if story.met_layer is None else f"layer {story.met_layer}"


def _ranks(told: Sequence[tuple[RequestView, RestoreStory]]) -> FittingTable:
    """One row for each rank, the slowest first."""
    ranks = FittingTable(" rank| decided|estimated|real|computed|loaded|met behind|held|lost| fell behind")
    for view, story in told:
        ranks.add_row(
            place(view), text(story.strategy) or NONE, when(story.estimated_seconds), when(real_seconds(story)),
            count(story.pages(COMPUTED)), count(story.loaded), _met(story),
            when(story.held_seconds or None), count(sum(story.lost_pages.values())), text(story.late) or NONE,
        )  # fmt: skip
    return ranks
