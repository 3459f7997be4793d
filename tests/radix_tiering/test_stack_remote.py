"""Several servers over one store: what one computed serves the other, and nothing that a store does harms anybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.token_bucket import BURST_REQUESTS
from swift_tiers.radix_tiering.base.units import Duration, Size
from swift_tiers.radix_tiering.bus.contract.commands import Flush, SetPolicy
from swift_tiers.radix_tiering.table.rules import check_rules
from swift_tiers.radix_tiering.tiers.remote import reads
from swift_tiers.radix_tiering.tiers.remote.breaker import MOST_REST
from swift_tiers.radix_tiering.tiers.remote.engine import EngineEvent, RemoteEngine
from swift_tiers.radix_tiering.tiers.remote.line import MOST_PAUSE
from swift_tiers.radix_tiering.tiers.remote.objects import probe_name
from swift_tiers.radix_tiering.tiers.remote.probe import PROBE_AGAIN, READS
from swift_tiers.radix_tiering.tiers.remote.reads import MOST_TOGETHER, OBJECTS_TOGETHER
from swift_tiers.radix_tiering.tiers.remote.rumours import BELIEVED_SECONDS
from swift_tiers.radix_tiering.tiers.testing.model_engine import EngineFault
from swift_tiers.radix_tiering.tiers.tier import Chain

from support.engine import (
    GEOMETRY,
    chain,
    check,
    close,
    content,
    end_all,
    get,
    make_stack,
    memory_ssd,
    namespace,
    obey,
    put,
    settle,
    wait_until,
)
from support.remote import RUN, SHAPE, Machines, on_machines, run_of, snapshot, told, wait_sent


@on_machines
def test_what_one_server_computed_serves_another(machines: Machines) -> None:
    first, second, keys = machines.sent(3, more=2)
    close(first)  # and is gone
    machines.stacks.remove(first)
    restore = settle(second, second.restore(keys))
    assert restore.found() == ["remote"] * 3 * RUN, "whole runs, and no page behind them"
    for key, slot in zip(keys, restore.slots, strict=False):
        assert np.array_equal(second.host.page(slot), content(key))
    second.restorer.release(restore)
    second.restorer.wait_idle()
    with second.table.lock:
        assert second.table.of[-1].pages == 0, "a hint outlives the restore that wanted it"
    asked = machines.asked("get")
    assert get(second, keys) == 3 * RUN
    assert machines.asked("get") == asked, "host memory has it now"


@on_machines
def test_what_arrived_is_gone_when_memory_is_emptied(machines: Machines) -> None:
    """Who flushes to measure, or for want of trust, does not meet in this process what was there before."""
    _, second, keys = machines.sent()
    slots = second.tiers["remote"]._worker.line.slots  # type: ignore[attr-defined]
    for durable in (False, True):
        assert get(second, keys) == 2 * RUN, "the store was not emptied"
        assert slots.holds
        asked = machines.asked("get")
        second.flush("all" if durable else "memory")
        machines.runner.sleep(1.0)
        assert not slots.holds
        assert slots.unused == len(slots)
    assert get(second, keys) == 2 * RUN
    assert machines.asked("get") > asked


@on_machines
def test_a_page_of_which_there_is_a_hint_is_neither_saved_nor_evicted_for_it(machines: Machines) -> None:
    """What came from there is as lost as any other page when host memory needs its room."""
    _, second, keys = machines.sent(host_pages=2 * RUN)
    assert get(second, keys) == 2 * RUN
    page = second.table.find(second.digest, keys[-1])
    assert page is not None
    assert not page.saved
    put(second, run_of("b", 2))
    wait_sent(second)
    assert second.table.find(second.digest, keys[-1]) is None
    assert get(second, keys) == 2 * RUN, "found again by asking"


@on_machines
def test_one_use_of_a_long_prefix_sends_all_of_it(machines: Machines) -> None:
    """A prompt of 358,000 tokens is 700 runs, and two are sent at a time."""
    runs = 100
    first, keys = machines.server(host_pages=runs * RUN, admission="reuse"), run_of("a", runs)
    put(first, keys)
    wait_sent(first)
    assert not machines.store.objects
    assert get(first, keys) == runs * RUN
    wait_sent(first)
    assert len(machines.store.objects) == runs * RUN // SHAPE.pages
    assert not first.snapshot().tiers["remote"].refusals


def questions(machines: Machines) -> list[int]:
    """How many names each of them had."""
    return [len(job.names) for job in machines.store.jobs if job.verb == "exists"]


@pytest.mark.parametrize(("runs", "names"), [(5, [2, 2, 1]), (4, [2, 2]), (3, [2, 1])])
def test_more_runs_than_one_question_asks_for_are_asked_for_by_the_next(runs: int, names: list[int]) -> None:
    @on_machines
    def all_of_them_are_found(machines: Machines) -> None:
        _, second, keys = machines.sent(runs)
        machines.store.jobs.clear()
        assert get(second, keys) == runs * RUN
        assert questions(machines) == names

    @on_machines
    def nobody_asks_behind_one_that_is_missing(machines: Machines) -> None:
        first, second, keys = machines.server(), machines.server(), run_of("a", runs)
        put(first, keys[:RUN])
        wait_sent(first)
        machines.store.jobs.clear()
        assert get(second, keys) == RUN
        assert questions(machines) == [2]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "MOST_TAILS", 2)
        for seed in range(3):
            all_of_them_are_found(seed)
            nobody_asks_behind_one_that_is_missing(seed)


@pytest.mark.parametrize(("seconds", "found"), [(0.012, 2), (0.008, 4)])
def test_the_next_question_has_what_is_left_of_the_deadline(seconds: float, found: int) -> None:
    @on_machines
    def no_longer_than_that(machines: Machines) -> None:
        _, second, keys = machines.sent(6)
        machines.store.seconds = lambda job: seconds if job.verb == "exists" else 0.001
        assert get(second, keys) == found * RUN
        assert snapshot(second).lookups_late == 0, "blamed for what there was no time for"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "MOST_TAILS", 2)
        for seed in range(3):
            no_longer_than_that(seed)


@on_machines
def test_it_is_asked_only_for_what_nobody_here_has(machines: Machines) -> None:
    _, second, keys = machines.sent(4, ssd=memory_ssd(runner=machines.runner))
    put(second, keys[: 2 * RUN])
    wait_sent(second)
    asked = machines.asked("exists")
    assert get(second, keys[: 2 * RUN]) == 2 * RUN
    assert machines.asked("exists") == asked, "asked for what host memory has"
    restore = settle(second, second.restore(keys))
    assert restore.found() == ["host"] * 2 * RUN + ["remote"] * 2 * RUN
    assert [len(job.names) for job in machines.store.jobs if job.verb == "exists"][-1] == 2, "a name for each run"
    second.restorer.release(restore)


@on_machines
def test_a_prompt_that_nobody_has_is_no_restore(machines: Machines) -> None:
    """The store is asked for every prompt. Were all of them restores, the few that go wrong would not show."""
    machine = machines.server()
    restore = settle(machine, machine.restore(chain("new", *range(4))))
    assert (restore.outcome, restore.pages) == ("", 0)
    counts = machine.snapshot().restores
    assert (counts.restores_started, counts.restores_completed) == (0, 0)
    machine.restorer.release(restore)


@on_machines
def test_a_chain_that_begins_in_the_middle_of_an_object(machines: Machines) -> None:
    _, second, keys = machines.sent()
    put(second, keys[:3])
    restore = settle(second, second.restore(keys[2:], keys[:2]))
    assert restore.found() == ["host"] + ["remote"] * (2 * RUN - 3)
    for key, slot in zip(keys[2:], restore.slots, strict=True):
        assert np.array_equal(second.host.page(slot), content(key))
    second.restorer.release(restore)


@on_machines
def test_an_object_that_is_found_is_named_once_for_all_its_pages(machines: Machines) -> None:
    """A long prompt of small pages has a hundred thousand of them."""
    _, second, keys = machines.sent(4)
    names, made = second.tiers["remote"]._worker.names, Counter[bytes]()  # type: ignore[attr-defined]
    name = names.name

    def counted(namespace: bytes, key: bytes) -> str:
        made[key] += 1
        return name(namespace, key)

    names.name = counted
    restore = settle(second, second.restore(keys))
    assert restore.found() == ["remote"] * 4 * RUN
    assert max(made.values()) <= 2, "once more as the last one of its run, which is asked for"
    second.restorer.release(restore)


@on_machines
def test_nothing_is_entered_behind_a_prefix_that_only_the_device_has(machines: Machines) -> None:
    _, second, keys = machines.sent()
    restore = settle(second, second.restore(keys[2:], keys[:2]))
    assert restore.pages == 0
    assert snapshot(second).lookups == 0
    second.restorer.release(restore)


@on_machines
def test_other_namespaces_and_other_secrets_never_meet(machines: Machines) -> None:
    first = machines.server(secret=b"ours")
    others = [machines.server(), machines.server(secret=b"theirs"), machines.server(secret=b"ours", scope="H100")]
    keys = run_of("a", 2)
    put(first, keys)
    wait_sent(first)
    assert machines.store.objects
    assert not any(key.hex() in name for key in keys for name in machines.store.objects), "names tell what was asked"
    assert [get(other, keys) for other in others] == [0, 0, 0]
    again = machines.server(secret=b"ours")
    assert get(again, keys) == 2 * RUN
    again.change_namespace(namespace(weights="others"))
    assert get(again, keys) == 0


@on_machines
def test_the_last_object_of_a_run_is_written_last(machines: Machines) -> None:
    _, _, keys = machines.sent(1)
    puts = [job.names for job in machines.store.jobs if job.verb == "put"]
    assert [len(names) for names in puts] == [1, 1]
    assert puts[-1][0].endswith(keys[-1].hex())


@on_machines
def test_what_is_there_is_not_written_again(machines: Machines) -> None:
    first, second, keys = machines.sent()
    written = machines.asked("put")
    put(second, keys)  # computed there as well
    wait_sent(second)
    assert get(first, keys) == get(second, keys) == 2 * RUN
    wait_sent(first)
    assert machines.asked("put") == written


@on_machines
def test_a_run_of_which_an_object_was_dropped_is_made_whole_by_who_computes_it(machines: Machines) -> None:
    """Engines drop objects one by one: that the last one is there says nothing of those before it."""
    machines.sent()
    whole, keys = list(machines.store.objects), run_of("a", 2)
    for hole in whole:
        if "probe" in hole:
            continue
        del machines.store.objects[hole]
        other = machines.server()
        put(other, keys)
        wait_sent(other)
        assert set(machines.store.objects) == set(whole)
        reader = machines.server()
        assert get(reader, keys) == 2 * RUN


@on_machines
def test_a_store_that_was_emptied_is_filled_again(machines: Machines) -> None:
    """By those who knew what was there: they ask, hear that it is not, compute it, and send it."""
    first, second, keys = machines.sent()
    assert get(second, keys) == 2 * RUN
    whole = set(machines.store.objects)
    machines.store.objects.clear()
    for stack in (first, second):
        stack.flush("all")
        machines.runner.sleep(1.0)
        assert get(stack, keys) == 0
    put(second, keys)
    wait_sent(second)
    assert set(machines.store.objects) == whole


@on_machines
def test_a_store_that_another_one_has_taken_the_place_of_is_filled_again(machines: Machines) -> None:
    """While nobody asks: with another life of the engine, or some minutes later, nothing is believed to be there."""
    first, _, keys = machines.sent()
    whole = set(machines.store.objects)
    for way in ("another life", "minutes later"):
        machines.store.objects.clear()
        if way == "another life":
            machines.fail("exists", EngineFault.DIES)
            other = run_of("other")
            assert get(first, other) == 0
            machines.fail("exists", EngineFault.NONE)
            wait_until(lambda: snapshot(first).ready, "it does not come back", first)
        else:
            machines.runner.sleep(BELIEVED_SECONDS)
        first.flush("memory")
        put(first, keys)
        wait_sent(first)
        assert set(machines.store.objects) == whole, way


@on_machines
def test_only_what_is_used_again_is_written(machines: Machines) -> None:
    first = machines.server(admission="reuse")
    keys = run_of("a", 2)
    put(first, keys)
    wait_sent(first)
    assert not machines.asked("put")
    get(first, keys)
    wait_sent(first)
    assert len(machines.store.objects) == 2 * RUN // SHAPE.pages


@on_machines
def test_a_server_that_only_reads(machines: Machines) -> None:
    first = machines.server(admission="never")
    put(first, run_of("a", 2))
    wait_sent(first)
    assert not machines.store.jobs


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        (EngineFault.SHORT, "bad"),
        (EngineFault.EMPTY, "bad"),
        (EngineFault.FOREIGN, "bad"),
        (EngineFault.WRONG, "bad"),
        (EngineFault.HEADER, "bad"),
        (EngineFault.ABSENT, "absent"),
    ],
)
def test_an_object_that_is_not_what_it_should_be_is_a_miss(fault: EngineFault, counted: str) -> None:
    def test(machines: Machines) -> None:
        _, second, keys = machines.sent()
        machines.fail("get", fault)
        assert get(second, keys) < 2 * RUN  # every byte that is promised is compared there
        assert getattr(snapshot(second), counted) >= 1
        if counted == "bad":
            assert told(second, "page.corrupt")
            assert {event["tier"] for event in told(second, "page.corrupt")} == {"remote"}
        machines.fail("get", EngineFault.NONE)
        before = machines.asked("get")
        assert get(second, keys) == 0, "asked for what is known to be lost"
        assert machines.asked("get") == before

    on_machines(test)(1)


@on_machines
def test_no_answer_later_than_its_deadline(machines: Machines) -> None:
    """Questions, and then reads, are not answered: two deadlines, then nothing; until it answers again."""
    _, second, keys = machines.sent()
    machines.fail("exists", EngineFault.LATE)
    for _ in range(2):
        began = machines.runner.monotonic()
        assert get(second, keys) == 0
        assert machines.runner.monotonic() - began < 0.02 + 0.02
    began, asked = machines.runner.monotonic(), len(machines.store.jobs)
    assert get(second, keys) == 0
    assert machines.runner.monotonic() - began < 0.01
    assert len(machines.store.jobs) == asked, "asked though it does not answer"
    assert snapshot(second).breaker == "open"
    assert told(second, "remote.does_not_answer")
    machines.fail("exists", EngineFault.NONE)
    machines.runner.sleep(10.0)
    assert snapshot(second).breaker == "closed"
    assert get(second, keys) == 2 * RUN


@on_machines
def test_reads_that_wait_are_not_sent_to_an_engine_that_is_asked_no_more(machines: Machines) -> None:
    _, second, keys = machines.sent(16)
    machines.fail("get", EngineFault.FAILS)
    before, began = machines.asked("get"), machines.runner.monotonic()
    assert get(second, keys) == 0
    # Two that fail open the breaker; another one was sent between them.
    assert snapshot(second).breaker == "open"
    assert machines.asked("get") - before <= 3
    assert machines.runner.monotonic() - began < 1.0, "waited for until their deadline"
    machines.fail("get", EngineFault.NONE)
    machines.runner.sleep(MOST_REST)
    assert get(second, keys[: 8 * RUN]) == 8 * RUN


@on_machines
def test_an_engine_that_fails_whatever_it_is_asked_is_asked_no_more(machines: Machines) -> None:
    """It answers at once, and well in time."""
    _, second, keys = machines.sent()
    assert second.snapshot().remote_engine_asked == 1
    machines.store.fault = lambda job: EngineFault.FAILS
    for _ in range(2):
        assert get(second, keys) == 0
    asked = len(machines.store.jobs)
    assert get(second, keys) == 0
    assert len(machines.store.jobs) == asked, "asked though it fails"
    figures = second.snapshot()
    assert (figures.remote_engine, figures.remote_engine_asked) == ("not asked", 0)
    assert (figures.remote_errors, figures.remote_late) == (2, 0)
    machines.runner.sleep(300.0)
    assert second.snapshot().remote_errors > 5, "it is not tried again"
    assert told(second, "remote.fails") == [{"reason": "exists: no route to the store"}]
    machines.store.fault = lambda job: EngineFault.NONE
    machines.runner.sleep(MOST_REST)
    assert len(told(second, "remote.answers_again")) == 1
    figures = second.snapshot()
    assert (figures.remote_engine, figures.remote_engine_asked) == ("asked", 1)
    assert get(second, keys) == 2 * RUN


@on_machines
def test_an_engine_that_cannot_be_opened_is_shown_so_until_it_is(machines: Machines) -> None:
    """And not as one that starts."""
    server, missing = machines.server(), ["no library of it is installed"]
    figures = lambda: (server.snapshot().remote_engine, server.snapshot().remote_engine_asked)  # noqa: E731
    line = server.tiers["remote"]._worker.line  # type: ignore[attr-defined]
    opens, tries = line._open_engine, []

    def open_engine(tell: Callable[[EngineEvent], None]) -> RemoteEngine:
        tries.append(figures())
        if missing:
            raise OSError(missing[0])
        engine: RemoteEngine = opens(tell)
        return engine

    line._open_engine = open_engine
    machines.fail("exists", EngineFault.DIES)
    get(server, run_of("a"))
    machines.fail("exists", EngineFault.NONE)
    machines.runner.sleep(600.0)
    assert figures() == ("cannot be opened", 0)
    assert 10 < len(tries) < 30
    assert [tries[0], *{*tries[1:]}] == [("starting", 0), ("cannot be opened", 0)]
    assert told(server, "remote.cannot_be_opened") == [{"reason": missing[0]}]
    missing.clear()
    machines.runner.sleep(MOST_PAUSE + 1.0)
    assert figures() == ("asked", 1)


def test_where_no_remote_tier_is_nothing_is_said_of_its_engine() -> None:
    figures = make_stack().snapshot()
    assert (figures.remote_engine, figures.remote_engine_asked, figures.remote_errors) == ("", None, 0)
    end_all()


@on_machines
def test_an_engine_is_not_to_blame_for_what_takes_long_here(machines: Machines) -> None:
    """It answers at once; the tier's thread hears it when it has packed what is to be written."""
    first, second = machines.server(), machines.server()
    keys = run_of("a", 4)
    put(first, keys)
    wait_sent(first)
    worker = second.tiers["remote"]._worker  # type: ignore[attr-defined]
    pack = worker._writes._fingerprint

    def slowly(page: np.ndarray) -> bytes:
        machines.runner.sleep(0.015)
        return pack(page)  # type: ignore[no-any-return]

    worker._writes._fingerprint = slowly
    for name in "bcdefgh":
        put(second, run_of(name, 2))
        get(second, keys)
    wait_sent(second)
    assert not told(second, "remote.does_not_answer")
    assert snapshot(second).breaker == "closed"


