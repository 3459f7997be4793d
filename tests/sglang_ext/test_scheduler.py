"""The tiers beneath SGLang's real scheduler, with its strict memory checks, step by step, faults included.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import random
import threading
import time
from array import array
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.table.rules import check_rules

from support.new_weights import other_weights, sessions
from support.prompts import prompt
from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import costs_are_unknown, tiers_that_do_not_answer

PAGE = 16
DEVICE_TOKENS = 2048


def fill_device(s, seed: int) -> None:
    """Requests enough to evict everything else from the device.

    Pages that are on ssd may leave host memory; those that are not would be lost to who comes next, and those that are
    being copied leave no room for them. So each request finds everything before it settled, as does whoever comes next.
    """
    s.settle()
    for number in range(4):
        s.generate(prompt(1000 * seed + number))
        s.settle()


def quiet(s) -> None:
    """Wait until nothing moves, then require that nothing is kept for any request."""
    s.settle()
    assert not s.linker.requests, "requests leaked"
    assert not s.cache.linker.hit_markers
    table = s.linker.stack.table
    with table.lock:
        check_rules(table)
        assert table.pinned_pages == 0, "pins leaked"


def events(s, kind: str) -> list[dict]:
    return [event.fields for event in s.linker.stack.events.since() if event.kind == kind]


def serve_again(s, token_ids: list[int]):
    req = s.add(token_ids)
    s.run()
    return req, s.details(req)


# ---- in the scheduler's process ----


def ways_into_sglang(s) -> dict[str, list[str]]:
    """By what a user may have SGLang do something else with KV: arguments, requests, forwards and loops, by name."""
    import msgspec
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.server_args import ServerArgs

    return {
        "arguments": sorted(field.name for field in msgspec.structs.fields(ServerArgs)),
        "requests": sorted(
            kind.__name__
            for kind in s.scheduler._request_dispatcher._mapping
            if not kind.__module__.startswith("swift_tiers.")
        ),
        "forwards": sorted(name for name in dir(TpModelWorker) if "forward_batch" in name),
        "forward modes": [mode.name for mode in ForwardMode],
        "loops": sorted(name for name in dir(s.scheduler) if name.startswith("event_loop_")),
    }


def collected(s) -> bool:
    """Whether the garbage collector looks through what was there when the scheduler had been made."""
    looked_at = set(map(id, gc.get_objects()))
    return id(s.scheduler) in looked_at or id(s.linker) in looked_at


def evicted_prefix_comes_back(s):
    question = prompt(1)
    answer = s.generate(question)
    written = s.linker.stack.snapshot().tiers["host"].bytes_written
    fill_device(s, 1)
    req, details = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert details["device"] == 0
    assert details["host"] + details["ssd"] == 688 == req.cached_tokens
    assert req.cached_tokens_storage == details["ssd"], "SGLang's own accounting differs"
    quiet(s)
    assert s.linker.stack.snapshot().tiers["host"].bytes_written > written
    # All on the device again: nothing is asked of the tiers.
    hits = s.linker.stack.snapshot().tiers["host"].hits
    req, details = serve_again(s, question)
    assert (list(req.output_ids), details) == (answer, {"device": 688, "host": 0, "ssd": 0})
    assert s.linker.stack.snapshot().tiers["host"].hits == hits
    quiet(s)


def from_ssd_only(s):
    question = prompt(2)
    answer = s.generate(question)
    fill_device(s, 2)
    s.linker.stack.flush("memory")
    before = s.linker.stack.snapshot()
    req, details = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert details == {"device": 0, "host": 0, "ssd": 688}
    quiet(s)
    after = s.linker.stack.snapshot()
    assert after.tiers["ssd"].hits - before.tiers["ssd"].hits == 43
    page_bytes = after.page_bytes
    for link in ("ssd-host", "host-device"):
        assert after.links[link].pages - before.links[link].pages == 43
        assert after.links[link].bytes - before.links[link].bytes == 43 * page_bytes
        assert after.links[link].seconds > before.links[link].seconds
    assert after.links["device-host"].bytes == after.tiers["host"].bytes_written - after.links["ssd-host"].bytes
    assert after.tiers["ssd"].bytes_written == before.tiers["ssd"].bytes_written, "what came from ssd is written again"


def partly_on_the_device(s):
    """A longer prompt over a prefix that the device has: only the rest is loaded."""
    question = prompt(3, 400)
    longer = question + prompt(33, 300)
    answer = s.generate(longer)
    fill_device(s, 3)
    s.generate(question)
    req, details = serve_again(s, longer)
    assert list(req.output_ids) == answer
    assert details["device"] == 400 // PAGE * PAGE
    assert details["host"] + details["ssd"] == 688 - details["device"]
    quiet(s)


def many_at_once(s):
    questions = [prompt(seed, 300) for seed in range(40, 46)]
    answers = [s.generate(question) for question in questions]
    fill_device(s, 4)
    reqs = [s.add(question) for question in [*questions, *questions]]
    s.run()
    assert [list(req.output_ids) for req in reqs] == answers * 2
    quiet(s)


def long_prompt_in_chunks(s):
    question = prompt(5, 1800)
    answer = s.generate(question)
    fill_device(s, 5)
    req, details = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert details["host"] + details["ssd"] > 0
    quiet(s)


def others_pass_a_held_request(s):
    question, other = prompt(6), prompt(66, 50)
    answer = s.generate(question)
    fill_device(s, 6)
    with tiers_that_do_not_answer(s):
        held = s.add(question)
        passing = s.add(other)
        s.run(until=lambda: passing.finished())
        assert not held.finished()
        assert held in s.scheduler.waiting_queue
    s.run()
    assert list(held.output_ids) == answer
    assert s.details(held)["device"] == 0
    quiet(s)


def a_missed_deadline_is_recomputed(s):
    question = prompt(7)
    answer = s.generate(question)
    fill_device(s, 7)
    s.linker.stack.flush("memory")
    with tiers_that_do_not_answer(s, deadline=0.05):
        req, details = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert details == {}, "nothing was served from anywhere"
    assert events(s, "restore.expired")
    quiet(s)


def another_of_its_id_is_refused(s):
    """Clients choose ids, and SGLang looks for those that are in use in each of its tokenizers alone."""
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestOutcome

    question = prompt(40)
    answer = s.generate(question)
    fill_device(s, 40)
    with tiers_that_do_not_answer(s):
        held = s.add(question)
        s.step()
        kept = s.linker.requests[held.rid]
        s.cache.finish(copy.copy(held.cache_request_handle), CacheRequestOutcome.ABORT)
        assert s.linker.requests.get(held.rid) is kept
    s.run()
    assert list(held.output_ids) == answer
    assert s.details(held)["device"] == 0
    quiet(s)


def aborted_while_held(s):
    from sglang.srt.managers.io_struct import AbortReq

    question = prompt(8)
    s.generate(question)
    fill_device(s, 8)
    with tiers_that_do_not_answer(s):
        held = s.add(question)
        for _ in range(5):
            s.step()
        s.scheduler.abort_request(AbortReq(rid=held.rid))
        assert held not in s.scheduler.waiting_queue
    s.run()
    quiet(s)


def ids_of_no_token_are_taken_in(s):
    """As without tiers: a client may send any numbers (labels of a training run are filled up with -100)."""
    from sglang.srt.managers.io_struct import AbortReq

    for token_id in (-1, -100, -(2**63), 2**62, 2**32, 2**31):
        req = s.add([*prompt(65, 40), token_id, *prompt(65, 40)])
        s.scheduler.abort_request(AbortReq(rid=req.rid))
    s.step()
    assert not s.scheduler.waiting_queue
    assert not s.linker.requests


def aborted_while_running(s):
    from sglang.srt.managers.io_struct import AbortReq

    question = prompt(9)
    s.generate(question)
    fill_device(s, 9)
    req = s.add(question, max_new_tokens=200)
    s.run(until=lambda: len(req.output_ids) > 2)
    s.scheduler.abort_request(AbortReq(rid=req.rid))
    s.run()
    assert req.finished()
    quiet(s)


def flush_cache_keeps_ssd(s):
    question = prompt(10)
    answer = s.generate(question)
    s.settle()
    assert s.scheduler.flush_cache()
    assert s.linker.stack.errands.wait_idle(60)  # what is hidden at once is given back in steps
    assert s.linker.stack.host.used_slots == 0
    req, details = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert details == {"device": 0, "host": 0, "ssd": 688}
    quiet(s)


def a_failing_load_fails_its_request_alone(s):
    question = prompt(11)
    answer = s.generate(question)
    fill_device(s, 11)
    pool = s.linker.pool
    copy_in = pool.copy_in

    def fail(*_):
        raise OSError("injected")

    pool.copy_in = fail
    req = s.add(question)
    s.run()
    pool.copy_in = copy_in
    assert req.finished()
    assert req.finished_reason.to_json()["type"] == "abort"
    quiet(s)
    req, _ = serve_again(s, question)
    assert list(req.output_ids) == answer
    quiet(s)


def a_dead_loading_thread_does_not_hang(s):
    question = prompt(12)
    answer = s.generate(question)
    fill_device(s, 12)
    loader = s.linker.loader
    loader._jobs.put(None)  # ends the thread
    loader._thread.join()
    # A thread that dies with a job in its hands: nobody completes the layers.
    spawn, loader._spawn = loader._spawn, lambda: loader._thread
    req = s.add(question)
    s.run()
    loader._spawn = spawn
    assert req.finished_reason.to_json()["type"] == "abort"
    while not loader._jobs.empty():
        loader._jobs.get()
    req, details = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert details["host"] + details["ssd"] == 688
    assert "swift-load" in [event["thread"] for event in events(s, "thread.restarted")]
    quiet(s)


def a_dead_offloading_thread_does_not_lock_the_device(s):
    pool = s.linker.pool
    copy_out = pool.copy_out

    died = threading.Event()

    def die(*_):
        died.set()
        raise SystemExit  # not an Exception: it ends the thread

    pool.copy_out = die
    question = prompt(13)
    answer = s.generate(question)
    assert died.wait(60), "nothing is offloaded"
    pool.copy_out = copy_out
    fill_device(s, 13)
    req, _ = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert "swift-offload" in [event["thread"] for event in events(s, "thread.restarted")]
    quiet(s)


def failing_offloads_unlock_the_device(s):
    pool = s.linker.pool
    copy_out = pool.copy_out

    def fail(*_):
        raise OSError("injected")

    pool.copy_out = fail
    question = prompt(14)
    answer = s.generate(question)
    fill_device(s, 14)
    pool.copy_out = copy_out
    req, _ = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert events(s, "offload.failed")
    quiet(s)


def exceptions_do_not_reach_the_scheduler(s):
    question = prompt(15)
    answer = s.generate(question)
    fill_device(s, 15)

    def fail(*_, **__):
        raise RuntimeError("injected")

    stack = s.linker.stack
    for name in ("restore", "probe"):
        original = getattr(stack, name)
        setattr(stack, name, fail)
        try:
            req, _ = serve_again(s, question)
        finally:
            setattr(stack, name, original)
        assert list(req.output_ids) == answer, name
        fill_device(s, 15)
    poll, stack.restorer.poll = stack.restorer.poll, fail
    req, _ = serve_again(s, question)
    stack.restorer.poll = poll
    assert list(req.output_ids) == answer
    assert events(s, "linker.error")
    quiet(s)


def pages_evicted_while_waiting_are_restored_too(s):
    """The device had half the prefix at arrival, and lost it before admission."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    question = prompt(16, 400)
    longer = question + prompt(166, 300)
    answer = s.generate(longer)
    fill_device(s, 16)
    s.generate(question)
    s.settle()
    s.step()  # takes the results: nothing on the device is locked for being copied out
    with tiers_that_do_not_answer(s):
        held = s.add(longer)
        s.step()
        assert s.linker.requests[held.rid].device_pages == 400 // PAGE
        s.cache.evict(EvictParams(num_tokens=DEVICE_TOKENS))
    s.run()
    assert list(held.output_ids) == answer
    assert s.details(held)["device"] == 0
    assert s.details(held)["host"] + s.details(held)["ssd"] == 688
    quiet(s)


