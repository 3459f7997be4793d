"""Plans of a model split into stages: no stage slower than by itself, the whole as Eq. 2 says, and when it pays."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.pipeline.stages import (
    Stage,
    pipeline_seconds,
    plan_stage,
    plan_stages,
    restorable_tokens,
    split_evenly,
    stage_bound,
    worth_of_boundaries,
)
from swift_tiers.radix_tiering.restore.plan import (
    Prefix,
    Run,
    Strategy,
    plan_load,
    plan_restore,
    two_pointer_bound,
)

from support.costs import models
from support.examples import examples

CHUNK = 64


def runs_of(tokens: int) -> st.SearchStrategy[tuple[Run, ...]]:
    """Any runs of so many tokens."""

    def cut(cuts: list[int], names: list[str | None]) -> tuple[Run, ...]:
        bounds = sorted({0, tokens, *(cut % tokens for cut in cuts)})
        return tuple(Run(end - start, name) for (start, end), name in zip(pairwise(bounds), names, strict=False))

    names = st.lists(st.sampled_from(["host", "ssd", None]), min_size=5, max_size=5)
    return st.builds(cut, st.lists(st.integers(0, 10_000), max_size=3), names)


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    """A stage behind the first, whatever lies wherever."""
    tokens = draw(st.integers(1, 1500))
    return Stage(
        prefix=Prefix(
            start=draw(st.integers(0, 2000)),
            runs=draw(runs_of(tokens)),
            token_bytes=draw(st.integers(100, 200_000)),
            layers=4,
        ),
        costs=draw(models),
        boundary_bytes=draw(st.integers(0, 50_000)),
        boundary=draw(runs_of(tokens)),
    )


def recompute_seconds(stage: Stage) -> float:
    """By the definition: chunk after chunk, each once its activations have come, these front to back."""
    assert stage.boundary is not None
    tokens, start, at = stage.prefix.tokens, stage.prefix.start, 0.0
    for first in range(0, tokens, CHUNK):
        end = min(first + CHUNK, tokens)
        arrival = 0.0
        for source, cost in stage.costs.sources.items():
            begun = nbytes = 0
            for run in stage.boundary:
                nbytes += max(0, min(end, begun + run.tokens) - begun) * (run.source == source)
                begun += run.tokens
            arrival = max(arrival, cost.seconds(nbytes * stage.boundary_bytes))
        at = max(at, arrival) + stage.costs.compute.seconds(start + first, start + end)
    return at


@settings(deadline=None, max_examples=examples(300))
@given(stages())
def test_a_stage_is_never_slower_than_either_by_itself(stage: Stage) -> None:
    tokens = restorable_tokens(stage)
    if tokens < stage.prefix.tokens:
        with pytest.raises(ValueError, match="neither lies anywhere"):
            plan_stage(stage, chunk_tokens=CHUNK)
        return
    plan = plan_stage(stage, chunk_tokens=CHUNK)
    assert 0 <= plan.lead <= plan.meeting <= tokens
    assert plan.seconds >= max([plan.compute_seconds, *plan.load_seconds.values()]) - 1e-9
    load = plan_load(stage.prefix, stage.costs)
    assert load is None or plan.seconds <= load.seconds
    if stage.boundary is not None and all(run.source for run in stage.boundary):
        assert plan.seconds <= recompute_seconds(stage) * (1 + 1e-9) + 1e-9


@settings(deadline=None, max_examples=examples(300))
@given(stages())
def test_no_chunk_is_computed_before_its_activations_have_come(stage: Stage) -> None:
    """Where there is no KV the estimate is that of the definition."""
    assert stage.boundary is not None
    tokens = stage.prefix.tokens
    stage = msgspec.structs.replace(
        stage,
        prefix=msgspec.structs.replace(stage.prefix, runs=(Run(tokens, None),)),
        boundary=tuple(Run(run.tokens, run.source or "ssd") for run in stage.boundary),
    )
    plan = plan_stage(stage, chunk_tokens=CHUNK)
    assert plan.strategy is Strategy.RECOMPUTE
    assert plan.seconds == pytest.approx(recompute_seconds(stage))


@settings(deadline=None, max_examples=examples(300))
@given(stages())
def test_a_stage_can_restore_what_lies_anywhere_in_either_form(stage: Stage) -> None:
    def present(runs: tuple[Run, ...]) -> list[bool]:
        return [run.source is not None for run in runs for _ in range(run.tokens)]

    assert stage.boundary is not None
    either = [kv or input_ for kv, input_ in zip(present(stage.prefix.runs), present(stage.boundary), strict=True)]
    assert restorable_tokens(stage) == (either.index(False) if False in either else len(either))
    plan = plan_stages([stage], chunk_tokens=CHUNK)
    assert plan.tokens == restorable_tokens(stage)
    assert len(plan.plans) == bool(plan.tokens)
    for one in plan.plans:
        # Behind the meeting everything is loaded, and what is loaded has a source.
        assert all(present(stage.prefix.runs)[one.meeting : plan.tokens])
        assert all(present(stage.prefix.runs)[: one.lead])


@settings(deadline=None)
@given(stages())
def test_one_stage_is_a_model_that_is_not_split(stage: Stage) -> None:
    alone = msgspec.structs.replace(stage, boundary=None)
    assert plan_stages([alone], chunk_tokens=CHUNK).plans == (
        plan_restore(stage.prefix, stage.costs, chunk_tokens=CHUNK),
    )


@settings(deadline=None, max_examples=examples(500))
@given(stages())
def test_activations_that_cost_nothing_make_a_stage_a_model_of_its_own(stage: Stage) -> None:
    free = CostModel(
        compute=stage.costs.compute,
        sources={**stage.costs.sources, "free": SourceCost(latency_seconds=0.0, bytes_per_second=1e30)},
    )
    stage = msgspec.structs.replace(stage, costs=free, boundary=(Run(stage.prefix.tokens, "free"),))
    alone = plan_restore(stage.prefix, stage.costs, chunk_tokens=CHUNK)
    assert plan_stage(stage, chunk_tokens=CHUNK).seconds == pytest.approx(alone.seconds)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(4, 100), st.floats(1e-5, 1e-3), st.floats(1e6, 1e10), st.integers(0, 4000))
def test_linear_costs_meet_the_closed_form(
    count: int, chunks: int, token_seconds: float, bandwidth: float, boundary_bytes: int
) -> None:
    tokens, token_bytes = chunks * CHUNK, 840 * 40
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=token_seconds, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=bandwidth)},
    )
    prefix = Prefix(start=0, runs=(Run(tokens, "ssd"),), token_bytes=token_bytes, layers=840)
    split = split_evenly(prefix, costs, count, boundary_bytes, (Run(tokens, "ssd"),))
    compute, load = tokens * token_seconds / count, tokens * token_bytes / bandwidth / count
    boundary = tokens * boundary_bytes / bandwidth if count > 1 else 0.0
    bound = max(stage_bound(compute, load), stage_bound(compute, load, boundary))
    plan = plan_stages(split, chunk_tokens=CHUNK)
    # No split beats the bound; the best one misses it by what it takes to fill the pipe from source to device.
    most = CHUNK / tokens * (max(compute, load, boundary) + compute + boundary)
    assert bound * (1 - 1e-9) - 1e-12 <= plan.seconds <= bound + most + 1e-12


def test_equal_stages_take_a_share_each_where_activations_are_small() -> None:
    """Eq. 2: T* / S."""
    tokens = 64 * 512
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=1e-4, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=1e9)},
    )
    prefix = Prefix(start=0, runs=(Run(tokens, "ssd"),), token_bytes=131_072, layers=32)
    best = two_pointer_bound(tokens * 1e-4, tokens * 131_072 / 1e9)
    for count in (1, 2, 4, 8):
        seconds = plan_stages(split_evenly(prefix, costs, count, 0, (Run(tokens, "ssd"),))).seconds
        assert best / count <= seconds <= best / count * 1.02


def test_the_whole_is_as_slow_as_its_slowest_stage() -> None:
    fast, slow = (
        CostModel(
            compute=ComputeCost(fixed_seconds=0.0, token_seconds=each, pair_seconds=0.0),
            sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=1e8)},
        )
        for each in (1e-5, 1e-3)
    )
    prefix = Prefix(start=0, runs=(Run(4096, "ssd"),), token_bytes=40_000, layers=8)
    boundary = (Run(4096, "ssd"),)
    both = [
        Stage(prefix=prefix, costs=fast),
        Stage(prefix=prefix, costs=slow, boundary_bytes=1000, boundary=boundary),
    ]
    plan = plan_stages(both)
    assert plan.seconds == plan.plans[1].seconds > plan.plans[0].seconds


def test_a_stage_that_has_neither_ends_what_all_restore() -> None:
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=1e-4, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=1e8)},
    )
    whole = Prefix(start=0, runs=(Run(4096, "ssd"),), token_bytes=40_000, layers=8)
    holed = msgspec.structs.replace(whole, runs=(Run(1000, "ssd"), Run(200, None), Run(2896, "ssd")))
    nobody_has = (Run(1100, "ssd"), Run(2996, None))
    both = [
        Stage(prefix=whole, costs=costs),
        Stage(prefix=holed, costs=costs, boundary_bytes=1000, boundary=nobody_has),
    ]
    plan = plan_stages(both)
    assert plan.tokens == 1100
    assert plan.plans[1].meeting == 1100, "only the activations are there behind the gap"
    assert plan_stages([both[1]]).tokens == 1100
    with pytest.raises(ValueError, match="same tokens"):
        plan_stages([both[0], msgspec.structs.replace(both[0], prefix=msgspec.structs.replace(whole, start=1))])


def test_kv_is_loaded_in_its_turn_where_nobody_has_the_activations() -> None:
    """Computing goes on behind it: cheaper than loading everything from a slow source."""
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=1e-4, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=1e7)},
    )
    stage = Stage(
        prefix=Prefix(start=0, runs=(Run(1000, None), Run(64, "ssd"), Run(2936, None)), token_bytes=40_000, layers=8),
        costs=costs,
        boundary_bytes=1000,
        boundary=(Run(1000, "ssd"), Run(64, None), Run(2936, "ssd")),
    )
    plan = plan_stage(stage)
    assert (plan.lead, plan.meeting, plan.strategy) == (0, 4000, Strategy.TOKEN_WISE)
    assert plan.compute_seconds == pytest.approx(3936 * 1e-4)
    assert plan.load_seconds == {"ssd": pytest.approx((64 * 40_000 + 3936 * 1000) / 1e7)}


def test_a_pipeline_that_only_computes_waits_once_for_each_stage_before() -> None:
    costs = CostModel(compute=ComputeCost(fixed_seconds=0.01, token_seconds=1e-4, pair_seconds=0.0), sources={})
    prefix = Prefix(start=0, runs=(Run(10 * CHUNK, None),), token_bytes=40_000, layers=8)
    for count in (1, 2, 4):
        split = split_evenly(prefix, costs, count, 1000, (Run(10 * CHUNK, None),))
        chunk = (0.01 + CHUNK * 1e-4) / count
        assert pipeline_seconds(split, chunk_tokens=CHUNK) == pytest.approx((10 + count - 1) * chunk)


def test_a_pipeline_of_one_stage_is_a_model_that_is_not_split() -> None:
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.01, token_seconds=1e-4, pair_seconds=1e-9),
        sources={"ssd": SourceCost(latency_seconds=0.001, bytes_per_second=1e8)},
    )
    prefix = Prefix(start=100, runs=(Run(20 * CHUNK, "ssd"),), token_bytes=40_000, layers=8)
    alone = plan_restore(prefix, costs, chunk_tokens=CHUNK).seconds
    assert pipeline_seconds([Stage(prefix=prefix, costs=costs)], chunk_tokens=CHUNK) == pytest.approx(alone, rel=0.01)


def test_boundaries_pay_where_the_pipeline_is_slow_to_fill_and_not_where_activations_are_large() -> None:
    tokens = 16 * CHUNK
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.05, token_seconds=1e-4, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=1e8)},
    )
    prefix = Prefix(start=0, runs=(Run(tokens, "ssd"),), token_bytes=80_000, layers=8)
    stored = (Run(tokens, "ssd"),)
    small = worth_of_boundaries(split_evenly(prefix, costs, 4, 1000, stored), "ssd", chunk_tokens=CHUNK)
    assert small.nbytes == 3 * tokens * 1000
    assert small.share == pytest.approx(3 * 1000 / 80_000)
    assert small.write_seconds == pytest.approx(tokens * 1000 / 1e8)
    assert small.seconds_with < small.seconds_without
    assert small.pay(restores=1)
    assert not small.pay(restores=0)
    large = worth_of_boundaries(split_evenly(prefix, costs, 4, 100_000, stored), "ssd", chunk_tokens=CHUNK)
    assert not large.pay(restores=1000)
