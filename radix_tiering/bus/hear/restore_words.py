"""One restore in words: which part of a prefix was loaded from where, which was recomputed, where both met, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...figures.story import COMPUTED, ON_DEVICE, RestoreStory
from ..contract.views import RequestView
from .figures import NONE, UNKNOWN, count, seconds, share, text

#: Beyond so many times its estimate a restore was slower than it should have been.
OFF_ESTIMATE = 1.5


class Fact(NamedTuple):
    """One line of what was estimated beside what happened."""

    what: str
    estimated: str
    real: str


def comparison(story: RestoreStory) -> Iterator[Fact]:
    """What was estimated beside what happened; `-` where it has not come to that, or does not apply."""
    lead, meeting = story.planned_lead_pages, story.planned_meeting_pages
    planned = None if lead is None or meeting is None else meeting - lead
    yield Fact("all there after", when(story.estimated_seconds), when(real_seconds(story)))
    yield Fact("  after its arrival", NONE, when(story.there_seconds))
    yield Fact("computing", when(story.estimated_compute_seconds), when(story.compute_seconds or None))
    for source in sorted({*story.estimated_load_seconds, *story.load_seconds}):
        estimated, real = story.estimated_load_seconds.get(source), story.load_seconds.get(source)
        yield Fact(f"loading from {text(source)}", when(estimated), when(real))
    yield Fact("copying to the device", NONE, when(story.copy_seconds or None))
    yield Fact("holding for pages", NONE, when(story.held_seconds or None))
    yield Fact("pages computed", pages_or_none(planned), count(story.pages(COMPUTED)))
    yield Fact("pages loaded", pages_or_none(None if planned is None else story.found - planned), count(story.loaded))
    if story.layers:
        planned_layer, met_layer = pages_or_none(story.planned_layer), pages_or_none(story.met_layer)
        yield Fact(f"layers computed, of {story.layers}", planned_layer, met_layer)
    else:
        yield Fact("pointers met behind page", pages_or_none(meeting), pages_or_none(story.meeting_pages))


def real_seconds(story: RestoreStory) -> float | None:
    """What an estimate is about: since somebody waited for it, if anybody had to."""
    return story.waited_seconds if story.waited_seconds is not None else story.there_seconds


def when(value: float | None) -> str:
    """In words; `-` if it has not come to that."""
    return NONE if value is None else seconds(value)


def pages_or_none(value: int | None) -> str:
    """Likewise, a number of pages, or of layers."""
    return NONE if value is None else count(value)


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
        why = f", since {text(story.why)}" if story.why else ""
        yield f"decided: {_STRATEGIES.get(story.strategy, text(story.strategy))}{why}{estimated}"
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
        far = _on_their_way(view, story)
        return f"of the {count(story.found)} pages {end}: {came}; {count(left)} have not come{far}"
    if story.layers and story.met_layer is not None:
        copied = story.layers - story.met_layer
        how = f"the upper {copied} copied from host memory" if copied else "none copied: they came too late, or failed"
        return f"of the {count(story.found)} pages: {story.met_layer} of {story.layers} layers computed, {how}"
    met = story.meeting_pages
    if met is None or not 0 < met < story.found:
        return f"of the {count(story.found)} pages: {came}"
    planned = story.planned_meeting_pages
    expected = f", planned was page {count(planned)}" if planned is not None and planned != met else ""
    return f"of the {count(story.found)} pages: {came}; computing and loading met behind page {count(met)}{expected}"


def _on_their_way(view: RequestView, story: RestoreStory) -> str:
    """How far those are that the device does not have yet."""
    if not view.live or story.arrived_pages is None:
        return ""
    return f": {count(story.arrived_pages)} have come up, {count(story.loading_pages)} are on their way"


def _how_long(story: RestoreStory) -> Iterator[str]:
    real, estimated = real_seconds(story), story.estimated_seconds
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
