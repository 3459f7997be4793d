"""The two pointers against what no schedule can beat, without noise: costs are exactly what is planned with."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swift_tiers.ops.base.devices.curve import Linear
from swift_tiers.ops.lab.simulate.bounds import batch_bound, granularity
from swift_tiers.ops.lab.simulate.devices.clock import Clock
from swift_tiers.ops.lab.simulate.devices.lines import Line
from swift_tiers.ops.lab.simulate.devices.restoring import (
    IN_TURN,
    LOAD,
    RECOMPUTE,
    SWIFT_TIERS,
    Method,
    Request,
    Server,
)
from swift_tiers.ops.lab.simulate.runs import linear_setup
from swift_tiers.ops.lab.simulate.scenarios.bounds import CHUNK, COSTS, LENGTHS, LINEAR, RATIOS, batch, batches, single
from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost

from support.examples import examples, exhaustive

PAGE = 16
SEEDS = (1, 2) if exhaustive() else (1,)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_one_restore_takes_at_most_a_twentieth_longer_than_the_bound(tokens: int, ratio: float) -> None:
    assert 1 - 1e-9 <= single(tokens, ratio) <= 1.05


@given(pages=st.integers(1, 256), ratio=st.floats(0.05, 20.0))
@settings(max_examples=examples(50), deadline=None)
def test_shorter_ones_miss_the_bound_by_what_pages_are_whole(pages: int, ratio: float) -> None:
    tokens = pages * PAGE
    compute = LINEAR.seconds(0, tokens)
    assert single(tokens, ratio) <= 1 + granularity(tokens, PAGE, compute, compute * ratio) + 1e-9


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_a_batch_takes_at_most_a_tenth_longer_than_its_lower_bound(ratio: float, size: int, cost: ComputeCost) -> None:
    for seed in SEEDS:
        for prefixes in batches(size, seed):
            over_bound, over_pure = batch(prefixes, ratio, cost, IN_TURN)
            assert 1 - 1e-9 <= over_bound <= 1.10, prefixes
            assert over_pure < 1.0, prefixes


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_as_sglang_orders_chunks_it_is_still_faster_than_either_pure_strategy(
    ratio: float, size: int, cost: ComputeCost
) -> None:
    for prefixes in batches(size, seed=1):
        over_bound, over_pure = batch(prefixes, ratio, cost, SWIFT_TIERS)
        assert over_bound <= 1.20, prefixes
        assert over_pure < 1.0, prefixes


@given(
    tokens=st.integers(1, 512).map(lambda pages: pages * PAGE),
    ratio=st.floats(0.01, 100.0),
    fixed=st.sampled_from([0.0, 1e-3, 1e-2, 0.1]),
    pair=st.sampled_from([0.0, 5e-9, 5e-8]),
)
@example(tokens=64, ratio=0.75, fixed=0.01, pair=0.0)  # nothing follows, so nothing joins a forward to the end
@settings(max_examples=examples(150), deadline=None)
def test_no_restore_is_slower_than_the_better_pure_strategy(
    tokens: int, ratio: float, fixed: float, pair: float
) -> None:
    cost = ComputeCost(fixed_seconds=fixed, token_seconds=1e-4, pair_seconds=pair)
    _, over_pure = batch([tokens], ratio, cost, SWIFT_TIERS)
    assert over_pure <= 1 + 1e-9


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix of so many pages; loading a token takes `ratio` times what computing one does, on the average."""

    pages: int
    ratio: float
    page: int = 16
    fixed: float = 0.0
    pair: float = 0.0
    new: int = 0  # tokens behind it
    chunk: int = 512
    forward: int = 512
    latency: float = 0.0
    start: int = 0  # pages before it, which the device has
    second: float = 1.0  # how many times as fast another source is
    places: tuple[tuple[str, int], ...] = ()  # where runs of pages lie, over and over; empty: all at the first source

    def seconds(self, method: Method) -> float:
        """To the first token; where none follows, until the prefix is there."""
        cost, tokens = ComputeCost(fixed_seconds=self.fixed, token_seconds=1e-4, pair_seconds=self.pair), self.tokens
        speed = 1000 * tokens / (self.ratio * (cost.seconds(0, tokens) + self.fixed * ((tokens - 1) // self.forward)))
        speeds = {"ssd": speed, "peer": speed * self.second}
        setup = msgspec.structs.replace(
            linear_setup(cost, 1.0, self.chunk, self.page),
            forward_tokens=self.forward,
            costs=CostModel(
                compute=cost,
                sources={
                    name: SourceCost(latency_seconds=self.latency, bytes_per_second=each)
                    for name, each in speeds.items()
                },
            ),
        )
        clock = Clock()
        lines = {name: Line(clock, each, latency_seconds=self.latency) for name, each in speeds.items()}
        server = Server(clock, Linear(cost), lines, setup, method)
        turns = itertools.cycle(name for name, run in self.places or [("ssd", 1)] for _ in range(run))
        request = Request(arrival=0.0, prefix=tokens, new=self.new, start=self.start * self.page)
        one = server.submit(request, list(itertools.islice(turns, self.pages)))
        clock.run()
        assert one.restored is not None
        return one.seconds if self.new else one.restored

    @property
    def tokens(self) -> int:
        return self.pages * self.page


cases = st.builds(
    Case,
    pages=st.integers(1, 300),
    ratio=st.floats(-2, 2).map(lambda power: 10**power),
    page=st.sampled_from([1, 16, 64]),
    fixed=st.sampled_from([0.0, 1e-3, 1e-2, 0.1]),
    pair=st.sampled_from([0.0, 5e-9, 5e-8]),
    new=st.sampled_from([0, 1, 16, 250, 3000]),
    chunk=st.sampled_from([64, 512]),
    forward=st.sampled_from([512, 2048, 8192]),
    latency=st.sampled_from([0.0, 2e-4, 5e-3]),
    start=st.sampled_from([0, 100]),
)


@given(case=cases)
# The two meet between pages, not within one.
@example(case=Case(pages=8, page=64, ratio=0.094, pair=5e-9, chunk=64, start=100))
@example(case=Case(pages=4, page=64, ratio=0.088, pair=5e-8, new=16))
@example(case=Case(pages=68, page=64, ratio=0.0256, fixed=0.01, pair=5e-8, new=1, latency=2e-4, start=100))
# The last page of a slow source was on its way when all before it was computed, or had come: nothing joined a forward.
@example(case=Case(pages=42, ratio=26.36, fixed=0.1, new=1))
@example(case=Case(pages=203, ratio=75.4, fixed=0.1, pair=5e-9, new=64, latency=5e-3, forward=2048))
@example(case=Case(pages=56, page=64, ratio=68.9, fixed=0.1, pair=5e-9, forward=2048))
# Two pages were on their way before six that had come, and nine did not fit in one forward.
@example(case=Case(pages=225, page=64, ratio=10**1.5, fixed=0.01, new=1, chunk=64))
# What a source takes until its first page begins to come counted for the plan, and not for what follows from it.
@example(case=Case(pages=25, page=1, ratio=7.3, latency=5e-3, chunk=64))
@example(case=Case(pages=4, ratio=3.135, fixed=1e-3, latency=5e-3))
@example(case=Case(pages=24, page=1, ratio=0.0359, pair=5e-9, new=250, latency=5e-3))
# A page was computed because nothing had been asked of the source yet.
@example(case=Case(pages=2, ratio=0.244, pair=5e-9, new=16, chunk=64, forward=8192))
@settings(max_examples=examples(150), deadline=None)
def test_no_first_token_comes_later_than_by_the_better_pure_strategy(case: Case) -> None:
    better = min(case.seconds(RECOMPUTE), case.seconds(LOAD))
    assert case.seconds(SWIFT_TIERS) <= better * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    "case",
    [
        # A few pages in the middle, where a source's run ends, came in time, but a jump over them cost more.
        Case(
            pages=264, page=64, ratio=11.99, fixed=0.1, new=1, chunk=64, forward=2048, second=0.109,
            places=(("peer", 101), ("ssd", 163)),
        ),
        Case(
            pages=1695, page=1, ratio=89.8, fixed=0.1, new=250, second=1.16,
            places=(("ssd", 731), ("peer", 447), ("ssd", 517)),
        ),
        # A source counted what a forward under way would still take, and what lay in the lead as computed.
        Case(
            pages=66, page=1, ratio=0.9765, fixed=0.1, pair=5e-9, forward=8192, latency=5e-3, second=0.2754,
            places=(("peer", 22), ("ssd", 44)),
        ),
        Case(
            pages=76, page=1, ratio=0.31265832618769945, pair=5e-8, chunk=64, forward=8192, latency=5e-3,
            second=4.04973440575019, places=(("peer", 53), ("ssd", 23)),
        ),
        # Forwards were longer than chunks, so the device got there before pages that had been asked for.
        Case(
            pages=153, page=64, ratio=31.65, fixed=0.01, chunk=64, forward=2048, start=100, second=0.12477599,
            places=(("peer", 62), ("ssd", 49), ("peer", 42)),
        ),
        # A page was not asked for because the one behind it had not been, of another source, yet.
        Case(
            pages=81, page=16, ratio=16.426, fixed=0.01, pair=5e-9, new=3000, forward=8192, latency=5e-3, start=100,
            second=0.4673, places=(("peer", 36), ("ssd", 32), ("peer", 10), ("ssd", 3)),
        ),
    ],
)  # fmt: skip
def test_nor_does_it_where_a_prefix_lies_in_several_places(case: Case) -> None:
    test_no_first_token_comes_later_than_by_the_better_pure_strategy.hypothesis.inner_test(case)


@pytest.mark.parametrize(("method", "seconds"), [(RECOMPUTE, 2.0), (LOAD, 1.0)])
def test_pure_strategies_take_what_they_take(method: Method, seconds: float) -> None:
    cost = ComputeCost(fixed_seconds=0.0, token_seconds=1e-3, pair_seconds=0.0)
    _, over_pure = batch([1600, 400], 0.5, cost, method)
    assert over_pure == pytest.approx(seconds)


def test_the_lower_bound_of_one_linear_prefix_is_the_papers() -> None:
    assert batch_bound([8192], LINEAR, CHUNK, 1e-4) == pytest.approx(8192 * 1e-4 / 2)


def test_the_lower_bound_is_no_more_than_what_the_best_of_all_splits_takes() -> None:
    """Every split of small prefixes at whole tokens, as if device and source always worked."""
    cost = ComputeCost(fixed_seconds=0.0, token_seconds=1.0, pair_seconds=0.05)
    prefixes = [12, 7, 3]
    for load in (0.3, 1.0, 3.0):
        best = min(
            max(
                sum(cost.seconds(0, part) for part in parts),
                load * (sum(prefixes) - sum(parts)),
            )
            for parts in itertools.product(*(range(tokens + 1) for tokens in prefixes))
        )
        bound = batch_bound(prefixes, cost, 1 << 30, load)
        assert bound <= best + 1e-9
        assert bound >= 0.9 * best  # and it is not far below
