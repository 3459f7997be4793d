"""Long prefixes in host memory are copied while others decode, before a forward needs them: in SGLang's scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import random
import threading
import time

import pytest

from support.copying_server import PAGE, arguments, copies
from support.examples import exhaustive
from support.new_weights import sessions
from support.overlapping import overlapping
from support.scheduler_process import SchedulerProcess
from support.slow_link import RUN_SECONDS, abort_one, alike, extends, nothing_left, prompt, quiet

LIMIT = RUN_SECONDS
LONG = 1000  # tokens of a prompt, whose last whole page may not be taken from below: 62 pages


# ---- in the scheduler's process ----


def steps(s, until=lambda: False) -> list[tuple[int, int]]:
    """Until all is done: (prefix, extend) of each forward over prompts."""
    return extends(s, None, 0, until, LIMIT)


def in_host_memory(s, *prompts: list[int]) -> list[list[int]]:
    """The answers to these, whose pages are then in host memory alone."""
    answers = [s.generate(one) for one in prompts]
    s.empty_device()
    return answers


def one_decodes(s, seed: int, tokens: int = 200):
    """A request that decodes, for long."""
    req = s.add(prompt(seed, 40), tokens)
    s.run(until=lambda: len(req.output_ids) > 2)
    return req


def others_decode_meanwhile(s, seed):
    """Until the copy is done no forward but theirs runs; then one computes what is new of it."""
    question = prompt(seed, LONG)
    with copies(s) as copying:
        (answer,) = in_host_memory(s, question)
        expected = s.generate(prompt(100 + seed, 40), 200)
        decoding = one_decodes(s, 100 + seed)
        copying.held, req = True, s.add(question)
        log = steps(s, until=lambda: bool(copying.copied))
        before = len(decoding.output_ids)
        for _ in range(20):
            batch = s.step()
            assert batch is not None
            assert batch.forward_mode.is_decode()
            time.sleep(1e-3)
        assert len(decoding.output_ids) - before >= 19  # the last result may not have been looked at
        copying.held = False
        log += steps(s)
        assert list(req.output_ids) == answer
        assert list(decoding.output_ids) == expected
        quiet(s)
        return log, list(map(len, copying.copied)), s.details(req)


def as_ever(s, which: str, seed: int):
    """(prefix, extend) of each forward over the prompt where it is copied layer by layer beside it."""
    question = prompt(200 + seed, 3 * PAGE + 5 if which == "short" else LONG)
    with copies(s) as copying:
        (answer,) = in_host_memory(s, question)
        if which != "nobody decodes":
            decoding = one_decodes(s, 210 + seed)
        whole = {"return_logprob": True, "logprob_start_len": LONG - 4} if which == "whole" else {}
        reqs = [s.add(question, **whole)]
        if which == "another comes":
            reqs.append(s.add(prompt(220 + seed, 40)))
        log = steps(s)
        assert list(reqs[0].output_ids) == answer
        if which != "nobody decodes":
            assert len(decoding.output_ids) == 200
        quiet(s)
        return log, list(map(len, copying.copied))


def goes_on_alone(s):
    """Whoever decoded has ended before its pages were copied: they are copied with its forward, as ever."""
    question = prompt(4, LONG)
    with copies(s) as copying:
        (answer,) = in_host_memory(s, question)
        decoding, req = one_decodes(s, 103), s.add(question)
        course = s.cache.linker
        log = steps(s, until=lambda: course.on_course(req) is not None)
        assert not copying.copied
        from sglang.srt.managers.io_struct import AbortReq

        s.scheduler.abort_request(AbortReq(rid=decoding.rid))
        log += steps(s)
        assert list(req.output_ids) == answer
        quiet(s)
        return log, list(map(len, copying.copied))


def ends_while_it_is_copied(s, how: str, seed: int):
    """Its slots are not given back before nothing is copied there any more; a copy that fails is its end.

    `seed`: one of its own for each time, or the request that decodes finds pages in host memory, and a copy of them
    is taken for the one that is waited for."""
    from sglang.srt.managers.io_struct import AbortReq

    question = prompt(300 + seed, LONG)
    with copies(s) as copying:
        (answer,) = in_host_memory(s, question)
        decoding = one_decodes(s, 310 + seed)
        assert not copying.copied
        copying.held, req = True, s.add(question)
        steps(s, until=lambda: bool(copying.copied))
        free, seen = s.cache.free_kv_row, []
        s.cache.free_kv_row = lambda *given: (seen.append(bool(s.linker.loader.rows_under_way())), free(*given))
        if how == "aborted":
            s.scheduler.abort_request(AbortReq(rid=req.rid))
        else:
            copying.fails = 1
        timer = threading.Timer(0.2, lambda: setattr(copying, "held", False))
        timer.start()
        try:
            steps(s)
        finally:
            del s.cache.free_kv_row
            timer.join()
        assert not any(seen), "slots were given back that were being copied to"
        assert req.finished_reason.to_json()["type"] == "abort"
        assert len(decoding.output_ids) == 200
        quiet(s)
        copying.fails = 0
        assert s.generate(question) == answer
        quiet(s)


def in_any_order(s, seed):
    """Requests with common prefixes, aborts, copies that fail, pages that leave: answers are right, nothing is kept."""
    dice, aborted = random.Random(seed), set()
    questions = alike(dice, seed, 4)
    with copies(s) as copying:
        answers = in_host_memory(s, *questions)
        longer = [s.generate(question, 40) for question in questions]
        s.empty_device()
        copying.seconds_each = dice.choice((0.0, 1e-4, 1e-3))
        reqs, counted, limit = [], [], time.monotonic() + LIMIT
        load_ahead = s.linker.load_ahead
        s.linker.load_ahead = lambda request: (counted.append(1), load_ahead(request))
        while time.monotonic() < limit:
            if len(reqs) < len(questions) and dice.random() < 0.2:
                reqs.append(s.add(questions[len(reqs)], 40, rid=f"first-{seed}-{len(reqs)}"))
            if dice.random() < 0.01 and reqs:
                abort_one(s, dice, reqs, aborted)
            if dice.random() < 0.01:
                copying.fails = 1
            batch = s.step()
            if len(reqs) == len(questions) and nothing_left(s, batch):
                break
        else:
            raise AssertionError("not done")
        del s.linker.load_ahead
        copying.fails, copying.seconds_each = 0, 0.0
        for req, answer in zip(reqs, longer, strict=True):
            output = list(req.output_ids)
            assert output == answer[: len(output)]
            ended = req.rid in aborted or req.finished_reason.to_json()["type"] == "abort"
            assert len(output) == len(answer) or ended
        quiet(s)
        assert [s.generate(question) for question in questions] == answers
        quiet(s)
        return len(counted)


def overlapped(s, name, *given):
    """One of these with the loop that SGLang has on GPUs."""
    with overlapping(s):
        return globals()[name](s, *given)


# ---- here ----


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory):
    with SchedulerProcess(arguments(tmp_path_factory)) as process:
        yield process


def weights_change_meanwhile(s):
    """The update begins when nothing is copied to the device any more: it may capture CUDA graphs anew."""
    question = prompt(40, LONG)
    in_host_memory(s, question)
    begin, end = sessions(s)
    with copies(s) as copying:
        decodes = one_decodes(s, 140)
        copying.held, req = True, s.add(question)
        steps(s, until=lambda: bool(copying.copied))
        assert s.linker.loader.rows_under_way()
        threading.Timer(0.2, lambda: setattr(copying, "held", False)).start()
        assert begin()
        assert not s.linker.loader.rows_under_way()
        assert end()
        s.run(until=lambda: req.finished() and decodes.finished())
    s.run()
    assert s.scheduler.flush_cache()
    quiet(s)


def in_loop(scheduler, function, *given, overlap: bool):
    """What it returns there, with the loop that SGLang has on GPUs or the one that it has on CPUs."""
    return scheduler(overlapped, function.__name__, *given) if overlap else scheduler(function, *given)


@pytest.mark.parametrize("overlap", [False, True])
def test_others_decode_while_it_is_copied(scheduler, overlap: bool) -> None:
    seed = 11 if overlap else 1
    log, copied, details = in_loop(scheduler, others_decode_meanwhile, seed, overlap=overlap)
    assert log == [(0, PAGE), (992, 8)]
    assert copied == [61]
    assert details["host"] == 61 * PAGE


@pytest.mark.parametrize(
    ("which", "prefix"), [("nobody decodes", 992), ("short", 48), ("another comes", 992), ("whole", 992)]
)
def test_else_it_is_copied_beside_its_forward(scheduler, which: str, prefix: int) -> None:
    log, copied = scheduler(as_ever, which, ["nobody decodes", "short", "another comes", "whole"].index(which))
    assert (log[0][0], copied) == (prefix, [prefix // PAGE]), log


def test_it_is_copied_beside_its_forward_where_nobody_decodes_any_more(scheduler) -> None:
    log, copied = scheduler(goes_on_alone)
    assert log == [(0, PAGE), (992, 8)]
    assert copied == [61]


@pytest.mark.parametrize("how", ["aborted", "failed"])
@pytest.mark.parametrize("overlap", [False, True])
def test_it_may_end_while_it_is_copied(scheduler, how: str, overlap: bool) -> None:
    seed = 2 * overlap + (how == "failed")
    in_loop(scheduler, ends_while_it_is_copied, how, seed, overlap=overlap)


@pytest.mark.parametrize("overlap", [False, True])
def test_any_order_of_things(scheduler, overlap: bool) -> None:
    first = 20 if overlap else 0
    seeds = range(first, first + (6 if exhaustive() else 3))
    assert sum(in_loop(scheduler, in_any_order, seed, overlap=overlap) for seed in seeds) > len(seeds) // 2


def test_a_weight_update_waits_until_it_is_copied(scheduler) -> None:
    scheduler(weights_change_meanwhile)
