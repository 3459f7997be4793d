"""Writes down how one prefix comes back, as it happens; see `RestoreStory` for what is told of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..figures.story import COMPUTED, ON_DEVICE, RestoreStory
from .flight import Flight
from .plan import RestorePlan, Strategy
from .planner import Decision


class Storyteller:
    """Written under the page table's lock; but for `loaded`, `withdraw`, `computed` and `forward`, which are for the
    one thread that drives the device. Any thread may have it told.

    Times are of the restorer's clock, seconds. Nothing here takes longer for more pages.
    """

    __slots__ = (
        "_arrived", "_asked", "_began", "_compute_seconds", "_first", "_found", "_front", "_held", "_holds_since",
        "_latest", "_layers", "_lost", "_met_layer", "_runs", "_there", "_waited_since", "copy_seconds", "covered",
        "flight", "late", "late_pages", "page_tokens", "prefix_pages", "wanted_pages", "whole", "why",
    )  # fmt: skip

    def __init__(self, *, page_tokens: int, prefix_pages: int, wanted_pages: int, began: float, why: str = "") -> None:
        """`why`: it is all recomputed, for this reason, and nothing is looked for."""
        self.page_tokens = page_tokens
        self.prefix_pages = prefix_pages
        self.wanted_pages = wanted_pages
        self.why = why
        self.whole = ""  # see `RestoreStory`
        self.covered = 0
        self.copy_seconds = 0.0
        self.late = ""
        self.late_pages = 0
        self._began = began
        #: Of the found pages, while it runs; None from its end on.
        self.flight: Flight | None = None
        self._found: Mapping[str, int] = {}
        self._first: Decision | None = None
        self._latest: Decision | None = None
        self._front = 0  # pages that had come before the first decision
        self._runs: list[tuple[str, int]] = []
        self._layers = 0
        self._met_layer: int | None = None
        self._there: float | None = None
        self._waited_since: float | None = None
        self._holds_since: float | None = None
        self._held = 0.0
        self._compute_seconds = 0.0
        self._asked: dict[str, float] = {}  # when a source was asked first
        self._arrived: dict[str, float] = {}  # when something came from it last
        self._lost: Counter[str] = Counter()

    @property
    def found_pages(self) -> int:
        return sum(self._found.values())

    # ---- what was found, and what is done about it ----

    def found(self, pages: Mapping[str, int]) -> None:
        """How many pages lie in which tier, as far as they are held. Must not be changed any more."""
        self._found = pages

    def decided(self, decision: Decision, front: int) -> None:
        """What to do about the pages from `front` on: the first time, and whenever it is thought over."""
        if self._first is None:
            self._first, self._front = decision, front
        self._latest = decision

    def fell_behind(self, reason: str, pages: int) -> None:
        """`pages` that were to be loaded are left to be computed."""
        self.late, self.late_pages = reason, pages

    # ---- pages come ----

    def loaded(self, first: int, runs: Sequence[tuple[str, int]]) -> None:
        """The pages from `first` on are about to be copied to the device; `runs`: from which tiers they came."""
        self.withdraw(first)
        self._fill(first)
        for source, pages in runs:
            self._add(source, pages)

    def withdraw(self, first: int) -> None:
        """What was said of the pages from `first` on does not happen."""
        while self.covered > first:
            how, pages = self._runs.pop()
            self.covered -= pages
            if self.covered < first:
                self._add(how, first - self.covered)

    def computed(self, first: int, end: int) -> None:
        """The device computes pages `[first, end)`; of those that have come already nothing changes."""
        first = max(first, self.covered)
        if end > first:
            self._fill(first)
            self._add(COMPUTED, end - first)

    def by_layers(self, computed: int, layers: int) -> None:
        """Of the pages that are said to be computed the device has computed so many of its layers, and copied the
        others."""
        self._met_layer, self._layers = computed, layers

    def forward(self, start: int, tokens: int, of_tokens: int, seconds: float, ended: float) -> None:
        """A forward has ended, which took `seconds`: over tokens `[start, start + tokens)` of the prompt, and with all
        requests in it over `of_tokens`."""
        first = self.prefix_pages * self.page_tokens
        last = first + self.found_pages * self.page_tokens
        begin, end = max(start, first), min(start + tokens, last)
        if begin >= end:
            return
        share = (end - begin) / of_tokens
        self._compute_seconds += seconds * share
        self.computed((begin - first) // self.page_tokens, (end - first) // self.page_tokens)
        if end == last:
            # What else it computed is not part of the restore.
            self._there = ended - seconds * (1 - share)

    def asked(self, source: str, now: float) -> None:
        """A source is told to load some of it."""
        self._asked.setdefault(source, now)

    def arrived(self, source: str, now: float) -> None:
        """A page that a source brought is in host memory, verified."""
        self._arrived[source] = now

    def lost(self, source: str, reason: str) -> None:
        """A page that was found there does not come, and is to be computed."""
        self._lost[f"{source}: {reason}"] += 1

    @property
    def lost_pages(self) -> Mapping[str, int]:
        """See `RestoreStory`."""
        return self._lost

    # ---- waiting, and the end ----

    def waited_for(self, now: float) -> None:
        """Somebody begins to wait for it."""
        self._waited_since = now

    def holds(self, now: float) -> None:
        """It waits for a page that is on its way. While it does, once more changes nothing."""
        if self._holds_since is None:
            self._holds_since = now

    def goes_on(self, now: float) -> None:
        """It holds no longer, if it did."""
        if self._holds_since is not None:
            self._held += now - self._holds_since
            self._holds_since = None

    def ready(self, now: float) -> None:
        """Every page lies in host memory, verified."""
        self._there = now

    def taken(self, now: float) -> None:
        """The device has taken what it will take. If it computes the last pages, `forward` says when they are there."""
        if self.covered == self.found_pages and self._runs and self._runs[-1][0] != COMPUTED:
            self._there = now

    # ---- told ----

    def told(self) -> RestoreStory:
        """As far as it has come."""
        runs, there, since = tuple(self._runs), self._there, self._waited_since
        flight = self.flight if self._found else None
        first, latest = self._first, self._latest
        plan = first.plan if first is not None else None
        lead, meeting = self._planned(plan)
        changed = first is not None and latest is not None and latest.strategy is not first.strategy
        return RestoreStory(
            page_tokens=self.page_tokens,
            prefix_pages=self.prefix_pages,
            wanted_pages=self.wanted_pages,
            found_pages=dict(self._found),
            whole=self.whole,
            strategy=self._strategy(),
            why=self.why if first is None else first.why,
            later=f"{latest.strategy.value}: {latest.why}" if changed and latest is not None else "",
            estimated_seconds=_rounded(plan.seconds if plan is not None else None),
            estimated_compute_seconds=_rounded(plan.compute_seconds if plan is not None else None),
            estimated_load_seconds=_all_rounded(plan.load_seconds if plan is not None else {}),
            planned_lead_pages=lead,
            planned_meeting_pages=meeting,
            runs=runs,
            computed_pages=sum(pages for how, pages in runs if how == COMPUTED) if flight is not None else None,
            arrived_pages=flight.present if flight is not None else None,
            loading_pages=flight.loading if flight is not None else None,
            meeting_pages=self._meeting(runs),
            layers=self._layers,
            planned_layer=plan.cutover if plan is not None and plan.strategy is Strategy.LAYER_WISE else None,
            met_layer=self._met_layer,
            there_seconds=_rounded(there - self._began if there is not None else None),
            waited_seconds=_rounded(max(0.0, there - since) if there is not None and since is not None else None),
            held_seconds=round(self._held, 6),
            compute_seconds=round(self._compute_seconds, 6),
            load_seconds=_all_rounded(
                {source: at - self._asked.get(source, self._began) for source, at in list(self._arrived.items())}
            ),
            copy_seconds=round(self.copy_seconds, 6),
            lost_pages=dict(self._lost),
            late=self.late,
            late_pages=self.late_pages,
        )

    def _strategy(self) -> str:
        if self._first is not None:
            return self._first.strategy.value
        if self.why:
            return Strategy.RECOMPUTE.value
        return Strategy.LOAD.value if self._found else ""

    def _planned(self, plan: RestorePlan | None) -> tuple[int | None, int | None]:
        """Where computing was to begin and to end, in pages; both 0 where nothing was to be computed."""
        if plan is None or plan.strategy is Strategy.LAYER_WISE:
            return None, None
        if not plan.meeting:
            return 0, 0
        return self._front + plan.lead // self.page_tokens, self._front + -(-plan.meeting // self.page_tokens)

    def _meeting(self, runs: Sequence[tuple[str, int]]) -> int | None:
        """Behind how many pages all were loaded; None while some have not come."""
        meeting = sum(pages for _, pages in runs)
        if not runs or meeting != self.found_pages:
            return None
        for how, pages in reversed(runs):
            if how == COMPUTED:
                break
            meeting -= pages
        return meeting

    def _fill(self, first: int) -> None:
        """Pages that nobody brought, and that are not missing any more."""
        if first > self.covered:
            self._add(ON_DEVICE, first - self.covered)

    def _add(self, how: str, pages: int) -> None:
        self.covered += pages
        if self._runs and self._runs[-1][0] == how:
            self._runs[-1] = (how, self._runs[-1][1] + pages)
        else:
            self._runs.append((how, pages))


def _rounded(seconds: float | None) -> float | None:
    """To a microsecond, as all on the bus."""
    return None if seconds is None else round(seconds, 6)


def _all_rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in seconds.items()}
