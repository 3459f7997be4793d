"""Calls of the engine that fail while SGLang's real scheduler serves: no answer changes, and none is kept waiting.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.scheduler_process import SchedulerProcess
from support.slow_link import Link, broken, extends, in_memory, prompt, to_ssd, token_wise, verified_beside

#: What the scheduler's side calls when a server serves a prefix from ssd, and is flushed.
CALLS = (
    "stack.restore", "stack.probe", "stack.restorer.poll", "stack.restorer.at_once", "stack.restorer.step",
    "stack.restorer.take", "stack.restorer.split", "stack.restorer.present", "stack.restorer.places",
    "stack.restorer.release", "stack.restorer.wants_layers", "stack.restorer.count_load", "stack.restorer.copies",
    "stack.restorer.copied", "stack.intake.begin", "stack.intake.commit", "stack.planner.decide",
    "stack.costs.computed", "stack.flush_soon",
)  # fmt: skip


# ---- in the scheduler's process ----


def served_while(s, call: str, first: int, times: float, seed: int) -> tuple[int, list[str]]:
    """How often it was called, and how the requests ended, whose answers are those of ever."""
    question, other = prompt(seed), prompt(seed + 1, 400)
    answers = to_ssd(s, question, other)
    with broken(s, call, first, times) as function:
        with Link(s) as link:
            reqs = [s.add(question), s.add(other)]
            extends(s, link, 4)
        s.linker.wait_offloads(60)
        s.step()
        s.scheduler.flush_cache()
    ended = [type(req.finished_reason).__name__ for req in reqs]
    for req, answer, how in zip(reqs, answers, ended, strict=True):
        assert list(req.output_ids) == answer or (how == "FINISH_ABORT" and not req.output_ids), (call, how)
    assert [s.generate(question), s.generate(other)] == answers
    return function.calls, ended


def from_damaged_memory(s, at: int) -> tuple[str, list[int], int]:
    """How a request ends, one of whose pages is damaged in host memory, where they are verified while they are copied;
    what it has answered, and how often damage was found."""
    question = prompt(90_000 + at)
    answer, pages = in_memory(s, question)
    pages[at][7] ^= 1
    failures = s.linker.stack.table.of[0].counters.checksum_failures
    with verified_beside(s):
        req = s.add(question)
        extends(s, None, 0)
        assert s.generate(question) == answer, "it is not found out what was damaged"
    found = s.linker.stack.table.of[0].counters.checksum_failures - failures
    return type(req.finished_reason).__name__, list(req.output_ids), found


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(token_wise(tmp_path_factory, page=16, tokens=4096, chunk=64)) as process:
        yield process


@pytest.mark.parametrize(
    "times", [pytest.param(1, marks=pytest.mark.exhaustive, id="once"), pytest.param(float("inf"), id="always")]
)
@pytest.mark.parametrize("first", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_no_answer_changes_and_none_is_kept_waiting(scheduler, first: int, times: float) -> None:
    for number, call in enumerate(CALLS):
        seed = 1000 * (number + 1) + 10 * first + (times == 1)
        calls, ended = scheduler(served_while, call, first, times, seed)
        assert calls, f"{call} is not called: this tests nothing"
        if call != "stack.restorer.places":  # SGLang answers a load that fails with an error
            assert "FINISH_ABORT" not in ended, call


@pytest.mark.parametrize("at", [0, 40])
def test_nothing_is_answered_from_a_page_that_was_found_damaged_while_it_was_copied(scheduler, at: int) -> None:
    assert scheduler(from_damaged_memory, at) == ("FINISH_ABORT", [], 1)
