"""What is told about requests, device memory and tree, against SGLang's real scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from itertools import pairwise

import msgspec
import pytest

from swift_tiers.radix_tiering.base.runner import THREADS
from swift_tiers.radix_tiering.bus.contract.schema import Keys
from swift_tiers.radix_tiering.bus.redis.batch import RedisBatch
from swift_tiers.radix_tiering.bus.speak.mirror import Mirror
from swift_tiers.radix_tiering.bus.speak.request_board import RequestBoard
from swift_tiers.radix_tiering.gpus.nvml import Nvml
from swift_tiers.radix_tiering.gpus.sampler import GpuSampler
from swift_tiers.radix_tiering.gpus.watch import GpuWatch
from swift_tiers.radix_tiering.way.observing import page_facts

from support.fake_nvml import FakeGpu, FakeNvml
from support.prompts import prompt
from support.redis import wait_for
from support.scheduler_process import SchedulerProcess
from support.slow_link import costs_are_unknown, tiers_that_do_not_answer

PAGE = 16
DEVICE_TOKENS = 2048


def fill_device(s, seed: int) -> None:
    """Pages that are not on ssd yet would be lost where others take their room in host memory."""
    s.settle()
    for number in range(4):
        s.generate(prompt(1000 * seed + number))
        s.settle()


def unlock(s) -> None:
    """Nothing on the device is locked for being copied out any more."""
    s.settle()
    s.step()  # takes the results


def sample(s):
    """A sample of now."""
    errors = len(events(s, "linker.error"))
    s.cache.sampler._next = 0.0
    s.cache.sampler.tick()
    assert len(events(s, "linker.error")) == errors
    return s.linker.reporting.telemetry.engine()


def events(s, kind: str) -> list[dict]:
    return [event.fields for event in s.linker.stack.events.since() if event.kind == kind]


def of(found, req):
    (one,) = [one for one in found.requests if one.rid == req.rid]
    return one


def pages_of(table) -> list[int]:
    pairs = zip(table[::2], table[1::2], strict=True)
    return [page for first, last in pairs for page in range(first, last + 1)]


def truth(s, req) -> list[int]:
    """The request's device pages by SGLang's own table."""
    row = s.scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len]
    return [slot // PAGE for slot in row[::PAGE].tolist()]


def adds_up(one) -> bool:
    below = one.peer_tokens + one.host_tokens + one.ssd_tokens + one.remote_tokens
    return one.device_tokens + below + one.recomputed_tokens == one.prompt_tokens


# ---- in the scheduler's process ----


def nobody_else_listens(s):
    """What the publisher has been told is not told again."""
    s.linker.reporting.publisher.close()


def no_sampling_is_cut_short(s):
    """However busy this machine is."""
    import swift_tiers.sglang_ext.tell.tree_shape as tree_shape

    tree_shape.BUDGET_SECONDS = 60.0


def a_request_from_its_arrival_to_its_end(s):
    s.linker.reporting.telemetry.ended()
    before = time.time()
    req = s.add(prompt(1), max_new_tokens=20)
    found = sample(s)
    one = of(found, req)
    assert (found.running_requests, found.waiting_requests) == (0, 1)
    assert (one.state.value, one.restore, one.tiers, one.block_table) == ("waiting", "none", (), ())
    assert (one.prompt_tokens, one.output_tokens) == (700, 0)
    assert (one.queue_seconds, one.first_token_seconds, one.ended) == (None, None, None)
    assert before - 1 < one.arrived < time.time() + 1
    s.step()
    # A part of its prompt is computed: 512 of 700 tokens.
    found = sample(s)
    one = of(found, req)
    assert (one.state.value, one.tiers) == ("running", (("compute", 44),))
    assert pages_of(one.block_table) == truth(s, req)
    assert len(truth(s, req)) == 32
    assert adds_up(one)
    assert one.queue_seconds is not None
    assert one.first_token_seconds is None
    s.run(until=lambda: len(req.output_ids) > 3)
    found = sample(s)
    one = of(found, req)
    assert (found.running_requests, found.waiting_requests) == (1, 0)
    assert pages_of(one.block_table) == truth(s, req)
    assert one.output_tokens == len(req.output_ids)
    assert 0 <= one.queue_seconds <= one.first_token_seconds
    assert s.linker.reporting.telemetry.ended() == []
    s.run()
    (end,) = s.linker.reporting.telemetry.ended()
    assert (end.rid, end.state.value, end.output_tokens, end.block_table) == (req.rid, "finished", 20, ())
    assert before - 1 < end.arrived <= end.ended < time.time() + 1
    assert (end.queue_seconds, end.first_token_seconds) == (one.queue_seconds, one.first_token_seconds)


def a_request_has_one_time_of_arrival(s):
    """SGLang measures its clocks anew at every new request, and somebody may set them. A name that has another time is
    another request, for whose sake the bus would forget the one that has ended."""
    from sglang.srt.observability import req_time_stats

    telemetry = s.linker.reporting.telemetry
    telemetry.ended()
    req = s.add(prompt(5), max_new_tokens=20)
    s.run(until=lambda: len(req.output_ids) > 3)
    found = sample(s)
    req_time_stats.global_diff_realtime_monotonic += 3600.0
    try:
        s.run()
    finally:
        req_time_stats.calibrate_time_diff()
    (end,) = telemetry.ended()
    assert end.arrived == of(found, req).arrived
    keys, mirror, written = Keys("swift"), Mirror(5.0, time.monotonic), {}
    mirror.write = lambda batch, key, said, ttl=None: written.update({key: said})
    RequestBoard(keys, mirror, "alpha", "dp0-tp0", THREADS).publish(RedisBatch(), found, [end], end.ended)
    key = keys.of("request", server="alpha", rank="dp0-tp0", rid=req.rid)
    assert {name: said["state"] for name, said in written.items()} == {key: "finished"}


def the_key_of_a_prompt_from_its_arrival_on(s):
    """An operator finds, pins and drops a prompt's pages by it."""
    s.settle()  # host memory has room only for one of such requests, until its pages are on ssd
    s.linker.reporting.telemetry.ended()
    req = s.add(prompt(2), max_new_tokens=40)
    before = of(sample(s), req).last_page
    s.run()
    s.settle()
    facts = page_facts(s.linker.stack, bytes.fromhex(before))
    assert facts is not None
    assert facts.depth == 700 // PAGE, "output follows it"
    s.empty_device()
    found_below = s.add(prompt(2))
    s.run()
    found_on_device = s.add([*prompt(2), *prompt(3, 2)])
    short = s.add(prompt(4, PAGE - 1))
    s.run()
    assert found_below.cached_tokens == found_on_device.cached_tokens == facts.depth * PAGE
    ends = {end.rid: end.last_page for end in s.linker.reporting.telemetry.ended()}
    assert ends == {req.rid: before, found_below.rid: before, found_on_device.rid: before, short.rid: ""}