def new_weights_hide_old_pages(s):
    from swift_tiers.sglang_ext.hook_functions import around_weights_update

    def update(flush):
        around_weights_update(
            lambda self, request: flush and s.scheduler.flush_cache(), s.scheduler.weight_updater, None
        )

    question = prompt(17)
    answer = s.generate(question)
    digest = s.linker.stack.namespace.digest()
    update(flush=True)
    assert s.linker.stack.namespace.digest() != digest
    _, details = serve_again(s, question)
    assert details == {}
    quiet(s)
    # An update that leaves the device as it is: what was computed before must not come down under the new name.
    update(flush=False)
    assert len(events(s, "offload.paused")) == 1
    s.generate(question + prompt(177, 64))  # what is new is offered with the prefix before it, of the old weights
    fill_device(s, 17)
    assert s.linker.stack.table.listed(s.linker.stack.digest) == []
    assert s.linker.stack.errands.wait_idle(60)
    host = s.linker.stack.snapshot().tiers["host"]
    assert host.pages == 0
    assert host.refusals["the weights changed"] > 0, "nothing is kept, and nothing says so"
    assert s.scheduler.flush_cache()
    assert len(events(s, "offload.resumed")) == 1
    assert serve_again(s, question)[1] == {}
    fill_device(s, 17)
    req, details = serve_again(s, question)
    assert (list(req.output_ids), details["host"] + details["ssd"]) == (answer, 688)
    quiet(s)


