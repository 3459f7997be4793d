"""SGLang's real scheduler as a donor, with its strict memory checks after every step; a real borrower in this process.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests call them there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from swift_tiers.radix_tiering.base.config import PeerConfig
from swift_tiers.radix_tiering.base.page import page_digest
from swift_tiers.radix_tiering.tiers.peer import PeerTier
from swift_tiers.radix_tiering.tiers.peer.jobs import LEASE_ENDED
from swift_tiers.radix_tiering.tiers.tier import ReadOutcome

from support.fake_device import FakeDeviceMemory
from support.peer_tier import Answer, read_page, write_page
from support.prompts import prompt
from support.redis import wait_for
from support.scheduler_process import SchedulerProcess

pytestmark = pytest.mark.timeout(600)

PAGE = 16
DEVICE_TOKENS = 4096


# ---- in the scheduler's process ----


def facts(s) -> dict:
    side, allocator = s.linker.peer_side, s.scheduler.token_to_kv_pool_allocator
    return {
        "name": side.name,
        "address": side.address,
        "page_bytes": s.linker.pool.geometry.page_bytes,
        "page_tokens": allocator.page_size,
        "lent_pages": side.donation.lender.lent_pages,
        "lent_tokens": side.donation.lender.lent_pages * allocator.page_size,
        "free_tokens": allocator.available_size(),
        "held_tokens": s.scheduler.pool_stats_observer.session_held_tokens(),
        "evictable_tokens": s.cache.evictable_size(),
        "pool": type(allocator.get_kvcache()).__name__,
    }


def lender_says(s) -> dict:
    """Why it lends no more, where it should."""
    lender, kept = s.linker.peer_side.donation.lender, s.linker.peer_side.donation._kept
    sizer = lender._sizer
    return {
        "needed": sizer._needed, "peak": sizer.peak_tokens(time.monotonic()), "kept": sizer._kept,
        "kept now": kept.tokens() if kept else None, "free": lender._pool.free_pages, "units": lender._units,
        "shape": lender._shape, "missing": lender._missing, "owed": lender._owed,
        "taken back": time.monotonic() - (sizer._taken_back_at or 0), "leases": s.linker.peer_side.service.leases(),
        "pending": len(s.cache.linker.pending_offloads), "waiting": len(s.scheduler.waiting_queue),
        "protected": s.cache.protected_size(),
        "events": [(one.kind, one.fields) for one in s.linker.stack.events.since()][-12:],
    }  # fmt: skip


def rounds(s, seconds: float) -> dict:
    """Turns of the scheduler's loop for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        s.step()
        time.sleep(0.001)
    return facts(s)


def answers(s, seeds: list[int], tokens: int = 700) -> list[list[int]]:
    found = [s.generate(prompt(seed, tokens)) for seed in seeds]
    assert s.linker.wait_offloads(60)
    s.step()  # takes the results: nothing is locked for being copied out
    return found


def long_request(s, seed: int, tokens: int, new: int) -> tuple[list[int], float, int]:
    """Its answer, how long it waited for memory, in seconds, and what was lent when it arrived, in tokens."""
    lent = facts(s)["lent_tokens"]
    began = time.monotonic()
    req = s.add(prompt(seed, tokens), new)
    s.run(until=lambda: req not in s.scheduler.waiting_queue)
    waited = time.monotonic() - began
    s.run()
    assert req.finished()
    return list(req.output_ids), waited, lent


def flush(s) -> dict:
    """What SGLang does at /flush_cache."""
    s.run()
    assert s.scheduler.flush_cache()
    s.step()
    return facts(s)


def long_request_that_is_reckoned_to_need_nothing(s, seed: int, tokens: int) -> list[int]:
    lender = s.linker.peer_side.donation.lender
    demand, lender._demand = lender._demand, lambda: 0
    lender._closed = True  # else it would be lent away again under the request
    try:
        return long_request(s, seed, tokens, 8)[0]
    finally:
        lender._demand, lender._closed = demand, False


def many_that_generate(s, seeds: list[int], tokens: int, new: int) -> list[list[int]]:
    """At once, and none is retracted: what is lent is back before they need it."""
    reqs = [s.add(prompt(seed, tokens), new) for seed in seeds]
    s.run()
    assert not any(req.retracted_stain for req in reqs)
    return [list(req.output_ids) for req in reqs]