@on_machines
def test_an_error_of_ours_ends_neither_the_thread_nor_what_others_wait_for(machines: Machines) -> None:
    _, second, keys = machines.sent()
    worker = second.tiers["remote"]._worker  # type: ignore[attr-defined]
    answers = worker.answers

    class Fails:
        def __enter__(self) -> None:
            answers.__enter__()

        def __exit__(self, *_: object) -> None:
            answers.__exit__(None, None, None)
            worker.answers = answers
            raise AssertionError("an error of ours")

    for place in ("told when all is answered", "when somebody is told", "when it is to be done"):
        if place.startswith("told"):
            worker.answers = Fails()
        elif place.startswith("when somebody"):
            worker._found.append(fail_once)
        else:
            due = worker._next_due
            worker._next_due = lambda due=due: setattr(worker, "_next_due", due) or fail_once()
        assert get(second, keys) == 2 * RUN, place
        second.flush("all")
        machines.runner.sleep(1.0)
    began = machines.runner.monotonic()
    assert get(second, keys) == 2 * RUN
    assert machines.runner.monotonic() - began < 0.5
    assert len(told(second, "remote.error")) == 2, "each error once"


def fail_once() -> None:
    raise RuntimeError("another error of ours")


@on_machines
def test_a_throttled_link_lets_so_many_bytes_through_and_no_more(machines: Machines) -> None:
    """Both ways; and at another rate from when an operator says so."""
    rate = 2**20
    burst = BURST_REQUESTS * SHAPE.stride / rate  # that a rested link lets through at once
    first = machines.server(throttle=Size(rate))
    keys = run_of("a", 4)
    began = machines.runner.monotonic()
    put(first, keys)
    wait_sent(first)
    whole = len(keys) // SHAPE.pages * SHAPE.stride / rate
    assert whole - burst <= machines.runner.monotonic() - began <= 1.2 * whole
    second = machines.server(throttle=Size(rate))
    began = machines.runner.monotonic()
    assert get(second, keys) == len(keys)
    assert whole - burst <= machines.runner.monotonic() - began <= 1.2 * whole
    assert max(len(job.names) for job in machines.store.jobs if job.verb == "get") > 1
    third = machines.server(throttle=Size(rate))
    assert obey(third, SetPolicy(field="remote.throttle", value="2MiB")).endswith("-> 2MiB")
    assert third.tiers["remote"].throttle(rate / 8)  # type: ignore[attr-defined]
    machines.store.jobs.clear()
    began = machines.runner.monotonic()
    assert get(third, keys) == len(keys)
    assert 8 * (whole - burst) <= machines.runner.monotonic() - began <= 1.2 * 8 * whole
    assert {len(job.names) for job in machines.store.jobs if job.verb == "get"} == {1}, "met one by one"


