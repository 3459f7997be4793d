"""Requests of different priorities, and such as SGLang takes off the device, while pages come up; its real scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from support.scheduler_process import SchedulerProcess
from support.slow_link import Link, costs_are_unknown, extends, prompt, quiet, to_ssd

PAGE = 16
CHUNK = 64
RUNNING = 2
#: More than SGLang wants (10) for taking a running request off the device for another.
URGENT = 99


@contextmanager
def strategy(s, choice: str):
    planner = s.linker.stack.planner
    before, planner.choice = planner.choice, choice
    try:
        yield
    finally:
        planner.choice = before


def all_running(s, *questions: list[int]) -> list[Any]:
    """Requests of low priority, all of them decoding."""
    reqs = [s.add(question, 60, priority=0) for question in questions]
    s.run(until=lambda: all(len(req.output_ids) > 2 for req in reqs))
    assert s.scheduler.get_num_allocatable_reqs(len(reqs), None, running_batch=s.scheduler.running_batch) <= 0
    return reqs


# ---- in the scheduler's process ----


def nobody_is_taken_off_in_vain(s):
    """The device is full of requests of low priority. One of high priority arrives that waits for its pages: until
    these are there nobody makes room for it."""
    from swift_tiers.sglang_ext.tell.request_facts import RequestFacts

    urgent, *others = prompt(1), prompt(2, 40), prompt(3, 40)
    answer, *_ = to_ssd(s, urgent, *others)
    expected = [s.generate(other, 60) for other in others]
    s.empty_memory()
    with strategy(s, "load"):
        running = all_running(s, *others)
        with Link(s) as link:
            req = s.add(urgent, priority=URGENT)
            s.linker.stack.restorer.wait_idle()
            before = [len(one.output_ids) for one in running]
            for _ in range(12):
                link.deliver(2)
                s.step()
            assert link.kept, "its pages are all there: this tests nothing"
            assert not req.output_ids
            assert not any(one.retracted_stain for one in running), "taken off for one that cannot run yet"
            assert [len(one.output_ids) - n for one, n in zip(running, before, strict=True)] == [12, 12]
            extends(s, link, 8, until=lambda: bool(req.output_ids))
            assert any(one.retracted_stain for one in running), "it had no precedence: this tests nothing"
        s.run()
    assert list(req.output_ids) == answer
    assert [list(one.output_ids) for one in running] == expected
    whole = [RequestFacts.of(one).whole for one in running if one.retracted_stain]
    quiet(s)
    return whole


def computed_at_once(s):
    """... and one that is computed while its pages come up takes the place of another at once."""
    urgent, *others = prompt(11), prompt(12, 40), prompt(13, 40)
    answer, *_ = to_ssd(s, urgent, *others)
    expected = [s.generate(other, 60) for other in others]
    s.empty_memory()
    running = all_running(s, *others)
    with Link(s) as link:
        req = s.add(urgent, priority=URGENT)
        s.linker.stack.restorer.wait_idle()
        log = extends(s, link, 2, until=lambda: bool(req.output_ids))
        assert any(one.retracted_stain for one in running)
    s.run()
    assert list(req.output_ids) == answer
    assert [list(one.output_ids) for one in running] == expected
    quiet(s)
    return log, s.details(req)


def an_urgent_one_comes_while_another_is_on_its_course(s):
    """Both get their answers, whoever comes first."""
    long, urgent = prompt(21, 1400), prompt(22, 500)
    answers = to_ssd(s, long, urgent)
    with Link(s) as link:
        low = s.add(long, priority=0)
        s.linker.stack.restorer.wait_idle()
        extends(s, link, 1, until=lambda: s.cache.linker.on_course(low))
        high = s.add(urgent, priority=URGENT)
        s.linker.stack.restorer.wait_idle()
        extends(s, link, 2)
    assert [list(low.output_ids), list(high.output_ids)] == answers
    quiet(s)
    return s.details(low), s.details(high)


def retracted(s):
    """Retracted in the middle of decoding, and its pages are on ssd alone by then: it waits for them whole.

    SGLang retracts none that decodes alone: both have their pages before one begins.
    """
    import sglang.srt.managers.scheduler as module

    from swift_tiers.sglang_ext.tell.request_facts import RequestFacts

    questions = [prompt(seed, 300) for seed in (31, 32)]
    answers = [s.generate(question, 12) for question in questions]
    s.empty_memory()
    module.TEST_RETRACT = True
    try:
        reqs = [s.add(question, 12) for question in questions]
        s.await_restores()
        s.run()
    finally:
        module.TEST_RETRACT = False
    assert [list(req.output_ids) for req in reqs] == answers
    whole = [RequestFacts.of(req).whole for req in reqs if req.retracted_stain]
    quiet(s)
    return whole


def arguments(tmp_path_factory: pytest.TempPathFactory, chunked: str, **restore: Any) -> list[str]:
    from swift_tiers.ops.base.model import tiny_model

    config = {
        "host": {"size": "8MiB"},
        "ssd": {
            "directories": [str(tmp_path_factory.mktemp("ssd"))], "size_per_device": "64MiB", "stripe_unit": "8KiB"
        },
        "policy": {"restore_deadline": "60s"},
        "restore": restore,
        "bus": {"enabled": False},
    }  # fmt: skip
    return [
        "--model-path", str(tiny_model(tmp_path_factory.mktemp("model"))), "--dtype", "float32", "--page-size", "16",
        "--max-total-tokens", "4096", "--max-running-requests", str(RUNNING), "--chunked-prefill-size", chunked,
        "--enable-priority-scheduling",
        "--enable-swift-tiers", "--swift-tiers-config", json.dumps(config),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory):
    with SchedulerProcess(arguments(tmp_path_factory, "512", strategy="token-wise", chunk=CHUNK)) as process:
        process(costs_are_unknown)  # or a busy machine leaves pages to be computed, which nobody here does
        yield process


def test_nobody_is_taken_off_the_device_for_one_that_waits_for_its_pages(scheduler) -> None:
    assert scheduler(nobody_is_taken_off_in_vain) == ["it was retracted"]


@pytest.mark.exhaustive
def test_nor_where_prompts_are_computed_in_one_piece(tmp_path_factory) -> None:
    with SchedulerProcess(arguments(tmp_path_factory, "-1", strategy="load")) as process:
        process(costs_are_unknown)
        assert process(nobody_is_taken_off_in_vain) == ["SGLang computes prompts in one piece"]


def test_one_that_is_computed_while_its_pages_come_takes_precedence_at_once(scheduler) -> None:
    log, details = scheduler(computed_at_once)
    assert log[0] == (0, CHUNK)
    assert 0 < details["ssd"] < 992


def test_an_urgent_one_that_comes_meanwhile(scheduler) -> None:
    low, high = scheduler(an_urgent_one_comes_while_another_is_on_its_course)
    assert low["ssd"] > 0
    assert high["ssd"] > 0


def test_what_was_retracted_waits_for_its_prefix_whole(scheduler) -> None:
    whole = scheduler(retracted)
    assert whole
    assert set(whole) == {"it was retracted"}


def request(**fields: Any) -> SimpleNamespace:
    """What `why_whole` looks at, of one that needs nothing special."""
    plain = {
        "return_logprob": False, "logprob_start_len": -1, "retracted_stain": False, "input_embeds": None,
        "positional_embed_overrides": None, "multimodal_inputs": None, "session": None, "beam_group": None,
        "token_indices_to_pool": None, "return_hidden_states": False, "origin_input_ids": [1] * 20,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        ({"return_logprob": True}, ""),  # of its output alone
        ({"return_logprob": True, "logprob_start_len": 20}, ""),  # likewise: SGLang sets it to the prompt's end
        ({"return_logprob": True, "logprob_start_len": 19}, "it wants log probabilities of its prompt"),
        ({"return_logprob": True, "logprob_start_len": 0}, "it wants log probabilities of its prompt"),
        ({"retracted_stain": True}, "it was retracted"),
        ({"input_embeds": [[0.0]]}, "it brings its own embeddings"),
        ({"positional_embed_overrides": [1]}, "it brings its own embeddings"),
        ({"multimodal_inputs": [1]}, "it brings its own embeddings"),
        ({"session": [1]}, "it belongs to a session"),
        ({"return_hidden_states": True}, "it wants hidden states of all that is computed of it"),
        ({"return_hidden_states": "last"}, ""),
        ({"beam_group": [1]}, "it is searched or pooled as a group"),
        ({"token_indices_to_pool": [1]}, "it is searched or pooled as a group"),
    ],
)
def test_which_requests_wait_for_their_prefix_whole(scheduler, fields: dict[str, Any], why: str) -> None:
    assert scheduler(why_not_split, fields) == why


def test_the_fields_that_are_looked_at_are_those_of_sglang(scheduler) -> None:
    assert scheduler(fields_of_a_request) == []


def why_not_split(s, fields):
    from swift_tiers.sglang_ext.way.request import why_whole

    return why_whole(request(**fields))


def fields_of_a_request(s):
    """Those of `request` that SGLang's requests lack."""
    req = s.add(prompt(41, 20))
    s.run()
    return [name for name in vars(request()) if not hasattr(req, name)]