def every_token_of_a_prompt_is_told_from_where_it_came(s):
    """A prefix on the device, then pages in host memory, then on ssd, then new ones."""
    question = prompt(2, 700)
    s.generate(question)
    fill_device(s, 2)
    s.linker.stack.flush("memory")
    s.generate(question[:320])  # on the device and in host memory again: 20 pages
    s.empty_device()
    s.generate(question[:160])  # 10 of them on the device
    s.linker.reporting.telemetry.ended()
    before = sample(s)
    req = s.add(question + prompt(222, 100))
    s.run()
    (end,) = s.linker.reporting.telemetry.ended()
    assert adds_up(end)
    assert end.tiers[0] == ("device", 10)
    assert end.tiers[-1] == ("compute", math.ceil((800 - 688) / PAGE))
    assert {name for name, _ in end.tiers} == {"device", "host", "ssd", "compute"}
    assert sum(count for _, count in end.tiers) == 800 // PAGE
    assert end.device_tokens == 160
    details = s.details(req)
    assert {name: getattr(end, f"{name}_tokens") for name in details} == details
    assert (end.restore, end.recomputed_tokens) == ("completed", 112)
    assert end.restore_seconds > 0
    after = sample(s)
    assert after.tree.prompt_tokens - before.tree.prompt_tokens == 800
    assert after.tree.reused_tokens - before.tree.reused_tokens == 160
    assert after.device.hits - before.device.hits == 10
    assert after.device.misses - before.device.misses == 40
    loaded = (end.host_tokens + end.ssd_tokens) // PAGE * s.linker.pool.geometry.page_bytes
    assert after.device.bytes_written - before.device.bytes_written == loaded
    assert after.device.bytes_read > before.device.bytes_read


