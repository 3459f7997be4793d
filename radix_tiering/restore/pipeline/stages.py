"""Restore plans of a model that is split into pipeline stages (CacheFlow, section 3.2).

Each stage has some of the layers, a device and sources of its own. To recompute tokens it needs what goes into its
first layer: the first stage has the prompt, the others get it from the stage before, chunk after chunk, or have stored
it as boundary pages. With those each stage restores alone, and the whole takes as long as the slowest.

A source brings a stage first what stands in front of its compute pointer, front to back, then KV from the back. What is
in front are boundary activations, and KV for those tokens whose activations nobody has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from ..cost import CostModel, SourceCost
from ..plan import (
    CHUNK_TOKENS,
    LEADS,
    PARTS,
    Prefix,
    RestorePlan,
    Run,
    Strategy,
    plan_load,
    plan_restore,
)


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage lacks of a prefix, and what it costs there."""

    prefix: Prefix  # `layers` and `token_bytes`: of its own layers
    costs: CostModel  # `compute`: of its own layers
    boundary_bytes: int = 0  # of what goes into its first layer, for one token
    #: Where that is stored, for the tokens of the prefix; None for the first stage, which has the prompt.
    boundary: tuple[Run, ...] | None = None

    def __post_init__(self) -> None:
        if self.boundary is not None and sum(run.tokens for run in self.boundary) != self.prefix.tokens:
            raise ValueError(f"the boundary activations are not of {self.prefix.tokens} tokens, as the prefix is")


class PipelinePlan(msgspec.Struct, frozen=True):
    """Every stage restores the first `tokens` tokens, each by its own plan; the pipeline computes the rest together."""

    tokens: int
    plans: tuple[RestorePlan, ...]  # one for each stage; empty where there is nothing to restore

    @property
    def seconds(self) -> float:
        """Until the slowest stage has them, estimated."""
        return max((plan.seconds for plan in self.plans), default=0.0)


class Boundaries(msgspec.Struct, frozen=True, kw_only=True):
    """What storing a prefix's boundary activations costs, and what it saves."""

    nbytes: int  # at all stages together
    share: float  # of the bytes of its KV
    write_seconds: float  # of the slowest stage, once
    seconds_with: float  # of each restore
    seconds_without: float

    def pay(self, restores: float) -> bool:
        """Whether they save more than writing them takes, if the prefix is restored so many times."""
        return restores * (self.seconds_without - self.seconds_with) > self.write_seconds


