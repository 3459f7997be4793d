"""The parts of the simulation: the clock, what carries bytes, how long a device computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.ops.base.devices.curve import Curve
from swift_tiers.ops.base.devices.hardware import GPUS, SSDS
from swift_tiers.ops.base.devices.models import MODELS
from swift_tiers.ops.lab.simulate.devices.clock import Clock
from swift_tiers.ops.lab.simulate.devices.lines import Line, Stripes
from swift_tiers.ops.lab.simulate.scenarios.swiftkv import KINDS, SERVED, curve_of
from swift_tiers.ops.lab.simulate.workloads import WORKLOADS, poisson


def test_time_passes_from_event_to_event_in_order() -> None:
    clock, seen = Clock(), []
    clock.at(2.0, lambda: seen.append(("b", clock.now)))
    clock.at(1.0, lambda: clock.after(1.0, lambda: seen.append(("c", clock.now))))
    clock.at(2.0, lambda: seen.append(("d", clock.now)))
    clock.run(until=1.5)
    assert seen == []
    assert clock.now == 1.0
    clock.run()
    assert seen == [("b", 2.0), ("d", 2.0), ("c", 2.0)]  # those asked for first come first
    with pytest.raises(ValueError, match="lies before"):
        clock.at(1.0, lambda: None)


def arrivals(clock: Clock, send: Line | Stripes, sizes: list[float]) -> list[float]:
    times: list[float] = []
    for size in sizes:
        send.send(size, lambda: times.append(clock.now))
    clock.run()
    return times


def test_a_line_has_a_latency_once_and_carries_one_thing_after_the_other() -> None:
    clock = Clock()
    line = Line(clock, 100.0, latency_seconds=0.5)
    assert arrivals(clock, line, [100, 200]) == [1.5, 3.5]
    assert line.busy_seconds == 3.0
    assert arrivals(clock, line, [100]) == [5.0]  # it had rested


def test_small_requests_take_a_line_as_long_as_its_operations_do() -> None:
    clock = Clock()
    assert arrivals(clock, Line(clock, 1e9, request_seconds=0.25), [1, 1, 1]) == [0.25, 0.5, 0.75]


def test_a_page_on_a_stripe_set_is_there_with_its_last_unit() -> None:
    clock = Clock()
    devices = [Line(clock, 100.0), Line(clock, 50.0)]
    stripes = Stripes(devices, unit_bytes=100)
    assert sorted(device for device, _ in stripes.units(250)) == [0, 0, 1]
    assert [length for _, length in stripes.units(250)] == [100, 100, 50]
    assert arrivals(clock, stripes, [200]) == [2.0]


def test_pages_of_one_unit_go_round_the_devices() -> None:
    clock = Clock()
    stripes = Stripes([Line(clock, 1.0) for _ in range(4)], unit_bytes=8)
    assert [stripes.units(8)[0][0] for _ in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda one: one.name)
@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda one: one.name)
def test_a_device_is_never_faster_than_its_peaks(model: object, gpu: object) -> None:
    curve = Curve(model=model, gpu=gpu)  # type: ignore[arg-type]
    for start, end in ((0, 16), (0, 4096), (30_000, 30_512)):
        seconds = curve.seconds(start, end)
        pairs = (end**2 - start**2) / 2
        flops = 2 * curve.model.active * (end - start) + curve.model.pair_flops * pairs
        assert seconds > flops / curve.gpu.flops
        assert seconds < curve.seconds(start, end + 1)
    assert curve.seconds(5, 5) == 0.0


@given(chunk=st.sampled_from([512, 2048]), at=st.integers(0, 30_000))
def test_the_fit_that_plans_are_made_with_is_near_the_device(chunk: int, at: int) -> None:
    curve = Curve(model=MODELS["Qwen3-8B"], gpu=GPUS["H100"])
    fitted = curve.fitted(chunk, 32_768)
    assert fitted.seconds(at, at + chunk) == pytest.approx(curve.seconds(at, at + chunk), rel=0.15)


def test_models_have_the_kv_cache_that_their_configurations_say() -> None:
    # SwiftCache, Table 2, in MiB.
    for name, mebibytes in (("LWM-7B", 0.5), ("Qwen3-8B", 0.141), ("Qwen3-14B", 0.156), ("Qwen3-32B", 0.25)):
        assert MODELS[name].token_bytes / 2**20 == pytest.approx(mebibytes, abs=0.001)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda one: one.name)
def test_made_up_requests_are_as_long_as_they_are_said_to_be(workload: object) -> None:
    drawn = list(poisson(workload, 2.0, 2000, seed=3, page_tokens=16))  # type: ignore[arg-type]
    histories = sorted(one.history for one in drawn)
    expected = workload.history  # type: ignore[attr-defined]
    assert histories[1000] == pytest.approx(expected.median, rel=0.1)
    assert histories[1800] == pytest.approx(expected.p90, rel=0.1)
    assert all(history % 16 == 0 for history in histories)
    assert drawn[-1].seconds == pytest.approx(1000, rel=0.1)
    assert drawn == list(poisson(workload, 2.0, 2000, seed=3, page_tokens=16))  # type: ignore[arg-type]


def test_ssds_are_the_papers() -> None:
    assert {ssd.name: ssd.bytes_per_second for ssd in SSDS.values()} == {"PM9A3": 6.9e9, "900P": 2.5e9}


@pytest.mark.parametrize("name", SERVED)
def test_what_a_planner_learns_of_a_swiftkv_model_is_what_its_prompts_cost(name: str) -> None:
    """Later layers see one token of each forward: in the fit that is a part of what every forward costs."""
    fitted = {kind: curve_of(name, kind).fitted(512, 131_072) for kind in KINDS}
    for kind, cost in fitted.items():
        curve = curve_of(name, kind)
        for start in (0, 4096, 65_536):
            for tokens in (512, 8192):
                real = curve.seconds(start, start + tokens)
                assert cost.seconds(start, start + tokens) == pytest.approx(real, rel=0.1)
    base, half = fitted["as it is"], fitted["50 %"]
    assert 0.49 < half.token_seconds / base.token_seconds < 0.53
    assert 0.49 < half.pair_seconds / base.pair_seconds < 0.55
    assert half.fixed_seconds > base.fixed_seconds, "the later layers' weights are read for one token"