def what_comes_from_a_store_was_not_on_the_device(s):
    from swift_tiers.sglang_ext.tell.request_facts import RequestFacts

    req = s.add(prompt(90), max_new_tokens=20)
    s.run(until=lambda: len(req.output_ids) > 3)
    RequestFacts.of(req).runs = (("host", 2), ("remote", 3), ("another", 1))
    req.cached_tokens = 8 * PAGE
    one = of(sample(s), req)
    assert (one.device_tokens, one.host_tokens, one.remote_tokens) == (2 * PAGE, 2 * PAGE, 3 * PAGE)
    assert one.recomputed_tokens == 700 - 8 * PAGE
    s.run()


def a_request_whose_pages_come_up(s):
    question = prompt(3)
    s.generate(question)
    fill_device(s, 3)
    s.linker.reporting.telemetry.ended()
    with tiers_that_do_not_answer(s):
        req = s.add(question)
        for _ in range(3):
            s.step()
        one = of(sample(s), req)
        assert (one.state.value, one.restore) == ("restoring", "waiting")
        first = one.restore_seconds
        time.sleep(0.01)
        assert of(sample(s), req).restore_seconds > first
    s.run()
    (end,) = s.linker.reporting.telemetry.ended()
    told = (end.restore, end.host_tokens + end.ssd_tokens)
    assert told == ("completed", 688), (told, [str(event) for event in s.linker.stack.events.since()][-5:])
    assert end.queue_seconds >= end.restore_seconds > first


def a_deadline_that_passed_is_told(s):
    question = prompt(4)
    s.generate(question)
    fill_device(s, 4)
    s.linker.reporting.telemetry.ended()
    restorer = s.linker.stack.restorer
    deadline, restorer._deadline_seconds = restorer._deadline_seconds, 0.05
    start, restorer._start = restorer._start, lambda restore: None
    try:
        s.generate(question)
    finally:
        restorer._deadline_seconds, restorer._start = deadline, start
    (end,) = s.linker.reporting.telemetry.ended()
    assert (end.restore, end.recomputed_tokens) == ("expired", 700)
    assert end.restore_seconds >= 0.05


def the_end_is_told_once_however_it_comes(s):
    from sglang.srt.managers.io_struct import AbortReq

    telemetry = s.linker.reporting.telemetry
    telemetry.ended()
    # Aborted while it waits for its pages.
    question = prompt(5)
    s.generate(question)
    fill_device(s, 5)
    telemetry.ended()
    with tiers_that_do_not_answer(s):
        held = s.add(question)
        s.step()
        s.scheduler.abort_request(AbortReq(rid=held.rid))
        s.step()
    (end,) = telemetry.ended()
    assert (end.rid, end.state.value, end.restore, end.queue_seconds) == (held.rid, "aborted", "cancelled", None)
    assert (end.tiers, end.recomputed_tokens) == ((), 0)
    # Aborted between two chunks of its prompt.
    chunked = s.add(prompt(55, 1500))
    s.step()
    assert s.scheduler.chunked_req is chunked
    s.scheduler.abort_request(AbortReq(rid=chunked.rid))
    s.run()
    assert [(end.rid, end.state.value) for end in telemetry.ended()] == [(chunked.rid, "aborted")]
    # Aborted while it runs.
    running = s.add(prompt(555, 100), max_new_tokens=200)
    s.run(until=lambda: len(running.output_ids) > 2)
    s.scheduler.abort_request(AbortReq(rid=running.rid))
    s.run()
    assert [(end.rid, end.state.value) for end in telemetry.ended()] == [(running.rid, "aborted")]
    # Its load fails: SGLang answers 503.
    s.generate(question)
    fill_device(s, 56)
    telemetry.ended()

    def fail(*_):
        raise OSError("injected")

    copy_in, s.linker.pool.copy_in = s.linker.pool.copy_in, fail
    failed = s.add(question)
    s.run()
    s.linker.pool.copy_in = copy_in
    assert [(end.rid, end.state.value) for end in telemetry.ended()] == [(failed.rid, "aborted")]
    # Refused: too long for the device.
    refused = s.add(prompt(5555, 3000))
    s.run()
    assert [(end.rid, end.state.value) for end in telemetry.ended()] == [(refused.rid, "aborted")]
    # It ends with its first token, between two samplings.
    short = s.add(prompt(55555, 50), max_new_tokens=1)
    s.run()
    assert [(end.rid, end.state.value) for end in telemetry.ended()] == [(short.rid, "finished")]
    assert sample(s).requests == ()