@on_machines
def test_where_objects_come_soon_more_of_them_are_asked_for_together(machines: Machines) -> None:
    """What takes long is met by who computes meanwhile, or is the way there and back: no more of it at once."""
    slots, keys = 4 * MOST_TOGETHER, run_of("a", 16)
    first = machines.server(slots=slots, host_pages=2 * len(keys))
    put(first, keys)
    wait_sent(first)
    for seconds, together in ((0.001, MOST_TOGETHER), (0.2, OBJECTS_TOGETHER)):
        machines.store.seconds = seconds
        second = machines.server(
            slots=slots, host_pages=2 * len(keys), read_seconds=60.0, lookup_deadline=Duration(1.0)
        )
        machines.store.jobs.clear()
        assert get(second, keys) == len(keys)
        sizes = [len(job.names) for job in machines.store.jobs if job.verb == "get"]
        assert sizes[0] == OBJECTS_TOGETHER
        assert max(sizes) == together


@on_machines
def test_an_engine_that_dies_or_is_late_behind_a_throttle_costs_no_slot(machines: Machines) -> None:
    first, keys = machines.server(), run_of("a", 4)
    put(first, keys)
    wait_sent(first)
    second = machines.server(throttle=Size(2**20), read_seconds=0.005)
    assert get(second, keys) < len(keys)
    assert snapshot(second).late
    machines.fail("get", EngineFault.DIES)
    get(second, keys)
    machines.fail("get", EngineFault.NONE)
    machines.runner.sleep(30.0)
    tier = second.tiers["remote"]
    line = tier._worker.line  # type: ignore[attr-defined]
    assert not line._held
    assert line.slots.unused == len(line.slots) > 0


