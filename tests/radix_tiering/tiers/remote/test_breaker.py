"""One that does not answer is left alone, longer each time, and asked again by one question."""

from __future__ import annotations

from swift_tiers.radix_tiering.tiers.remote.breaker import FIRST_REST, MOST_REST, Breaker, BreakerState


def test_two_misses_in_a_row_open_it() -> None:
    breaker = Breaker()
    assert not breaker.missed("exists", 0.0)
    assert not breaker.answered("exists")
    assert not breaker.missed("exists", 1.0)
    assert breaker.closed
    assert breaker.missed("exists", 2.0)
    assert not breaker.closed
    assert breaker.tries_at == 2.0 + FIRST_REST


def test_one_question_decides_and_it_rests_longer_each_time() -> None:
    breaker, now, rests = Breaker(), 0.0, []
    breaker.missed("exists", now)
    breaker.missed("exists", now)
    for _ in range(6):
        assert breaker.tries_at is not None
        rests.append(breaker.tries_at - now)
        now = breaker.tries_at
        breaker.tries()
        assert breaker.state is BreakerState.TRYING
        assert breaker.tries_at is None
        assert breaker.missed("exists", now)
    assert rests == [5.0, 10.0, 20.0, 40.0, MOST_REST, MOST_REST]
    breaker.tries()
    assert breaker.answered("exists")
    assert breaker.closed
    breaker.missed("exists", now)
    breaker.missed("exists", now)
    assert breaker.tries_at == now + FIRST_REST


def test_what_is_late_while_it_is_open_changes_nothing() -> None:
    breaker = Breaker()
    breaker.missed("exists", 0.0)
    breaker.missed("exists", 0.0)
    assert not breaker.missed("exists", 3.0)
    assert breaker.tries_at == FIRST_REST


def test_a_question_that_is_answered_says_nothing_of_reads() -> None:
    """An engine may say what it has, and not bring it."""
    breaker = Breaker()
    assert not breaker.missed("get", 0.0)
    assert not breaker.answered("exists")
    assert breaker.missed("get", 1.0)
    assert not breaker.answered("exists"), "asked before it was opened"
    assert not breaker.closed
    assert breaker.trial == "get"
    breaker.tries()
    assert not breaker.missed("exists", 2.0)
    assert breaker.state is BreakerState.TRYING, "one kind decides"
    assert breaker.answered("get")
    assert breaker.closed


def test_a_trial_that_proves_nothing_lets_one_more_miss_through_and_no_rest_begins_anew() -> None:
    """The object that reads are tried by is not there."""
    breaker, rests, now = Breaker(), [], 0.0
    breaker.missed("get", now)
    for _ in range(6):
        assert breaker.missed("get", now)
        assert breaker.tries_at is not None
        rests.append(breaker.tries_at - now)
        now = breaker.tries_at
        breaker.tries()
        breaker.proved_nothing("exists")
        assert not breaker.closed
        breaker.proved_nothing("get")
        assert breaker.closed
    assert rests == [5.0, 10.0, 20.0, 40.0, MOST_REST, MOST_REST]
    assert breaker.answered("get"), "it is over"
    assert not breaker.missed("get", now)