def reckoned_of_an_open_ended_request(s, seed: int, tokens: int, new: int) -> tuple[int, int, int]:
    """What it is reckoned to need while it waits, and once it runs and SGLang expects a tenth of what it may need; for
    how many tokens ahead there has to be memory in any case."""
    tracker, demand = s.scheduler.new_token_ratio_tracker, s.linker.peer_side.donation._demand
    limit = time.monotonic() + 60
    while demand():  # what has been offered to the tiers is held until they have it
        assert time.monotonic() < limit, "something is held for ever"
        s.step()
    req = s.add(prompt(seed, tokens), new)
    req.sampling_params.ignore_eos = False
    waiting = demand()
    s.run(until=lambda: len(req.output_ids) >= 2)
    former, tracker.current = tracker.current, 0.1
    running, ahead = demand(), demand.ahead  # it is more where this machine is slow
    tracker.current = former
    req.sampling_params.max_new_tokens = len(req.output_ids) + 1
    s.run()
    assert req.finished()
    return waiting, running, ahead


def begin_to_compute(s) -> None:
    s.add(prompt(31, 100), 20)
    s.step()


def under_way_in_an_overlapped_batch(s) -> list[bool]:
    """Whether a fence has passed: at once; while its batch is queued; while another is."""
    donation, queue = s.linker.peer_side.donation, s.scheduler.result_queue
    found = [donation._fence()()]
    ours, another = (object(), "result"), (object(), "result")
    queue.append(ours)
    passed = donation._fence()
    queue.append(another)
    found.append(passed())
    queue.popleft()
    found.append(passed())
    queue.clear()
    return found


def cost_of_a_tick(s) -> float:
    """Seconds of the cheapest of many, with nothing to do."""
    begin_round = s.linker.begin_round
    times = []
    for _ in range(200):
        began = time.perf_counter()
        for _ in range(100):
            begin_round()
        times.append((time.perf_counter() - began) / 100)
    return min(times)


def breaks_and_goes_on(s) -> tuple[list[int], int, int]:
    """The answer of a request that needs what is lent while every tick fails; how many were tried, and how many events
    tell of it."""
    lender, events = s.linker.peer_side.donation.lender, s.linker.stack.events
    before = sum(event.kind == "linker.error" for event in events.since())
    tick, tries = lender.tick, []

    def broken(now: float) -> None:
        tries.append(now)
        raise RuntimeError("an error of ours")

    lender.tick = broken
    try:
        answer = s.generate(prompt(77, 3900))
    finally:
        lender.tick = tick
    return answer, len(tries), sum(event.kind == "linker.error" for event in events.since()) - before


def copies_hang(s) -> None:
    """Until `copies_go_on`; soon told of."""
    from swift_tiers.sglang_ext.build import donation

    lends = s.linker.peer_side.donation
    server, s.hanging, lends._copies_seen_at = lends._server, threading.Event(), 0.0
    s.told_after, donation.HUNG_SECONDS = donation.HUNG_SECONDS, 0.2
    copy = server._copy

    def hangs(*arguments) -> None:
        assert s.hanging.wait(60)
        copy(*arguments)

    server._copy = hangs


def is_copying(s) -> bool:
    s.step()
    return s.linker.peer_side.donation._server.copying_seconds > 0


def pages_of_a_run(s) -> int:
    return s.linker.peer_side.donation.lender._shape.pages


def hanging_is_told(s) -> bool:
    s.step()
    return any(event.kind == "lending.hung" for event in s.linker.stack.events.since())


def copies_go_on(s) -> None:
    from swift_tiers.sglang_ext.build import donation

    donation.HUNG_SECONDS = s.told_after
    del s.linker.peer_side.donation._server._copy
    s.hanging.set()


def close(s) -> None:
    s.linker.close()


# ---- the borrower ----


class Busy:
    """Keeps the scheduler's loop turning while the test waits for something else."""

    def __init__(self, scheduler: SchedulerProcess) -> None:
        self._scheduler = scheduler
        self._pool = ThreadPoolExecutor(1)

    def until(self, condition: Callable[[], object]) -> dict:
        """The donor's facts when the condition holds."""
        stop = threading.Event()

        def turn() -> dict:
            while not stop.is_set():
                found = self._scheduler(rounds, 0.1)
            return found

        future = self._pool.submit(turn)
        try:
            wait_for(condition)
        finally:
            stop.set()
            found = future.result()
        return found


