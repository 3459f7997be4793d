"""Lives of an engine, and what it is asked: whatever becomes of it, one that is well is asked again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_tiers.radix_tiering.tiers.remote.breaker import MOST_REST
from swift_tiers.radix_tiering.tiers.remote.engine import EngineAnswer, EngineGone
from swift_tiers.radix_tiering.tiers.remote.line import JOB_SECONDS, LAST_CHANCE, MOST_PAUSE, OPEN_SECONDS

from support.examples import examples
from support.remote_line import TRIAL_SECONDS, Line, ready_line

DEEDS = (
    "ask", "read", "read", "write", "write", "next", "next", "answer", "fail", "ready", "die", "wait", "stop", "go on"
)  # fmt: skip


@pytest.mark.parametrize("object_seconds", [0.0, 20.0], ids=["no throttle", "a slow one"])
@settings(max_examples=examples(2000))
@given(deeds=st.lists(st.sampled_from(DEEDS), max_size=60))
def test_whatever_has_become_of_it_an_engine_that_is_well_is_asked_again(
    object_seconds: float, deeds: list[str]
) -> None:
    world = Line(object_seconds)
    world.turn()
    for deed in deeds:
        world.do(deed)
    world.takes = True
    end = world.now + 2 * (MOST_REST + MOST_PAUSE + JOB_SECONDS) + len(deeds) * object_seconds
    while not world.line.open and world.now < end:
        world.do("ready")
        world.do("answer")
        world.pass_time(TRIAL_SECONDS / 4)
        if not world.line.open:
            world.do("next")
    assert world.line.open
    world.do("ask")
    world.do("answer")
    world.pass_time(len(deeds) * object_seconds)
    assert len(world.answered) == world.asked, "each is answered once"


def test_a_trial_that_dies_with_its_engine_is_not_the_last() -> None:
    world = Line()
    for deed in ("wait", "ready", "ask"):
        world.do(deed)
    world.pass_time(5.0)
    assert not world.line.open, "two were late"
    engine = world.engine
    assert engine is not None
    world.do("answer")  # too late to count
    assert not world.line.open
    world.pass_time(5.0 + TRIAL_SECONDS / 2)
    assert [job.verb for job in engine.jobs] == ["exists"]
    for deed in ("die", "wait", "wait", "ready"):
        world.do(deed)
    assert not world.line.open
    assert world.engine is not None
    for _ in range(10):
        if not world.engine.jobs:
            world.do("next")
    world.do("answer")
    assert world.line.open


def test_an_engine_that_takes_nothing_is_not_asked_without_end() -> None:
    world = Line()
    for deed in ("wait", "ready", "ask", "next", "answer", "stop"):
        world.do(deed)
    world.pass_time(2 * MOST_REST)
    assert not world.line.open
    world.do("go on")
    for _ in range(10):
        world.do("next")
        world.do("answer")
    assert world.line.open


def test_an_engine_that_dies_as_soon_as_it_is_ready_is_begun_more_and_more_seldom() -> None:
    """To begin one takes seconds of a core."""
    world = Line()
    world.turn()
    end = world.now + 600.0
    while world.now < end:
        world.do("ready")
        world.do("die")
        world.do("next")
    assert len(world.engines) < 20
    pause = world.line._pause
    world.do("ready")
    world.pass_time(2 * OPEN_SECONDS)
    world.do("die")
    assert world.line._pause < pause, "it has served"


def test_an_engine_that_fails_is_asked_no_more_which_is_told_once_until_it_does_well() -> None:
    """Also where the questions that are to find out whether it does well fail, or are not answered."""
    world = Line()
    for deed in ("wait", "ready", "ask", "fail"):
        world.do(deed)
    assert not world.line.open
    assert world.answered == [True, True], "who asked has been answered"
    assert (world.line.errors, world.line.late) == (2, 0)
    assert world.emitted[1:] == [("remote.fails", "exists: refused")]
    for deed in ("fail", "fail", "answer too late", "fail"):
        assert world.engine is not None
        for _ in range(10):
            if not world.engine.jobs:
                world.do("next")
        assert [job.verb for job in world.engine.jobs] == ["exists"], "it is not tried again"
        world.pass_time(TRIAL_SECONDS if "late" in deed else 0.0)
        world.do(deed.partition(" ")[0])
        assert not world.line.open
    assert (world.line.errors, world.line.late) == (5, 1)
    assert world.emitted[2:] == [("remote.does_not_answer", None)]
    for _ in range(10):
        world.do("next")
        world.do("answer")
    assert world.line.open
    for deed in ("ask", "fail"):
        world.do(deed)
    assert [event for event, _ in world.emitted[3:]] == ["remote.answers_again", "remote.fails"]


def test_an_error_between_good_answers_costs_nothing() -> None:
    world = ready_line()
    for _ in range(5):
        world.line.ask("exists", ["name"], (), world.now + 5.0, lambda done: None, lambda: None)
        for deed in ("fail", "ask", "answer"):
            world.do(deed)
    assert world.line.open
    assert world.line.errors == 5
    assert [event for event, _ in world.emitted] == ["remote.engine_ready"]


def test_an_engine_that_takes_nothing_is_read_from_all_the_same() -> None:
    """A store that is full, or read-only: what is written rests longer and longer, and is told of once."""
    world = ready_line()
    rests = []
    for _ in range(6):
        world.ask("put")
        world.do("fail")
        assert world.line.open
        assert not world.line.takes
        began = world.now
        while not world.line.takes:
            world.pass_time(1.0)
        rests.append(round(world.now - began))
    assert rests == [5, 10, 20, 40, 60, 60]
    assert [event for event, _ in world.emitted] == ["remote.engine_ready", "remote.fails"]
    world.ask("put")
    world.do("answer")
    world.ask("put")
    world.do("fail")
    world.pass_time(5.0)
    assert world.line.takes, "it has taken something meanwhile"


def test_an_error_says_nothing_of_what_is_there() -> None:
    """Objects that were asked for come late, and are not gone."""
    world = ready_line()
    slots = world.line.slots.take(2)
    world.ask("get", slots)
    world.do("fail")
    assert world.answered == [False]
    assert set(slots) <= set(world.line.slots.take(8)), "their room is free"


def test_an_engine_that_cannot_be_opened_is_told_of_once_for_each_reason() -> None:
    world = Line()
    for reason in ("no library", "no library", "no master", "no master"):
        for _ in range(10):
            if world.engine is None:
                world.do("next")
        assert world.engine is not None
        world.engine.tell(EngineGone(reason))
        world.turn()
        assert world.line.unopened == reason
    world.pass_time(MOST_PAUSE + OPEN_SECONDS)
    assert world.line.unopened == "it was not ready within 120 s"
    reasons = ["no library", "no master", world.line.unopened]
    assert world.emitted == [("remote.cannot_be_opened", reason) for reason in reasons]
    for _ in range(10):
        world.do("next")
        world.do("ready")
    assert world.line.unopened == ""
    world.do("die")
    assert world.emitted[-1] == ("remote.engine_gone", "killed")
    assert world.line.unopened == "", "it could be opened"


def pause(world: Line, seconds: float) -> None:
    """Everything stands still, the engine too; the tier's thread goes on first."""
    world.now += seconds
    world.turn()


