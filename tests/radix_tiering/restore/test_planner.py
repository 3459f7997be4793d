"""What is decided: by when the first token comes, and by doing both only where that is sooner for sure."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.restore.plan import (
    LONGER_FORWARDS,
    Prefix,
    RestorePlan,
    Run,
    Strategy,
    plan_restore,
    plan_token_wise,
    priced,
    pure_plans,
)
from swift_tiers.radix_tiering.restore.planner import Choice, Decision, Planner

from support.costs import models
from support.examples import examples

PAGE = 16
TOKEN_BYTES = 100
#: A tenth of a second for each forward, or what 83 tokens cost.
COST = ComputeCost(fixed_seconds=0.1, token_seconds=1.2e-3, pair_seconds=0.0)


class Known:
    """Costs that do not change; `fixed_at_worst` seconds may be what a forward costs whatever it computes."""

    def __init__(
        self,
        load_seconds: float,
        tokens: int,
        fixed_at_worst: float = COST.fixed_seconds,
        together: float = 1.0,
        least: float = 0.0,
    ) -> None:
        """`load_seconds`: for so many tokens from ssd; `least`: what a forward takes at least."""
        self.compute = msgspec.structs.replace(COST, least_seconds=least)
        self.compute_at_worst = msgspec.structs.replace(self.compute, fixed_seconds=fixed_at_worst)
        rate = tokens * TOKEN_BYTES / load_seconds
        self.sources = {"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=rate)}
        self.together = together


def decide(
    load_seconds: float, tokens: int = 1024, *, behind: int = 16, forward: int = 2048, **how: float
) -> tuple[Decision, Planner]:
    costs = Known(load_seconds, tokens, **how)
    planner = Planner(costs, page_tokens=PAGE, page_bytes=PAGE * TOKEN_BYTES, layers=4)
    planner.forward_tokens = forward
    return planner.decide(0, ["ssd"] * (tokens // PAGE), behind), planner


def plan_of(decision: Decision) -> RestorePlan:
    assert decision.plan is not None
    return decision.plan


def test_what_follows_joins_the_forward_over_what_is_recomputed() -> None:
    """Recomputing 512 tokens and 16 behind them is one forward. Doing both is one over a part of them and another one
    over the 16: with 4 s to load it saves a little less than that costs."""
    tokens, load = 512, 4.0
    decision, _ = decide(load, tokens)
    assert decision.strategy is Strategy.RECOMPUTE
    assert plan_of(decision).first_token_seconds == pytest.approx(0.1 + 1.2e-3 * 528)
    alone, _ = decide(load, tokens, behind=0)
    assert alone.strategy is Strategy.TOKEN_WISE, "if nothing followed, doing both would be sooner"


def test_a_load_takes_a_forward_for_what_follows() -> None:
    decision, _ = decide(0.05)
    assert decision.strategy is Strategy.LOAD
    assert plan_of(decision).first_token_seconds == pytest.approx(0.05 + 0.1 + 1.2e-3 * 16)


def test_what_follows_and_does_not_fit_takes_forwards_of_its_own() -> None:
    recomputed, _ = decide(100.0, 1024, behind=1025, forward=1024)
    assert plan_of(recomputed).first_token_seconds == pytest.approx(3 * 0.1 + 1.2e-3 * 2049)
    loaded, _ = decide(0.05, 1024, behind=1025, forward=1024)
    assert plan_of(loaded).first_token_seconds == pytest.approx(0.05 + 2 * 0.1 + 1.2e-3 * 1025)


def test_what_follows_takes_as_long_as_a_forward_does_at_least() -> None:
    """With 2.5 s to load 512 tokens, doing both is sooner by 0.1 s; not where 16 tokens behind them take half a second,
    as reading the weights does on an accelerator."""
    assert decide(2.5, 512)[0].strategy is Strategy.TOKEN_WISE
    decision, _ = decide(2.5, 512, least=0.5)
    assert decision.strategy is Strategy.RECOMPUTE
    loaded, _ = decide(0.05, least=0.5)
    assert plan_of(loaded).first_token_seconds == pytest.approx(0.05 + 0.5)


@pytest.mark.parametrize("least", [0.0, 0.5])
@pytest.mark.parametrize("behind", [0, 1, 512, 513, 1500, 5000])
def test_what_a_forward_saves_that_others_join_is_what_plans_count_with(behind: int, least: float) -> None:
    _, planner = decide(1.0, forward=1024, least=least)
    forward = planner.forward(0, behind)
    assert forward is not None
    alone, whole = plan_of(decide(0.001, 512, behind=behind, forward=1024, least=least)[0]), 32
    assert alone.strategy is Strategy.LOAD
    joined = plan_of(decide(1000.0, 512, behind=behind, forward=1024, least=least)[0])
    assert joined.strategy is Strategy.RECOMPUTE
    assert forward.joined(whole) == pytest.approx(alone.behind_seconds - joined.behind_seconds)


def test_nothing_is_planned_to_meet_within_a_page() -> None:
    """One page of 64 tokens takes 0.178 s to compute, all eight of them 0.1 s to load. If a sixteenth of it could be
    computed, doing both would be sooner; so nothing but loading is."""
    costs = Known(0.1, 512)
    costs.compute = costs.compute_at_worst = ComputeCost(fixed_seconds=0.0, token_seconds=2.8e-3, pair_seconds=0.0)
    for page, expected in ((64, Strategy.LOAD), (1, Strategy.TOKEN_WISE)):
        planner = Planner(costs, page_tokens=page, page_bytes=page * TOKEN_BYTES, layers=4)
        assert planner.decide(0, ["ssd"] * (512 // page)).strategy is expected


def test_both_at_once_only_if_the_gain_is_certain() -> None:
    certain, _ = decide(0.3)
    assert certain.strategy is Strategy.TOKEN_WISE
    open_, _ = decide(0.3, fixed_at_worst=0.2)
    assert open_.strategy is Strategy.LOAD
    assert "not certain" in open_.why
    large, _ = decide(1.25, fixed_at_worst=0.2)
    assert large.strategy is Strategy.TOKEN_WISE, "what is saved is more than what is not known"


@pytest.mark.parametrize(("fixed", "pages"), [(0.3, 2048 // PAGE), (0.001, 512 // PAGE)])
def test_forwards_are_as_long_as_they_may_be_where_that_saves_much(fixed: float, pages: int) -> None:
    _, planner = decide(10.0, 2048)
    cost = ComputeCost(fixed_seconds=fixed, token_seconds=1.2e-3, pair_seconds=0.0)
    planner.costs = CostModel(compute=cost, sources=dict(planner.costs.sources))
    both = planner.decide(0, ["ssd"] * 128, 16)
    assert both.strategy is Strategy.TOKEN_WISE
    assert plan_of(both).recomputed > 512
    assert planner.most(both) == pages
    assert planner.most(None) == planner.chunk == 512 // PAGE


def test_what_is_recomputed_whole_is_so_in_the_longest_forwards() -> None:
    recompute, planner = decide(1000.0)
    assert recompute.strategy is Strategy.RECOMPUTE
    assert planner.most(recompute) == 2048 // PAGE


def test_pages_that_stand_for_no_tokens_are_loaded_and_not_computed() -> None:
    """A state behind 512 tokens, of as many bytes as 1,536: loading is of 2,048 tokens, computing of 512."""
    tokens, beside = 512, 96
    sources = ["ssd"] * (tokens // PAGE + beside)
    computing = 0.1 + 1.2e-3 * (tokens + 16)
    for load, recomputed in ((computing + 0.2, True), (computing - 0.2, False)):
        planner = Planner(Known(load, 2048), page_tokens=PAGE, page_bytes=PAGE * TOKEN_BYTES, layers=4)
        planner.forward_tokens = 2048
        decision = planner.recomputes(0, sources, 16, beside=beside)
        assert (decision is not None) is recomputed, load
        assert planner.recomputes(0, sources, 16) is None, "if they were tokens, computing them would take longer"
        assert planner.most_patience(0, sources, beside) == pytest.approx(0.1 + 1.2e-3 * tokens)
        each = load / len(sources)
        planner.copying = lambda each=each: each
        here = planner.recomputes_what_is_here(0, len(sources), 16, beside)
        assert (here is not None) is recomputed, load


prefixes = st.builds(
    Prefix,
    start=st.integers(0, 2000),
    runs=st.lists(
        st.builds(Run, tokens=st.integers(1, 1500), source=st.sampled_from(["host", "ssd", None])),
        min_size=1,
        max_size=4,
    ).map(tuple),
    token_bytes=st.integers(100, 200_000),
    layers=st.integers(1, 40),
    behind=st.integers(0, 3000),
)


@settings(deadline=None, max_examples=examples(200))
@given(prefixes, models, st.sampled_from([64, 100, 2048]))
def test_no_plan_brings_the_first_token_later_than_a_pure_one(prefix: Prefix, costs: CostModel, forward: int) -> None:
    plan = plan_restore(prefix, costs, chunk_tokens=64, forward_tokens=forward)
    for pure in pure_plans(prefix, costs, forward):
        assert plan.first_token_seconds <= pure.first_token_seconds
        # What follows costs at most all of its forwards, and at least its tokens.
        assert pure.behind_seconds >= costs.compute.token_seconds * prefix.behind * (1 - 1e-9)


@settings(deadline=None)
@given(prefixes, models, st.sampled_from(["host", "ssd"]), st.floats(1, 100), st.sampled_from([64, 512]))
@example(  # With the faster source recomputing all of it is better than chunks, and longer forwards are the best.
    Prefix(start=0, runs=(Run(1, "host"), Run(371, "host")), token_bytes=580, layers=1, behind=1165),
    CostModel(
        compute=ComputeCost(fixed_seconds=0.0234375, token_seconds=0.0005483871502844552, pair_seconds=0.0),
        sources={name: SourceCost(latency_seconds=0.0, bytes_per_second=100000.0) for name in ("host", "ssd")},
    ),
    "host",
    2.0,
    512,
)
def test_more_bandwidth_never_brings_it_later(
    prefix: Prefix, costs: CostModel, source: str, factor: float, forward: int
) -> None:
    """But for what is given away to look more often at what has arrived, where forwards may be longer than chunks."""
    faster = CostModel(
        compute=costs.compute,
        sources={
            name: SourceCost(
                latency_seconds=cost.latency_seconds,
                bytes_per_second=cost.bytes_per_second * (factor if name == source else 1),
            )
            for name, cost in costs.sources.items()
        },
    )
    before, after = (plan_restore(prefix, one, chunk_tokens=64, forward_tokens=forward) for one in (costs, faster))
    assert after.first_token_seconds <= before.first_token_seconds * (1 if forward == 64 else LONGER_FORWARDS) + 1e-9


def test_longer_forwards_are_given_up_for_chunks_alone() -> None:
    """Not for recomputing all of it, which is better than chunks here, and no more often looked at."""
    cost, link = (
        ComputeCost(fixed_seconds=0.02, token_seconds=5e-4, pair_seconds=0.0),
        SourceCost(latency_seconds=0.0, bytes_per_second=2e5),
    )
    prefix = Prefix(start=0, runs=(Run(1, "host"), Run(371, "host")), token_bytes=580, layers=1, behind=1165)
    costs = CostModel(compute=cost, sources={"host": link})
    recomputed, _ = pure_plans(prefix, costs, 512)
    chunks, longer = (plan_token_wise(prefix, costs, chunk, 512) for chunk in (64, 512))
    assert longer.first_token_seconds < recomputed.first_token_seconds < chunks.first_token_seconds
    assert longer.first_token_seconds > chunks.first_token_seconds / LONGER_FORWARDS
    assert plan_restore(prefix, costs, chunk_tokens=64, forward_tokens=512) == longer


@settings(deadline=None)
@given(prefixes, models)
def test_a_plan_is_priced_as_it_was_found(prefix: Prefix, costs: CostModel) -> None:
    plan = plan_token_wise(prefix, costs, 64, 512)
    assert priced(plan, prefix, costs, 512) == plan


@settings(deadline=None)
@given(
    pages=st.integers(1, 300),
    load=st.floats(0.01, 50),
    open_=st.floats(0, 0.5),
    behind=st.integers(1, 3000),
)
def test_the_worst_that_is_risked_is_no_worse_than_the_better_of_the_others(
    pages: int, load: float, open_: float, behind: int
) -> None:
    tokens = pages * PAGE
    decision, planner = decide(load, tokens, behind=behind, fixed_at_worst=0.1 + open_)
    plan, prefix = plan_of(decision), Prefix(
        start=0, runs=(Run(tokens, "ssd"),), token_bytes=TOKEN_BYTES, layers=4, behind=behind
    )  # fmt: skip
    costs = planner.costs
    assert costs.compute_at_worst is not None
    believed, worst = (CostModel(compute=cost, sources=dict(costs.sources)) for cost in (COST, costs.compute_at_worst))
    if plan.strategy is Strategy.TOKEN_WISE:
        risked = priced(plan, prefix, worst, 2048).first_token_seconds
        assert risked < min(pure.first_token_seconds for pure in pure_plans(prefix, worst, 2048))
    pure = min(one.first_token_seconds for one in pure_plans(prefix, believed, 2048))
    assert plan.first_token_seconds <= pure + 1e-12


def test_what_doing_both_took_before_counts() -> None:
    """Loading takes 0.5 s, doing both by the costs alone a fifth less: not worth it where it took a third more."""
    alone, _ = decide(0.5)
    assert alone.strategy is Strategy.TOKEN_WISE
    assert plan_of(alone).seconds < 0.5 / 1.15
    as_before, _ = decide(0.5, together=1.35)
    assert as_before.strategy is Strategy.LOAD
    assert as_before.why.startswith("loading takes 500 ms; doing both would save")
    # Where it is by far the best it is done all the same.
    assert decide(1.2, together=1.35)[0].strategy is Strategy.TOKEN_WISE


def draining(load_seconds: float, beyond: int, *, host: float | None = None, choice: str = "auto") -> Decision:
    """For 1,024 tokens that come from lent memory in so long, of which landing memory has no room for `beyond` pages.
    `host`: seconds that a page takes from host memory, where that is known."""
    costs = Known(load_seconds, 1024)
    costs.sources["peer"] = costs.sources.pop("ssd")
    if host is not None:
        costs.sources["host"] = SourceCost(latency_seconds=0.0, bytes_per_second=PAGE * TOKEN_BYTES / host)
    planner = Planner(costs, page_tokens=PAGE, page_bytes=PAGE * TOKEN_BYTES, layers=4, choice=choice)  # type: ignore[arg-type]
    planner.forward_tokens = 2048
    decision = planner.decide(0, ["peer"] * 64, 16, beyond=beyond)
    assert not decision.drains or planner.most(decision) == 128, "what does not come is computed in long forwards"
    return decision


@pytest.mark.parametrize("choice", ["auto", "load"])
def test_landing_memory_is_drained_where_that_is_worth_one_forward_more(choice: str) -> None:
    """A forward over a page takes 0.12 s."""
    assert not draining(0.05, 0, host=0.01, choice=choice).drains, "it has room for all of them"
    assert not draining(0.05, 10, host=0.01, choice=choice).drains, "0.1 s would be saved"
    decision = draining(0.05, 14, host=0.01, choice=choice)
    assert decision.drains
    assert (decision.compute, decision.load, decision.lead) == (False, True, 64)
    assert decision.strategy is Strategy.LOAD


def test_where_host_memory_is_of_unknown_cost_what_the_source_takes_now_stands_for_it() -> None:
    assert not draining(0.05, 60).drains, "most of them land"
    assert draining(0.3, 60).drains, "they take as long as through host memory"


def test_nothing_is_drained_where_recomputing_is_faster() -> None:
    assert not draining(10.0, 60, host=0.01).drains


def copied_first(pages: int, each: float | None, choice: Choice = "auto", *, wanted: bool = True) -> bool:
    """Of pages of which one takes `each` seconds; a forward over one takes 0.12 s."""
    page_bytes = PAGE * TOKEN_BYTES
    planner = Planner(
        Known(1.0, 1024), page_tokens=PAGE, page_bytes=page_bytes, layers=4, choice=choice, copy_first=wanted
    )
    planner.copying = lambda: each
    return planner.copied_first(0, pages)


def test_what_takes_many_times_a_forward_over_one_page_is_copied_before_its_own() -> None:
    assert not copied_first(100, 3e-3)
    assert copied_first(150, 3e-3)
    assert copied_first(150, 3e-3, "load")
    assert not copied_first(150, 3e-3, wanted=False)


@pytest.mark.parametrize("choice", ["recompute", "token-wise", "layer-wise"])
def test_nothing_is_copied_first_where_an_operator_says_how_restores_go(choice: Choice) -> None:
    assert not copied_first(1000, 1.0, choice)


def test_nothing_is_copied_first_where_nobody_knows_what_copying_takes() -> None:
    assert not copied_first(10_000, None)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.005, 0.05, 0.3]))
def test_answers_by_costs_that_were_learned_are_pythons_own(seed: int, noise: float) -> None:
    """Ranks agree on them, and they are written down as JSON."""
    generator, costs = random.Random(seed), LiveCosts()
    for number in range(100):
        end = (16, 64, 200, 512, 1024, 2048)[number % 6]
        costs.computed([(0, end)], COST.seconds(0, end) * generator.uniform(1 - noise, 1 + noise))
        costs.loaded("ssd", 10**7, generator.uniform(1 - noise, 1 + noise))
    planner = Planner(costs, page_tokens=PAGE, page_bytes=PAGE * TOKEN_BYTES, layers=4)
    planner.copying = lambda: 0.01
    for pages in (1, 50, 1000):
        assert type(planner.copied_first(0, pages)) is bool
        assert type(planner.lands_sooner(pages, "ssd", 0, 16)) is bool
        assert type(planner.most_patience(0, ["ssd"] * pages)) is float
        assert type(planner.island()) is int
        decision = planner.decide(0, ["ssd"] * pages, 16)
        assert_pythons_own(decision)


def assert_pythons_own(value: object) -> None:
    """Nothing of numpy's is anywhere in it."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set):
        for part in value:
            assert_pythons_own(part)
    else:
        assert not isinstance(value, np.generic | np.ndarray), value