@on_machines
def test_reads_that_hang_end_at_their_deadline_and_the_child_is_replaced(machines: Machines) -> None:
    _, second, keys = machines.sent(read_seconds=0.5)
    machines.fail("get", EngineFault.HANGS)
    began = machines.runner.monotonic()
    assert get(second, keys) == 0
    assert machines.runner.monotonic() - began < 0.6
    machines.fail("get", EngineFault.NONE)
    machines.runner.sleep(30.0)
    assert snapshot(second).lives == 2
    assert get(second, keys) == 2 * RUN


@on_machines
def test_an_engine_that_dies_is_a_miss_and_is_replaced(machines: Machines) -> None:
    _, second, keys = machines.sent()
    machines.fail("get", EngineFault.DIES)
    assert get(second, keys) == 0
    assert [event["reason"] for event in told(second, "remote.engine_gone")] == ["its process was ended by SIGSEGV"]
    machines.fail("get", EngineFault.NONE)
    machines.runner.sleep(3.0)
    assert get(second, keys) == 2 * RUN


@on_machines
def test_writes_that_hang_pin_nothing_for_ever(machines: Machines) -> None:
    first = machines.server()
    machines.fail("put", EngineFault.HANGS)
    put(first, run_of("a", 4))
    machines.runner.sleep(6.0)
    wait_sent(first)
    refused = first.snapshot().tiers["remote"].refusals
    assert sum(refused.values()) == 4 * RUN, refused
    machines.runner.sleep(30.0)


