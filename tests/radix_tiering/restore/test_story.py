"""What is told of a restore: every page once, in order, whatever happens; estimates beside what they were about."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.figures.story import COMPUTED, ON_DEVICE, RestoreStory
from swift_tiers.radix_tiering.restore.cost import ComputeCost, SourceCost
from swift_tiers.radix_tiering.restore.planner import HERE, Choice, Decision, Planner
from swift_tiers.radix_tiering.restore.storyteller import Storyteller

PAGE = 16


class Known:
    """Costs that do not change."""

    def __init__(self, compute: ComputeCost | None, **sources: SourceCost) -> None:
        self.compute = self.compute_at_worst = compute
        self.sources = sources
        self.together = 1.0


#: 1 ms for each token; a page from ssd takes as long as one that is computed, one from a peer a quarter of that.
COSTS = Known(
    ComputeCost(fixed_seconds=0.0, token_seconds=0.001, pair_seconds=0.0),
    ssd=SourceCost(latency_seconds=0.0, bytes_per_second=64_000.0),
    peer=SourceCost(latency_seconds=0.0, bytes_per_second=256_000.0),
)


def planner(costs: Known = COSTS, choice: Choice = "auto") -> Planner:
    return Planner(costs, page_tokens=PAGE, page_bytes=1024, layers=2, choice=choice, chunk_tokens=64)


def begin(*sources: str, prefix: int = 0, more: int = 0, began: float = 100.0) -> Storyteller:
    """The story of a chain whose pages lie there, `more` behind them being held nowhere."""
    story = Storyteller(page_tokens=PAGE, prefix_pages=prefix, wanted_pages=len(sources) + more, began=began)
    story.found(Counter(sources))
    return story


# ---- which page came how ----


def test_the_pointers_meet() -> None:
    story = begin(*["ssd"] * 10, more=2)
    story.computed(0, 4)
    assert story.told().meeting_pages is None, "not every page has come"
    story.loaded(4, [("ssd", 1)])
    story.computed(5, 8)
    story.loaded(8, [("ssd", 2)])
    told = story.told()
    assert told.runs == ((COMPUTED, 4), ("ssd", 1), (COMPUTED, 3), ("ssd", 2))
    assert (told.meeting_pages, told.found, told.covered, told.loaded) == (8, 10, 10, 3)
    assert told.wanted_pages == 12


@pytest.mark.parametrize(
    ("happened", "meeting"),
    [([("ssd", 6)], 0), ([(COMPUTED, 6)], 6), ([("ssd", 2), (COMPUTED, 4)], 6), ([("ssd", 2), (COMPUTED, 4)][::-1], 4)],
)
def test_where_they_met(happened: list[tuple[str, int]], meeting: int) -> None:
    story, at = begin(*["ssd"] * 6), 0
    for how, pages in happened:
        if how == COMPUTED:
            story.computed(at, at + pages)
        else:
            story.loaded(at, [(how, pages)])
        at += pages
    assert story.told().meeting_pages == meeting


def test_pages_that_the_device_got_otherwise_are_told_as_such() -> None:
    story = begin(*["ssd"] * 10)
    story.loaded(3, [("ssd", 2)])
    story.computed(7, 10)
    assert story.told().runs == ((ON_DEVICE, 3), ("ssd", 2), (ON_DEVICE, 2), (COMPUTED, 3))
    assert story.told().loaded == 2


def test_a_load_that_does_not_happen_is_taken_back() -> None:
    story = begin(*["host"] * 3, *["ssd"] * 7)
    story.computed(0, 2)
    story.loaded(2, [("host", 1), ("ssd", 7)])
    story.withdraw(2)
    assert story.told().runs == ((COMPUTED, 2),)
    story.loaded(2, [("host", 1), ("ssd", 3)])
    story.withdraw(4)
    assert story.told().runs == ((COMPUTED, 2), ("host", 1), ("ssd", 1))
    story.withdraw(9)
    assert story.told().covered == 4


SOURCES = st.sampled_from(["host", "peer", "ssd"])
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["load", "compute", "withdraw", "forward"]), st.integers(0, 14), st.integers(0, 6)),
    max_size=30,
)


@given(st.lists(SOURCES, min_size=1, max_size=14), HAPPENINGS, st.integers(0, 3))
def test_every_page_is_told_once_whatever_happens(
    sources: list[str], happenings: list[tuple[str, int, int]], prefix: int
) -> None:
    """Against a table of pages: each the last thing that was said of it, none twice, and none beyond the end."""
    story, table = begin(*sources, prefix=prefix), list[str]()
    for what, first, pages in happenings:
        end = min(first + pages, len(sources))
        first = min(first, end)
        if what == "load" and end > first:
            story.loaded(first, [(source, 1) for source in sources[first:end]])
            table = [*table[:first], *[ON_DEVICE] * (first - len(table)), *sources[first:end]]
        elif what == "withdraw":
            story.withdraw(first)
            table = table[:first]
        else:
            if what == "compute":
                story.computed(first, end)
            else:
                story.forward((prefix + first) * PAGE, (end - first) * PAGE, 200, 0.1, 1.0)
            if end > max(first, len(table)):
                table = [*table, *[ON_DEVICE] * (first - len(table))]
                table += [COMPUTED] * (end - len(table))
        told = story.told()
        assert [how for how, count in told.runs for _ in range(count)] == table
        assert all(before[0] != after[0] for before, after in zip(told.runs, told.runs[1:], strict=False))
        assert told.covered == story.covered <= told.found == len(sources)
        assert told.loaded + told.pages(COMPUTED) + told.pages(ON_DEVICE) == told.covered
        assert (told.meeting_pages is not None) == (told.covered == told.found)
        if told.meeting_pages is not None:
            assert COMPUTED not in table[told.meeting_pages :]
            assert told.meeting_pages == 0 or table[told.meeting_pages - 1] == COMPUTED
    story.forward(prefix * PAGE, len(sources) * PAGE, len(sources) * PAGE, 0.1, 1.0)
    assert story.told().covered == len(sources), "what nobody brought, the device computed in the end"


# ---- why ----


def decided(sources: list[str | None], *, front: int = 0, **how: object) -> RestoreStory:
    story = begin(*(source or "ssd" for source in sources))
    story.decided(planner(**how).decide(front, sources[front:]), front)  # type: ignore[arg-type]
    return story.told()


def test_an_estimate_is_told_in_its_parts() -> None:
    told = decided(["ssd"] * 64)
    assert told.strategy == "token-wise"
    assert told.estimated_seconds == pytest.approx(0.512, rel=0.05), "half of what either would take alone"
    assert told.estimated_compute_seconds == pytest.approx(0.512, rel=0.05)
    assert told.estimated_load_seconds == {"ssd": pytest.approx(0.512, rel=0.05)}
    assert told.planned_lead_pages == 0
    assert told.planned_meeting_pages == pytest.approx(32, abs=2)
    assert told.why.startswith("recomputing ")
    assert told.later == ""


def test_a_plan_counts_from_the_first_page() -> None:
    told = decided([HERE] * 8 + ["ssd"] * 64, front=8)
    assert told.planned_lead_pages == 8
    assert told.planned_meeting_pages == pytest.approx(40, abs=2)


def test_where_loading_is_all_nothing_was_to_be_computed() -> None:
    fast = Known(COSTS.compute, peer=SourceCost(latency_seconds=0.0, bytes_per_second=1e9))
    told = decided([HERE] * 8 + ["peer"] * 2, front=8, costs=fast)
    assert told.strategy == "load"
    assert (told.planned_lead_pages, told.planned_meeting_pages) == (0, 0)
    assert told.estimated_compute_seconds == 0


@pytest.mark.parametrize(
    ("choice", "costs", "strategy", "why"),
    [
        ("load", COSTS, "load", "restore.strategy is load"),
        ("recompute", COSTS, "recompute", "restore.strategy is recompute"),
        ("token-wise", COSTS, "token-wise", "restore.strategy is token-wise"),
        ("auto", Known(None, **COSTS.sources), "load", "what recomputing costs is not known yet"),
        ("auto", Known(COSTS.compute), "load", "what loading from ssd costs is not known yet"),
    ],
)
def test_what_was_not_estimated_is_told_with_its_reason(choice: Choice, costs: Known, strategy: str, why: str) -> None:
    told = decided(["ssd"] * 64, choice=choice, costs=costs)
    assert (told.strategy, told.why) == (strategy, why)
    assert told.estimated_seconds is told.estimated_compute_seconds is told.planned_meeting_pages is None
    assert told.estimated_load_seconds == {}


def test_another_decision_is_told_beside_the_first() -> None:
    story = begin(*["ssd"] * 8)
    load = Decision(False, True, 8, None, "what recomputing costs is not known yet")
    both = Decision(True, True, 0, None, "recomputing is faster")
    for decision in (load, load, both):
        story.decided(decision, 0)
    told = story.told()
    assert (told.strategy, told.why) == ("load", load.why)
    assert told.later == "token-wise: recomputing is faster"
    story.decided(load, 0)
    assert story.told().later == "", "it came back to what it was"


def test_where_nothing_was_looked_for_the_reason_is_told() -> None:
    story = Storyteller(
        page_tokens=PAGE, prefix_pages=0, wanted_pages=9, began=0.0, why="restore.strategy is recompute"
    )
    assert (story.told().strategy, story.told().why) == ("recompute", "restore.strategy is recompute")
    nothing = Storyteller(page_tokens=PAGE, prefix_pages=0, wanted_pages=9, began=0.0)
    assert (nothing.told().strategy, nothing.told().why, nothing.told().found) == ("", "", 0)


# ---- times ----


def test_when_it_was_all_there() -> None:
    story = begin(*["ssd"] * 4, began=100.0)
    assert story.told().there_seconds is None
    story.waited_for(100.5)
    story.ready(102.0)
    assert (story.told().there_seconds, story.told().waited_seconds) == (2.0, 1.5)


def test_nobody_waits_for_what_is_there_already() -> None:
    story = begin("ssd")
    story.ready(102.0)
    assert story.told().waited_seconds is None
    story.waited_for(103.0)
    assert (story.told().there_seconds, story.told().waited_seconds) == (2.0, 0.0)


def test_the_last_page_is_there_when_its_forward_has_ended() -> None:
    """A forward that goes beyond the prefix counts by its share, for what it took and for when the pages were there."""
    story = begin(*["ssd"] * 8, prefix=2, began=100.0)
    story.loaded(0, [("ssd", 4)])
    story.computed(4, 8)
    story.taken(100.5)
    assert story.told().there_seconds is None, "it is being computed"
    # 32 tokens of the prefix, then 32 of it and 64 beyond, beside 32 of another request.
    story.forward((2 + 4) * PAGE, 32, 32, 0.2, 100.8)
    assert story.told().there_seconds is None
    story.forward((2 + 6) * PAGE, 96, 128, 0.4, 101.2)
    assert story.told().compute_seconds == pytest.approx(0.2 + 0.1)
    assert story.told().there_seconds == pytest.approx(1.2 - 0.3)
    assert story.told().runs == (("ssd", 4), (COMPUTED, 4))


def test_forwards_over_other_tokens_are_none_of_its_business() -> None:
    story = begin(*["ssd"] * 4, prefix=2)
    story.forward(0, 32, 32, 0.2, 101.0)
    story.forward(6 * PAGE, 100, 100, 0.2, 102.0)
    assert story.told().compute_seconds == 0
    assert story.told().runs == ()


def test_what_is_loaded_last_is_there_when_it_is_taken() -> None:
    story = begin(*["ssd"] * 4)
    story.computed(0, 1)
    story.taken(100.2)
    assert story.told().there_seconds is None, "the request ended early"
    story.loaded(1, [("ssd", 3)])
    story.taken(100.5)
    assert story.told().there_seconds == 0.5


def test_holding_is_summed() -> None:
    story = begin("ssd")
    story.goes_on(100.1)
    story.holds(101.0)
    story.holds(101.5)
    story.goes_on(102.0)
    story.goes_on(103.0)
    story.holds(105.0)
    story.goes_on(105.25)
    assert story.told().held_seconds == 1.25


def test_a_source_is_timed_from_its_first_page_to_its_last() -> None:
    story = begin("ssd", "ssd", "peer", began=100.0)
    story.asked("ssd", 101.0)
    story.asked("ssd", 102.0)
    story.arrived("ssd", 102.5)
    story.arrived("ssd", 103.0)
    story.arrived("peer", 101.0)
    assert story.told().load_seconds == {"ssd": 2.0, "peer": 1.0}, "what somebody else had asked for: since it began"


def test_lost_pages_are_told_by_source_and_reason() -> None:
    story = begin(*["ssd"] * 3)
    for reason in ("io error", "device gone", "io error"):
        story.lost("ssd", reason)
    assert story.told().lost_pages == {"ssd: io error": 2, "ssd: device gone": 1}


# ---- as it is told ----


def test_what_is_told_survives_the_bus() -> None:
    story = begin("ssd", "host", began=0.1)
    story.decided(planner().decide(0, ["ssd", HERE]), 0)
    story.whole = "it was retracted"
    story.loaded(0, [("ssd", 1), ("host", 1)])
    story.ready(0.7)
    story.fell_behind("its deadline passed", 1)
    told = story.told()
    assert msgspec.json.decode(msgspec.json.encode(told), type=RestoreStory) == told
    assert told.there_seconds == 0.6, "without what adding leaves in the last digits"
    assert not any(isinstance(value, float) and math.isnan(value) for value in msgspec.structs.astuple(told))