def weights_that_are_updated_in_a_session(s):
    """Whenever the device is flushed between, what is computed afterwards is kept, and nothing from before is found."""
    begin, end = sessions(s)
    question = prompt(43)
    with other_weights(s) as update:
        for number, order in enumerate(("flush, begin, update, end", "begin, update and flush, end")):
            answer = s.generate(question)
            fill_device(s, 430 + number)
            if order.startswith("flush"):
                s.step()
                assert s.scheduler.flush_cache()
            assert begin()
            assert update(flush=not order.startswith("flush"))
            assert end()
            assert not s.linker.stale_device, order
            again = s.generate(question)
            assert (again == answer) is (number == 1), "the second update changes nothing"
            fill_device(s, 435 + number)
            req, details = serve_again(s, question)
            assert (list(req.output_ids), details["host"] + details["ssd"]) == (again, 688), order
            quiet(s)


def what_is_computed_during_a_session_is_not_kept(s):
    """Weights may be half of one kind and half of another then, or unpacked."""
    begin, end = sessions(s)
    question = prompt(44)
    with other_weights(s) as update:
        s.settle()
        s.step()
        assert s.scheduler.flush_cache()
        assert begin()
        assert update(flush=True)
        s.generate(question)
        s.settle()
        assert end()
        assert s.linker.stale_device, "the device has pages of that time"
        assert s.linker.stack.probe([bytes.fromhex(one) for one in hashes_of(s, question)]) == 0
        s.generate(question + prompt(441, 64))
        s.settle()
        assert s.linker.stack.table.listed(s.linker.stack.digest) == []
        s.step()
        assert s.scheduler.flush_cache()
        assert not s.linker.stale_device


