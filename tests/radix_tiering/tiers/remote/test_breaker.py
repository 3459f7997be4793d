"""One that does not answer is left alone, longer each time, and asked again by one question."""

from __future__ import annotations

from swift_tiers.radix_tiering.tiers.remote.breaker import FIRST_REST, MOST_REST, Breaker, BreakerState


def test_two_misses_in_a_row_open_it() -> None:
    breaker = Breaker()
    assert not breaker.missed(0.0)
    assert not breaker.answered()
    assert not breaker.missed(1.0)
    assert breaker.closed
    assert breaker.missed(2.0)
    assert not breaker.closed
    assert breaker.tries_at == 2.0 + FIRST_REST


def test_one_question_decides_and_it_rests_longer_each_time() -> None:
    breaker, now, rests = Breaker(), 0.0, []
    breaker.missed(now)
    breaker.missed(now)
    for _ in range(6):
        assert breaker.tries_at is not None
        rests.append(breaker.tries_at - now)
        now = breaker.tries_at
        breaker.tries()
        assert breaker.state is BreakerState.TRYING
        assert breaker.tries_at is None
        assert breaker.missed(now)
    assert rests == [5.0, 10.0, 20.0, 40.0, MOST_REST, MOST_REST]
    breaker.tries()
    assert breaker.answered()
    assert breaker.closed
    breaker.missed(now)
    breaker.missed(now)
    assert breaker.tries_at == now + FIRST_REST


def test_what_is_late_while_it_is_open_changes_nothing() -> None:
    breaker = Breaker()
    breaker.missed(0.0)
    breaker.missed(0.0)
    assert not breaker.missed(3.0)
    assert breaker.tries_at == FIRST_REST