@on_machines
def test_a_store_that_takes_nothing_and_does_not_say_why_rests_and_is_told_of(machines: Machines) -> None:
    """SGLang's file backend on a full disk: what is used again and again is not sent again and again."""
    first, keys = machines.server(), run_of("a", 4)
    machines.fail("put", EngineFault.REFUSES)
    put(first, keys)
    for _ in range(20):
        first.restorer.used(keys)
        wait_sent(first)
    asked = sum(job.verb == "put" for job in machines.store.jobs)
    assert 0 < asked <= 8, f"{asked} times"
    assert len(told(first, "remote.fails")) == 1
    assert first.snapshot().remote_errors == asked
    machines.fail("put", EngineFault.NONE)
    machines.runner.sleep(MOST_REST)
    first.restorer.used(keys)
    wait_sent(first)
    assert len(machines.store.objects) == 4 * RUN // SHAPE.pages


@on_machines
def test_a_damaged_page_in_host_memory_is_not_sent(machines: Machines) -> None:
    first = machines.server(admission="reuse")
    keys = run_of("a", 1)
    put(first, keys)
    with first.table.lock:
        page = first.table.find(first.digest, keys[1])
        assert page is not None
        first.host.page(page.slot)[5] ^= 1
        now = first.table.tick()
        pages = first.table.settled_chain(first.digest, keys)
        first.table.use_all(pages, now)
        first.movers["remote"].offer(pages)
    wait_sent(first)
    assert not machines.store.objects
    assert first.snapshot().tiers["host"].checksum_failures == 1
    assert first.table.find(first.digest, keys[1]) is None