def hashes_of(s, question):
    """Of its pages."""
    req = s.add(question)
    hashes = list(s.linker.requests[req.rid].tail)
    s.run()
    return hashes


def calls_that_touch_no_weights_change_nothing(s):
    begin, end = sessions(s)
    question = prompt(41)
    answer = s.generate(question)
    fill_device(s, 41)
    digest = s.linker.stack.digest
    with other_weights(s) as update:
        assert not end()
        assert not update(flush=True)
        assert s.linker.stack.digest == digest
        assert begin()
        opened = s.linker.stack.digest
        assert opened != digest
        assert not begin()
        assert s.linker.stack.digest == opened
        assert end()
    req, details = serve_again(s, question)
    assert (list(req.output_ids), details) == (answer, {})


def weights_that_are_overwritten_hide_old_pages(s):
    """A test of weight updates has random ones put in their place."""
    from sglang.srt.managers.io_struct import CheckWeightsReqInput

    question = prompt(42)
    answer = s.generate(question)
    fill_device(s, 42)
    digest = s.linker.stack.digest
    with other_weights(s):
        assert s.scheduler.weight_updater.check_weights(CheckWeightsReqInput(action="checksum")).success
        assert s.linker.stack.digest == digest
        assert s.scheduler.weight_updater.check_weights(CheckWeightsReqInput(action="reset_tensors")).success
        assert s.linker.stack.digest != digest
        req, details = serve_again(s, question)
        assert list(req.output_ids) != answer
        assert details == {}
    quiet(s)


