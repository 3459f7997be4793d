"""Reads that are not answered, or bring nothing, of an engine that answers questions."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.tiers.remote.engine import EngineAnswer
from swift_tiers.radix_tiering.tiers.remote.line import SLOW_SECONDS, TRIAL
from swift_tiers.radix_tiering.tiers.remote.objects import probe_name

from support.remote_line import READ_SECONDS, SHAPE, Line, ready_line


def read(world: Line, came: bool | None, after: float = 0.0) -> None:
    """One read, and a question that is answered; `came`: what the read is answered with, None for no answer in time."""
    world.ask("get", world.line.slots.take(1))
    world.ask()
    assert world.engine is not None
    (reading, question), world.engine.jobs[:] = world.engine.jobs[:2], []
    world.engine.tell(EngineAnswer(question.number, [True]))
    world.turn()
    world.pass_time(5.0 if came is None else after)
    world.engine.tell(EngineAnswer(reading.number, [bool(came)]))
    world.turn()


def test_an_engine_that_answers_questions_and_no_reads_is_tried_by_reads_and_rests_longer_each_time() -> None:
    world = ready_line()
    read(world, True)
    for _ in range(2):
        assert world.line.open
        read(world, None)
    assert world.line.breaker.tries_at is not None
    rests, began, tried = [], world.now, []
    assert world.engine is not None
    for _ in range(6):
        while not world.engine.jobs:
            world.do("next")
        rests.append(round(world.now - began))
        tried += [name for job in world.engine.jobs for name in job.names]
        world.pass_time(READ_SECONDS)
        began = world.now
        world.do("answer")  # too late
        assert not world.line.open
    assert rests == [5, 10, 20, 40, 60, 60]
    assert tried == [probe_name(SHAPE), "name"] * 3, "objects of which one may lie on a node that hangs"
    assert [event for event, _ in world.emitted] == ["remote.engine_ready", "remote.does_not_answer"]
    while not world.engine.jobs:
        world.do("next")
    world.do("answer")
    assert world.line.open
    assert world.emitted[-1] == ("remote.answers_again", None)


@pytest.mark.parametrize("after", [0.0, SLOW_SECONDS / 2, 2 * SLOW_SECONDS, 1.0])
def test_a_read_that_brings_nothing_counts_as_not_answered_if_it_took_long_for_that(after: float) -> None:
    """What was dropped is said to be missing as soon as anything; what cannot be reached is given up after a while."""
    world = ready_line()
    for _ in range(2):
        assert world.line.open
        read(world, False, after)
    assert world.line.open == (after <= SLOW_SECONDS)
    assert world.line.late == 0


def test_where_reads_take_long_one_that_brings_nothing_may_as_well() -> None:
    world = ready_line()
    read(world, True, 1.0)
    for after in (1.5, 1.9):
        read(world, False, after)
    assert world.line.open
    for _ in range(2):
        read(world, False, 2.1)
    assert not world.line.open


def test_where_the_object_that_reads_are_tried_by_is_missing_one_read_decides() -> None:
    """It closes on no proof, so one miss opens it again, and for longer."""
    world = ready_line()
    assert world.engine is not None
    for _ in range(2):
        read(world, None)
    rests = []
    for _ in range(5):
        began = world.now
        while not world.engine.jobs:
            world.do("next")
        rests.append(round(world.now - began))
        number = world.engine.jobs.pop().number
        world.engine.tell(EngineAnswer(number, [False]))
        world.turn()
        assert world.line.open
        read(world, None)
        assert not world.line.open
    assert rests == [5, 10, 20, 40, 60]
    assert [event for event, _ in world.emitted] == ["remote.engine_ready", "remote.does_not_answer"]
    assert world.engine is not None
    while not world.line.open:
        world.do("next")
        for job in world.engine.jobs:
            world.engine.tell(EngineAnswer(job.number, [job.names == [TRIAL]]))
        world.engine.jobs.clear()
        world.turn()
    read(world, True)
    assert world.emitted[-1] == ("remote.answers_again", None)
    read(world, None)
    assert world.line.open, "two in a row"
