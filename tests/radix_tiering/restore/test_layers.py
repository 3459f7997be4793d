"""A course of layers, and when it is chosen."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.layers import LayerCourse
from swift_tiers.radix_tiering.restore.plan import Prefix, Run, Strategy, plan_layers, plan_load, plan_recompute
from swift_tiers.radix_tiering.restore.planner import HERE, Choice, Decision, Planner

LAYERS = 8


# ---- the course ----


@dataclass
class Rank:
    """One rank's device: what each layer holds, and how."""

    course: LayerCourse
    computed: list[int] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    copying: int | None = None

    def copy_some(self, layers: int) -> None:
        for _ in range(layers):
            if (layer := self.course.next_load()) is None:
                return
            assert layer not in self.computed, "a layer that was computed is copied over"
            self.course.landed(layer)
            self.copied.append(layer)


def finish(ranks: list[Rank], copies: list[int], fails_after: int | None) -> int:
    """Every rank goes on by the same steps; where all of them end."""
    moments = iter(copies)
    for step in range(LAYERS + 1):
        for number, rank in enumerate(ranks):
            rank.copy_some(next(moments, 0))
            if fails_after == step and number == 0 and rank.course.next_load() is not None:
                rank.course.failed("made to fail")
        upto = max(rank.course.to_compute() for rank in ranks)
        assert all(rank.course.computed == step for rank in ranks)
        if upto <= step:
            return step
        for rank in ranks:
            rank.computed.append(rank.course.compute())
    raise AssertionError("more layers than there are")


@given(
    ranks=st.integers(1, 3),
    copies=st.lists(st.integers(0, 3), max_size=30),
    fails_after=st.none() | st.integers(0, LAYERS),
)
def test_every_layer_is_there_wherever_they_meet(ranks: int, copies: list[int], fails_after: int | None) -> None:
    all_ranks = [Rank(LayerCourse(LAYERS)) for _ in range(ranks)]
    met = finish(all_ranks, copies, fails_after)
    for rank in all_ranks:
        assert rank.computed == list(range(met)), "from the bottom, each once, the same on every rank"
        assert set(range(met, LAYERS)) <= set(rank.copied), "nothing above is missing"
        assert rank.copied == sorted(rank.copied, reverse=True)
        rank.course.close()
        assert rank.course.next_load() is None
    if fails_after is None and sum(copies) == 0:
        assert met == LAYERS, "without a copy all of it is computed"


def test_the_layer_that_was_asked_about_is_not_copied_any_more() -> None:
    course = LayerCourse(3)
    assert course.to_compute() == 3
    assert [course.next_load(), course.next_load(), course.next_load()] == [2, 1, None]
    course.compute()


def test_the_layer_in_front_is_waited_for_while_it_is_copied() -> None:
    course = LayerCourse(2)
    assert course.next_load() == 1
    assert course.to_compute() == 2, "not there yet"
    course.compute()
    there: list[int] = []
    waiting = threading.Thread(target=lambda: there.append(course.to_compute()))
    waiting.start()
    course.landed(1)
    waiting.join(10)
    assert there == [1]
    assert course.computed == 1


@pytest.mark.parametrize("dies", [False, True])
def test_a_copy_that_fails_is_computed(dies: bool) -> None:
    course = LayerCourse(3, alive=lambda: not dies)
    assert course.next_load() == 2
    course.landed(2)
    assert course.next_load() == 1
    assert course.to_compute() == 2
    course.compute()
    if not dies:
        course.failed("made to fail")
    assert course.to_compute() == 2
    assert course.compute() == 1
    assert course.to_compute() == 2
    assert course.reason == ("the thread that copies has died" if dies else "made to fail")
    assert course.next_load() is None


def test_nothing_is_being_copied_when_it_is_closed() -> None:
    course = LayerCourse(3)
    assert course.next_load() == 2
    closed = threading.Event()
    thread = threading.Thread(target=lambda: (course.close(), closed.set()))
    thread.start()
    assert not closed.wait(0.05)
    course.landed(2)
    assert closed.wait(10)
    thread.join()
    assert course.next_load() is None


# ---- the plan ----

seconds = st.floats(0.001, 10)


def prefix_of(tokens: int, *sources: str | None, layers: int = LAYERS) -> Prefix:
    return Prefix(start=0, runs=tuple(Run(tokens, source) for source in sources), token_bytes=1000, layers=layers)


def costs_for(compute_seconds: float, load_seconds: float, tokens: int) -> CostModel:
    return CostModel(
        compute=ComputeCost(fixed_seconds=0.0, token_seconds=compute_seconds / tokens, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.0, bytes_per_second=1000 * tokens / load_seconds)},
    )