def split_evenly(
    prefix: Prefix, costs: CostModel, stages: int, boundary_bytes: int, boundary: tuple[Run, ...]
) -> tuple[Stage, ...]:
    """A model, with these costs on one device, on `stages` such devices: each computes its share of the layers, and has
    sources as fast as those. Raises ValueError where the layers cannot be divided."""
    if stages < 1 or prefix.layers % stages:
        raise ValueError(f"{prefix.layers} layers cannot be divided evenly among {stages} stages")
    part = msgspec.structs.replace(prefix, layers=prefix.layers // stages, token_bytes=prefix.token_bytes // stages)
    share = CostModel(compute=costs.compute.scaled(1 / stages), sources=costs.sources)
    first = Stage(prefix=part, costs=share)
    other = Stage(prefix=part, costs=share, boundary_bytes=boundary_bytes, boundary=boundary)
    return (first, *(other for _ in range(1, stages)))


def plan_stages(stages: Sequence[Stage], *, chunk_tokens: int = CHUNK_TOKENS) -> PipelinePlan:
    """One plan for each stage, for as many tokens as all of them can restore alone.

    Raises ValueError if the stages do not lack the same tokens, KeyError for a source of unknown cost.
    """
    if not stages or len({(stage.prefix.start, stage.prefix.tokens) for stage in stages}) != 1:
        raise ValueError("stages of one pipeline lack the same tokens, if any")
    tokens = min(map(restorable_tokens, stages))
    if not tokens:
        return PipelinePlan(0, ())
    return PipelinePlan(tokens, tuple(plan_stage(_cut(stage, tokens), chunk_tokens=chunk_tokens) for stage in stages))


def restorable_tokens(stage: Stage) -> int:
    """Tokens from the start that a stage can load or recompute alone."""
    if stage.boundary is None:
        return stage.prefix.tokens
    at = 0
    for run in _front_runs(stage):
        if run.source is None:
            return at
        at += run.tokens
    return at


def plan_stage(stage: Stage, *, chunk_tokens: int = CHUNK_TOKENS) -> RestorePlan:
    """The plan of one stage that is fastest under its costs; for the first stage that of `plan_restore`.

    Never slower than loading all of it, or recomputing all of it, where that is possible. In `[lead, meeting)` tokens
    whose activations nobody has are loaded when their turn comes. Raises ValueError if the stage cannot restore all of
    the prefix alone, KeyError for a source of unknown cost.
    """
    if stage.boundary is None:
        return plan_restore(stage.prefix, stage.costs, chunk_tokens=chunk_tokens)
    tokens = stage.prefix.tokens
    if tokens < 1 or restorable_tokens(stage) < tokens:
        raise ValueError("there is nothing to restore, or some of it neither lies anywhere nor can be recomputed")
    loaded = plan_load(stage.prefix, stage.costs)
    plans = [] if loaded is None else [loaded]
    plans += (_two_pointers(stage, lead, chunk_tokens) for lead in _leads(stage.prefix))
    # The simpler plan wins a draw, as in `plan_restore`.
    return min(plans, key=lambda plan: plan.seconds)


def pipeline_seconds(stages: Sequence[Stage], *, chunk_tokens: int = CHUNK_TOKENS) -> float:
    """What the prefix takes without boundary pages: a stage can only compute chunks that the one before has computed.

    The least of all choices of meeting points, none behind that of the stage before. Chunks follow each other through
    the pipeline, and the last one may be as short as it takes. Handing over is free: what boundary pages save is not
    overrated.
    """
    tokens = stages[0].prefix.tokens
    step = max(1, chunk_tokens // PARTS)
    meetings = np.array(sorted({*range(0, tokens, step), *range(0, tokens, chunk_tokens), tokens}))
    inputs = np.zeros(len(meetings))  # when a stage has what it needs to compute up to each of them
    each = []
    for stage in stages:
        inputs = _handed_on(stage, meetings, inputs, chunk_tokens)
        loads = _Loading(stage, ()).of_each(0, meetings).values()
        seconds = np.max([inputs, *loads], axis=0)
        each.append(np.where(meetings >= _last_gap_end(stage.prefix), seconds, np.inf))
    # From the last stage to the first: the least that it and those behind it take if it meets at `m` at most.
    least = np.zeros(len(meetings))
    for seconds in reversed(each):
        least = np.minimum.accumulate(np.maximum(seconds, least))
    return float(least[-1])


def _handed_on(stage: Stage, meetings: np.ndarray, inputs: np.ndarray, chunk_tokens: int) -> np.ndarray:
    """When a stage has computed up to each of `meetings`, which are ends of chunks or within one, if its input up to
    there comes at `inputs`."""
    done, ready = np.zeros(len(meetings)), 0.0
    for start in range(0, stage.prefix.tokens, chunk_tokens):
        within = (meetings > start) & (meetings <= start + chunk_tokens)
        ends = meetings[within]
        done[within] = np.maximum(ready, inputs[within]) + _compute_seconds(stage, np.full(len(ends), start), ends)
        ready = done[within][-1]
    return done


def worth_of_boundaries(stages: Sequence[Stage], source: str, *, chunk_tokens: int = CHUNK_TOKENS) -> Boundaries:
    """What it costs to store the boundary activations of this prefix in `source`, and what that saves; `boundary` of
    the stages is not looked at. Raises as `plan_stages`."""
    tokens = stages[0].prefix.tokens
    stored = [
        stage if number == 0 else msgspec.structs.replace(stage, boundary=(Run(tokens, source),))
        for number, stage in enumerate(stages)
    ]
    sizes = [tokens * stage.boundary_bytes for stage in stored[1:]]
    writes = [stage.costs.sources[source].seconds(size) for stage, size in zip(stored[1:], sizes, strict=True)]
    return Boundaries(
        nbytes=sum(sizes),
        share=sum(sizes) / sum(tokens * stage.prefix.token_bytes for stage in stages),
        write_seconds=max(writes, default=0.0),
        seconds_with=plan_stages(stored, chunk_tokens=chunk_tokens).seconds,
        seconds_without=pipeline_seconds(stages, chunk_tokens=chunk_tokens),
    )  # fmt: skip


def stage_bound(compute_seconds: float, load_seconds: float, boundary_seconds: float = 0.0) -> float:
    """What no split can beat in one stage when all costs are linear and one source brings both KV and activations.

    The stage takes `compute_seconds` to recompute all, `load_seconds` to load all of its KV, `boundary_seconds` to load
    all of its activations. Without the latter this is Eq. 2 for one of S equal stages: T* / S.
    """
    if boundary_seconds >= compute_seconds or not load_seconds:
        return min(boundary_seconds, load_seconds)  # the source is never idle: all of the one, or all of the other
    return compute_seconds * load_seconds / (compute_seconds + load_seconds - boundary_seconds)


class _FrontRun(NamedTuple):
    """Neighbouring tokens that the compute pointer meets."""

    tokens: int
    source: str | None  # of what has to be loaded for them; None: there is nothing
    token_bytes: int
    computed: bool  # from activations; else their KV is loaded


class _Bytes:
    """Bytes of neighbouring tokens in one source, up to any token."""

    def __init__(self, runs: Sequence[tuple[int, str | None, int]], source: str) -> None:
        """`runs`: tokens, their source, bytes of one."""
        self._ends = np.cumsum([0, *(tokens for tokens, _, _ in runs)])
        self._before = np.cumsum([0, *(tokens * size if origin == source else 0 for tokens, origin, size in runs)])

    def between(self, start: np.ndarray | int, end: np.ndarray | int) -> np.ndarray:
        """Of tokens `[start, end)`."""
        result: np.ndarray = np.interp(end, self._ends, self._before) - np.interp(start, self._ends, self._before)
        return result


class _Loading:
    """What the sources of one stage take, given where the pointers begin and meet."""

    def __init__(self, stage: Stage, front: Sequence[_FrontRun]) -> None:
        prefix = stage.prefix
        kv = [(run.tokens, run.source, prefix.token_bytes) for run in prefix.runs]
        needed = [(run.tokens, run.source, run.token_bytes) for run in front]
        sources = {source for _, source, _ in (*kv, *needed) if source is not None}
        self._tokens = prefix.tokens
        self._sources = {
            source: (stage.costs.sources[source], _Bytes(kv, source), _Bytes(needed, source)) for source in sources
        }

    def arrival(self, lead: int, ends: np.ndarray) -> np.ndarray:
        """When all that the compute pointer needs up to each of `ends` is there."""
        result = np.zeros(len(ends))
        for cost, kv, needed in self._sources.values():
            result = np.maximum(result, _seconds(cost, kv.between(0, lead) + needed.between(lead, ends)))
        return result

    def of_each(self, lead: int, meetings: np.ndarray) -> dict[str, np.ndarray]:
        """By source: until it has brought everything, for each of `meetings`."""
        return {
            source: _seconds(
                cost, kv.between(0, lead) + needed.between(lead, meetings) + kv.between(meetings, self._tokens)
            )
            for source, (cost, kv, needed) in self._sources.items()
        }


def _seconds(cost: SourceCost, nbytes: np.ndarray) -> np.ndarray:
    return np.where(nbytes > 0, cost.latency_seconds + nbytes / cost.bytes_per_second, 0.0)


def _front_runs(stage: Stage) -> list[_FrontRun]:
    """What has to be loaded for the tokens of the prefix before they can be passed, in order: their activations, or
    where nobody has these their KV."""
    result, at = [], 0
    kv = [run for run in stage.prefix.runs if run.tokens]
    ends = np.cumsum([run.tokens for run in kv]).tolist()
    for run in stage.boundary or ():
        if run.source is not None:
            result.append(_FrontRun(run.tokens, run.source, stage.boundary_bytes, True))
        else:
            for part, end in zip(kv, ends, strict=True):
                start = max(at, end - part.tokens)
                if start < (stop := min(at + run.tokens, end)):
                    result.append(_FrontRun(stop - start, part.source, stage.prefix.token_bytes, False))
        at += run.tokens
    return result


def _two_pointers(stage: Stage, lead: int, chunk_tokens: int) -> RestorePlan:
    """The best meeting point behind `lead`, the last chunk as short as it takes."""
    tokens, front = stage.prefix.tokens, _front_runs(stage)
    loading = _Loading(stage, front)
    lowest = max(_last_gap_end(stage.prefix), lead, 1)

    def best(candidates: Iterable[int]) -> RestorePlan:
        """Of these meetings, and of meeting at the end."""
        meetings = np.array([*(meeting for meeting in candidates if lowest <= meeting < tokens), tokens])
        finished, busy = _computing(stage, front, loading, lead, meetings, chunk_tokens)
        each = loading.of_each(lead, meetings)
        seconds = np.max([finished, *each.values()], axis=0)
        at = int(seconds.argmin())
        everything = lead == 0 and meetings[at] == tokens and all(run.computed for run in front)
        return RestorePlan(
            strategy=Strategy.RECOMPUTE if everything else Strategy.TOKEN_WISE, lead=lead, meeting=int(meetings[at]),
            cutover=stage.prefix.layers, seconds=float(seconds[at]), compute_seconds=float(busy[at]),
            load_seconds={source: float(taken[at]) for source, taken in each.items() if taken[at] > 0},
        )  # fmt: skip

    coarse = best(range(lead, tokens, chunk_tokens))
    step = max(1, chunk_tokens // PARTS)
    return min(
        coarse,
        best(range(coarse.meeting - chunk_tokens, coarse.meeting + chunk_tokens, step)),
        key=lambda plan: plan.seconds,
    )


def _computing(
    stage: Stage,
    front: Sequence[_FrontRun],
    loading: _Loading,
    lead: int,
    meetings: np.ndarray,
    chunk_tokens: int,
) -> tuple[np.ndarray, np.ndarray]:
    """When the compute pointer gets to each of `meetings`, and how much of that time it computes.

    Each chunk begins when the one before is done and what it needs has come.
    """
    tokens, bounds = stage.prefix.tokens, np.cumsum([run.tokens for run in front])
    changes = [
        end for end, (run, behind) in zip(bounds, pairwise(front), strict=False) if run.computed != behind.computed
    ]
    ends = np.array(
        sorted({*range(lead + chunk_tokens, tokens, chunk_tokens), *(e for e in changes if e > lead), tokens})
    )
    starts = np.concatenate([[lead], ends[:-1]])
    computed = np.array([run.computed for run in front])[np.searchsorted(bounds, starts, side="right")]
    chunks = np.where(computed, _compute_seconds(stage, starts, ends), 0.0)
    before = np.cumsum(chunks) - chunks
    done = before + chunks + np.maximum.accumulate(loading.arrival(lead, ends) - before)
    begun = np.concatenate([loading.arrival(lead, np.array([lead])), done[:-1]])
    last = np.searchsorted(ends, meetings)
    rest = np.where(computed[last] & (meetings > starts[last]), _compute_seconds(stage, starts[last], meetings), 0.0)
    return np.maximum(begun[last], loading.arrival(lead, meetings)) + rest, before[last] + rest


def _compute_seconds(stage: Stage, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """One forward over each `[start, end)` of the prefix."""
    cost, before = stage.costs.compute, stage.prefix.start
    pairs = (before + ends.astype(float)) ** 2 - (before + starts.astype(float)) ** 2
    result: np.ndarray = cost.fixed_seconds + cost.token_seconds * (ends - starts) + cost.pair_seconds * pairs
    return result


def _leads(prefix: Prefix) -> list[int]:
    """Where a lead may end: as in `plan_token_wise`."""
    ends = np.cumsum([run.tokens for run in prefix.runs]).tolist()
    gap = next(
        (end - run.tokens for end, run in zip(ends, prefix.runs, strict=True) if run.source is None), prefix.tokens
    )
    longest = sorted(range(len(ends) - 1), key=lambda number: -prefix.runs[number].tokens)[:LEADS]
    return [0, *(ends[number] for number in sorted(longest) if ends[number] <= gap)]


def _last_gap_end(prefix: Prefix) -> int:
    """Behind the last token without a source; 0 if all have one."""
    ends = np.cumsum([run.tokens for run in prefix.runs]).tolist()
    return max((end for end, run in zip(ends, prefix.runs, strict=True) if run.source is None), default=0)


def _cut(stage: Stage, tokens: int) -> Stage:
    """The first `tokens` of it alone."""
    return msgspec.structs.replace(
        stage,
        prefix=msgspec.structs.replace(stage.prefix, runs=_first(stage.prefix.runs, tokens)),
        boundary=None if stage.boundary is None else _first(stage.boundary, tokens),
    )


def _first(runs: Sequence[Run], tokens: int) -> tuple[Run, ...]:
    kept, left = [], tokens
    for run in runs:
        if left > 0:
            kept.append(Run(min(run.tokens, left), run.source))
        left -= run.tokens
    return tuple(kept)
