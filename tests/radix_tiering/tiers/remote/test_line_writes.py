"""Writes that are not done in time, by an engine that does all else."""

from __future__ import annotations

import pytest

from swift_tiers.radix_tiering.tiers.remote.engine import EngineAnswer
from swift_tiers.radix_tiering.tiers.remote.line import JOB_SECONDS, LAST_CHANCE, PUT_SECONDS, TRIAL

from support.remote_line import TRIAL_SECONDS, Line, ready_line


def late_put(world: Line) -> int:
    """The number of a job that is late."""
    world.ask("put", world.line.slots.take(1))
    assert world.engine is not None
    number = world.engine.jobs.pop().number
    world.pass_time(5.0)
    return number


def test_late_writes_hold_back_writes_alone_for_longer_each_time_and_are_told_once() -> None:
    world = ready_line()
    rests = []
    for _ in range(6):
        assert world.line.takes
        number, began = late_put(world), world.now
        assert world.line.open
        assert not world.line.takes
        world.do("answer")  # a question, whether it answers
        assert world.engine is not None
        world.engine.tell(EngineAnswer(number, [True]))
        world.turn()
        while not world.line.takes:
            world.pass_time(1.0)
        rests.append(round(world.now - began))
    assert rests == [5, 10, 20, 40, 60, 60]
    assert world.emitted[1:] == [("remote.fails", "put: it was not done within 5.0 s")]
    assert world.line.late == 6
    assert world.line.open


def test_as_long_as_one_that_is_late_is_under_way_nothing_is_written() -> None:
    """It has slots, and each further one would have more."""
    world = ready_line()
    number = late_put(world)
    world.do("answer")
    world.pass_time(PUT_SECONDS / 2)
    assert not world.line.takes
    assert world.engine is not None
    world.engine.tell(EngineAnswer(number, [True]))
    world.turn()
    assert world.line.takes
    assert len(world.line.slots.take(8)) == 2, "a quarter of them, as always"


@pytest.mark.parametrize("answers", [False, True])
def test_an_engine_that_only_writes_slowly_is_not_given_up_soon(answers: bool) -> None:
    """Whether it does is asked: nobody else may ask anything just then."""
    world = ready_line()
    engine = world.engine
    assert engine is not None
    late_put(world)
    assert [list(job.names) for job in engine.jobs] == [[TRIAL]]
    if answers:
        world.do("answer")
    world.pass_time((PUT_SECONDS if answers else JOB_SECONDS) - 5.0 - TRIAL_SECONDS)
    assert not engine.ended
    world.pass_time(2 * TRIAL_SECONDS + LAST_CHANCE)
    assert engine.ended
