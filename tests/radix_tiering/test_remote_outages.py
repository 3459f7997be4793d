"""A store that does one thing and not another: what that costs those who ask it, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from swift_tiers.radix_tiering.base.units import Size
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.tiers.remote.breaker import MOST_REST
from swift_tiers.radix_tiering.tiers.remote.engine import EngineJob
from swift_tiers.radix_tiering.tiers.remote.objects import ObjectShape
from swift_tiers.radix_tiering.tiers.testing.model_engine import EngineFault

from support.engine import GEOMETRY, chain, get, put
from support.remote import RUN, Machines, on_machines, run_of, snapshot, told, wait_sent


@pytest.mark.parametrize("way", ["late", "hangs", "nothing", "errors"])
@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_store_that_says_what_it_has_and_does_not_bring_it_costs_a_few_requests(
    way: str, from_the_start: bool
) -> None:
    """Not every one of them its deadline, for as long as that lasts."""

    def seconds(job: EngineJob) -> float:
        return {"late": 6.0, "nothing": 1.9}.get(way, 0.001) if job.verb == "get" else 0.001

    def fail(machines: Machines) -> None:
        faults = {"hangs": EngineFault.HANGS, "nothing": EngineFault.ABSENT, "errors": EngineFault.FAILS}
        machines.store.seconds = seconds
        machines.fail("get", faults.get(way, EngineFault.NONE))

    def test(machines: Machines) -> None:
        machines.store.lanes = True
        first, prompts = machines.server(host_pages=256), [run_of(f"prompt {number}", 1) for number in range(40)]
        for keys in prompts:
            put(first, keys)
            wait_sent(first)
        if from_the_start:
            fail(machines)
        second = machines.server(probes=True)
        machines.runner.sleep(20.0)
        fail(machines)
        waited = 0
        for keys in prompts:
            began = machines.runner.monotonic()
            assert get(second, keys) == 0
            waited += machines.runner.monotonic() - began > 0.1
            machines.runner.sleep(10.0)
        assert waited <= 3, f"{waited} of {len(prompts)} requests"
        assert second.snapshot().remote_engine_asked == 0
        trouble = "remote.fails" if way == "errors" else "remote.does_not_answer"
        assert [len(told(second, kind)) for kind in (trouble, "remote.answers_again")] == [1, 0]
        machines.store.seconds = 0.001
        machines.fail("get", EngineFault.NONE)
        machines.runner.sleep(5 * MOST_REST)
        assert second.snapshot().remote_engine == "asked"
        assert get(second, prompts[0]) == RUN

    on_machines(test)(1)


@on_machines
def test_reads_that_were_late_teach_what_they_take_at_least(machines: Machines) -> None:
    """Else it is believed that they take what they took when all was well, or nobody knows."""
    machines.store.lanes = True
    first, second = machines.server(host_pages=64), machines.server(host_pages=64)
    prompts = [run_of(f"prompt {number}", 1) for number in range(4)]
    for keys in prompts:
        put(first, keys)
        wait_sent(first)
    machines.store.seconds = lambda job: 4.0 if job.verb == "get" else 0.001
    for keys in prompts:
        assert get(second, keys) == 0
        machines.runner.sleep(MOST_REST)
        second.tiers["remote"]._worker.line.breaker.answered("get")  # type: ignore[attr-defined]
    seconds = second.planner.page_seconds("remote")
    assert seconds is not None
    assert seconds >= 0.9 * 2.0 / RUN, "a read may take two seconds"


LONG = ObjectShape(GEOMETRY.page_bytes, 1, 32)


def written(machines: Machines, server: TierStack, prompts: Sequence[Sequence[bytes]]) -> int:
    """How many of the prompts, of two runs each, are found from their beginning to their end by another server."""
    for keys in prompts:
        put(server, keys)
        machines.runner.sleep(60.0)
    with server.table.lock:
        assert server.movers["remote"].wait_idle(600.0)
    reader = machines.server(shape=LONG, slots=64, host_pages=256)
    machines.store.seconds = 0.001
    return sum(get(reader, keys) == len(keys) for keys in prompts)


@pytest.mark.parametrize("each", [0.16, 0.5, 2.0])
def test_what_is_written_slowly_is_written_all_the_same(each: float) -> None:
    """Runs of 32 objects, which take longer than one job may. `each`: seconds of an object."""

    def test(machines: Machines) -> None:
        machines.store.lanes = True
        server = machines.server(shape=LONG, slots=64, host_pages=512)
        machines.store.seconds = lambda job: each * len(job.names) if job.verb == "put" else 0.001
        prompts = [chain(f"prompt {number}", *range(63)) for number in range(6)]
        assert written(machines, server, prompts) >= (5 if each < 1.0 else 2)
        assert snapshot(server).lives == 1
        assert not told(server, "remote.does_not_answer")
        assert snapshot(server).breaker == "closed"

    on_machines(test)(1)


@on_machines
def test_a_link_that_we_throttle_ourselves_is_not_the_engine_being_late(machines: Machines) -> None:
    """It lets an object through in two seconds: a run takes a minute, and a read gives up."""
    machines.store.lanes = True
    server = machines.server(shape=LONG, slots=64, host_pages=512, throttle=Size(LONG.stride // 2))
    prompts = [chain("prompt", *range(63))]
    assert written(machines, server, prompts) == 1
    assert (snapshot(server).late, snapshot(server).lives) == (0, 1)
    reader = machines.server(shape=LONG, slots=64, host_pages=256, throttle=Size(LONG.stride // 8))
    for _ in range(3):
        get(reader, prompts[0])
    assert snapshot(reader).late
    assert snapshot(reader).breaker == "closed"
    machines.runner.sleep(20.0)
    slots = reader.tiers["remote"]._worker.line.slots  # type: ignore[attr-defined]
    assert slots.unused == len(slots)


def names_asked_for(machines: Machines) -> int:
    return sum(len(job.names) for job in machines.store.jobs if job.verb == "exists")


@on_machines
def test_objects_that_are_lost_have_no_run_asked_for_by_all_its_names(machines: Machines) -> None:
    """A server uses a prompt of eight runs again and again, and meets a lost object of another prompt each time."""
    machines.store.lanes = True
    server, other = (machines.server(shape=LONG, slots=64, host_pages=4096) for _ in range(2))
    hot, prompts = chain("hot", *range(8 * 32 - 1)), [chain(f"prompt {number}", *range(31)) for number in range(40)]
    for stack, keys in [(server, hot), *((other, keys) for keys in prompts)]:
        put(stack, keys)
        wait_sent(stack)
    whole = set(machines.store.objects)
    name = server.tiers["remote"]._worker.names.name  # type: ignore[attr-defined]
    machines.store.jobs.clear()
    for keys in prompts:
        lost = name(server.digest, keys[3])
        del machines.store.objects[lost]
        assert get(server, keys) < len(keys)
        put(server, keys)  # computed, since it did not come
        server.restorer.used(hot)
        wait_sent(server)
        machines.runner.sleep(1.0)
    assert set(machines.store.objects) == whole, "whoever meets the hole fills it"
    assert names_asked_for(machines) <= 2 * (len(prompts) + 8)


@on_machines
def test_what_a_writer_asks_does_not_keep_requests_waiting(machines: Machines) -> None:
    """It asks for every object of the runs that it has computed, by an engine that takes a millisecond for each."""
    machines.store.lanes = True
    first, second = (machines.server(shape=LONG, slots=64, host_pages=4096) for _ in range(2))
    keys, wanted = chain("a", *range(16 * 32 - 1)), [chain(f"wanted {number}", *range(31)) for number in range(20)]
    for prompt in (keys, *wanted):
        put(first, prompt)
        wait_sent(first)
    machines.store.seconds = lambda job: 0.001 * len(job.names)
    put(second, keys)  # computed here as well
    for prompt in wanted:
        assert get(second, prompt) == len(prompt)
    assert snapshot(second).lookups_late == 0
    wait_sent(second)
