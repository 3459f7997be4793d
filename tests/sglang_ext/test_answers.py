"""What the scheduler answers to readers of the bus, against SGLang's own allocator, rows and tree.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import json
import random
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from swift_tiers.radix_tiering.base.slot_map import SlotState
from swift_tiers.radix_tiering.figures.telemetry import NoAnswer, NotYet

from support import prompts
from support.scheduler_process import SchedulerProcess

PAGE = 16
DEVICE_TOKENS = 2048
DEVICE_PAGES = DEVICE_TOKENS // PAGE


def prompt(seed: int, tokens: int = 400) -> list[int]:
    return prompts.prompt(seed, tokens)


def truth(s, req) -> list[int]:
    """The pages of a request's row."""
    row = s.scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len]
    return (row[::PAGE] // PAGE).tolist()


def captured(s, *, walk: bool = False) -> list[str]:
    """The map of the device, as it is read and completed."""
    from swift_tiers.sglang_ext.tell.device_map import capture, completed

    found = completed(capture(s.scheduler, s.linker, walk=walk))
    assert (found.first_slot, len(found.states)) == (1, DEVICE_PAGES)
    return [SlotState(state).word for state in found.states]


def expected(s) -> list[str]:
    """The same by walks through everything that SGLang has, slot by slot."""
    core, allocator = s.cache.tree_core, s.cache.token_to_kv_pool_allocator
    words = ["private"] * (DEVICE_PAGES + 1)
    for slot in core.all_values_flatten().tolist():
        words[slot // PAGE] = "pinned"
    for slot in core.walk_for_kv_canary(True, False).slot_indices.tolist():
        words[slot // PAGE] = "cached"
    for page in allocator.get_all_free_pages().tolist():
        assert words[page] == "private", "SGLang has it free and in its tree"
        words[page] = "free"
    for span in getattr(allocator, "_lent", ()):
        for page in range(span.first, span.first + span.pages):
            assert words[page] == "private"
            words[page] = "lent"
    return words[1:]


def ask(s, question, turn=None):
    """Its answer, the scheduler taking its turns meanwhile."""
    turn = turn or s.step
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            return question()
        except NotYet:
            turn()
    raise AssertionError("no answer")


def answers(s):
    return s.linker.reporting.answers


def unlock(s) -> None:
    """Nothing on the device is locked for being copied out any more."""
    s.settle()
    s.step()  # takes the results


def forget(s) -> None:
    """What was read before is too old now."""
    scheduler = answers(s)._scheduler
    scheduler._tree._at = scheduler._captured._at = float("-inf")
    scheduler._nodes = None


# ---- the device's map ----


def every_step_of_mixed_traffic(s, seed: int) -> None:
    dice = random.Random(seed)
    sequences = [prompt(seed)]
    seen: set[str] = set()
    for number in range(14):
        base = dice.choice(sequences)
        sequence = base[: dice.randrange(len(base))] + prompt(100 * seed + number, dice.choice([20, 90, 300]))
        sequences.append(sequence[:700])
        s.add(sequences[-1], max_new_tokens=dice.choice([1, 5, 40]))
        if dice.random() < 0.2 and s.scheduler.waiting_queue:
            from sglang.srt.managers.io_struct import AbortReq

            s.scheduler.abort_request(AbortReq(rid=dice.choice(s.scheduler.waiting_queue).rid))
        for _ in range(dice.randrange(12)):
            s.step()
            words = expected(s)
            assert captured(s) == words
            assert captured(s, walk=True) == words
            seen.update(words)
    s.run()
    assert seen >= {"free", "private", "cached", "pinned"}, f"only {seen}: this tests less than it should"
    unlock(s)
    assert captured(s) == expected(s)
    assert "pinned" not in captured(s)


def pages_that_are_lent(s) -> None:
    assert s.scheduler.flush_cache()
    assert captured(s) == ["free"] * DEVICE_PAGES
    allocator = s.cache.token_to_kv_pool_allocator
    allocator.arrange(4)
    spans = allocator.take(3)
    assert len(spans) == 3
    words = captured(s)
    assert words == expected(s)
    assert words.count("lent") == 12
    assert {page for page, word in enumerate(words, start=1) if word == "lent"} == {
        page for span in spans for page in range(span.first, span.first + span.pages)
    }
    running = s.add(prompt(5), max_new_tokens=30)
    s.run(until=lambda: len(running.output_ids) > 2)
    assert captured(s) == expected(s)
    s.run()
    allocator.put_back(spans)
    allocator.arrange(0)
    assert captured(s) == expected(s)
    assert "lent" not in captured(s)


def pages_that_are_copied_to(s) -> None:
    """While the copy has not begun, and the batch that waits for it is about to run."""
    tokens = prompt(6)
    s.generate(tokens)
    s.empty_device()
    pool, looks, go = s.linker.pool, [], threading.Event()
    copy_in, run_batch = pool.copy_in, s.scheduler.run_batch

    def copy_later(pages, *others):
        assert go.wait(60)
        looks.append(pages.tolist())
        copy_in(pages, *others)

    def look(batch):
        # With overlap, a turn of the scheduler begins while the last batch is being computed.
        before, s.scheduler.last_batch = s.scheduler.last_batch, batch
        looks.append(captured(s))
        s.scheduler.last_batch = before
        go.set()
        return run_batch(batch)

    pool.copy_in, s.scheduler.run_batch = copy_later, look
    try:
        s.generate(tokens, max_new_tokens=1)
    finally:
        del pool.copy_in, s.scheduler.run_batch
    words, pages = looks
    assert len(pages) == (len(tokens) - 1) // PAGE
    assert [page for page, word in enumerate(words, start=1) if word == "loading"] == sorted(pages)
    assert s.linker.loader.rows_under_way() == []
    assert captured(s) == expected(s)


def pages_that_are_recomputed(s) -> None:
    """In each chunk of a request that is computed from the front while its pages come up."""
    from support.slow_link import Link, extends, prompt, quiet, to_ssd

    question = prompt(1)
    (answer,) = to_ssd(s, question)
    run_batch, looks = s.scheduler.run_batch, []

    def look(batch):
        before, s.scheduler.last_batch = s.scheduler.last_batch, batch
        words = captured(s)
        for req in batch.reqs:
            course = s.cache.linker.on_course(req)
            if course is not None and batch.forward_mode.is_extend():
                row, end = truth(s, req), min(req.extend_end // PAGE, course.device_pages + course.pages)
                looks.append((row[req.prefix_len // PAGE : end], words))
        s.scheduler.last_batch = before
        return run_batch(batch)

    s.scheduler.run_batch = look
    try:
        with Link(s) as link:
            req = s.add(question)
            s.linker.stack.restorer.wait_idle()
            extends(s, link, 4)
    finally:
        del s.scheduler.run_batch
    assert list(req.output_ids) == answer
    assert len(looks) > 1, "it was not computed in chunks: this tests nothing"
    for pages, words in looks:
        assert pages
        assert [page for page, word in enumerate(words, start=1) if word == "recomputing"] == sorted(pages)
    quiet(s)
    assert captured(s) == expected(s)


def what_does_not_add_up_is_not_told(s) -> None:
    """As where somebody holds pages of whom nobody knows: they must not be called cached, let alone free."""
    assert s.scheduler.flush_cache()
    s.generate(prompt(7))
    unlock(s)
    allocator = s.cache.token_to_kv_pool_allocator
    hidden = allocator.alloc(5 * PAGE)
    pages = sorted({slot // PAGE for slot in hidden.tolist()})
    try:
        with pytest.raises(NoAnswer, match="add up"):
            captured(s)
        words = captured(s, walk=True)
        assert words == expected(s)
        assert {words[page - 1] for page in pages} == {"private"}
        found = answers(s).map
        forget(s)
        # SGLang's own check of its memory would end a turn here.
        told = ask(s, lambda: found("device"), s.cache.sampler.errands.tick)
        assert [SlotState(state).word for state in told.states] == words
    finally:
        allocator.free(hidden)
    assert captured(s) == expected(s)


def one_look_serves_all(s) -> None:
    """However many ask: the scheduler looks twice a second at most."""
    looks = []
    scheduler = answers(s)._scheduler
    capture = scheduler._captured._read
    scheduler._captured._read = lambda: looks.append(time.monotonic()) or capture()
    try:
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            ask(s, lambda: answers(s).map("device"))
    finally:
        scheduler._captured._read = capture
    assert len(looks) <= 4
    assert all(later - earlier >= 0.5 for earlier, later in pairwise(looks))


def tiers_below(s) -> None:
    from swift_tiers.sglang_ext.tell import answers as module

    fresh, module.FRESH_SECONDS = module.FRESH_SECONDS, 60.0
    try:
        assert answers(s).map("host") is answers(s).map("host"), "whoever serves waits for each of them"
    finally:
        module.FRESH_SECONDS = fresh
    assert len(answers(s).map("host").states) == s.linker.stack.host.slots
    assert [piece.name for piece in answers(s).map("ssd").pieces] == ["0", "1"]
    with pytest.raises(NoAnswer, match="no peer tier"):
        answers(s).map("peer")


# ---- pages and sequences ----


def where_the_pages_of_a_sequence_are(s) -> None:
    assert s.scheduler.flush_cache()
    shared = prompt(11, 160)
    first, second = shared + prompt(12, 200), shared + prompt(13, 120)
    rows = []
    for tokens in (first, second):
        req = s.add(tokens, max_new_tokens=8)
        s.run(until=lambda req=req: len(req.output_ids) > 2)
        rows.append((req.swift_tiers.last_page, truth(s, req)[: len(tokens) // PAGE]))
        s.run()
    unlock(s)
    forget(s)
    for key, pages in rows:
        found = ask(s, lambda key=key: answers(s).prefix(bytes.fromhex(key), 4096))
        assert found.pages == len(pages)
        assert [one.device_slot for one in found.listed] == pages
        assert all(one.host_slot is not None for one in found.listed)
        assert ask(s, lambda key=key: answers(s).page(bytes.fromhex(key))).device_slot == pages[-1]
    middle = ask(s, lambda: answers(s).prefix(bytes.fromhex(rows[0][0]), 4096)).listed[12]
    assert ask(s, lambda: answers(s).page(bytes.fromhex(middle.key))).device_slot == rows[0][1][12]
    assert [one.depth for one in ask(s, lambda: answers(s).prefix(bytes.fromhex(rows[0][0]), 3)).listed] == [20, 21, 22]
    # The device loses the ends first.
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    while (held := s.cache.tree_core.total_size()[0]) > len(shared):
        s.cache.evict(EvictParams(num_tokens=1))
        assert s.cache.tree_core.total_size()[0] < held
        on_device = {slot // PAGE for slot in s.cache.tree_core.all_values_flatten().tolist()}
        forget(s)
        for key, pages in rows:
            found = ask(s, lambda key=key: answers(s).prefix(bytes.fromhex(key), 4096))
            told = [one.device_slot for one in found.listed]
            there = [page if page in on_device else None for page in pages]
            assert told == there, "no page is where it was told, or one was not told"
    s.empty_device()
    forget(s)
    found = ask(s, lambda: answers(s).prefix(bytes.fromhex(rows[0][0]), 4096))
    assert {one.device_slot for one in found.listed} == {None}
    assert ask(s, lambda: answers(s).page(bytes(32))).facts is None


def a_sequence_that_the_device_alone_has(s) -> None:
    assert s.scheduler.flush_cache()
    tokens = prompt(14, 170)
    req = s.add(tokens, max_new_tokens=4)
    s.run(until=lambda: len(req.output_ids) > 1)
    key, pages = req.swift_tiers.last_page, truth(s, req)[:10]
    s.run()
    unlock(s)
    s.linker.stack.flush("all")
    forget(s)
    answer = ask(s, lambda: answers(s).page(bytes.fromhex(key)))
    assert (answer.facts, answer.device_slot) == (None, pages[-1]), (answer, key, pages)
    found = ask(s, lambda: answers(s).prefix(bytes.fromhex(key), 4096))
    assert [one.device_slot for one in found.listed] == pages
    assert (found.pages, found.listed[-1].key) == (10, key)


def a_scheduler_that_does_not_turn_keeps_no_page_waiting(s) -> None:
    """It is computing for long: what the tiers know is told without it."""
    from swift_tiers.sglang_ext.tell import answers as module

    s.generate(prompt(15))
    unlock(s)
    (page, *_) = s.linker.stack.table.listed(s.linker.stack.digest)
    forget(s)
    patience, module.DEVICE_SECONDS = module.DEVICE_SECONDS, 0.2
    until = time.monotonic() + 60
    try:
        while True:
            try:
                answer = answers(s).page(page.key)
                break
            except NotYet:
                assert time.monotonic() < until
                time.sleep(0.01)
    finally:
        module.DEVICE_SECONDS = patience
    assert answer.facts is not None
    assert answer.device_slot is None


def questions_that_are_given_up_leave_nothing(s) -> None:
    scheduler = answers(s)._scheduler
    for number in range(40):
        with pytest.raises(NotYet):
            answers(s).page(number.to_bytes(32, "big"))
    assert len(scheduler._lookups) == 40
    for lookup in scheduler._lookups.values():
        lookup.since -= 3600
    assert ask(s, lambda: answers(s).page(bytes(32))).facts is None
    assert scheduler._lookups == {}


# ---- the tree ----


def subtrees_are_those_of_a_walk(s) -> None:
    """On SGLang's tree of Python."""
    core = s.cache.tree_core
    dice = random.Random(3)
    sequences: list[list[int]] = [[]]
    for step in range(40):
        base = dice.choice(sequences)
        sequence = (base[: dice.randrange(len(base) + 1)] + prompt(500 + step, dice.choice([20, 90, 250])))[:900]
        s.generate(sequence, max_new_tokens=dice.choice([1, 20]))
        sequences.append(sequence)
        if step % 8 == 7:
            walked = {node.id: node for node in core._node_arena.values() if node is not core.root_node}
            for _ in range(1 + len(walked) // 32):
                s.cache.sampler.shape.sample()
            forget(s)
            found = ask(s, lambda: answers(s).nodes(1000))
            assert (found.nodes, found.complete) == (len(walked), True)
            told = {one.node: one for one in found.table}
            assert told.keys() == walked.keys()
            below = dict.fromkeys(walked, 0)
            for node in walked.values():
                above = node
                while above is not core.root_node:
                    below[above.id] += len(node.key)
                    above = above.parent
            for number, node in walked.items():
                one = told[number]
                assert one.tokens == len(node.key)
                assert one.parent == (None if node.parent is core.root_node else node.parent.id)
                assert one.subtree_tokens == below[number]
                assert one.key == core.get_last_hash_value(number)
            sizes = [one.subtree_tokens for one in found.table]
            assert sizes == sorted(sizes, reverse=True)
            assert ask(s, lambda: answers(s).nodes(3)).table == found.table[:3]


def hits_locks_and_rest(s) -> None:
    assert s.scheduler.flush_cache()
    shared = prompt(21, 160)
    for number in range(3):
        s.generate(shared + prompt(30 + number, 80), max_new_tokens=1)
    running = s.add(shared + prompt(30, 80) + prompt(40, 64), max_new_tokens=30)
    s.run(until=lambda: len(running.output_ids) > 2)
    unlock(s)
    for _ in range(4):
        s.cache.sampler.shape.sample()
    forget(s)
    found = ask(s, lambda: answers(s).nodes(100))
    (root,) = [one for one in found.table if one.parent is None]
    assert (root.tokens, root.hits, root.locks) == (160, 4, 1)
    branches = [one for one in found.table if one.parent == root.node]
    assert sorted((one.hits, one.locks) for one in branches) == [(1, 0), (1, 0), (2, 1)]
    assert 0 <= root.idle_seconds <= min(one.idle_seconds for one in branches)
    s.run()
    # What has left was used, too.
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    unlock(s)
    while len(branches) > 1:
        s.cache.evict(EvictParams(num_tokens=1))
        forget(s)
        found = ask(s, lambda: answers(s).nodes(100))
        (root,) = [one for one in found.table if one.parent is None]
        branches = [one for one in found.table if one.parent == root.node]
        assert (root.hits, root.locks) == (4, 0), found.table
    assert s.scheduler.flush_cache()
    forget(s)
    assert ask(s, lambda: answers(s).nodes(100)).table == ()


# ---- the tests ----


def arguments(tmp_path_factory, **more) -> list[str]:
    from swift_tiers.ops.base.model import tiny_model

    directories = [str(tmp_path_factory.mktemp(f"ssd{number}")) for number in range(2)]
    config = {
        "host": {"size": "4MiB"},
        "ssd": {"directories": directories, "size_per_device": "32MiB", "stripe_unit": "8KiB"},
        "policy": {"restore_deadline": "60s", "flush_cache": "all"},
        "restore": {"strategy": "load"},  # whether or not that pays on a busy machine
        "bus": {"requests_interval": "60s", "directory": str(tmp_path_factory.mktemp("bus"))},
        **more,
    }
    return [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32",
        "--max-total-tokens", str(DEVICE_TOKENS), "--max-running-requests", "8", "--chunked-prefill-size", "256",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip


def nobody_else_asks(s) -> None:
    """And whoever does is answered, however long it takes on a busy machine."""
    from swift_tiers.sglang_ext.tell import answers, tree_shape

    s.linker.reporting.publisher.close()
    answers.DEVICE_SECONDS = tree_shape.BUDGET_SECONDS = 60.0


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    with SchedulerProcess(arguments(tmp_path_factory)) as process:
        process(nobody_else_asks)
        yield process


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_step_of_mixed_traffic(scheduler, seed: int) -> None:
    scheduler(every_step_of_mixed_traffic, seed)


@pytest.mark.parametrize(
    "scenario",
    [
        pages_that_are_copied_to,
        what_does_not_add_up_is_not_told,
        one_look_serves_all,
        tiers_below,
        where_the_pages_of_a_sequence_are,
        a_sequence_that_the_device_alone_has,
        a_scheduler_that_does_not_turn_keeps_no_page_waiting,
        questions_that_are_given_up_leave_nothing,
        hits_locks_and_rest,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_scenario(scheduler, scenario) -> None:
    scheduler(scenario)


def test_pages_that_are_lent(tmp_path_factory) -> None:
    peer = {"donate": "0..90%", "directory": str(tmp_path_factory.mktemp("leases"))}
    with SchedulerProcess(arguments(tmp_path_factory, peer=peer)) as process:
        process(nobody_else_asks)
        process(pages_that_are_lent)


def test_pages_that_are_recomputed(tmp_path_factory) -> None:
    more = {"restore": {"strategy": "token-wise", "chunk": 64}, "policy": {"restore_deadline": "60s"}}
    with SchedulerProcess(arguments(tmp_path_factory, **more)) as process:
        process(nobody_else_asks)
        process(pages_that_are_recomputed)


def test_subtrees_are_those_of_a_walk(tmp_path_factory) -> None:
    environment = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
    with SchedulerProcess(arguments(tmp_path_factory), environment) as process:
        process(nobody_else_asks)
        process(subtrees_are_those_of_a_walk)
        process(every_step_of_mixed_traffic, 4)


def test_a_map_looks_at_no_more_nodes_than_a_turn_of_the_scheduler_has_time_for() -> None:
    from swift_tiers.sglang_ext.tell import device_map

    class Core:
        asked: ClassVar[list[list[int]]] = []

        def collect_path_info(self, nodes: list[int]) -> list[list[Any]]:
            self.asked.append(nodes)
            return [[SimpleNamespace(node_id=0), SimpleNamespace(node_id=node)] for node in nodes]

        def get_component_device_value(self, node: int, component: Any) -> torch.Tensor:
            return torch.full((16,), node)

    def copied_out(nodes: int) -> Any:
        pending = [SimpleNamespace(lock_node_id=node) for node in (*range(1, nodes + 1), 1)]
        cache = SimpleNamespace(linker=SimpleNamespace(pending_offloads=pending))
        return device_map._locked_by_offloads(cache, Core())

    slots, too_many = copied_out(device_map.MOST_OFFLOADED)
    assert not too_many
    assert slots.tolist()[::16] == [0, *range(1, device_map.MOST_OFFLOADED + 1)]
    assert copied_out(device_map.MOST_OFFLOADED + 1) == (None, True)
    assert copied_out(0)[0].tolist()[::16] == [0, 1]
    assert len(Core.asked) == 2
