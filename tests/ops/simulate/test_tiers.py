"""The tiers in virtual time: what is found where, what leaves first, what donors lend; and traces that drive them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift_tiers.ops.base.devices.curve import Curve
from swift_tiers.ops.base.devices.hardware import GPUS, SSDS
from swift_tiers.ops.base.devices.models import MODELS
from swift_tiers.ops.base.errors import CommandError
from swift_tiers.ops.lab.simulate import traces
from swift_tiers.ops.lab.simulate.context import block_bytes, from_counts
from swift_tiers.ops.lab.simulate.lent import Borrowing, DonorModel, Guests, network
from swift_tiers.ops.lab.simulate.machine import Call, Machine, ModelServer, Trace, in_virtual_time, replay
from swift_tiers.ops.lab.simulate.scenarios.mooncake import one_of_many
from swift_tiers.ops.lab.simulate.workloads import Lengths
from swift_tiers.radix_tiering.base.config import RestoreConfig
from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.table.rules import check_rules


def machine(**changes: object) -> Machine:
    """Pages of 512 tokens; four of them fit the device."""
    plain = {"device_bytes": 4 * PAGE_BYTES, "page_tokens": TOKENS, "copy_bytes_per_second": 50e9}
    return Machine(curve=Curve(model=MODELS["Qwen3-8B"], gpu=GPUS["H100"]), **{**plain, **changes})  # type: ignore[arg-type]


TOKENS = 512
PAGE_BYTES = TOKENS * MODELS["Qwen3-8B"].token_bytes
A, B, C = (1, 2, 3, 4), (1, 2, 13, 14), (21, 22, 23, 24)


def served(*prompts: tuple[int, ...], remote: int = 0, **changes: object) -> list[dict[str, int]]:
    """Of prompts of these blocks, a minute apart, how many pages were found of each, by place. `remote`: of the first
    one's, those that are in a shared store."""
    calls = [
        Call(60.0 * at, TOKENS * len(blocks) + 1, blocks, remote=0 if at else remote)
        for at, blocks in enumerate(prompts)
    ]

    def simulate(runner: VirtualRunner) -> list[dict[str, int]]:
        server = ModelServer(runner, machine(**changes), Trace(calls, TOKENS), RestoreConfig(strategy="load"))
        server.scheduler.start()
        found, before = [], server.hits()
        runner.sleep(30.0)
        for _ in prompts:
            check_rules(server.stack.table)
            assert not server.stack.table.pinned_pages
            now = server.hits()
            found.append({place: (now[place] - before[place]) // TOKENS for place in now if now[place] > before[place]})
            before = now
            runner.sleep(60.0)
        return found

    return in_virtual_time(simulate)


def test_what_leaves_the_device_is_found_below_it() -> None:
    assert served(A, A, B, A, host_bytes=8 * PAGE_BYTES) == [{}, {"device": 4}, {"device": 2}, {"device": 2, "host": 2}]
    assert served(A, C, A) == [{}, {}, {}]


def test_what_leaves_host_memory_too_is_found_on_ssd() -> None:
    ssd = {"ssd": SSDS["PM9A3"], "ssds": 2, "host_bytes": 4 * PAGE_BYTES}
    assert served(A, C, A, **ssd, ssd_bytes=16 * PAGE_BYTES) == [{}, {}, {"ssd": 4}]
    # A stripe set that is full: the longest unused leave.
    assert served(A, C, (31, 32, 33, 34), A, C, **ssd, ssd_bytes=8 * PAGE_BYTES)[3:] == [{}, {}]


def test_a_shared_store_has_what_nobody_here_has() -> None:
    store = {"remote_bytes_per_second": 1e10, "host_bytes": 8 * PAGE_BYTES}
    assert served(A, C, A, remote=3, **store) == [{"remote": 3}, {}, {"host": 4}]


def test_a_donor_lends_what_a_window_did_not_need_and_takes_it_back_at_once() -> None:
    """What it lends and what its requests need never exceed its pool for longer than the product takes to recall."""
    guests = Guests(per_second=1.0, lengths=Lengths(median=200, p90=2000, least=16, most=8000), hold_seconds=5.0)
    pool = 1000 * PAGE_BYTES

    def simulate(runner: VirtualRunner) -> tuple[int, list[int], list[int]]:
        letters = network(runner)
        donor = DonorModel("donor", letters, runner, MODELS["Qwen3-8B"], pool, TOKENS, guests, 2)
        borrower = Borrowing(
            runner, machine(host_bytes=pool), Trace([], TOKENS), RestoreConfig(), {"donor": donor}, letters,
            landing_bytes=None, to_device=1e11, to_host=1e10,
        )  # fmt: skip
        lent, room = [], []
        for _ in range(600):
            runner.sleep(1.0)
            lent.append(int(borrower.lent_bytes))
            room.append(borrower.server.stack.host.limit_slots)
        return borrower.recalls, lent, room

    recalls, lent, room = in_virtual_time(simulate)
    assert recalls
    assert max(lent) > pool // 2
    assert max(lent) <= pool
    # Host memory, which stands for it, holds as much, a round later at most.
    assert sum(abs(pages * PAGE_BYTES - held) < PAGE_BYTES for pages, held in zip(room, lent, strict=True)) > 500


def test_the_longest_context_of_the_papers_example() -> None:
    found = from_counts(100, 9 + 8, 10)
    assert (found.streamed, found.regular, found.total) == (17, 8, 25)
    assert from_counts(10, 50, 10) == (10, 0)
    assert block_bytes(16, 8, 128, 2) == 65_536


# ---- replays ----


CALLS = [
    Call(float(at), 2100 + 10 * at, tuple(range(conversation * 100, conversation * 100 + 4)))
    for at, conversation in enumerate([0, 1, 2, 0, 1, 2, 0, 1, 2])
]


def test_larger_tiers_hit_more_and_are_faster() -> None:
    host = 16 * PAGE_BYTES
    device_only = replay(machine(), CALLS)
    with_host = replay(machine(host_bytes=host), CALLS)
    on_ssd = replay(machine(host_bytes=host / 4, ssd=SSDS["PM9A3"], ssds=4, ssd_bytes=8 * host), CALLS)
    assert not any(device_only.hits.values())
    assert with_host.hits["host"] == on_ssd.hits["ssd"] == 6 * 4 * 512
    assert with_host.mean < on_ssd.mean < device_only.mean
    recomputed = replay(machine(host_bytes=host), CALLS, RestoreConfig(strategy="recompute"))
    assert recomputed.mean == pytest.approx(device_only.mean, rel=0.01)
    assert with_host == replay(machine(host_bytes=host), CALLS)


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
    # A request that went to another cell is of no use to this one's store.
    celled = list(one_of_many(records, 16, shared=True, seed=1, cells=4))
    assert [call.blocks for call in celled] == [call.blocks for call in calls]
    found = sum(call.remote for call in celled) / len(celled)
    expected = sum(1 - (3 / 4) ** before for before in range(4)) / 4  # one in four of those before it came here
    assert found == pytest.approx(expected, rel=0.15)
