"""Restores as an operator judges them: one for each request, whatever the ranks of its server say of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.contract.views import RankState, RequestView, Snapshot
from swift_tiers.radix_tiering.bus.hear.restore_words import OFF_ESTIMATE, real_seconds
from swift_tiers.radix_tiering.figures.story import COMPUTED, RestoreStory

from ...model.moment import Moment
from ..parts.settled import Remembered


class RestoreVerdict(NamedTuple):
    """What became of a restore, in a word or two; the worse, the larger `badness`."""

    word: str
    style: str
    badness: int


RUNNING = RestoreVerdict("running", "note", 0)
ALL_THERE = RestoreVerdict("all there", "note", 0)
IN_TIME = RestoreVerdict("in time", "good", 1)
DONE = RestoreVerdict("done", "good", 1)  # nothing was estimated
LATE = RestoreVerdict("late", "warning", 3)
CUT_SHORT = RestoreVerdict("cut short", "warning", 4)
OUT_OF_TIME = RestoreVerdict("out of time", "wrong", 5)
CANCELLED = RestoreVerdict("cancelled", "muted", 2)
NOTHING = RestoreVerdict("nothing found", "muted", 0)


def verdict(view: RequestView) -> RestoreVerdict:
    story = view.restore_story
    if view.restore == "expired":
        return OUT_OF_TIME
    if view.restore == "cut short":
        return CUT_SHORT
    if story is None or not story.found:
        return NOTHING
    if view.restore == "cancelled" or (view.state == "aborted" and story.covered < story.found):
        return CANCELLED
    if is_running(view):
        return RUNNING if story.there_seconds is None else ALL_THERE
    real = real_seconds(story)
    if story.late or (real is not None and story.estimated_seconds and real > OFF_ESTIMATE * story.estimated_seconds):
        return LATE
    return IN_TIME if real is not None and story.estimated_seconds else DONE


def is_running(view: RequestView) -> bool:
    """Whether pages that were found are still to come to the device."""
    story = view.restore_story
    return view.live and story is not None and story.covered < story.found


class Restored(NamedTuple):
    """One request. `views`: what each of its ranks says, the worst first; at least one does."""

    views: tuple[RequestView, ...]

    @property
    def worst(self) -> RequestView:
        return self.views[0]

    @property
    def story(self) -> RestoreStory:
        return self.worst.restore_story or RestoreStory()

    @property
    def verdict(self) -> RestoreVerdict:
        return verdict(self.worst)

    @property
    def running(self) -> bool:
        return is_running(self.worst)  # what runs is the worst

    @property
    def key(self) -> str:
        """Ranks of one data rank see the same requests."""
        return f"{self.worst.server} {self.worst.rank.partition('-')[0]} {self.worst.rid}"

    def lasts(self, moment: Moment) -> float | None:
        """Seconds: what its estimate is about, of a restore that is over; since its arrival, of one that is not."""
        story = self.story
        if not self.running or story.there_seconds is not None:
            return real_seconds(story)
        return since(moment, self.worst, self.worst.arrived)


def since(moment: Moment, view: RequestView, then: float | None) -> float | None:
    """Seconds since `then`, which is by the clock of the view's server."""
    age = moment.age_of(view)
    return None if then is None or view.time is None or age is None else max(0.0, view.time - then + age)


def restores(moment: Moment, server: str | None) -> tuple[list[Restored], list[Restored]]:
    """Those that run, the longest first, and those that are over, the latest first. Requests of which nothing was
    found below the device are none."""
    if moment.snapshot is None:
        return [], []
    running, over = _RESTORES.of(moment.snapshot)
    if server is None:
        return running, over
    return [one for one in running if one.worst.server == server], [one for one in over if one.worst.server == server]


def _restores(snapshot: Snapshot) -> tuple[list[Restored], list[Restored]]:
    ranks = (rank for state in snapshot.servers for rank in state.ranks)
    ahead = {state.server.server: state.server.clock_offset_seconds or 0.0 for state in snapshot.servers}
    running: list[Restored] = []
    over: list[Restored] = []
    for one in grouped(ranks):
        if any(_is_one(view) for view in one.views):
            (running if one.running else over).append(one)
    running.sort(key=lambda one: (one.worst.arrived or 0.0) - ahead[one.worst.server])
    over.sort(key=lambda one: ahead[one.worst.server] - (one.worst.ended or one.worst.arrived or 0.0))
    return running, over


_RESTORES: Remembered[Snapshot, tuple[list[Restored], list[Restored]]] = Remembered(_restores, kept=2)


def _is_one(view: RequestView) -> bool:
    return view.restore_story is not None and view.restore_story.found > 0


def find(moment: Moment, server: str | None, rid: str) -> Restored | None:
    """Also one of which nothing was found. Of a request that several servers know, the latest."""
    known = [one for one in grouped(moment.ranks(server), rid) if one.worst.rid == rid]
    return max(known, key=lambda one: one.worst.arrived or 0.0, default=None)


def grouped(ranks: Iterable[RankState], rid: str | None = None) -> list[Restored]:
    """By request; of all, or of one."""
    groups: dict[tuple[str, str, str], list[RequestView]] = {}
    for rank in ranks:
        for view in rank.requests:
            if rid in (None, view.rid):
                groups.setdefault((view.server, view.rank.partition("-")[0], view.rid), []).append(view)
    return [Restored(tuple(_worst_first(views))) for views in groups.values()]


def _worst_first(views: list[RequestView]) -> list[RequestView]:
    return sorted(views, key=_badness, reverse=True) if len(views) > 1 else views


def _badness(view: RequestView) -> tuple[bool, int, float, int]:
    """What is still running holds the others up; of these, the one that has most to come."""
    story = view.restore_story or RestoreStory()
    real = real_seconds(story)
    return is_running(view), verdict(view).badness, real or 0.0, story.found - story.covered


class Saved(NamedTuple):
    """What loading spared the device."""

    tokens: int
    seconds: float | None  # of computing, at the speed of what it did compute here; None: it computed nothing


def saved(story: RestoreStory) -> Saved:
    """Pages that came from a tier, or layers of them. Computing goes slower towards the end of a prompt, where they
    were, so it is at least about so much."""
    if story.layers and story.met_layer is not None:
        copied, computed = story.layers - story.met_layer, story.met_layer
        tokens = story.found * story.page_tokens * copied // story.layers
    else:
        copied, computed = story.loaded, story.pages(COMPUTED)
        tokens = copied * story.page_tokens
    known = story.compute_seconds > 0 and computed > 0
    return Saved(tokens, story.compute_seconds / computed * copied if known else None)