def a_full_queue_is_an_end_too(s):
    telemetry, scheduler = s.linker.reporting.telemetry, s.scheduler
    telemetry.ended()
    limit, scheduler.max_queued_requests = scheduler.max_queued_requests, 0
    try:
        assert s.add(prompt(6, 50), rid="refused") is None
    finally:
        scheduler.max_queued_requests = limit
    assert [(end.rid, end.state.value) for end in telemetry.ended()] == [("refused", "aborted")]


def a_retraction_is_not_an_end(s):
    import sglang.srt.managers.scheduler as module

    questions = [prompt(seed, 300) for seed in range(70, 73)]
    telemetry = s.linker.reporting.telemetry
    telemetry.ended()
    states: dict[str, list[str]] = {}
    module.TEST_RETRACT = True
    try:
        reqs = [s.add(question, max_new_tokens=12) for question in questions]

        def look():
            for one in sample(s).requests:
                states.setdefault(one.rid, []).append(one.state.value)
                assert adds_up(one) or one.state.value != "running"
            return all(req.finished() for req in reqs)

        s.run(until=look)
        s.run()
    finally:
        module.TEST_RETRACT = False
    assert any(req.retracted_stain for req in reqs), "nobody was retracted: this tests nothing"
    came_back = [rid for rid, seen in states.items() if "waiting" in seen[seen.index("running") :]]
    assert came_back, "nobody was seen waiting after it ran"
    ends = telemetry.ended()
    assert sorted(end.rid for end in ends) == sorted(req.rid for req in reqs)
    assert all(end.state.value == "finished" for end in ends)
    assert all(adds_up(end) for end in ends)


def ids_that_cannot_be_shown(s):
    telemetry = s.linker.reporting.telemetry
    telemetry.ended()
    for rid in ("x" * 129, "two\nlines", "\x1b[2J"):
        req = s.add(prompt(8, 50), rid=rid)
        shown = [one.rid for one in sample(s).requests]
        s.run()
        (end,) = telemetry.ended()
        assert shown == [end.rid]
        assert end.rid.startswith("sha256-")
        assert len(end.rid) == 39
        assert req.rid == rid
    s.add(prompt(8, 50), rid="chatcmpl-1: ok")
    s.run()
    assert [end.rid for end in telemetry.ended()] == ["chatcmpl-1: ok"]


def the_device_pool_and_the_tree(s):
    assert s.scheduler.flush_cache()
    found = sample(s)
    assert (found.device.pages, found.device.used_bytes, found.device.pinned_pages) == (0, 0, 0)
    assert (found.tree.nodes, found.tree.leaves, found.tree.cached_tokens, found.tree.depth) == (0, 0, 0, 0)
    assert found.device.capacity_bytes == DEVICE_TOKENS // PAGE * s.linker.pool.geometry.page_bytes
    s.generate(prompt(9, 160), max_new_tokens=1)
    unlock(s)
    found = sample(s)
    assert (found.tree.nodes, found.tree.leaves, found.tree.depth) == (1, 1, 1)
    assert (found.tree.deepest_tokens, found.tree.cached_tokens, found.tree.evictable_tokens) == (160, 160, 160)
    assert (found.device.pages, found.device.pinned_pages) == (10, 0)
    # A branch after half of it.
    running = s.add(prompt(9, 160)[:80] + prompt(99, 160), max_new_tokens=30)
    s.run(until=lambda: len(running.output_ids) > 1)
    unlock(s)
    found = sample(s)
    assert (found.tree.nodes, found.tree.leaves, found.tree.depth) == (3, 2, 2)
    assert found.tree.protected_tokens == 240
    assert found.device.pinned_pages == len(truth(s, running))
    s.run()
    evicted = sample(s).tree.evicted_tokens
    cached = sample(s).tree.cached_tokens
    s.empty_device()
    found = sample(s)
    assert found.tree.evicted_tokens - evicted == cached
    assert found.device.evictions == found.tree.evicted_tokens // PAGE
    assert (found.tree.nodes, found.tree.leaves, found.tree.depth, found.tree.deepest_tokens) == (0, 0, 0, 0)