def what_the_tiers_lost_is_offered_along(s):
    """SGLang believes a prefix stored and never offers it again; below a new turn it comes along."""
    question = prompt(23, 320)
    s.generate(question)
    s.settle()
    s.linker.stack.flush("all")
    longer = question + prompt(233, 200)
    answer = s.generate(longer)
    fill_device(s, 23)
    req, details = serve_again(s, longer)
    assert list(req.output_ids) == answer
    assert details["host"] + details["ssd"] == 512
    quiet(s)


def offloads_that_take_too_long_publish_nothing(s):
    """/flush_cache gives them up; the device pages they were reading belong to others by the time they end."""
    import torch

    from swift_tiers.sglang_ext.way.offloads import Offload

    pool, going_on = s.linker.pool, threading.Event()
    copy_out, wait = pool.copy_out, s.linker.wait_offloads

    def slow(*values):
        going_on.wait(60)
        copy_out(*values)

    pool.copy_out = slow
    s.linker.wait_offloads = lambda timeout: wait(0.3)
    try:
        questions = [prompt(seed) for seed in (24, 25)]
        for question in questions:
            s.generate(question)
        assert s.scheduler.flush_cache()
    finally:
        pool.copy_out, s.linker.wait_offloads = copy_out, wait
    for plane in pool._flat:
        plane[:] = 0xFF  # the device pages are used by others
    going_on.set()
    from swift_tiers.sglang_ext.tell.on_the_way import OnTheWay

    offloader = s.linker.offloader
    offloader.submit(Offload([], OnTheWay(torch.empty(0, dtype=torch.int64)), [], None, 1, None))  # behind all of them
    assert s.linker.wait_offloads(60)
    assert s.linker.stack.errands.wait_idle(60)
    assert s.linker.stack.snapshot().tiers["host"].pages == 0
    assert s.linker.num_completed_offloads() == 1, "late answers would be taken for others'"
    assert not offloader.take_answer(), "of the one that came last"
    assert events(s, "offload.given_up")
    answers = [s.generate(question) for question in questions]
    fill_device(s, 24)
    for question, answer in zip(questions, answers, strict=True):
        assert list(serve_again(s, question)[0].output_ids) == answer
    quiet(s)


def a_hit_keeps_its_turn_before_a_long_prompt_that_came_later(s):
    """Its pages come up while the other one's first chunk is computed. A chunked request has all of SGLang's budget, so
    the hit would wait for its last chunk."""
    question, long = prompt(60, 300), prompt(61, 1400)
    answer = s.generate(question)
    s.empty_memory()
    with tiers_that_do_not_answer(s):
        hit, other = s.add(question), s.add(long)
        s.step()
        assert s.scheduler.chunked_req is other, "this tests nothing"
    s.await_restores()
    s.step()
    assert hit.output_ids, "it has been passed by"
    assert s.scheduler.chunked_req is other
    s.run()
    assert list(hit.output_ids) == answer
    assert s.details(hit)["ssd"] == 288
    assert s.generate(long) == list(other.output_ids)
    quiet(s)


def room_that_nobody_takes_begins_no_second_chunked_request(s):
    """Whoever it was left for may not be admitted after all, and SGLang can follow the chunks of one request only: it
    ends the server where another one begins."""
    first, second = prompt(62, 1100), prompt(63, 300)
    wrapper = s.cache.linker
    wrapper.room_for_overtaken = lambda most: min(most, 128)
    try:
        reqs = [s.add(first), s.add(second)]
        s.step()
        assert s.scheduler.chunked_req is reqs[0], "this tests nothing"
        s.step()
        assert s.scheduler.chunked_req is reqs[0]
        assert not reqs[1].extend_end
        s.run()
    finally:
        del wrapper.room_for_overtaken
    assert [s.generate(question) for question in (first, second)] == [list(req.output_ids) for req in reqs]
    quiet(s)


