"""What an operator should know first: the troubles of a snapshot, and what only a history shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from swift_tiers.radix_tiering.bus.contract.gpu_views import GpuView
from swift_tiers.radix_tiering.bus.contract.views import (
    DeviceView,
    LeasesView,
    RankState,
    RequestView,
    ServerView,
    Snapshot,
    StripeSetView,
    View,
)
from swift_tiers.radix_tiering.bus.hear.figures import count, seconds, size, text
from swift_tiers.radix_tiering.bus.hear.reader import EVERYTHING, Part
from swift_tiers.radix_tiering.bus.hear.trouble import Mark, Trouble
from swift_tiers.radix_tiering.bus.hear.troubles import LONG_WAIT, Troubles, waits_long

from .departures import Departure, Departures, Going
from .history import History
from .place import Place, PlaceStep

#: From the one that is read first to the one beneath which there is nothing: what leaves one may lie in the next.
BENEATH = {
    "device": ("peer", "host", "ssd", "remote"),
    "peer": ("ssd", "remote"),
    "host": ("peer", "ssd", "remote"),
    "ssd": ("remote",),
}
#: Hit rates: of the last so many seconds, against those of the time before; with at least so many prompt tokens in it,
#: and a former rate of at least so much, less than this share of it is a collapse.
RECENT_SECONDS, RECENT_TOKENS, FORMER_RATE, COLLAPSE = 20.0, 2000, 0.2, 0.5
#: What is only counted, and has not grown for so long, seconds, is a note: it happened, and is over.
SILENT_SECONDS = 300.0
#: What one look adds to a silence at most, seconds: Redis' clock may have been set forward since the one before.
LONGEST_STEP = 60.0
_FIGURES = re.compile(r"[\d.]+(?:[kMGT](?:iB)?|B|%)?(?: (?:ms|s|min|h|d)\b)?")


class Alarm(NamedTuple):
    """One thing that is wrong, and where to look at it."""

    mark: Mark
    place: str  # `alpha dp0-tp0 ssd`
    what: str
    remedy: str
    target: Place
    since: float  # when it was seen first, seconds since 1970 by Redis' clock
    counted: int = 0  # of what it tells of, how often it has happened since a start, which stays true for ever


class _KnownAlarm(NamedTuple):
    """An alarm that was there before: since when, how often it had happened, and for how long no more than that."""

    since: float
    counted: int
    silent: float  # seconds


class Alarms:
    """Finds alarms, and remembers since when each is there. One thread at a time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _KnownAlarm] = {}
        self._time: float | None = None  # of the last look
        self._departures = Departures()

    def of(self, snapshot: Snapshot, history: History) -> tuple[Alarm, ...]:
        """The worst first, and of these the newest."""
        departed = self._departures.observe(snapshot)
        now, known, found = snapshot.time, {}, []
        step = 0.0 if self._time is None else max(0.0, min(now - self._time, LONGEST_STEP))
        for alarm in _alarms(snapshot, history, departed):
            key = _key(alarm)
            former = self._known.get(key)
            since = now if former is None else former.since
            silent = 0.0 if former is None or former.counted != alarm.counted else former.silent + step
            known[key] = _KnownAlarm(since, alarm.counted, silent)
            alarm = alarm._replace(since=since)
            if alarm.counted and silent >= SILENT_SECONDS:
                what = f"{alarm.what}; none in the last {seconds(SILENT_SECONDS)}"
                alarm = alarm._replace(mark=min(alarm.mark, Mark.NOTE), what=what)
            found.append(alarm)
        self._known, self._time = known, now
        return tuple(sorted(found, key=lambda alarm: (-alarm.mark, -alarm.since, alarm.place)))


