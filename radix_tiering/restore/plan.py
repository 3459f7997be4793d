"""Restore plans of one request, and how the best is found (CacheFlow, sections 3.1 and 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cached_property

import msgspec
import numpy as np

from .cost import CostModel, SourceCost

#: Tokens of a chunk (the paper's C): what attention kernels like, and what SGLang's chunked prefill can follow.
CHUNK_TOKENS = 512
#: Into so many parts a chunk is divided to find where it should end.
PARTS = 32
#: Ends of runs that are tried as leads, beside none.
LEADS = 8
#: Where a plan of chunks is better than recomputing or loading all of it, one whose forwards are longer has to be
#: better than it by this factor: between chunks it is looked at what has really arrived.
LONGER_FORWARDS = 1.1


class Strategy(Enum):
    """How a prefix comes back."""

    RECOMPUTE = "recompute"
    LOAD = "load"
    TOKEN_WISE = "token-wise"  # recompute from the front, load from the back
    LAYER_WISE = "layer-wise"  # recompute layers bottom-up, load layers top-down


class Run(msgspec.Struct, frozen=True):
    """Neighbouring tokens of a prefix that have the same source."""

    tokens: int
    source: str | None  # None: nowhere below the device; they have to be recomputed


class Prefix(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a request lacks on the device: tokens `[start, start + sum(run.tokens))` of its prompt."""

    start: int  # tokens before it that the device has
    runs: tuple[Run, ...]
    token_bytes: int  # of one token's KV, all layers
    layers: int
    behind: int = 0  # tokens of the prompt that follow, which are computed in any case
    page_tokens: int = 1  # the pointers meet between two pages of so many tokens; runs are whole pages

    # Each once, whatever is asked: there may be as many runs as pages, and a plan asks for many parts.

    @cached_property
    def tokens(self) -> int:
        return sum(run.tokens for run in self.runs)

    @cached_property
    def bounds(self) -> np.ndarray:
        """Where its runs begin, from 0, and where the last one ends: float64, as what is interpolated between them."""
        return np.concatenate([[0.0], np.cumsum([run.tokens for run in self.runs])])

    @cached_property
    def before(self) -> dict[str | None, np.ndarray]:
        """By source: its tokens before each of the bounds."""
        lengths, sources = np.diff(self.bounds), [run.source for run in self.runs]
        return {
            source: np.concatenate([[0.0], np.cumsum(lengths * [one == source for one in sources])])
            for source in dict.fromkeys(sources)
        }


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. Tokens count from the prefix's own start, layers from 0.

    `[0, lead)` is loaded first, `[lead, meeting)` recomputed while `[meeting, tokens)` is loaded. Layer-wise: layers
    `[0, cutover)` are recomputed and `[cutover, layers)` loaded.
    """

    strategy: Strategy
    lead: int
    meeting: int
    cutover: int
    seconds: float  # until all of it is there, estimated
    compute_seconds: float  # of these, estimated to be spent computing
    load_seconds: dict[str, float]  # estimated, by source
    forward_tokens: int = 0  # that one forward computes at most; 0 where there is none, or all is computed in one
    behind_seconds: float = 0.0  # for the tokens behind it, estimated; less where they join the last forward over it

    @property
    def first_token_seconds(self) -> float:
        """What plans are compared by."""
        return self.seconds + self.behind_seconds

    @property
    def recomputed(self) -> int:
        """Tokens that are recomputed, in part if layer-wise."""
        return self.meeting - self.lead


def plan_restore(
    prefix: Prefix,
    costs: CostModel,
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    forward_tokens: int | None = None,
) -> RestorePlan:
    """The plan with which the first token comes soonest under the model.

    That is more than having the prefix: the tokens behind it take a forward of their own behind what was loaded, and
    none behind what was computed, where they fit in the last forward over it. `forward_tokens`: what one forward takes
    at most, `chunk_tokens` if None; forwards are so long where each of them costs much whatever it computes. Loading or
    recomputing all of it is among what is considered, so no plan is worse under the model than the better of the two.
    Raises KeyError for a source that the model does not know, ValueError for an empty prefix.
    """
    longest = forward_tokens or chunk_tokens
    pure = pure_plans(prefix, costs, longest)
    mixed = plan_token_wise(prefix, costs, chunk_tokens, longest)
    other = min(plan.first_token_seconds for plan in pure)
    chunks = mixed.first_token_seconds
    enough = chunks / LONGER_FORWARDS if chunks < other else other
    each = max(costs.compute.fixed_seconds, costs.compute.least_seconds)
    saved = each * (prefix.tokens // chunk_tokens + 1)  # at most, by longer forwards
    if chunk_tokens < longest and chunks - saved < enough:
        long = plan_token_wise(prefix, costs, longest, longest)
        mixed = long if long.first_token_seconds < enough else mixed
    # The simpler plan wins a draw: it has less that can go wrong.
    return min([*pure, mixed], key=lambda plan: plan.first_token_seconds)


def pure_plans(prefix: Prefix, costs: CostModel, forward_tokens: int) -> list[RestorePlan]:
    """Recomputing all of it, and, where all of it has a source, loading it. Raises ValueError for an empty prefix."""
    if prefix.tokens < 1:
        raise ValueError("there is nothing to restore")
    loaded = plan_load(prefix, costs, forward_tokens)
    recomputed = plan_recompute(prefix, costs, forward_tokens)
    return [recomputed] if loaded is None else [recomputed, loaded]


def plan_recompute(prefix: Prefix, costs: CostModel, forward_tokens: int = CHUNK_TOKENS) -> RestorePlan:
    tokens = prefix.tokens
    seconds = _compute_seconds(prefix, costs, 0, [tokens], forward_tokens)[0]
    return RestorePlan(
        strategy=Strategy.RECOMPUTE, lead=0, meeting=tokens, cutover=prefix.layers, seconds=float(seconds),
        compute_seconds=float(seconds), load_seconds={}, forward_tokens=forward_tokens,
        behind_seconds=_behind_seconds(prefix, costs, -tokens % forward_tokens, forward_tokens),
    )  # fmt: skip


def plan_load(prefix: Prefix, costs: CostModel, forward_tokens: int = CHUNK_TOKENS) -> RestorePlan | None:
    """None where some tokens have no source."""
    if None in prefix.before:
        return None
    loads = _load_seconds(prefix, costs)
    return RestorePlan(
        strategy=Strategy.LOAD, lead=0, meeting=0, cutover=0, seconds=max(loads.values()), compute_seconds=0.0,
        load_seconds=loads, behind_seconds=_behind_seconds(prefix, costs, 0, forward_tokens),
    )  # fmt: skip


def priced(plan: RestorePlan, prefix: Prefix, costs: CostModel, forward_tokens: int) -> RestorePlan:
    """A token-wise plan, its pointers meeting where they do, if costs were these."""
    return _Meetings(prefix, costs, plan.forward_tokens, forward_tokens).best(plan.lead, [plan.meeting])


def plan_token_wise(
    prefix: Prefix, costs: CostModel, chunk_tokens: int = CHUNK_TOKENS, forward_tokens: int | None = None
) -> RestorePlan:
    """The best meeting point (Eq. 1, with a superlinear cost and several sources), the last chunk as short as it takes
    in whole pages: a part of a page can neither be computed nor loaded by itself.

    A chunk can be recomputed once everything before it is there, so nothing behind the meeting point may be without a
    source, and what is loaded before the part that is recomputed delays it. That pays where the front of a prefix lies
    in a fast tier and its end in a slow one: therefore the ends of the longest runs are tried as `lead`.
    """
    tokens, page, forward_tokens = prefix.tokens, prefix.page_tokens, forward_tokens or chunk_tokens
    chunk_tokens = max(page, chunk_tokens // page * page)
    meetings = _Meetings(prefix, costs, chunk_tokens, forward_tokens)
    ends = prefix.bounds[1:].astype(int).tolist()
    without = [number for number, run in enumerate(prefix.runs) if run.source is None]
    lowest_meeting = ends[without[-1]] if without else 0
    first_gap = ends[without[0]] - prefix.runs[without[0]].tokens if without else tokens
    # The long ones only: a prefix whose pages lie in turn here and there has as many as pages.
    longest = sorted(range(len(ends) - 1), key=lambda number: -prefix.runs[number].tokens)[:LEADS]
    best: RestorePlan | None = None
    for lead in [0, *(ends[number] for number in sorted(longest) if ends[number] <= first_gap)]:
        lowest = max(lowest_meeting, lead, 1)
        whole = [*(at for at in range(lead, tokens, chunk_tokens) if at >= lowest), tokens]
        # What computing takes grows with the meeting and what loading takes shrinks, so the best one lies beside it;
        # or at the end, where what follows joins in.
        near = meetings.nearest(lead, whole)
        part = max(page, chunk_tokens // PARTS // page * page)
        around = range(near - chunk_tokens, near + chunk_tokens, part)
        plan = meetings.best(lead, [*whole, *(at for at in around if lowest <= at < tokens)])
        if best is None or plan.first_token_seconds < best.first_token_seconds:
            best = plan
    assert best is not None, "no lead is always among the leads"
    return best


class _Loading:
    """What each source takes to load parts of a prefix, for many parts at once."""

    def __init__(self, prefix: Prefix, costs: CostModel) -> None:
        self._bounds = prefix.bounds
        self._token_bytes = prefix.token_bytes
        self._before = {source: before for source, before in prefix.before.items() if source is not None}
        self._costs = {source: costs.sources[source] for source in self._before}

    def seconds(self, lead: int, meetings: np.ndarray) -> dict[str, np.ndarray]:
        """By source: to load `[0, lead)` and `[meeting, end)`, for each meeting; 0 for nothing."""
        result = {}
        for source, before in self._before.items():
            at_lead, at_meeting = (np.interp(at, self._bounds, before) for at in (lead, meetings))
            nbytes = (at_lead + before[-1] - at_meeting) * self._token_bytes
            cost = self._costs[source]
            result[source] = np.where(nbytes > 0, cost.latency_seconds + nbytes / cost.bytes_per_second, 0.0)
        return result

    def lead_seconds(self, lead: int) -> float:
        """To load `[0, lead)`."""
        each = self.seconds(lead, self._bounds[-1:])
        return max((float(seconds[0]) for seconds in each.values()), default=0.0)


class _Meetings:
    """What token-wise plans of one prefix take, for many meetings at once."""

    def __init__(self, prefix: Prefix, costs: CostModel, chunk_tokens: int, forward_tokens: int) -> None:
        self._prefix = prefix
        self._costs = costs
        self._chunk_tokens = chunk_tokens
        self._forward_tokens = forward_tokens
        self._loading = _Loading(prefix, costs)

    def nearest(self, lead: int, meetings: Sequence[int]) -> int:
        """The one with which the prefix is there first."""
        _, _, seconds = self._seconds(lead, np.array(meetings))
        return meetings[int(seconds.argmin())]

    def best(self, lead: int, meetings: Sequence[int]) -> RestorePlan:
        """With the one with which the first token comes first."""
        at = np.array(meetings)
        computing, loads, seconds = self._seconds(lead, at)
        behind = np.where(at < self._prefix.tokens, self._behind(0), self._behind(self._room_in_last(lead)))
        best = int((seconds + behind).argmin())
        return RestorePlan(
            strategy=Strategy.TOKEN_WISE, lead=lead, meeting=int(at[best]), cutover=self._prefix.layers,
            seconds=float(seconds[best]), compute_seconds=float(computing[best]),
            load_seconds={source: float(each[best]) for source, each in loads.items() if each[best] > 0},
            forward_tokens=self._chunk_tokens, behind_seconds=float(behind[best]),
        )  # fmt: skip

    def _seconds(self, lead: int, meetings: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
        """Of computing, of loading by source, and until all of it is there."""
        computing = _compute_seconds(self._prefix, self._costs, lead, meetings, self._chunk_tokens)
        loads = self._loading.seconds(lead, meetings)
        seconds = self._loading.lead_seconds(lead) + computing
        for each in loads.values():
            seconds = np.maximum(seconds, each)
        return computing, loads, seconds

    def _room_in_last(self, lead: int) -> int:
        """Tokens that fit behind the prefix in its last chunk's forward."""
        last = (self._prefix.tokens - lead - 1) % self._chunk_tokens + 1
        return max(0, self._forward_tokens - last)

    def _behind(self, room: int) -> float:
        return _behind_seconds(self._prefix, self._costs, room, self._forward_tokens)