@on_machines
def test_the_device_fills_what_was_only_heard_of(machines: Machines) -> None:
    """While a restore still has hints of pages, their KV is computed and offered: from then on they are in host memory,
    and stay when the restore is over."""
    # Two pages are read at a time.
    _, second, keys = machines.sent(sections={"restore": {"chunk": 2 * GEOMETRY.tokens}})
    machines.fail("get", EngineFault.LATE)
    restore = second.restore(keys)
    second.restorer.wait_idle()
    machines.runner.sleep(0.1)
    with second.table.lock:
        pages = second.table.settled_chain(second.digest, keys)
        assert second.table.hinted(pages) == pages
        assert len(pages) == 2 * RUN
        being_read = sum(page.in_host for page in pages)
    assert 0 < being_read < 2 * RUN
    assert put(second, [*keys, *chain("behind")]) == 2 * RUN - being_read + 1
    with second.table.lock:
        check_rules(second.table)
        assert len(second.table.hinted(pages)) == being_read
    settle(second, restore)
    second.restorer.release(restore)
    second.restorer.wait_idle()
    asked = machines.asked("get")
    assert get(second, keys) == 2 * RUN
    assert machines.asked("get") == asked


@on_machines
def test_a_restore_that_is_given_up_leaves_no_hint(machines: Machines) -> None:
    _, second, keys = machines.sent()
    machines.store.late_seconds = 4.0
    machines.fail("get", EngineFault.LATE)
    one, other = second.restore(keys), second.restore(keys[: RUN + 1])
    second.restorer.wait_idle()
    machines.runner.sleep(0.1)
    second.restorer.release(one)
    second.restorer.wait_idle()
    with second.table.lock:
        check_rules(second.table)
    second.restorer.release(other)
    second.restorer.wait_idle()
    machines.runner.sleep(5.0)
    check(second)
    assert second.table.pages == 0


