"""Restore plans: whole, never worse than the pure ones under the model, and where the closed form says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.plan import (
    PARTS,
    Prefix,
    RestorePlan,
    Run,
    Strategy,
    plan_load,
    plan_recompute,
    plan_restore,
    plan_token_wise,
    two_pointer_bound,
)

from support.costs import models
from support.examples import examples

CHUNK = 64
runs = st.lists(
    st.builds(Run, tokens=st.integers(1, 1500), source=st.sampled_from(["host", "ssd", None])), min_size=1, max_size=4
)
prefixes = st.builds(
    Prefix,
    start=st.integers(0, 2000),
    runs=runs.map(tuple),
    token_bytes=st.integers(100, 200_000),
    layers=st.integers(1, 40),
)


def everything_from(source: str, tokens: int, **fields: int) -> Prefix:
    return Prefix(**{"start": 0, "token_bytes": 1000, "layers": 32, **fields}, runs=(Run(tokens, source),))


def check_whole(plan: RestorePlan, prefix: Prefix) -> None:
    """Every token comes from exactly one place, and from one that has it."""
    assert 0 <= plan.lead <= plan.meeting <= prefix.tokens
    at = 0
    for run in prefix.runs:
        if run.source is None:
            assert plan.lead <= at
            assert at + run.tokens <= plan.meeting
        at += run.tokens
    assert plan.seconds >= max([plan.compute_seconds, *plan.load_seconds.values()]) - 1e-12


@settings(deadline=None, max_examples=examples(300))
@given(prefixes, models)
def test_a_plan_is_whole_and_never_worse_than_the_pure_ones(prefix: Prefix, costs: CostModel) -> None:
    plan = plan_restore(prefix, costs, chunk_tokens=CHUNK)
    check_whole(plan, prefix)
    check_whole(plan_token_wise(prefix, costs, CHUNK), prefix)
    assert plan.seconds <= plan_recompute(prefix, costs, CHUNK).seconds
    load = plan_load(prefix, costs)
    assert load is None or plan.seconds <= load.seconds
    assert (load is None) == any(run.source is None for run in prefix.runs)


@settings(deadline=None)
@given(prefixes, models, st.sampled_from(["host", "ssd"]), st.floats(1, 100))
def test_more_bandwidth_never_makes_a_plan_slower(prefix: Prefix, costs: CostModel, source: str, factor: float) -> None:
    before = costs.sources[source]
    faster = CostModel(
        compute=costs.compute,
        sources={
            **costs.sources,
            source: SourceCost(
                latency_seconds=before.latency_seconds, bytes_per_second=before.bytes_per_second * factor
            ),
        },
    )
    assert (
        plan_restore(prefix, faster, chunk_tokens=CHUNK).seconds
        <= plan_restore(prefix, costs, chunk_tokens=CHUNK).seconds + 1e-9
    )


@settings(deadline=None)
@given(st.integers(1, 200), st.floats(1e-5, 1e-3), st.floats(1e6, 1e10))
def test_linear_costs_meet_where_the_closed_form_says(chunks: int, token_seconds: float, bandwidth: float) -> None:
    tokens = chunks * CHUNK
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=token_seconds, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=bandwidth)},
    )
    prefix = everything_from("ssd", tokens)
    compute, load = tokens * token_seconds, tokens * 1000 / bandwidth
    plan = plan_token_wise(prefix, costs, CHUNK)
    assert abs(plan.meeting - tokens * load / (compute + load)) <= CHUNK
    # No split beats the bound, and the best one misses it by less than one chunk.
    bound = two_pointer_bound(compute, load)
    assert bound - 1e-12 <= plan.seconds <= bound + CHUNK * max(token_seconds, 1000 / bandwidth) + 1e-12


def test_quadratic_costs_move_the_meeting_towards_the_back() -> None:
    """The first tokens are cheap to recompute and the last ones dear."""
    source = {"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=8192 * 1000 / 2.0)}
    linear = ComputeCost(fixed_seconds=0.0, token_seconds=2.0 / 8192, pair_seconds=0.0)
    quadratic = ComputeCost(fixed_seconds=0.0, token_seconds=0.0, pair_seconds=2.0 / 8192**2)
    prefix = everything_from("ssd", 8192)
    even = plan_token_wise(prefix, CostModel(compute=linear, sources=source), CHUNK)
    later = plan_token_wise(prefix, CostModel(compute=quadratic, sources=source), CHUNK)
    assert even.meeting == 4096
    # x^2 = 1 - x at the meeting: 0.618 of the prefix.
    assert abs(later.meeting - 0.618 * 8192) <= CHUNK


def test_a_fast_front_is_loaded_first_and_the_slow_end_beside_the_computation() -> None:
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=1e-3, pair_seconds=0.0),
        sources={
            "host": SourceCost(latency_seconds=0.0, bytes_per_second=1e9),
            "ssd": SourceCost(latency_seconds=0.0, bytes_per_second=1e6),
        },
    )
    prefix = Prefix(start=0, runs=(Run(4096, "host"), Run(2048, "ssd")), token_bytes=1000, layers=4)
    plan = plan_restore(prefix, costs, chunk_tokens=CHUNK)
    assert plan.strategy is Strategy.TOKEN_WISE
    assert plan.lead == 4096
    assert plan.meeting == pytest.approx(4096 + 1024, abs=CHUNK / PARTS)
    assert plan.seconds == pytest.approx(1.024, rel=0.02)


def test_what_nobody_has_is_recomputed_and_what_lies_behind_it_loaded() -> None:
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=1e-3, pair_seconds=0.0),
        sources={"host": SourceCost(latency_seconds=0.0, bytes_per_second=1e9)},
    )
    prefix = Prefix(start=0, runs=(Run(512, "host"), Run(64, None), Run(512, "host")), token_bytes=1000, layers=4)
    plan = plan_restore(prefix, costs, chunk_tokens=CHUNK)
    assert (plan.lead, plan.meeting) == (512, 576)


def test_nothing_and_the_unknown_are_refused() -> None:
    costs = CostModel(compute=ComputeCost(fixed_seconds=0, token_seconds=1, pair_seconds=0), sources={})
    with pytest.raises(ValueError, match="nothing to restore"):
        plan_restore(Prefix(start=0, runs=(), token_bytes=1, layers=1), costs)
    with pytest.raises(KeyError):
        plan_restore(everything_from("ssd", 10), costs)


def test_pages_that_lie_here_and_there_in_turn_are_planned_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning is done again and again while a request waits, on the scheduler's thread."""
    from swift_tiers.radix_tiering.restore import plan

    steps = []
    priced_at = plan._Meetings._seconds
    monkeypatch.setattr(plan._Meetings, "_seconds", lambda *given: steps.append(given) or priced_at(*given))
    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.01, token_seconds=1e-4, pair_seconds=1e-9),
        sources={
            "host": SourceCost(latency_seconds=0, bytes_per_second=1e11),
            "ssd": SourceCost(latency_seconds=1e-4, bytes_per_second=5e9),
        },
    )
    turns = tuple(Run(128, source) for source in ("ssd", "host") * 256)
    found = plan_token_wise(Prefix(start=0, token_bytes=131072, layers=32, runs=turns), costs)
    assert len(steps) <= 2 * (plan.LEADS + 1)
    check_whole(found, Prefix(start=0, token_bytes=131072, layers=32, runs=turns))


def test_runs_are_gone_through_no_more_often_because_there_are_many() -> None:
    """There may be as many as pages, and plans are made while others wait for the page table."""

    class Counted(tuple[Run, ...]):
        times = 0

        def __iter__(self) -> Iterator[Run]:
            self.times += 1
            return super().__iter__()

    costs = CostModel(
        compute=ComputeCost(fixed_seconds=0.004, token_seconds=2e-5, pair_seconds=1e-10),
        sources={"ssd": SourceCost(latency_seconds=0.001, bytes_per_second=5e9)},
    )
    times = []
    for count in (1, 100):
        runs = Counted(Run(16 * (1 + number % 2), "ssd") for number in range(count))
        plan_restore(Prefix(start=0, runs=runs, token_bytes=2**17, layers=32), costs, forward_tokens=8192)
        times.append(runs.times)
    assert times[1] == times[0] <= 6