def plan_layers(prefix: Prefix, costs: CostModel, copying: SourceCost) -> RestorePlan:
    """The best cutover layer where pages come up to host memory whole, and only the copy from there is by layer: it
    begins when the last page has come, and goes on while the lower layers are computed.

    `copying`: of all of it, to the device; of `costs.sources` what brings pages up. Raises ValueError where some tokens
    have no source.
    """
    if None in prefix.before:
        raise ValueError("layer-wise restoration copies some layers of every token, so every token needs a source")
    tokens, layers = prefix.tokens, prefix.layers
    whole = costs.compute.seconds(prefix.start, prefix.start + tokens)
    loads = _load_seconds(prefix, costs)
    there = max(loads.values())
    copy = copying.seconds(tokens * prefix.token_bytes)

    def seconds(cutover: int) -> float:
        share = cutover / layers
        return max(whole * share, there + copy * (1 - share)) if cutover < layers else whole

    best = min(range(layers + 1), key=seconds)
    return RestorePlan(
        strategy=Strategy.LAYER_WISE, lead=0, meeting=tokens, cutover=best, seconds=seconds(best),
        compute_seconds=whole * best / layers, load_seconds=loads,
        behind_seconds=_behind_seconds(prefix, costs, 0, max(1, prefix.behind)),
    )  # fmt: skip


