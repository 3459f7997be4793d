"""Room on the device while pages wait to be copied out of it, in SGLang's real scheduler.

Functions whose first parameter is a `StepScheduler` run in the scheduler's process; the tests below call them there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from support.scheduler_process import SchedulerProcess, SchedulerRanks
from support.slow_link import RUN_SECONDS, prompt, quiet, token_wise

#: Of the device's pool, which has room for less than both prompts and answers beside what waits; SGLang admits the
#: second all the same, where it counts on so much of an answer.
TOKENS, ANSWER, COUNTED_ON = 2048, 300, 50
ASKED = [prompt(3, 100), prompt(4, 100)]


class OutgoingCopies:
    """What is copied out of the device, that waits until it is cut short, or until `open` where it `hangs`."""

    def __init__(self, s, hangs: bool) -> None:
        self.s, self.hangs, self.open = s, hangs, False
        self.steps: list[int] = []  # pages copied
        self.copy_out = s.linker.pool.copy_out

    def __call__(self, pages, *arguments) -> None:
        while not self.open and (self.hangs or self.s.linker.offloader._cut_short is None):
            time.sleep(1e-3)
        self.copy_out(pages, *arguments)
        self.steps.append(len(pages))

    def __enter__(self) -> OutgoingCopies:
        from sglang.srt.managers import schedule_policy

        self.s.linker.pool.copy_out = self
        self.clip, schedule_policy.CLIP_MAX_NEW_TOKENS = schedule_policy.CLIP_MAX_NEW_TOKENS, COUNTED_ON
        return self

    def __exit__(self, *_: object) -> None:
        from sglang.srt.managers import schedule_policy

        self.open = True
        self.s.linker.pool.copy_out, schedule_policy.CLIP_MAX_NEW_TOKENS = self.copy_out, self.clip


# ---- in the scheduler's process ----


def alone(s) -> list[list[int]]:
    """The answers where nothing else is on the device."""
    return [s.generate(one, ANSWER) for one in ASKED]


def decoding_into_what_waits(s, hangs: bool, waits: bool = True) -> tuple[list[list[int]], list[bool], int]:
    """The answers of requests that decode beyond the room which is left by pages that are to be copied out, whether
    they were retracted, and the pages that had been copied by then or by their end."""
    s.empty_memory()
    s.linker.stack.flush("all")
    retracted, copied = [False, False], 0
    with OutgoingCopies(s, hangs) as copies:
        copies.open = not waits
        for seed, length in ((1, 1000), (2, 300)):
            s.generate(prompt(seed, length), 2)
        asked = [s.add(one, ANSWER) for one in ASKED]
        limit = time.monotonic() + RUN_SECONDS
        while not all(req.finished() for req in asked):
            assert time.monotonic() < limit
            s.step()
            copied = copied if copies.open else sum(copies.steps)
            retracted = [bool(req.retracted_stain) for req in asked]
            copies.open |= any(retracted)  # without room it would not come back
    quiet(s)
    return [list(req.output_ids) for req in asked], retracted, copied


def where_pages_wait_on_one_rank(s) -> tuple[list[list[int]], list[bool]]:
    """Likewise, the first one."""
    from sglang.srt.runtime_context import get_parallel

    waits = get_parallel().tp_rank == 0
    answers, retracted, copied = decoding_into_what_waits(s, False, waits)
    assert (0 < copied < 1000) == waits
    return answers, retracted


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[str]]:
    """Of servers with files of their own."""
    return lambda: token_wise(tmp_path_factory, page=1, tokens=TOKENS, chunk=64)


@pytest.fixture(scope="module")
def scheduler(arguments: Callable[[], list[str]]) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(arguments()) as process:
        yield process


def test_requests_decode_into_the_room_of_what_is_not_copied_yet(scheduler) -> None:
    expected = scheduler(alone)
    answers, retracted, copied = scheduler(decoding_into_what_waits, False)
    assert answers == expected
    assert not any(retracted)
    assert 0 < copied < 1000, "what was being copied is not cut short"


def test_a_copy_that_hangs_keeps_its_room(scheduler) -> None:
    """It may read its pages yet: SGLang retracts a request, as it does without room."""
    expected = scheduler(alone)
    answers, retracted, copied = scheduler(decoding_into_what_waits, True)
    assert answers == expected
    assert any(retracted)
    assert not copied


@pytest.mark.exhaustive
def test_ranks_let_go_together(arguments: Callable[[], list[str]]) -> None:
    """What has been copied on one rank is let go as well: SGLang hears of what all of them have."""
    with SchedulerRanks(2, arguments()) as ranks:
        expected = ranks(alone)[0]
        assert ranks(where_pages_wait_on_one_rank) == [(expected, [False, False])] * 2
