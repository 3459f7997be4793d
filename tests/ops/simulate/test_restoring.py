"""One simulated server: what is computed and loaded when, and by whom."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.ops.base.devices.curve import Curve, Linear
from swift_tiers.ops.base.devices.hardware import GPUS
from swift_tiers.ops.base.devices.models import MODELS
from swift_tiers.ops.lab.simulate.devices.clock import Clock
from swift_tiers.ops.lab.simulate.devices.lines import Line
from swift_tiers.ops.lab.simulate.devices.restoring import (
    BY_NEED,
    IN_TURN,
    LOAD,
    RECOMPUTE,
    SWIFT_TIERS,
    TWO_POINTERS,
    Method,
    Request,
    Server,
)
from swift_tiers.ops.lab.simulate.runs import REMOTE, linear_setup, restore
from swift_tiers.ops.lab.simulate.stages import Inputs, Stages
from swift_tiers.radix_tiering.restore.cost import ComputeCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.restore.planner import HERE

from support.examples import examples

COST = ComputeCost(fixed_seconds=0.0, token_seconds=1e-3, pair_seconds=0.0)
METHODS = (RECOMPUTE, LOAD, TWO_POINTERS, SWIFT_TIERS, BY_NEED, IN_TURN)


@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=6),
    news=st.lists(st.integers(0, 2000), min_size=6, max_size=6),
    gaps=st.lists(st.floats(0, 0.3), min_size=6, max_size=6),
    load=st.floats(1e-5, 1e-1),
    method=st.sampled_from(METHODS),
    layer_wise_below=st.sampled_from([0, 640]),
)
@settings(max_examples=examples(80), deadline=None)
def test_every_request_gets_its_first_token_however_it_is_restored(
    lengths: list[int], news: list[int], gaps: list[float], load: float, method: Method, layer_wise_below: int
) -> None:
    now, asked = 0.0, []
    for pages, new, gap in zip(lengths, news, gaps, strict=False):
        now += gap
        asked.append(Request(arrival=now, prefix=16 * pages, new=new))
    changed = Method(
        name=method.name,
        loads=method.loads,
        computes=method.computes,
        sharing=method.sharing,
        in_turn=method.in_turn,
        layer_wise_below=layer_wise_below if method.planned else 0,
    )
    result = restore(Linear(COST), linear_setup(COST, load), changed, asked)  # raises if one never does
    at_least = _by_layers_at_least if changed.layer_wise_below else _by_tokens_at_least
    bounds = [at_least(one, load) for one in asked]
    assert all(seconds >= bound - 1e-9 for seconds, bound in zip(result.seconds, bounds, strict=True))


def _by_tokens_at_least(one: Request, load: float) -> float:
    """Seconds: its new tokens come after its prefix, of which one side does at least a half."""
    return one.new * 1e-3 + min(1e-3, load) * one.prefix / 2


def _by_layers_at_least(one: Request, load: float) -> float:
    """Seconds: the upper layers of its prefix may come while the lower ones of its new tokens are computed, so that
    within T all is computed but T / load tokens of the prefix: T = 1e-3 * (new + prefix - T / load)."""
    return max(one.new * 1e-3, 1e-3 * (one.new + one.prefix) / (1 + 1e-3 / load))


def test_new_tokens_are_computed_behind_the_prefix() -> None:
    [seconds] = restore(Linear(COST), linear_setup(COST, 1e-3), SWIFT_TIERS, [_request(1024, 256)]).seconds
    assert seconds == pytest.approx(0.512 + 0.256, rel=0.02)


def _request(prefix: int, new: int = 0, arrival: float = 0.0) -> Request:
    return Request(arrival=arrival, prefix=prefix, new=new)


def test_pages_in_host_memory_are_copied_while_the_forward_runs() -> None:
    clock = Clock()
    setup = linear_setup(COST, 1e-3)
    copies = Line(clock, 1000 * 1000.0)  # a token in a millisecond
    server = Server(clock, Linear(COST), {}, setup, copies=copies)
    one = server.submit(_request(640, 320), [HERE] * 40)
    clock.run()
    assert copies.carried_bytes == 640 * 1000
    assert one.seconds == pytest.approx(0.640 + 0.320 / setup.layers)  # the last layer follows the copy
    assert server.computed_tokens == 0


def test_layers_come_back_from_the_top_where_the_method_says_so() -> None:
    layer_wise = Method(name="layers", layer_wise_below=1 << 20)
    result = restore(Linear(COST), linear_setup(COST, 1e-3), layer_wise, [_request(1024)])
    assert result.makespan == pytest.approx(0.512, rel=0.05)
    fixed = ComputeCost(fixed_seconds=0.5, token_seconds=1e-3, pair_seconds=0.0)
    by_layers = restore(Linear(fixed), linear_setup(fixed, 1e-3), layer_wise, [_request(512)])
    by_tokens = restore(Linear(fixed), linear_setup(fixed, 1e-3), SWIFT_TIERS, [_request(512)])
    assert by_layers.makespan < 0.75 * by_tokens.makespan  # half of a fixed part is less than a whole one


def test_the_longest_request_is_loaded_for_first_unless_loads_go_by_age() -> None:
    asked = [_request(1024), _request(8192)]
    setup = linear_setup(COST, 1e-3, chunk_tokens=64)
    by_need = restore(Linear(COST), setup, BY_NEED, asked)
    by_age = restore(Linear(COST), setup, SWIFT_TIERS, asked)
    assert by_age.seconds[0] < by_need.seconds[0]
    assert by_age.makespan == pytest.approx(by_need.makespan, rel=0.05)


def test_a_page_that_nobody_has_is_computed() -> None:
    clock = Clock()
    setup = linear_setup(COST, 1e-6)
    server = Server(clock, Linear(COST), {REMOTE: Line(clock, 1e9)}, setup)
    one = server.submit(_request(480), [REMOTE] * 10 + [None] * 10 + [REMOTE] * 10)
    clock.run()
    assert one.first_token is not None
    assert one.computed == 20
    assert server.computed_tokens >= 160


@pytest.mark.parametrize("inputs", Inputs)
def test_stages_restore_alone_and_at_once(inputs: Inputs) -> None:
    curve = Curve(model=MODELS["Llama-3.1-8B"], gpu=GPUS["L40S"])
    speed = 1.25e9
    one = Stages(curve, 1, speed, 512, inputs).restore(8192)
    two = Stages(curve, 2, speed, 512, inputs).restore(8192)
    four = Stages(curve, 4, speed, 512, inputs).restore(8192)
    assert one > two > four
    assert two >= one / 2 * 0.999
    assert four >= one / 4 * 0.999


def test_boundary_activations_beat_waiting_for_the_stage_before() -> None:
    curve = Curve(model=MODELS["Llama-3.1-8B"], gpu=GPUS["L40S"])
    seconds = {inputs: Stages(curve, 2, 1.25e9, 512, inputs).restore(8192) for inputs in Inputs}
    assert seconds[Inputs.STORED] < 0.85 * seconds[Inputs.WHOLE]


#: A forward costs as much as 83 tokens, whatever it computes.
FIXED = ComputeCost(fixed_seconds=0.1, token_seconds=1.2e-3, pair_seconds=1e-8)


@pytest.mark.parametrize("tokens", [1024, 4096])
@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5, 1, 2, 4, 8])
def test_what_was_learnt_from_eight_requests_never_makes_it_slower_than_either_way(tokens: int, ratio: float) -> None:
    """The time to load over the time to recompute is `ratio`; forwards vary by a tenth."""
    request = _request(tokens, new=16)
    device = Linear(FIXED)
    for seed in range(20):
        setup = msgspec.structs.replace(
            linear_setup(FIXED, ratio * device.seconds(0, tokens + 16) / tokens), forward_tokens=2048
        )
        costs, generator = LiveCosts(), random.Random(seed)
        for length in (1536, 64, 1024, 128, 768, 256, 512, 96):
            costs.computed([(0, length)], device.seconds(0, length) * generator.lognormvariate(0, 0.1))
        for nbytes in (10_000, 100_000, 1_000_000):
            costs.loaded(REMOTE, nbytes, setup.costs.sources[REMOTE].seconds(nbytes))
        seconds = {
            method.name: restore(device, setup, method, [request], costs).seconds[0]
            for method in (RECOMPUTE, LOAD, SWIFT_TIERS)
        }
        better = min(seconds[RECOMPUTE.name], seconds[LOAD.name])
        assert seconds[SWIFT_TIERS.name] <= 1.05 * better, (seed, seconds)
        if ratio == 1:
            assert seconds[SWIFT_TIERS.name] <= 0.75 * better, (seed, seconds)