def two_pointer_bound(compute_seconds: float, load_seconds: float) -> float:
    """What no split can beat when both costs are linear: T_comp * T_io / (T_comp + T_io)."""
    both = compute_seconds + load_seconds
    return compute_seconds * load_seconds / both if both else 0.0


def _compute_seconds(
    prefix: Prefix, costs: CostModel, lead: int, meetings: Sequence[int] | np.ndarray, chunk_tokens: int
) -> np.ndarray:
    """Seconds to recompute `[lead, meeting)` in chunks, for each of the meetings."""
    cost, start = costs.compute, prefix.start
    lengths = np.asarray(meetings, dtype=float) - lead
    chunks = np.ceil(lengths / chunk_tokens)
    pairs = (start + lead + lengths) ** 2 - (start + lead) ** 2
    result: np.ndarray = cost.fixed_seconds * chunks + cost.token_seconds * lengths + cost.pair_seconds * pairs
    return np.maximum(result, cost.least_seconds * chunks)


def forwards_behind(behind: int, room: int, forward_tokens: int) -> int:
    """Forwards of their own that so many tokens behind a prefix take, `room` of which join the last one over it."""
    return -(-max(0, behind - max(0, room)) // forward_tokens)


def _behind_seconds(prefix: Prefix, costs: CostModel, room: int, forward_tokens: int) -> float:
    """Seconds for the tokens behind the prefix, `room` of which join its last forward."""
    cost, end = costs.compute, prefix.start + prefix.tokens
    return cost.in_forwards(end, end + prefix.behind, forwards_behind(prefix.behind, room, forward_tokens))


def _load_seconds(prefix: Prefix, costs: CostModel) -> dict[str, float]:
    """Seconds that each source takes for all of its tokens."""
    return {
        source: costs.sources[source].seconds(float(before[-1]) * prefix.token_bytes)
        for source, before in prefix.before.items()
        if before[-1] and source is not None
    }
