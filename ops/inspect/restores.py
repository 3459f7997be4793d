"""One restore: which part of a prefix was loaded from where, which was recomputed, where both met, and why so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.ops.inspect.requests import age
from swift_tiers.ops.inspect.tables import FittingTable, Look, describe, describe_troubles, lines, place
from swift_tiers.radix_tiering.bus.figures import NONE, UNKNOWN, count, seconds, share, text
from swift_tiers.radix_tiering.bus.troubles import request_troubles
from swift_tiers.radix_tiering.bus.views import RequestView
from swift_tiers.radix_tiering.restore.story import COMPUTED, ON_DEVICE, RestoreStory

#: Characters of the bar.
BAR = 72
#: Beyond so many times its estimate a restore was slower than it should have been.
OFF_ESTIMATE = 1.5


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
    "to come": Part(".", "dim", "have not come"),
    "new": Part("N", "dim yellow", "held nowhere, computed"),
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
            shown += [comparison(story), Text("")]
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


def parts_of(story: RestoreStory) -> list[tuple[str, int]]:
    """All whole pages of the prompt in order, as runs of one kind; names of `PARTS`."""
    parts = [(ON_DEVICE, story.prefix_pages), *story.runs, ("to come", max(0, story.found - story.covered))]
    parts.append(("new", max(0, story.wanted_pages - story.found)))
    return [(name, pages) for name, pages in parts if pages]


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


def comparison(story: RestoreStory) -> FittingTable:
    """What was estimated beside what happened."""
    lead, meeting = story.planned_lead_pages, story.planned_meeting_pages
    planned = None if lead is None or meeting is None else meeting - lead
    facts = FittingTable(" |estimated|real")
    facts.add_row("all there after", _when(story.estimated_seconds), _when(_real_seconds(story)))
    facts.add_row("  after its arrival", NONE, _when(story.there_seconds))
    facts.add_row("computing", _when(story.estimated_compute_seconds), _when(story.compute_seconds or None))
    for source in sorted({*story.estimated_load_seconds, *story.load_seconds}):
        loading = story.estimated_load_seconds.get(source), story.load_seconds.get(source)
        facts.add_row(f"loading from {text(source)}", *map(_when, loading))
    facts.add_row("copying to the device", NONE, _when(story.copy_seconds or None))
    facts.add_row("holding for pages", NONE, _when(story.held_seconds or None))
    facts.add_row("pages computed", _pages(planned), count(story.pages(COMPUTED)))
    facts.add_row("pages loaded", _pages(None if planned is None else story.found - planned), count(story.loaded))
    facts.add_row("pointers met behind page", _pages(meeting), _pages(story.meeting_pages))
    return facts


def _real_seconds(story: RestoreStory) -> float | None:
    """What an estimate is about: since somebody waited for it, if anybody had to."""
    return story.waited_seconds if story.waited_seconds is not None else story.there_seconds


def _when(value: float | None) -> str:
    return NONE if value is None else seconds(value)


def _pages(value: int | None) -> str:
    return NONE if value is None else count(value)


def _ranks(told: Sequence[tuple[RequestView, RestoreStory]]) -> FittingTable:
    """One row for each rank, the slowest first."""
    ranks = FittingTable(" rank| decided|estimated|real|computed|loaded|met behind|held|lost| fell behind")
    for view, story in told:
        ranks.add_row(
            place(view), text(story.strategy) or NONE, _when(story.estimated_seconds), _when(_real_seconds(story)),
            count(story.pages(COMPUTED)), count(story.loaded), _pages(story.meeting_pages),
            _when(story.held_seconds or None), count(sum(story.lost_pages.values())), text(story.late) or NONE,
        )  # fmt: skip
    return ranks


# ---- in words ----


def explain_restore(view: RequestView, story: RestoreStory) -> Iterator[str]:
    """What was found, what was decided and why, what came of it, and where to look further."""
    yield _what_was_found(story)
    if not story.found:
        if story.wanted_pages and not story.why:
            yield "where to look: `inspect tiers` (evictions, pages not taken in), `inspect events` (flushes)"
        return
    yield from _what_was_decided(story)
    yield _what_happened(view, story)
    yield from _how_long(story)
    yield from _what_went_wrong(story)


def _what_was_found(story: RestoreStory) -> str:
    had = f"the device had {count(story.prefix_pages)} pages"
    if not story.wanted_pages:
        return f"{had}: every whole page of the prompt"
    lacked = f"{had} and lacked {count(story.wanted_pages)}"
    if not story.found:
        what = f"nothing was looked for below it: {text(story.why)}" if story.why else "none was held below it"
        return f"{lacked}; {what}, so all were computed"
    sources = ", ".join(f"{text(tier)} {count(pages)}" for tier, pages in story.found_pages.items())
    new = story.wanted_pages - story.found
    rest = f"; {count(new)} were held nowhere: new, or gone" if new else ""
    return f"{lacked}; {count(story.found)} of them were found below it ({sources}){rest}"


def _what_was_decided(story: RestoreStory) -> Iterator[str]:
    if story.whole:
        yield f"it needed its prefix whole before anything was computed: {text(story.whole)}"
    elif story.strategy:
        estimated = "" if story.estimated_seconds is not None else " (nothing was estimated)"
        yield f"decided: {_STRATEGIES.get(story.strategy, text(story.strategy))}, since {text(story.why)}{estimated}"
    if story.later:
        strategy, _, why = story.later.partition(": ")
        yield f"decided anew: {_STRATEGIES.get(strategy, text(strategy))}, since {text(why)}"


_STRATEGIES = {
    "load": "load, and compute nothing",
    "recompute": "recompute",
    "token-wise": "compute from the front while loading from the back",
    "layer-wise": "compute the lower layers while loading the upper ones",
}


def _what_happened(view: RequestView, story: RestoreStory) -> str:
    ways = [(COMPUTED, "computed"), ("host", "loaded from host memory"), ("peer", "loaded from peers")]
    ways += [("ssd", "loaded from ssd"), (ON_DEVICE, "found on the device meanwhile")]
    done = [f"{count(story.pages(how))} {what}" for how, what in ways if story.pages(how)]
    came = ", ".join(done) or "none has come"
    left = story.found - story.covered
    if left:
        end = "so far" if view.live else "before it ended"
        return f"of the {count(story.found)} pages {end}: {came}; {count(left)} have not come"
    met = story.meeting_pages
    if met is None or not 0 < met < story.found:
        return f"of the {count(story.found)} pages: {came}"
    planned = story.planned_meeting_pages
    expected = f", planned was page {count(planned)}" if planned is not None and planned != met else ""
    return f"of the {count(story.found)} pages: {came}; computing and loading met behind page {count(met)}{expected}"


def _how_long(story: RestoreStory) -> Iterator[str]:
    real, estimated = _real_seconds(story), story.estimated_seconds
    if real is None:
        return
    since = "it was waited for" if story.waited_seconds is not None else "its arrival; nobody had to wait for them"
    compared = f" (estimated {seconds(estimated)}, so {share(real, estimated)} of that)" if estimated else ""
    yield f"they were all there {seconds(real)} after {since}{compared}"
    if estimated and real > OFF_ESTIMATE * estimated:
        yield f"slower than estimated mostly by {_slowest_part(story)}"


def _slowest_part(story: RestoreStory) -> str:
    """What exceeded its own estimate most, and where to look."""
    over = {"waiting for its turn on the device; `inspect servers` (running and waiting requests)": 0.0}
    if story.estimated_compute_seconds is not None:
        what = "computing; the device is busier than it was, or the profile is off: `swift-tiers profile`"
        over[what] = story.compute_seconds - story.estimated_compute_seconds
    for source, real in story.load_seconds.items():
        where = "`inspect devices`" if source == "ssd" else "`inspect links`"
        what = f"loading from {text(source)}; {where}, and whether others loaded at the same time"
        over[what] = real - story.estimated_load_seconds.get(source, 0.0)
    return max(over, key=lambda what: over[what])


def _what_went_wrong(story: RestoreStory) -> Iterator[str]:
    if story.held_seconds:
        yield f"it held for {seconds(story.held_seconds)}: all that was left to compute was on its way"
    if story.late:
        yield f"it fell behind: {text(story.late)}; {count(story.late_pages)} pages were left to be computed"
    for where, pages in story.lost_pages.items():
        source, _, reason = where.partition(": ")
        yield f"{count(pages)} pages did not come from {text(source)} ({text(reason) or UNKNOWN}) and were computed"
    if story.late or story.lost_pages:
        yield "where to look: `inspect events`, `inspect devices` (slow and failing ones), `inspect tiers` (refusals)"