@contextmanager
def borrower(scheduler: SchedulerProcess, name: str = "borrower", page_bytes: int | None = None) -> Iterator[PeerTier]:
    known = scheduler(facts)
    device = FakeDeviceMemory("GPU-b")
    tier = PeerTier(name, page_bytes or known["page_bytes"], PeerConfig(borrow=True), device=device)
    try:
        tier.want(2**40)
        tier.neighbours({known["name"]: known["address"]})
        yield tier
    finally:
        tier.close()
    assert device.mapped == 0
    assert (device.calls["attach"] > 0) == (known["pool"] == "DeviceKVPool")


def lends_most(scheduler: SchedulerProcess, tier: PeerTier) -> None:
    """Nearly as much is lent as may be."""
    await_lent(scheduler, tier, lambda donor: donor["lent_tokens"] > 0.8 * DEVICE_TOKENS)


def await_lent(scheduler: SchedulerProcess, tier: PeerTier, enough: Callable[[dict], bool]) -> None:
    """As much as the donor's facts are to say; else everybody's reasons are told."""
    try:
        wait_for(lambda: enough(scheduler(rounds, 0.1)))
    except AssertionError as error:
        raise AssertionError(f"{error}: {scheduler(facts)}, {scheduler(lender_says)}; {tier.snapshot()}") from None


def write(tier: PeerTier, data: np.ndarray):
    """Where it is."""
    place, answer = begin_to_write(tier, data)
    assert answer.wait() == (True, "")
    return place


def begin_to_write(tier: PeerTier, data: np.ndarray):
    """Where it is going to be, and the answer."""
    places = tier.reserve([data.nbytes])
    assert places, tier.snapshot()
    answer = Answer()
    write_page(tier, places[0], data, answer, page_digest(data))
    return places[0], answer


def read(tier: PeerTier, place, data: np.ndarray) -> tuple[ReadOutcome, bool]:
    into = np.zeros_like(data)
    done: list[ReadOutcome] = []
    read_page(tier, place, into, page_digest(data), done.append)
    wait_for(lambda: done)
    return done[0], bool((into == data).all())


@pytest.fixture(
    scope="module",
    params=[
        "layer-major",
        *(
            pytest.param(layout, marks=pytest.mark.exhaustive)
            for layout in ("tokens", "block-major", "block-major tokens", "device")
        ),
    ],
)
def layout(request) -> str:
    """Of the donor's pool. "tokens": layer-major, in pages of one token. "device": layer-major, in memory of a GPU,
    which is a fake here: what that memory adds is tested in `test_shared_pool.py` and
    `radix_tiering/lending/donation`."""
    return request.param