@on_machines
def test_what_a_restore_lies_behind_does_not_leave_with_the_one_that_heard_of_it(machines: Machines) -> None:
    """The device of the second request has the first pages, of which there are only hints that the first one holds."""
    slow = {"restore": {"chunk": 2 * GEOMETRY.tokens}}  # two pages are read at a time
    # This store does one thing after the other: a question waits for what is being read.
    _, second, keys = machines.sent(4, sections=slow, lookup_deadline=Duration(1.0))
    machines.store.late_seconds = 0.3
    machines.fail("get", EngineFault.LATE)
    one = second.restore(keys[: 3 * RUN])
    machines.runner.sleep(0.05)
    other = second.restore(keys[3 * RUN :], keys[: 3 * RUN])
    machines.runner.sleep(0.4)
    second.restorer.release(one)
    second.restorer.wait_idle()
    settle(second, other)
    assert other.pages == RUN
    for key, slot in zip(keys[3 * RUN :], other.slots, strict=True):
        assert np.array_equal(second.host.page(slot), content(key))
    second.restorer.release(other)
    second.restorer.wait_idle()
    with second.table.lock:
        assert second.table.of[-1].pages == 0, "a hint outlives the restores that wanted it"


@on_machines
def test_a_flush_says_that_the_store_keeps_what_it_has(machines: Machines) -> None:
    first, _, keys = machines.sent()
    assert obey(first, Flush(tiers="all")).endswith("; what is in the remote store stays there")
    assert get(first, keys) == 2 * RUN


@on_machines
def test_pages_that_never_came_leave_with_a_flush(machines: Machines) -> None:
    first, second, keys = machines.sent()
    restore = second.restore(keys)
    second.restorer.wait_idle()
    second.flush("memory")
    settle(second, restore)
    second.restorer.release(restore)
    second.restorer.wait_idle()
    machines.runner.sleep(5.0)
    check(second)
    put(first, chain("b", 1, 2, 3))