@pytest.mark.parametrize("was_late", [False, True])
def test_an_engine_that_stood_still_with_everything_may_answer_after_all(was_late: bool) -> None:
    world = ready_line()
    slots = world.line.slots.take(2)
    world.ask("get", slots)
    if was_late:
        world.pass_time(6.0)
    pause(world, 60.0)
    assert world.answered == [False], "who waited for it is told"
    world.do("answer")
    world.pass_time(2 * JOB_SECONDS)
    assert len(world.engines) == 1
    assert world.engine is not None
    assert [event for event, _ in world.emitted] == ["remote.engine_ready"]
    assert set(slots) <= set(world.line.slots.take(8)), "their room is free"


def test_of_several_that_were_late_for_a_pause_each_may_come_for_as_long_as_some_do() -> None:
    world = Line()
    for deed in ("wait", "ready", "ask", "ask"):
        world.do(deed)
    pause(world, 60.0)
    engine = world.engine
    assert engine is not None
    asked = engine.jobs[:4]
    for job in asked:
        world.pass_time(0.9 * LAST_CHANCE)
        engine.tell(EngineAnswer(job.number, [True], ""))
        world.turn()
    world.pass_time(1.1 * LAST_CHANCE)
    assert not engine.ended


def test_an_engine_may_be_ready_after_a_pause() -> None:
    world = Line()
    world.turn()
    pause(world, 2 * OPEN_SECONDS)
    world.do("ready")
    world.pass_time(OPEN_SECONDS)
    assert (world.line.open, world.line.lives) == (True, 1)


def test_an_engine_that_is_stuck_is_given_up_after_a_pause_as_well() -> None:
    world = Line()
    for deed in ("wait", "ready", "ask"):
        world.do(deed)
    engine = world.engine
    assert engine is not None
    pause(world, 60.0)
    assert not engine.ended
    world.pass_time(LAST_CHANCE)
    assert engine.ended
    assert world.emitted[-1] == ("remote.engine_gone", "it does not answer, and is begun anew")


def test_an_engine_is_not_given_up_before_its_time() -> None:
    """And not much later."""
    world = Line()
    for deed in ("wait", "ready", "ask"):
        world.do(deed)
    engine = world.engine
    assert engine is not None
    world.pass_time(JOB_SECONDS - 0.1)
    assert not engine.ended
    world.pass_time(0.1 + LAST_CHANCE)
    assert engine.ended