def identities_do_not_mix(s):
    """The same tokens plain, under an extra key, under a salt, under a LoRA adapter: nobody gets another's pages.

    The adapter is a name only: SGLang's LoRA layers need a GPU, its page hashes do not.
    """
    question = prompt(22)
    variants = [{}, {"extra_key": "tenant"}, {"cache_salt": "salt"}, {"lora_id": "adapter"}, {"lora_id": "another"}]

    def ask(fields):
        req = s.add(question, **fields)
        s.run()
        return s.details(req)

    for fields in variants:
        assert ask(fields) == {}, fields
        fill_device(s, 22)
    s.linker.stack.flush("memory")
    for fields in variants:
        details = ask(fields)
        assert details == {"device": 0, "host": 0, "ssd": 688}, (fields, details, s.linker.stack.snapshot())
        quiet(s)


def as_with_a_picture() -> list[int]:
    """What a prompt with a picture is to SGLang: text, 48 numbers made from the picture, text."""
    import torch
    from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem

    item = MultimodalDataItem(modality=Modality.IMAGE, feature=torch.ones(48, 4))
    item.set_pad_value()
    return [*prompt(25, 32), *item.padding_sequence(48), *prompt(26, 32)]


def held_after_numbers_that_stand_for_a_picture(s):
    """Which pages of the prompt with the picture the tiers have, when somebody has asked with its numbers."""
    from sglang.srt.mem_cache.utils import get_hash_str

    token_ids, page = as_with_a_picture(), s.linker.pool.page_size
    s.generate(token_ids)
    s.settle()
    keys = get_hash_str(array("q", token_ids), None, page)
    taken = s.linker.stack.snapshot().tiers["host"].pages
    return taken, [s.linker.holds(key) for key in keys]


def numbers_that_stand_for_a_picture_are_not_the_pictures(s):
    """SGLang puts numbers made from a picture in the place of its tokens; a client may send these itself."""
    from sglang.srt.managers.io_struct import AbortReq

    token_ids = as_with_a_picture()
    req = s.add(token_ids)
    try:
        assert req.extra_key, "it has the key of a prompt with the picture"
    finally:
        s.scheduler.abort_request(AbortReq(rid=req.rid))
    assert s.add(token_ids, extra_key="tenant").extra_key not in (None, "tenant", req.extra_key)
    s.scheduler.abort_request(AbortReq(abort_all=True))
    question = prompt(24, 40)
    plain = s.add(question)
    assert plain.extra_key is None
    s.run()
    quiet(s)


def retracted_requests_come_back(s):
    """Retracted in the middle of decoding, with SGLang's own test switch: they answer as if nothing had been.

    SGLang retracts none that decodes alone: all of them have their pages before one begins.
    """
    import sglang.srt.managers.scheduler as module

    questions = [prompt(seed, 300) for seed in range(60, 63)]
    answers = [s.generate(question, max_new_tokens=12) for question in questions]
    fill_device(s, 60)
    module.TEST_RETRACT = True
    try:
        with tiers_that_do_not_answer(s):
            reqs = [s.add(question, max_new_tokens=12) for question in questions]
            s.step()  # asks for the pages of each
        s.await_restores()
        s.run()
    finally:
        module.TEST_RETRACT = False
    assert [list(req.output_ids) for req in reqs] == answers
    assert any(req.retracted_stain for req in reqs), "nobody was retracted: this tests nothing"
    quiet(s)


def damaged_files_are_misses(s, directories):
    questions, answers = [prompt(seed) for seed in (18, 19)], []
    for question in questions:
        answers.append(s.generate(question))
        s.settle()
    fill_device(s, 18)
    s.linker.stack.flush("memory")
    generator = random.Random(5)
    for directory in directories:
        for path in Path(directory).glob("*.stripe"):
            size = path.stat().st_size
            with open(path, "r+b", buffering=0) as file:
                # Slots only, not the tables before them.
                first = s.linker.stack.tiers["ssd"].stripes._devices[0].geometry.first_slot
                for offset in range(first, size - 4096, 8192):
                    file.seek(offset + generator.randrange(4096))
                    file.write(b"\xa5")
    for question, answer in zip(questions, answers, strict=True):
        req, _ = serve_again(s, question)
        assert list(req.output_ids) == answer
    snapshot = s.linker.stack.snapshot()
    assert snapshot.tiers["ssd"].checksum_failures > 0, (snapshot, s.linker.stack.events.since()[-8:])
    assert events(s, "page.corrupt")
    quiet(s)