@on_machines
def test_its_costs_are_learnt_and_plans_reckon_with_it(machines: Machines) -> None:
    first, second = machines.server(host_pages=64), machines.server(host_pages=64)
    prompts = [run_of(f"prompt {number}", 2) for number in range(6)]
    for keys in prompts:
        put(first, keys)
        wait_sent(first)
    assert second.planner.page_seconds("remote") is None
    for keys in prompts:
        assert get(second, keys) == 2 * RUN
    assert second.planner.page_seconds("remote") is not None


# ---- what a read takes, where nobody knows ----

PROBE = probe_name(SHAPE)


def asked_for_probe(machines: Machines, verb: str) -> int:
    return sum(job.verb == verb and list(job.names) == [PROBE] for job in machines.store.jobs)


@on_machines
def test_what_a_read_takes_is_known_before_anybody_waits_for_one(machines: Machines) -> None:
    machines.store.seconds = 0.01
    first = machines.server(probes=True)
    wait_until(lambda: first.planner.page_seconds("remote"), "nothing is learnt", first)
    assert first.planner.page_seconds("remote") == pytest.approx(0.01 / SHAPE.pages, rel=0.2)
    assert (asked_for_probe(machines, "put"), asked_for_probe(machines, "get")) == (1, 1 + READS)
    second = machines.server(probes=True)
    wait_until(lambda: second.planner.page_seconds("remote"), "nothing is learnt", second)
    assert asked_for_probe(machines, "put") == 1, "what is there is not written again"
    machines.runner.sleep(600.0)
    assert asked_for_probe(machines, "get") == 1 + 2 * READS, "looked at for nothing"
    assert (snapshot(second).absent, snapshot(second).bad) == (0, 0)


@on_machines
def test_a_server_that_only_reads_looks_for_it_again_and_writes_nothing(machines: Machines) -> None:
    reader = machines.server(probes=True, admission="never")
    machines.runner.sleep(2.5 * PROBE_AGAIN)
    assert asked_for_probe(machines, "get") == 3
    assert not machines.store.objects
    writer = machines.server(probes=True)
    wait_until(lambda: writer.planner.page_seconds("remote"), "nothing is learnt", writer)
    machines.runner.sleep(PROBE_AGAIN)
    assert reader.planner.page_seconds("remote") is not None


@on_machines
def test_an_engine_that_nobody_reads_is_looked_at_again(machines: Machines) -> None:
    """It was slow, so pages that are found are recomputed; it is not slow any more."""
    machines.store.seconds = 0.5
    first, second = machines.server(probes=True), machines.server(probes=True)
    wait_until(lambda: second.planner.page_seconds("remote"), "nothing is learnt", second)
    slow = second.planner.page_seconds("remote")
    assert slow is not None
    keys = run_of("a")
    put(first, keys)
    wait_sent(first)
    machines.store.seconds = 0.001
    for _ in range(4):
        found: list[object] = []
        second.tiers["remote"].find(Chain(second.digest, 0, keys), found.extend)
        wait_until(lambda found=found: len(found) == 2 * RUN, "it is not found", second)  # type: ignore[misc]
        machines.runner.sleep(2 * PROBE_AGAIN)
    assert second.planner.page_seconds("remote") < slow / 4


@pytest.mark.parametrize("fault", [EngineFault.WRONG, EngineFault.FOREIGN, EngineFault.EMPTY, EngineFault.LATE])
def test_a_probe_that_is_not_what_it_should_be_teaches_nothing(fault: EngineFault) -> None:
    def test(machines: Machines) -> None:
        machines.store.objects["other"] = np.zeros(SHAPE.stride, np.uint8)
        machines.store.late_seconds = 20.0
        machines.fail("get", fault)
        server = machines.server(probes=True)
        machines.runner.sleep(PROBE_AGAIN / 2)
        assert server.planner.page_seconds("remote") is None
        machines.fail("get", EngineFault.NONE)
        machines.runner.sleep(2 * PROBE_AGAIN)
        assert server.planner.page_seconds("remote") is not None
        assert put(server, run_of("a")) == 2 * RUN
        wait_sent(server)

    on_machines(test)(1)