def how_many(alarms: Iterable[Alarm], servers: int, *, current: bool = True) -> list[tuple[str, str]]:
    """How many of what: words with their styles. Notes are not worth one; and without servers, nobody is well.

    `current`: whether this is of now. Of a bus that is lost, or whose last look is old, nobody knows who is well.
    """
    if not current:
        return [("not known now", "wrong")]
    alarms = list(alarms)
    if not servers and not any(alarm.mark >= Mark.WARNING for alarm in alarms):
        return [("no server", "warning")]
    marks = [alarm.mark for alarm in alarms]
    wrong, warnings = marks.count(Mark.WRONG), marks.count(Mark.WARNING)
    said = [(f"{wrong} WRONG", "wrong")] if wrong else []
    said += [(f"{warnings} warning{'s' if warnings > 1 else ''}", "warning")] if warnings else []
    return said or [("all well", "good")]


def _key(alarm: Alarm) -> tuple[str, str]:
    """Figures in it change, and their units with them, while it stays the same alarm."""
    return alarm.place, " ".join(_FIGURES.sub("", alarm.what).split())


def _alarms(snapshot: Snapshot, history: History, departed: Mapping[str, Departure]) -> Iterator[Alarm]:
    troubles = Troubles(snapshot, EVERYTHING & ~Part.REQUESTS, history.lately)
    for state in snapshot.servers:
        departure = departed.get(state.server.server)
        if departure is None or departure.going is Going.UNKNOWN:
            yield from _told(troubles.of([state.server]), snapshot.time)
        else:
            yield _gone(state.server, departure, snapshot.time)
        for rank in state.ranks:
            views: list[View] = [*rank.tiers, *rank.devices, *rank.lent, *rank.borrowed]
            views += [view for view in (rank.rank, rank.stripe_set, rank.tree, rank.gpu) if view is not None]
            yield from _told(troubles.of(views), snapshot.time)
            yield from _of_requests(rank, snapshot.time)
            yield from _collapse(rank, history, snapshot.time)
    here = {state.server.server for state in snapshot.servers}
    for departure in departed.values():
        if departure.server.server not in here:
            yield _missed(departure, snapshot.time)


def _told(troubles: Iterable[Trouble], now: float) -> Iterator[Alarm]:
    for trouble in troubles:
        # Paths are long, and the device has a number; that it is no GPU should be said.
        place = " ".join(word for word in trouble.place.split() if "/" not in word)
        if isinstance(trouble.view, DeviceView):
            place = place.replace(" device ", " ssd device ", 1)
        yield Alarm(trouble.mark, place, trouble.what, trouble.remedy, target(trouble.view), now, trouble.counted)


def _gone(server: ServerView, departure: Departure, now: float) -> Alarm:
    """One that was seen while it was there."""
    heard = f"last heard of {seconds(server.age_seconds)} ago"
    if departure.going is Going.STOPPED:
        return Alarm(Mark.NOTE, text(server.server), f"was stopped; {heard}", "", target(server), now)
    what = f"is GONE: it died, hangs, or is cut off from Redis; {heard}{_lent(departure)}"
    return Alarm(
        Mark.WRONG, text(server.server), what, "see whether it runs, and the end of its log", target(server), now
    )


def _missed(departure: Departure, now: float) -> Alarm:
    """One that the bus does not know of any more, though it was there: Redis has lost what it knew."""
    name = text(departure.server.server)
    seen = f"seen {seconds(max(0.0, now - departure.seen))} ago"
    if departure.going is Going.AWAITED:
        what = f"has not come back to this bus, which began anew; {seen}"
        return Alarm(
            Mark.WARNING, name, what, "servers that run come back within seconds", target(departure.server), now
        )
    what = f"is GONE: it has not come back to this bus, which began anew; {seen}{_lent(departure)}"
    remedy = "see whether it runs, and whether it reaches this Redis"
    return Alarm(Mark.WRONG, name, what, remedy, target(departure.server), now)