@contextlib.contextmanager
def streaming_session(s, name: str):
    from sglang.srt.managers.io_struct import CloseSessionReqInput, OpenSessionReqInput, SessionParams

    controller = s.scheduler.session_controller
    assert controller.open(OpenSessionReqInput(capacity_of_str_len=100_000, session_id=name, streaming=True)).success
    yield {"session_params": SessionParams(id=name)}
    controller.close(CloseSessionReqInput(session_id=name))


def turns_of_a_streaming_session(s):
    """The second one stands on KV that is the session's own, of which the tree knows nothing."""
    question, more = prompt(45), prompt(46, 40)
    with streaming_session(s, "turns") as session:
        first = s.add(question, **session)
        s.run()
        second = s.add(more, **session)
        s.run()
        assert second.cached_tokens == len(question) + len(first.output_ids) - 1
        fill_device(s, 45)
    whole = [*question, *first.output_ids, *more]
    assert s.generate(whole) == list(second.output_ids)
    fill_device(s, 46)
    req, details = serve_again(s, question)
    assert list(req.output_ids) == list(first.output_ids)
    assert details["host"] + details["ssd"] == 688, "what the first turn asked is there for everybody"
    quiet(s)


def a_session_that_begins_with_one_token(s):
    """Its first turn ends with its prefill, and SGLang releases nothing of it."""
    with streaming_session(s, "short") as session:
        s.add(prompt(49), 1, **session)
        s.run()
        quiet(s)


def a_session_whose_turn_waits_can_be_flushed(s):
    """A turn that waits has not borrowed its session's KV yet, or SGLang would refuse to let go of it."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    with streaming_session(s, "paused") as session:
        s.add(prompt(50), **session)
        s.run()
        s.scheduler.pause_generation(PauseGenerationReqInput(mode="in_place"))
        turn = s.add(prompt(51, 40), **session)
        assert not turn.kv.holds_kv
        assert s.scheduler.flush_cache()
        s.scheduler.continue_generation(ContinueGenerationReqInput())
        s.run()
        assert turn.finished()
    quiet(s)


def a_session_that_changes_its_adapter_leaves_nothing_in_its_name(s):
    """An aborted turn gives up all of the session's KV, and what earlier turns computed was without the adapter."""
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    question = prompt(47)
    with streaming_session(s, "adapters") as session:
        s.add(question, **session)
        s.run()
        turn = s.add(prompt(48, 40), 200, lora_id="adapter", **session)
        for _ in range(5):
            s.step()
        s.scheduler.abort_request(AbortReq(rid=turn.rid))
        s.run()
        s.settle()
    names = get_storage_hash_str(RadixKey(array("q", question[:688]), "adapter"), None, page_size=PAGE)
    assert not s.linker.stack.probe([bytes.fromhex(name) for name in names]), "the tiers have it as the adapter's"
    req = s.add([*question, 1, 2, 3], lora_id="adapter")
    s.run()
    assert req.cached_tokens == 0
    quiet(s)


def a_deleted_device_file_leaves_service(s, directories):
    question = prompt(20)
    answer = s.generate(question)
    s.settle()
    for path in Path(directories[0]).glob("*.stripe"):
        os.unlink(path)
    limit = time.monotonic() + 60
    while all(device.in_service for device in s.linker.stack.snapshot().devices):
        assert time.monotonic() < limit, "nobody noticed"
        s.generate(prompt(int(time.monotonic() * 1000) % 10000 + 5000, 100))
        time.sleep(0.1)
    fill_device(s, 20)
    req, _ = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert events(s, "device.out")
    quiet(s)
    # The other device goes on.
    question = prompt(21)
    answer = s.generate(question)
    fill_device(s, 21)
    s.linker.stack.flush("memory")
    req, details = serve_again(s, question)
    assert list(req.output_ids) == answer
    assert details["ssd"] == 688
    quiet(s)


# ---- the tests ----