def the_tree_is_known_without_a_walk(s):
    """Branching, growing and evicted sequences: nodes, leaves and depths are those of a walk."""
    core = s.cache.tree_core
    generator = random.Random(7)
    sequences: list[list[int]] = [[]]
    for step in range(60):
        base = generator.choice(sequences)
        sequence = base[: generator.randrange(len(base) + 1)] + prompt(10_000 + step, generator.choice([20, 90, 250]))
        if len(sequence) > 1200:
            continue
        s.generate(sequence, max_new_tokens=generator.choice([1, 20]))
        sequences.append(sequence)
        if step % 10 == 9:
            walked = [node for node in core._node_arena.values() if node is not core.root_node]
            depths = {node.id: walk_up(core, node) for node in walked}
            for _ in range(1 + len(depths) // 32):
                found = sample(s).tree
            assert found.complete
            assert found.nodes == len(walked)
            assert found.leaves == sum(not node.children for node in walked)
            assert found.depth == max(depth for depth, _ in depths.values())
            assert found.deepest_tokens == max(tokens for _, tokens in depths.values())
            assert found.cached_tokens == core.total_size()[0]
    assert found.evicted_tokens > 0, "nothing was evicted: this tests less than it should"
    assert s.scheduler.flush_cache()
    assert sample(s).tree.nodes == 0


def walk_up(core, node) -> tuple[int, int]:
    depth = tokens = 0
    while node is not core.root_node:
        depth, tokens, node = depth + 1, tokens + len(node.key), node.parent
    return depth, tokens


def a_tree_that_is_too_large_is_told_as_such(s):
    import swift_tiers.sglang_ext.tell.tree_shape as tree_shape

    s.generate(prompt(11, 100))
    budget, tree_shape.BUDGET_SECONDS = tree_shape.BUDGET_SECONDS, 0.0
    try:
        assert not sample(s).tree.complete
    finally:
        tree_shape.BUDGET_SECONDS = budget
    assert sample(s).tree.complete


def what_fails_in_a_sampling_stays_there(s):
    sampler = s.cache.sampler
    question = prompt(12)
    answer = s.generate(question)

    def fail(*_, **__):
        raise RuntimeError("injected")

    for name in ("_count", "_request", "_tree"):
        setattr(sampler, name, fail)
        sampler._next = 0.0
        fill_device(s, 12)
        assert s.generate(question) == answer, name
        delattr(sampler, name)
    assert events(s, "linker.error")
    assert sample(s).requests == ()


def what_cannot_be_started_is_left_out(s):
    """Serving goes on without the bus, without orders, without samples: whatever it is that fails."""
    import swift_tiers.sglang_ext.build.bus as bus
    import swift_tiers.sglang_ext.build.reporting as reporting

    def fail(*_, **__):
        raise OSError("injected")

    places = ((bus, "RankPublisher"), (reporting, "Orders"), (reporting, "Sampler"), (reporting, "gpu_sampler"))
    originals = [getattr(module, name) for module, name in places]
    config, sampler = s.linker.stack.config, s.cache.sampler
    s.linker.stack.config = msgspec.structs.replace(config, bus=msgspec.structs.replace(config.bus, control=True))
    for module, name in places:
        setattr(module, name, fail)
    try:
        found = reporting.Reporting(s.scheduler, s.linker)
    finally:
        for (module, name), original in zip(places, originals, strict=True):
            setattr(module, name, original)
        s.linker.stack.config, s.cache.sampler = config, sampler
    assert (found.publisher, found.orders, found.telemetry.engine(), found.telemetry.ended()) == (None, None, None, [])
    assert len(events(s, "reporting.failed")) == 4
    assert found.telemetry.stack().tiers
    s.generate(prompt(13))
    found.close()


def the_gpu_is_looked_at_beside_the_scheduler(s):
    """By a thread of its own, for the bus; on a machine without one nothing is started."""
    import swift_tiers.sglang_ext.build.bus as bus
    import swift_tiers.sglang_ext.build.reporting as reporting

    assert s.linker.reporting.gpu is None
    library, told = FakeNvml(FakeGpu(0)), []

    def sampler():
        return GpuSampler(GpuWatch(0, None, {}, open_nvml=lambda: Nvml(library)), 0.01)

    class Publisher:
        def __init__(self, *arguments):
            told.append(arguments[-1])

        def start(self):
            pass

        close = start

    originals = reporting.gpu_sampler, bus.RankPublisher
    reporting.gpu_sampler, bus.RankPublisher = sampler, Publisher
    try:
        found = reporting.Reporting(s.scheduler, s.linker)
    finally:
        reporting.gpu_sampler, bus.RankPublisher = originals
        s.cache.sampler = s.linker.reporting.telemetry._sampler
    wait_for(lambda: told[0]() is not None, "a sample")
    assert told[0]().gpu.name == "NVIDIA H200"
    s.generate(prompt(14))
    found.close()
    assert threading.get_ident() not in library.threads
    assert len(library.threads) == 1
    assert library.opened == 0


def samples_are_taken_by_the_scheduler_at_set_times(s):
    sampler = s.cache.sampler
    interval, sampler._interval = sampler._interval, 0.05
    sampler._next = 0.0
    seen: dict[float, float] = {}  # by the times of samples: when the next one was due
    limit = time.monotonic() + 60
    spent = sampler.seconds
    while len(seen) < 5:
        s.step()
        seen.setdefault(s.linker.reporting.telemetry.engine().time, sampler._next)
        assert time.monotonic() < limit
    sampler._interval = interval
    assert list(seen) == sorted(seen)
    assert all(after - before > 0.049 for before, after in pairwise(seen.values()))
    assert s.linker.reporting.telemetry.engine() is s.linker.reporting.telemetry.engine()
    assert sampler.seconds > spent


# ---- the tests ----


def arguments(tmp_path_factory) -> list[str]:
    from swift_tiers.ops.base.model import tiny_model

    directories = [str(tmp_path_factory.mktemp(f"ssd{number}")) for number in range(2)]
    config = {
        "host": {"size": "1MiB"},
        "ssd": {"directories": directories, "size_per_device": "32MiB", "stripe_unit": "8KiB"},
        "policy": {"restore_deadline": "60s"},
        "restore": {"strategy": "load"},  # whether or not that pays on a busy machine
        "bus": {"requests_interval": "60s", "directory": str(tmp_path_factory.mktemp("bus"))},
    }
    return [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32",
        "--max-total-tokens", str(DEVICE_TOKENS), "--max-running-requests", "8", "--chunked-prefill-size", "512",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with SchedulerProcess(arguments(tmp_path_factory)) as process:
        for prepare in (nobody_else_listens, no_sampling_is_cut_short, costs_are_unknown):
            process(prepare)
        yield process


@pytest.mark.parametrize(
    "scenario",
    [
        a_request_from_its_arrival_to_its_end,
        a_request_has_one_time_of_arrival,
        the_key_of_a_prompt_from_its_arrival_on,
        every_token_of_a_prompt_is_told_from_where_it_came,
        what_comes_from_a_store_was_not_on_the_device,
        a_request_whose_pages_come_up,
        a_deadline_that_passed_is_told,
        the_end_is_told_once_however_it_comes,
        a_full_queue_is_an_end_too,
        a_retraction_is_not_an_end,
        ids_that_cannot_be_shown,
        the_device_pool_and_the_tree,
        a_tree_that_is_too_large_is_told_as_such,
        what_fails_in_a_sampling_stays_there,
        what_cannot_be_started_is_left_out,
        the_gpu_is_looked_at_beside_the_scheduler,
        samples_are_taken_by_the_scheduler_at_set_times,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_scenario(scheduler, scenario):
    scheduler(scenario)


def test_the_tree_is_known_without_a_walk(tmp_path_factory):
    """On SGLang's tree of Python, which can be walked; what is read of it is the same interface."""
    environment = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
    with SchedulerProcess(arguments(tmp_path_factory), environment) as process:
        process(nobody_else_listens)
        process(no_sampling_is_cut_short)
        process(the_tree_is_known_without_a_walk)
