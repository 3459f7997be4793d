"""Beam search over tiers in SGLang's real scheduler: groups of rows that are one request, and never enter the tree.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.scheduler_process import SchedulerProcess
from support.slow_link import broken, prompt, quiet, token_wise

WIDTH, NEW_TOKENS = 3, 6


def searched(req) -> list[list[int]]:
    return [beam.tokens for beam in req.beam_group.final_results]


def stored(s, seed: int) -> tuple[list[int], list[list[int]]]:
    """A prompt whose pages are below the device alone, and what beams find behind it."""
    question = prompt(seed, 300)
    req = s.add(question, NEW_TOKENS, beam_width=WIDTH)
    s.run()
    s.generate(question)  # beams leave nothing in the tree
    s.empty_device()
    return question, searched(req)


# ---- in the scheduler's process ----


def loaded(s) -> dict[str, int]:
    question, found = stored(s, 1)
    req = s.add(question, NEW_TOKENS, beam_width=WIDTH)
    s.run(lambda: bool(req.output_ids))
    assert not s.linker.requests, "it decodes, and is still taken for one that waits"
    details = s.details(req)
    s.run()
    assert len(found) == WIDTH
    assert searched(req) == found
    quiet(s)
    return details


def failing(s, chunks: bool) -> str:
    """How it ends where its load fails; others, and those after it, are served, and SGLang misses nothing."""
    question, found = stored(s, 2 + chunks)
    longer = question + prompt(20, 600) if chunks else question
    with broken(s, "stack.restorer.places", 1, float("inf")):
        req, other = s.add(longer, NEW_TOKENS, beam_width=WIDTH), s.add(prompt(30 + chunks, 40))
        s.run()
    quiet(s)  # and SGLang's own check of an idle server
    assert not s.scheduler.beam_coordinator._num_live_groups
    assert len(other.output_ids) == 4
    again = s.add(question, NEW_TOKENS, beam_width=WIDTH)
    s.run()
    assert searched(again) == found
    assert not searched(req)
    return type(req.finished_reason).__name__


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(token_wise(tmp_path_factory, page=1, tokens=4096, chunk=64)) as process:
        yield process


def test_beams_find_the_same_over_what_was_loaded(scheduler) -> None:
    assert scheduler(loaded)["host"] == 299


@pytest.mark.parametrize("chunks", [False, True], ids=["one-forward", "chunks"])
def test_a_group_whose_load_fails_leaves_nothing_behind(scheduler, chunks: bool) -> None:
    assert scheduler(failing, chunks) == "FINISH_ABORT"
