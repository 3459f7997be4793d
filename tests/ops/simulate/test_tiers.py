"""The tiers in virtual time: what is found where, what leaves first, what donors lend; and traces that drive them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from swift_tiers.ops.base.devices.curve import Curve
from swift_tiers.ops.base.devices.hardware import GPUS, SSDS
from swift_tiers.ops.base.devices.models import MODELS
from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.lab.simulate import traces
from swift_tiers.ops.lab.simulate.context import block_bytes, from_counts
from swift_tiers.ops.lab.simulate.devices.clock import Clock
from swift_tiers.ops.lab.simulate.devices.lines import Line, Stripes
from swift_tiers.ops.lab.simulate.devices.restoring import RECOMPUTE
from swift_tiers.ops.lab.simulate.devices.setup import SSD, geometry
from swift_tiers.ops.lab.simulate.donors import Donor
from swift_tiers.ops.lab.simulate.machine import Call, Machine, replay
from swift_tiers.ops.lab.simulate.scenarios.mooncake import one_of_many
from swift_tiers.ops.lab.simulate.stripe_set import StripeSetModel
from swift_tiers.ops.lab.simulate.tiers import REMOTE, Tiers
from swift_tiers.ops.lab.simulate.workloads import Lengths
from swift_tiers.radix_tiering.restore.planner import HERE
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.table.tier_copies import HOST

PAGE = geometry(16, 1024)
A, B = [1, 2, 3, 4], [1, 2, 13, 14]


def serve(tiers: Tiers, clock: Clock, numbers: list[int]) -> tuple[int, tuple[str, ...]]:
    claim = tiers.claim(numbers)
    tiers.finish(claim)
    clock.run()
    assert tiers.table is None or not tiers.table.pinned_pages
    if tiers.table is not None:
        check_rules(tiers.table)
    return claim.on_device, claim.sources


def test_what_leaves_the_device_is_found_below_it() -> None:
    clock = Clock()
    tiers = Tiers(clock, PAGE, device_pages=4, host_pages=8)
    assert serve(tiers, clock, A) == (0, ())
    assert serve(tiers, clock, A) == (4, ())
    assert serve(tiers, clock, B) == (2, ())
    assert serve(tiers, clock, A) == (2, (HERE, HERE))
    assert serve(Tiers(clock, PAGE, device_pages=4, host_pages=0), clock, A) == (0, ())


def test_what_leaves_host_memory_too_is_found_on_ssd() -> None:
    clock = Clock()
    stripes = Stripes([Line(clock, 1e9), Line(clock, 1e9)], PAGE.page_bytes // 2)
    tiers = Tiers(clock, PAGE, device_pages=4, host_pages=4, ssd=StripeSetModel(stripes, slots=8))
    serve(tiers, clock, A)
    serve(tiers, clock, [21, 22, 23, 24])
    assert serve(tiers, clock, A) == (0, (SSD,) * 4)
    assert tiers.table is not None
    assert tiers.table.named("ssd").pages == 8
    serve(tiers, clock, [31, 32, 33, 34])  # the stripe set is full: the longest unused leave
    assert tiers.table.named("ssd").pages == 8


def test_a_shared_store_has_what_nobody_here_has() -> None:
    clock = Clock()
    tiers = Tiers(clock, PAGE, device_pages=4, host_pages=8)
    claim = tiers.claim(A, remote=3)
    assert claim.sources == (REMOTE,) * 3
    tiers.finish(claim)
    serve(tiers, clock, [21, 22, 23, 24])
    assert serve(tiers, clock, A) == (0, (HERE,) * 4)


def test_lent_memory_holds_no_more_than_is_lent() -> None:
    clock = Clock()
    tiers = Tiers(clock, PAGE, device_pages=2, host_pages=8)
    serve(tiers, clock, A)
    tiers.limit(2)
    assert tiers.table is not None
    assert tiers.table.of[HOST].pages == 2
    check_rules(tiers.table)
    assert serve(tiers, clock, A)[1] == ()
    tiers.limit(8)
    serve(tiers, clock, A)
    assert tiers.table.of[HOST].pages == 4


def test_a_donor_lends_what_a_window_did_not_need_and_takes_it_back_at_once() -> None:
    clock = Clock()
    seen: list[tuple[float, int]] = []
    donor = Donor(
        clock,
        pool_bytes=1000 * 16.0,
        page_bytes=16,
        page_tokens=16,
        per_second=1.0,
        lengths=Lengths(median=200, p90=2000, least=16, most=8000),
        hold_seconds=5.0,
        seed=2,
        changed=lambda: seen.append((clock.now, donor.lent_bytes)),
    )
    donor.run(600.0)
    clock.run()
    assert donor.recalls
    assert seen[0][1] > 0
    for (_, lent), (when, then) in pairwise(seen):
        if then > lent:  # never within a window of a recall
            assert not any(when - 60 < at < when and less < more for at, less, more in _recalls(seen))


def _recalls(seen: list[tuple[float, int]]) -> list[tuple[float, int, int]]:
    return [(when, then, lent) for (_, lent), (when, then) in pairwise(seen) if then < lent]


def test_the_longest_context_of_the_papers_example() -> None:
    found = from_counts(100, 9 + 8, 10)
    assert (found.streamed, found.regular, found.total) == (17, 8, 25)
    assert from_counts(10, 50, 10) == (10, 0)
    assert block_bytes(16, 8, 128, 2) == 65_536


# ---- replays ----


def machine(**changes: object) -> Machine:
    plain = {"device_bytes": 512 * 4 * 147_456, "page_tokens": 512}
    return Machine(curve=Curve(model=MODELS["Qwen3-8B"], gpu=GPUS["H100"]), **{**plain, **changes})  # type: ignore[arg-type]


CALLS = [
    Call(float(at), 2100 + 10 * at, tuple(range(conversation * 100, conversation * 100 + 4)))
    for at, conversation in enumerate([0, 1, 2, 0, 1, 2, 0, 1, 2])
]


def test_larger_tiers_hit_more_and_are_faster() -> None:
    host = 16 * 512 * 147_456
    device_only = replay(machine(), CALLS)
    with_host = replay(machine(host_bytes=host, copy_bytes_per_second=50e9), CALLS)
    on_ssd = replay(
        machine(host_bytes=host / 4, ssd=SSDS["PM9A3"], ssds=4, ssd_bytes=8 * host, copy_bytes_per_second=50e9), CALLS
    )
    assert device_only.hits == {"device": 0, HERE: 0, SSD: 0, REMOTE: 0}
    assert with_host.hits[HERE] == on_ssd.hits[SSD] == 6 * 4 * 512
    assert with_host.mean < on_ssd.mean < device_only.mean
    assert replay(machine(host_bytes=host), CALLS, RECOMPUTE).mean == pytest.approx(device_only.mean)
    assert with_host == replay(machine(host_bytes=host, copy_bytes_per_second=50e9), CALLS)


def test_a_trace_is_read_in_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"timestamp": 20, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 3]},
        {"timestamp": 10, "input_length": 1024, "output_length": 1, "hash_ids": [0, 1]},
        {"timestamp": 10, "input_length": 1030, "output_length": 1, "hash_ids": [0, 1, 2]},
    ]
    (tmp_path / "mooncake").mkdir()
    (tmp_path / traces.MOONCAKE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv(traces.VARIABLE, str(tmp_path))
    records = traces.read()
    assert [one.timestamp for one in records] == [10, 10, 20]
    assert list(traces.seen_before(records)) == [0, 0, 2]
    (tmp_path / traces.MOONCAKE).write_text('{"timestamp": 1}\n')
    with pytest.raises(CommandError, match="get the trace anew"):
        traces.read()
    monkeypatch.setenv(traces.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(CommandError, match=traces.VARIABLE):
        traces.read()


def test_one_machine_of_many_gets_as_much_as_one_alone() -> None:
    records = [traces.Record(at, 1024, 1, [at // 4]) for at in range(2000)]
    calls = list(one_of_many(records, 16, shared=True, seed=1))
    assert len(calls) == pytest.approx(2000, rel=0.1)
    assert sum(call.remote for call in calls) == pytest.approx(len(calls) * 3 / 4, rel=0.1)
    assert not any(call.remote for call in one_of_many(records, 16, shared=False, seed=1))
    assert len({call.blocks[0] >> 32 for call in calls}) == 16