def _lent(departure: Departure) -> str:
    lent = f"; it lent {size(departure.lent_bytes)}" if departure.lent_bytes else ""
    return f"{lent} to {', '.join(map(text, departure.borrowers))}" if lent and departure.borrowers else lent


def target(view: View) -> Place:
    """Where a trouble of this view is looked into."""
    server = PlaceStep("server", view.server)
    if isinstance(view, DeviceView):
        return Place("stripes", (server, PlaceStep("device", f"{view.rank}:{view.number}")))
    if isinstance(view, StripeSetView):
        return Place("stripes", (server,))
    if isinstance(view, GpuView):
        return Place("links", (server,))
    if isinstance(view, LeasesView):
        return Place("leases", (server,))
    if isinstance(view, RequestView):
        return Place("restores", (server, PlaceStep("request", view.rid)))
    return Place("overview", (server,))


def _of_requests(rank: RankState, now: float) -> Iterator[Alarm]:
    """Requests are many: those that wait long are one alarm. What became of others is in the views of restores."""
    waiting = [request for request in rank.requests if request.live and waits_long(request)]
    if waiting:
        one = waiting[0]
        what = f"{count(len(waiting))} requests have waited for more than {seconds(LONG_WAIT)}, as {text(one.rid)}"
        remedy = "the device is full of others, or the server hangs"
        yield Alarm(Mark.WARNING, f"{text(one.server)} {text(one.rank)}", what, remedy, target(one), now)


def falls_to(rank: RankState, tier: str) -> str:
    """Where pages lie that leave a tier: the tiers beneath it, or nowhere, and then they are recomputed."""
    here = {one.tier for one in rank.tiers if one.capacity_bytes}
    beneath = [name for name in BENEATH.get(tier, ()) if name in here]
    return " or ".join(beneath) or "recomputed"


def _too_small(rank: RankState, history: History) -> str:
    """The tier that loses pages for good just now. That a cache is full is no news; it tells why hits are missed."""
    for tier in rank.tiers:
        evicted = history.rate(tier, "evictions", seconds=RECENT_SECONDS)
        if evicted and falls_to(rank, tier.tier) == "recomputed":
            return f", or {text(tier.tier)} is too small: it evicts {count(evicted)} pages/s, which are recomputed"
    return ""


def _collapse(rank: RankState, history: History, now: float) -> Iterator[Alarm]:
    recent, former = hit_rates([rank], history, RECENT_SECONDS)
    if rank.tree is None or recent is None or former is None:
        return
    if former >= FORMER_RATE and recent < COLLAPSE * former:
        what = f"hit rate fell to {recent:.0%}, from {former:.0%} before"
        remedy = "new prompts, a flush, weights that changed, or a tier that is out: see its events"
        remedy += _too_small(rank, history)
        place = f"{text(rank.tree.server)} {text(rank.tree.rank)}"
        yield Alarm(Mark.WARNING, place, what, remedy, target(rank.tree), now)


def hit_rates(ranks: Iterable[RankState], history: History, recent_seconds: float) -> tuple[float | None, float | None]:
    """The share of prompt tokens that were found in any tier: during the last seconds, and in the time before.

    Of ranks with requests of their own each. None where too few prompt tokens came.
    """
    prompt, found = np.zeros(2), np.zeros(2)
    for rank in ranks:
        if rank.tree is None or rank.rank is None:
            continue
        prompt += history.growths(rank.tree, "prompt_tokens", recent_seconds)
        found += history.growths(rank.tree, "reused_tokens", recent_seconds)
        for tier in rank.tiers:
            if tier.tier != "device":
                pages = history.growths(tier, "hits", recent_seconds)
                found += np.multiply(pages, rank.rank.page_tokens or 0)
    late, early = (_rate(tokens, whole) for tokens, whole in zip(found.tolist(), prompt.tolist(), strict=True))
    return late, early


def _rate(found: float, prompt: float) -> float | None:
    return min(1.0, found / prompt) if prompt >= RECENT_TOKENS else None