@given(compute=seconds, load=seconds, copy=seconds)
def test_the_plan_is_no_worse_than_either(compute: float, load: float, copy: float) -> None:
    prefix, costs = prefix_of(100, "ssd"), costs_for(compute, load, 100)
    copying = SourceCost(latency_seconds=0.0, bytes_per_second=100_000 / copy)
    plan = plan_layers(prefix, costs, copying)
    loaded = plan_load(prefix, costs)
    assert loaded is not None
    assert plan.seconds <= min(plan_recompute(prefix, costs).seconds, loaded.seconds + copy) * (1 + 1e-9)
    assert 0 <= plan.cutover <= LAYERS
    # Linear costs: where the two pointers meet, to within one layer.
    meeting = compute * min(1.0, (load + copy) / (compute + copy))
    assert meeting * (1 - 1e-9) <= plan.seconds <= meeting + max(compute, copy) / LAYERS + 1e-9


def test_layers_of_tokens_without_a_source_cannot_be_loaded() -> None:
    with pytest.raises(ValueError, match="every token needs a source"):
        plan_layers(prefix_of(10, "ssd", None), costs_for(1, 1, 10), SourceCost(latency_seconds=0, bytes_per_second=1))


# ---- the decision ----


def planner(choice: Choice = "auto", *, compute: float = 1.0, copy: float | None = 1.0, ssd: float = 1.0) -> Planner:
    """`compute`, `copy`, `ssd`: seconds for 100 pages; None: nothing is known of it."""
    each = {HERE: copy, "ssd": ssd}
    sources = {
        name: SourceCost(latency_seconds=0.0, bytes_per_second=160_000 / seconds)
        for name, seconds in each.items()
        if seconds is not None
    }
    cost = ComputeCost(fixed_seconds=0.0, token_seconds=compute / 1600, pair_seconds=0.0)
    costs = CostModel(compute=cost, sources=sources)
    return Planner(costs, page_tokens=16, page_bytes=1600, layers=LAYERS, choice=choice)


def decide(of: Planner, sources: list[str | None], *, behind: int = 16, refused: str = "") -> Decision:
    ahead = next((number for number, source in enumerate(sources) if source != HERE), len(sources))
    return of.by_layers(of.decide(ahead, sources[ahead:]), 0, sources, behind, refused)


def test_a_slow_link_to_the_device_makes_it_worth_computing_layers() -> None:
    decision = decide(planner(), [HERE] * 100)
    assert decision.strategy is Strategy.LAYER_WISE
    assert decision.plan is not None
    assert 0 < decision.plan.cutover < LAYERS
    assert not decision.compute, "its pages are there: where layers cannot be computed they are copied as ever"
    assert "layers meanwhile takes" in decision.why


@pytest.mark.parametrize(
    "given",
    [
        {"copy": 0.01},  # the link is fast
        {"copy": None},  # nothing is known of it
        {"compute": 30.0},  # computing is slow
        {"ssd": 0.01, "copy": 0.01},
    ],
)
def test_else_it_is_not(given: dict) -> None:
    assert decide(planner(**given), [HERE] * 100).strategy is Strategy.LOAD


def test_a_copy_that_hides_behind_the_next_forward_costs_nothing() -> None:
    assert decide(planner(), [HERE] * 100, behind=16 * 200).strategy is Strategy.LOAD


@given(
    compute=seconds,
    copy=seconds,
    ssd=seconds,
    here=st.integers(0, 60),
    there=st.integers(0, 60),
    behind=st.integers(1, 4000),
)
def test_it_is_chosen_only_where_it_is_faster(
    compute: float, copy: float, ssd: float, here: int, there: int, behind: int
) -> None:
    of = planner(compute=compute, copy=copy, ssd=ssd)
    sources: list[str | None] = [HERE] * here + ["ssd"] * there
    decision = decide(of, sources, behind=behind)
    if decision.strategy is not Strategy.LAYER_WISE:
        return
    assert decision.plan is not None
    other = of.decide(here, sources[here:])
    forward = compute / 1600 * behind
    copied = copy / 100 * len(sources)
    arrives = ssd / 100 * there
    if other.strategy is Strategy.LOAD:
        assert decision.plan.seconds + forward < arrives + max(copied, forward) + 1e-9
    else:
        assert other.plan is not None
        assert decision.plan.seconds < other.plan.seconds


@pytest.mark.parametrize(
    ("sources", "refused", "why"),
    [
        (["ssd"] * 4, "", "restore.strategy is layer-wise"),
        (["ssd"] * 4, "it is Tuesday", "restore.strategy is layer-wise, but it is Tuesday"),
        (["ssd", None, "ssd"], "", "restore.strategy is layer-wise, but some of its pages have no source"),
        (
            ["ssd"] * 5,
            "",
            "restore.strategy is layer-wise, but its 80 tokens are more than one forward takes (64)",
        ),
    ],
)
def test_forced_it_says_why_not(sources: list[str | None], refused: str, why: str) -> None:
    of = planner("layer-wise")
    of.forward_tokens = 64
    decision = decide(of, sources, refused=refused)
    assert decision.why == why
    assert decision.compute
    assert decision.strategy is (Strategy.LAYER_WISE if why.endswith("wise") else Strategy.TOKEN_WISE)


@pytest.mark.parametrize("choice", ["load", "recompute", "token-wise"])
def test_another_choice_stays(choice: Choice) -> None:
    of = planner(choice)
    assert decide(of, ["ssd"] * 4) == of.decide(0, ["ssd"] * 4)
