"""What forwards took, as it is worked out from when SGLang launched them and looked at their results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from swift_tiers.sglang_ext.tell.forward_times import ForwardTimes, Took
from swift_tiers.sglang_ext.way.linker import SwiftLinker

lengths = st.lists(st.floats(0.001, 2.0), min_size=1, max_size=8)


def overlapped(seconds: list[float], *, blocking: bool) -> list[Took]:
    """SGLang's overlap loop over forwards of these lengths, one after the other without a pause: in each round the next
    is launched, then the result of the one before it is looked at."""
    times, now, free, took = ForwardTimes(blocking=blocking), 100.0, 100.0, []
    launched: list[tuple[float, float]] = []  # when, and when it ends
    for number in range(len(seconds) + 1):
        times.round_began(now)
        if number < len(seconds):
            began = max(now, free)
            launched.append((now, began + seconds[number]))
            free = began + seconds[number]
            now = free if blocking else now
        if number:
            at, ends = launched[number - 1]
            now = max(now, ends)
            one = times.result(at, now)
            assert one is not None
            took.append(one)
    return took


@given(seconds=lengths, blocking=st.booleans())
def test_each_forward_took_what_it_took(seconds: list[float], blocking: bool) -> None:
    took = overlapped(seconds, blocking=blocking)
    assert [one.seconds for one in took] == pytest.approx(seconds)
    assert took[-1].ended == pytest.approx(100.0 + sum(seconds))


@given(seconds=lengths, pauses=st.lists(st.floats(0, 1), min_size=8, max_size=8), blocking=st.booleans())
def test_without_overlap_likewise(seconds: list[float], pauses: list[float], blocking: bool) -> None:
    times, now = ForwardTimes(blocking=blocking), 100.0
    for length, pause in zip(seconds, pauses, strict=False):
        now += pause
        times.round_began(now)
        took = times.result(now, now + length)
        now += length
        assert took is not None
        assert took.seconds == pytest.approx(length)
        assert took.ended == now


@pytest.mark.parametrize("overlap", [False, True])
def test_the_forward_that_waited_for_a_copy_is_not_alone_and_no_other(overlap: bool) -> None:
    times, alone = ForwardTimes(blocking=False), []

    def look(number: int, now: float) -> None:
        took = times.result(number + 0.1, now)
        assert took is not None
        alone.append(took.alone)

    for number in range(6):
        times.round_began(float(number))
        if number == 3:
            times.not_alone()  # before it is launched: a copy
        if number == 4:
            times.not_alone()  # when it has been: some of it is not computed
        if not overlap:
            look(number, number + 0.9)
        elif number:
            look(number - 1, number + 0.9)
    if overlap:
        look(5, 6.9)
    assert alone == [True, True, True, False, False, True]


def test_a_launch_that_nobody_timed_says_nothing_and_spoils_nothing() -> None:
    times = ForwardTimes(blocking=True)
    times.round_began(1.0)
    assert times.result(None, 2.0) is None
    times.round_began(2.0)
    took = times.result(2.0, 2.5)
    assert took is not None
    assert took.seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("mode", "lengths", "learnt", "groups"),
    [
        (ForwardMode.EXTEND, [64], [(100, 164)], None),
        (ForwardMode.EXTEND, [64], [(100, 164)], [0, 64]),
        (ForwardMode.EXTEND, [64], None, [1, 64]),  # attention is split over data, and another group computes
        (ForwardMode.EXTEND, [64, 32], [(100, 164), (100, 132)], None),  # two prompts
        (ForwardMode.MIXED, [64, 1, 1, 1], [(100, 167)], None),  # three others decode
        (ForwardMode.MIXED, [64, *[1] * 9], None, None),  # too many do
        (ForwardMode.MIXED, [64, 32, 1], [(100, 164), (100, 133)], None),
        (ForwardMode.DECODE, None, None, None),
    ],
)
def test_prompts_tell_what_computing_costs_though_few_others_decode(
    mode: ForwardMode, lengths: list[int] | None, learnt: list[tuple[int, int]] | None, groups: list[int] | None
) -> None:
    told: list[tuple[Any, float]] = []
    costs = SimpleNamespace(computed=lambda spans, seconds: told.append((spans, seconds)))
    linker: Any = SwiftLinker.__new__(SwiftLinker)
    linker.stack = SimpleNamespace(costs=costs)
    linker._times = SimpleNamespace(result=lambda launched, now: Took(0.25, 7.0, alone=True))
    decode = (lengths or []).count(1) if mode == ForwardMode.MIXED else None
    linker.forward_ended(
        SimpleNamespace(
            forward_mode=mode, launch_ts=1.0, reqs=[], prefix_lens=[100] * len(lengths or ()), extend_lens=lengths,
            decoding_reqs=None if decode is None else [object()] * decode, return_logprob=False,
            return_hidden_states=False, global_num_tokens=groups,
        )
    )  # fmt: skip
    assert told == ([(learnt, 0.25)] if learnt else [])