def an_order_that_another_rank_has_heard(s):
    """This one is told to hear none, as where its machine has no place for the bus."""
    from swift_tiers.sglang_ext.tell.orders import OrderMessage

    command = {"type": "set_policy", "field": "admission_uses", "value": 3}
    policy = s.linker.stack.config.policy.admission_uses
    entry = {"id": "o", "author": "a test", "deadline": str(time.time() + 60), "command": json.dumps(command)}
    s.scheduler.process_input_requests([OrderMessage(entry)])
    assert s.linker.stack.config.policy.admission_uses == 3 != policy
    command["value"] = policy
    s.scheduler.process_input_requests([OrderMessage({**entry, "command": json.dumps(command)})])


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return [str(tmp_path_factory.mktemp(f"ssd{number}")) for number in range(2)]


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory, directories):
    from swift_tiers.ops.base.model import tiny_model

    config = {
        "host": {"size": "1MiB"},
        "ssd": {"directories": directories, "size_per_device": "32MiB", "stripe_unit": "8KiB"},
        "policy": {"restore_deadline": "60s"},
        "restore": {"strategy": "load"},  # whether or not that pays on a busy machine
        "bus": {"enabled": False},
    }
    arguments = [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32",
        "--max-total-tokens", str(DEVICE_TOKENS), "--max-running-requests", "8", "--chunked-prefill-size", "512",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip
    with SchedulerProcess(arguments) as process:
        process(costs_are_unknown)
        yield process


@pytest.mark.parametrize(
    "scenario",
    [
        evicted_prefix_comes_back,
        from_ssd_only,
        partly_on_the_device,
        many_at_once,
        long_prompt_in_chunks,
        others_pass_a_held_request,
        a_missed_deadline_is_recomputed,
        another_of_its_id_is_refused,
        aborted_while_held,
        ids_of_no_token_are_taken_in,
        aborted_while_running,
        flush_cache_keeps_ssd,
        a_failing_load_fails_its_request_alone,
        a_dead_loading_thread_does_not_hang,
        a_dead_offloading_thread_does_not_lock_the_device,
        failing_offloads_unlock_the_device,
        exceptions_do_not_reach_the_scheduler,
        pages_evicted_while_waiting_are_restored_too,
        a_hit_keeps_its_turn_before_a_long_prompt_that_came_later,
        room_that_nobody_takes_begins_no_second_chunked_request,
        identities_do_not_mix,
        numbers_that_stand_for_a_picture_are_not_the_pictures,
        retracted_requests_come_back,
        what_the_tiers_lost_is_offered_along,
        offloads_that_take_too_long_publish_nothing,
        new_weights_hide_old_pages,
        weights_that_are_updated_in_a_session,
        what_is_computed_during_a_session_is_not_kept,
        calls_that_touch_no_weights_change_nothing,
        weights_that_are_overwritten_hide_old_pages,
        turns_of_a_streaming_session,
        a_session_that_changes_its_adapter_leaves_nothing_in_its_name,
        a_session_that_begins_with_one_token,
        a_session_whose_turn_waits_can_be_flushed,
        an_order_that_another_rank_has_heard,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_scenario(scheduler, scenario):
    scheduler(scenario)


@pytest.mark.exhaustive
def test_nobody_writes_kv_under_a_pictures_key(tmp_path):
    """On two ranks SGLang computes something where no token has a number; on one it does not look."""
    from swift_tiers.ops.base.model import tiny_model

    config = {"host": {"size": "4MiB"}, "bus": {"enabled": False}}
    arguments = [
        "--model-path", str(tiny_model(tmp_path)), "--dtype", "float32", "--max-total-tokens", str(DEVICE_TOKENS),
        "--max-running-requests", "8", "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip
    with SchedulerRanks(2, arguments) as ranks:
        for taken, held in ranks(held_after_numbers_that_stand_for_a_picture):
            assert taken
            assert not any(held)


def test_nothing_of_sglang_has_not_been_looked_at(scheduler):
    """Each name in this file was judged: refused, tested, or of no concern for KV. Of one that is new, docs/models.md
    says what the tiers make of it; then it is added."""
    judged = json.loads((Path(__file__).parent / "judged.json").read_text())
    for kind, names in scheduler(ways_into_sglang).items():
        assert sorted(set(names) - set(judged[kind])) == [], f"new {kind}"
        assert sorted(set(judged[kind]) - set(names)) == [], f"{kind} that have gone"


def test_collections_do_not_look_through_what_was_there_at_the_start(scheduler):
    assert not scheduler(collected)


def test_damaged_files_are_misses(scheduler, directories):
    scheduler(damaged_files_are_misses, directories)


def test_a_deleted_device_file_leaves_service(scheduler, directories):
    scheduler(a_deleted_device_file_leaves_service, directories)
