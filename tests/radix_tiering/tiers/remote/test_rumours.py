"""What is believed of runs, and of objects: until when, and what one that is gone says of the others."""

from __future__ import annotations

from collections.abc import Callable

from swift_tiers.radix_tiering.base.virtual import VirtualRunner
from swift_tiers.radix_tiering.tiers.remote.rumours import BELIEVED_SECONDS, GONE_SECONDS, Rumours, RunKey

ONE, OTHER = RunKey(b"space", b"one"), RunKey(b"space", b"other")


def in_time(test: Callable[[VirtualRunner, Rumours], None]) -> Callable[[], None]:
    def run() -> None:
        runner = VirtualRunner(1, stall=0.0, most_seconds=1e5)
        runner.run(lambda: test(runner, Rumours(runner)))

    return run


@in_time
def test_what_was_heard_is_believed_for_a_while(runner: VirtualRunner, rumours: Rumours) -> None:
    assert rumours.lacks(ONE)
    rumours.is_there(ONE)
    runner.sleep(BELIEVED_SECONDS - 1.0)
    assert not rumours.lacks(ONE)
    runner.sleep(1.0)
    assert rumours.lacks(ONE)
    assert not rumours.doubts(ONE), "nothing is known of it"


@in_time
def test_an_object_that_is_gone_takes_its_run_along_and_has_the_others_doubted(
    runner: VirtualRunner, rumours: Rumours
) -> None:
    rumours.is_there(ONE)
    rumours.is_there(OTHER)
    runner.sleep(1.0)
    rumours.is_gone("object", ONE, runner.monotonic())
    assert (rumours.lacks(ONE), rumours.doubts(ONE)) == (True, False)
    assert (rumours.lacks(OTHER), rumours.doubts(OTHER)) == (True, True)
    assert rumours.first_lost([(0, "another"), (1, "object")], runner.monotonic()) == 1


@in_time
def test_runs_are_doubted_once_a_minute_at_most_and_the_one_that_lost_something_at_once(
    runner: VirtualRunner, rumours: Rumours
) -> None:
    rumours.is_there(ONE)
    doubted = 0
    for second in range(180):
        runner.sleep(1.0)
        rumours.is_there(OTHER)
        rumours.is_gone(f"object {second}", OTHER, runner.monotonic())
        assert rumours.lacks(OTHER)
        if rumours.doubts(ONE):
            doubted += 1
            rumours.is_still_there(ONE)
            # What was heard at the very moment may be older than the loss.
            runner.sleep(0.001)
            rumours.is_still_there(ONE)
    assert doubted == 180 / GONE_SECONDS


@in_time
def test_that_its_last_object_is_there_does_not_make_a_run_be_believed_for_longer(
    runner: VirtualRunner, rumours: Rumours
) -> None:
    """Else nobody would ever ask again for those before it."""
    rumours.is_there(ONE)
    for _ in range(int(BELIEVED_SECONDS / GONE_SECONDS)):
        runner.sleep(GONE_SECONDS - 1.0)
        rumours.is_gone("object", OTHER, runner.monotonic())
        runner.sleep(1.0)
        rumours.is_still_there(ONE)
    assert rumours.lacks(ONE)
    assert not rumours.doubts(ONE)


@in_time
def test_with_another_life_of_the_engine_nothing_is_believed(runner: VirtualRunner, rumours: Rumours) -> None:
    rumours.is_there(ONE)
    rumours.engine_ended()
    assert (rumours.lacks(ONE), rumours.doubts(ONE)) == (True, False)