@pytest.fixture(scope="module")
def scheduler(layout, tmp_path_factory) -> Iterator[SchedulerProcess]:
    from swift_tiers.ops.base.model import tiny_model

    bus = tmp_path_factory.mktemp("bus")
    bus.chmod(0o700)
    config = {
        "host": {"size": "4MiB"},
        "bus": {"directory": str(bus), "server": "donor"},
        "peer": {"donate": "0..90%", "window": "300ms"},
    }
    if layout.startswith("block-major"):
        config["peer"]["pool_layout"] = "block-major"
    arguments = [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32",
        "--max-total-tokens", str(DEVICE_TOKENS), "--max-running-requests", "8", "--chunked-prefill-size", "512",
        "--page-size", "1" if layout.endswith("tokens") else str(PAGE),
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip
    prepare = "support.fake_device.lend_a_gpu" if layout == "device" else ""
    with SchedulerProcess(arguments, prepare=prepare) as process:
        yield process
        process(close)


@pytest.fixture(scope="module")
def expected(scheduler) -> list[list[int]]:
    """Answers before anything was lent."""
    return scheduler(answers, [1, 2, 3])


def test_the_pool_lies_in_shared_memory_as_configured(scheduler, layout) -> None:
    known = scheduler(facts)
    kinds = {"block-major": "BlockMajorKVPool", "device": "DeviceKVPool"}
    assert known["pool"] == kinds.get(layout.partition(" ")[0], "SharedKVPool")
    assert Path(known["address"].removeprefix("ipc://")).is_socket()


def test_nothing_is_lent_while_nobody_borrows(scheduler, expected) -> None:
    assert scheduler(rounds, 1.0)["lent_pages"] == 0
    assert scheduler(facts)["free_tokens"] + scheduler(facts)["evictable_tokens"] == DEVICE_TOKENS


def test_the_same_answers_while_as_much_is_lent_as_may_be(scheduler, expected) -> None:
    with borrower(scheduler) as tier:
        found = Busy(scheduler).until(lambda: tier.capacity_bytes > 100 * scheduler_page(tier))
        assert found["held_tokens"] == found["lent_tokens"] <= 0.9 * DEVICE_TOKENS
        assert found["free_tokens"] + found["evictable_tokens"] + found["held_tokens"] == DEVICE_TOKENS
        assert scheduler(answers, [1, 2, 3]) == expected
    wait_for(lambda: scheduler(rounds, 0.2)["lent_pages"] == 0)


def scheduler_page(tier: PeerTier) -> int:
    return tier.page_bytes


def test_what_a_borrower_keeps_is_there_until_it_is_recalled_and_harms_nobody(scheduler, expected) -> None:
    with borrower(scheduler) as tier:
        # Of a pool of 4,096 tokens: the memory of 2,400 is lent, that of 960 used, and the long request leaves 596.
        times = PAGE // scheduler(facts)["page_tokens"]
        Busy(scheduler).until(lambda: tier.capacity_bytes > 150 * times * scheduler_page(tier))
        draws = map(np.random.default_rng, range(60 * times))
        pages = [draw.integers(0, 256, scheduler_page(tier), np.uint8) for draw in draws]
        places = [write(tier, page) for page in pages]
        assert scheduler(answers, [1, 2, 3]) == expected
        kept = [read(tier, place, page) for place, page in zip(places, pages, strict=True)]
        assert all(outcome in (ReadOutcome.OK, ReadOutcome.CANCELLED) for outcome, _ in kept)
        assert all(same for outcome, same in kept if outcome is ReadOutcome.OK)
        answer, _, lent = scheduler(long_request, 4, 3500, 4)
        assert lent > 0
        outcomes = [read(tier, place, page)[0] for place, page in zip(places, pages, strict=True)]
        assert ReadOutcome.CHECKSUM not in outcomes
        assert ReadOutcome.CANCELLED in outcomes
    assert scheduler(long_request, 4, 3500, 4)[0] == answer
    assert scheduler(answers, [1, 2, 3]) == expected


def test_a_request_that_is_larger_than_what_is_left_is_served(scheduler) -> None:
    with borrower(scheduler) as tier:
        lends_most(scheduler, tier)
        answer, waited, lent = scheduler(long_request, 5, 3900, 4)
        assert lent > 0.8 * DEVICE_TOKENS
        assert waited < 30, "far more than the bound of 50 ms, for busy machines"
        assert len(answer) == 4


def test_it_is_served_whatever_was_reckoned(scheduler) -> None:
    with borrower(scheduler) as tier:
        lends_most(scheduler, tier)
        assert len(scheduler(long_request_that_is_reckoned_to_need_nothing, 6, 3900)) == 8


def test_requests_that_generate_get_their_memory_in_time(scheduler) -> None:
    with borrower(scheduler) as tier:
        lends_most(scheduler, tier)
        found = scheduler(many_that_generate, [21, 22, 23, 24], 200, 600)
        assert [len(answer) for answer in found] == [600] * 4


def test_who_may_generate_much_is_reckoned_as_sglang_reckons(scheduler) -> None:
    waiting, running, ahead = scheduler(reckoned_of_an_open_ended_request, 30, 100, 3000)
    assert 3100 <= waiting <= 3100 + 3 * PAGE
    # Less than a tenth is what memory has to be there for in any case.
    assert 100 + ahead <= running <= 100 + ahead + 6 * PAGE


def test_borrowers_are_held_back_while_it_computes(scheduler, layout) -> None:
    with borrower(scheduler) as tier:
        Busy(scheduler).until(lambda: tier.capacity_bytes)

        def share() -> float | None:
            (donor,) = tier.snapshot().donors
            return donor.share

        assert share() is None
        scheduler(begin_to_compute)
        if layout == "device":
            assert share() is None, "what a GPU copies costs its donor nothing"
        else:
            wait_for(lambda: share() == PeerConfig().interference / 2)
        scheduler(finish)
        wait_for(lambda: share() is None)


def finish(s) -> None:
    s.run()
    s.step()


def test_a_flush_keeps_what_is_lent(scheduler) -> None:
    page_tokens = scheduler(facts)["page_tokens"]
    with borrower(scheduler) as tier:
        Busy(scheduler).until(lambda: tier.capacity_bytes > 0.5 * DEVICE_TOKENS // page_tokens * scheduler_page(tier))
        data = np.arange(scheduler_page(tier), dtype=np.uint64).astype(np.uint8)
        place = write(tier, data)
        found = scheduler(flush)
        assert found["lent_tokens"] > 0.5 * DEVICE_TOKENS
        assert found["free_tokens"] == DEVICE_TOKENS - found["held_tokens"]
        assert scheduler(rounds, 0.2)["lent_tokens"] > 0.5 * DEVICE_TOKENS
        assert read(tier, place, data) == (ReadOutcome.OK, True)


def test_borrowers_of_other_models_come_and_go(scheduler, expected) -> None:
    own = scheduler(facts)["page_bytes"]
    with borrower(scheduler) as tier, borrower(scheduler, "other", own * 3 // 4) as other:
        Busy(scheduler).until(lambda: tier.capacity_bytes and other.capacity_bytes)
        data = np.full(own * 3 // 4, 7, np.uint8)
        assert read(other, write(other, data), data) == (ReadOutcome.OK, True)
        assert scheduler(answers, [1, 2, 3]) == expected


def test_an_operator_has_a_hand_on_it(scheduler) -> None:
    with borrower(scheduler) as tier:
        Busy(scheduler).until(lambda: tier.capacity_bytes > 100 * scheduler_page(tier))
        scheduler(cap, 20)
        Busy(scheduler).until(lambda: tier.capacity_bytes <= 20 * scheduler_page(tier))
        await_lent(scheduler, tier, lambda donor: donor["lent_pages"] <= 20)  # it hears of it after the borrower
        assert scheduler(rounds, 0.5)["lent_pages"] <= 20
        scheduler(cap, None)
        Busy(scheduler).until(lambda: tier.capacity_bytes > 100 * scheduler_page(tier))


def cap(s, pages: int | None) -> None:
    page_bytes = s.linker.pool.geometry.page_bytes
    s.linker.stack.lease_hand.cap(None if pages is None else pages * page_bytes)


def test_a_copy_that_hangs_in_memory_that_came_back_stops_nobody(scheduler, expected) -> None:
    with borrower(scheduler) as tier:
        Busy(scheduler).until(lambda: tier.capacity_bytes > 100 * scheduler_page(tier))
        scheduler(copies_hang)
        _, written = begin_to_write(tier, np.full(scheduler_page(tier), 5, np.uint8))
        wait_for(lambda: scheduler(is_copying))
        scheduler(cap, 0)
        Busy(scheduler).until(lambda: not tier.capacity_bytes)
        await_lent(scheduler, tier, lambda donor: donor["lent_pages"] == scheduler(pages_of_a_run))
        assert scheduler(answers, [1, 2, 3]) == expected
        assert scheduler(is_copying), "this tests nothing"
        wait_for(lambda: scheduler(hanging_is_told))
        scheduler(copies_go_on)
        await_lent(scheduler, tier, lambda donor: donor["lent_pages"] == 0)
        scheduler(cap, None)
        assert written.wait() == (False, LEASE_ENDED)


def test_memory_is_offered_when_the_batches_under_way_have_ended(scheduler) -> None:
    assert scheduler(under_way_in_an_overlapped_batch) == [True, False, True]


def test_a_round_with_nothing_to_do_costs_nothing_to_speak_of(scheduler) -> None:
    assert scheduler(cost_of_a_tick) < 200e-6  # it takes about 2; the bound is for busy machines


def test_errors_of_ours_cost_no_request(scheduler) -> None:
    from swift_tiers.sglang_ext.build import donation

    with borrower(scheduler) as tier:
        lends_most(scheduler, tier)
        began = time.monotonic()
        answer, tries, told = scheduler(breaks_and_goes_on)
        seconds = time.monotonic() - began
    assert len(answer) == 4
    assert tries == told
    assert 1 <= tries <= 2 + seconds / donation.FAULT_SECONDS, "an error in every round fills the log"
