"""Figures that several views show, from what the bus says."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from swift_tiers.radix_tiering.bus.contract.neighbours import replica_of
from swift_tiers.radix_tiering.bus.contract.recent import WINDOW
from swift_tiers.radix_tiering.bus.contract.views import RankState, RequestView, ServerState, TierView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, seconds, share

from ...model.alarms import RECENT_SECONDS, hit_rates
from ...model.history import History
from ...model.moment import Moment
from ...model.table import Cell

# ---- series of several ranks as one ----

#: What is called "now": the mean of so many seconds, so that one slow look does not jump.
NOW_SECONDS = 2.0


def added(series: Iterable[Sequence[float | None]]) -> list[float | None]:
    """Look by look, the newest last. What was not said then is left out; None: nobody said anything."""
    several = [np.array(one, dtype=float) for one in series]  # None becomes NaN
    longest = max(map(len, several), default=0)
    aligned = np.full((len(several), longest), np.nan)
    for row, one in zip(aligned, several, strict=True):
        row[longest - len(one) :] = one
    sums, said = np.nansum(aligned, axis=0), ~np.isnan(aligned).all(axis=0)
    return [value if known else None for value, known in zip(sums.tolist(), said.tolist(), strict=True)]


def worst(values: Iterable[float | None]) -> float | None:
    """The largest that was said."""
    return max((value for value in values if value is not None), default=None)


def imbalance(values: Iterable[float | None]) -> float | None:
    """The largest by the mean: 1 is even. None of nothing, or of one alone."""
    known = [value for value in values if value is not None]
    total = sum(known)
    return max(known) * len(known) / total if len(known) > 1 and total > 0 else None


TIERS = ("device", "peer", "host", "ssd")


def tier_names(ranks: Iterable[RankState]) -> list[str]:
    """Those that servers have as a rule, and whichever others these ranks have, by how near they are."""
    said = dict.fromkeys(tier.tier for rank in ranks for tier in rank.tiers)
    return [*TIERS, *(name for name in said if name not in TIERS)]


#: Which time figures are of: rates as they are called now, percentiles as the bus has them.
RATES, PERCENTILES = f"/s: last {NOW_SECONDS:g} s", f"p50 p99: last {WINDOW:g} s"


class FirstTokens(NamedTuple):
    """Times to first token of requests that had one lately; None if there was none."""

    median: float | None
    p99: float | None
    of: int  # requests


def first_tokens(requests: Iterable[RequestView]) -> FirstTokens:
    """Of what is still on the bus: requests stay there for five minutes after their end, 256 of each rank at most."""
    times = sorted(one.first_token_seconds for one in requests if one.first_token_seconds is not None)
    if not times:
        return FirstTokens(None, None, 0)
    # The smallest value that 99 of 100 do not exceed: of few values, the largest.
    return FirstTokens(statistics.median(times), times[min(len(times) - 1, -(-99 * len(times) // 100) - 1)], len(times))


def found_share(requests: Iterable[RequestView]) -> float | None:
    """Of the prompt tokens of these requests that were admitted, the share that no one had to compute."""
    found = prompt = 0
    for one in requests:
        if one.recomputed_tokens is None or not one.prompt_tokens or one.queue_seconds is None:
            continue
        prompt += one.prompt_tokens
        found += max(0, one.prompt_tokens - one.recomputed_tokens)
    return found / prompt if prompt else None


def schedulers(state: ServerState) -> list[RankState]:
    """One rank of each scheduler that a server has, its first: all ranks of a data-parallel replica have the same
    requests, and those of another have others."""
    firsts: dict[str, RankState] = {}
    for rank in state.ranks:
        firsts.setdefault(replica_of(rank.name), rank)
    return list(firsts.values())


def hit_share(ranks: Sequence[RankState], history: History) -> float | None:
    """Of the prompt tokens of these just now; where none came, of the requests that are still on the bus."""
    recent, _ = hit_rates(ranks, history, RECENT_SECONDS)
    return recent if recent is not None else found_share(request for rank in ranks for request in rank.requests)


def fill(tier: TierView) -> float | None:
    """How full, 0..1; of what it may hold."""
    limit = tier.limit_bytes or tier.capacity_bytes
    return tier.used_bytes / limit if limit and tier.used_bytes is not None else None


def tier_of(rank: RankState, name: str) -> TierView | None:
    return next((tier for tier in rank.tiers if tier.tier == name), None)


def total_fill(ranks: Iterable[RankState], name: str) -> float | None:
    """Of one tier over several ranks; None where no rank has it."""
    used = limit = 0
    for rank in ranks:
        tier = tier_of(rank, name)
        if tier is not None and tier.used_bytes is not None:
            used += tier.used_bytes
            limit += tier.limit_bytes or tier.capacity_bytes or 0
    return used / limit if limit else None


def role(state: ServerState) -> str:
    """`lends`, `borrows`, both; or that it does neither."""
    lends = any(rank.rank is not None and rank.rank.lends_to for rank in state.ranks)
    may_lend = any(rank.rank is not None and rank.rank.lendable_bytes for rank in state.ranks)
    borrows = any(rank.rank is not None and rank.rank.borrows_from for rank in state.ranks)
    words = ["lends" if lends else "may lend"] if lends or may_lend else []
    return "+".join([*words, *(["borrows"] if borrows else [])]) or "alone"


def share_cell(value: float | None) -> Cell:
    return Cell("-" if value is None else share(value, 1.0), value)


def seconds_cell(value: float | None, style: str = "") -> Cell:
    return Cell(NONE if value is None else seconds(value), value, style)


def model_name(path: str) -> str:
    """The last part of where a model lies."""
    return path.rstrip("/").rpartition("/")[2]


def sum_of(values: Iterable[float | None]) -> float | None:
    """None if nothing was said at all."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def total(moment: Moment, *, of: str, fields: tuple[str, ...], server: str | None) -> list[float | None]:
    """Rates of counters of all ranks together, look by look, the newest last."""
    return added(
        moment.history.rates(view, *fields)
        for rank in moment.ranks(server)
        for view in (rank.tiers if of == "tiers" else rank.links)
    )


def total_now(moment: Moment, *fields: str, server: str | None) -> float | None:
    """How fast these counters of all tiers together grow now, per second."""
    return sum_of(
        moment.history.rate(tier, *fields, seconds=NOW_SECONDS) for rank in moment.ranks(server) for tier in rank.tiers
    )


def gauges(moment: Moment, field: str, server: str | None) -> list[float | None]:
    """What the schedulers of servers said together, look by look."""
    states = [state for state in moment.servers if server in (None, state.server.server)]
    firsts = [rank.rank for state in states for rank in schedulers(state)]
    return added(moment.history.values(rank, field) for rank in firsts if rank is not None)
