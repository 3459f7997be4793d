"""When a logical time was, against every pair that was noted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.table import use_times
from swift_tiers.radix_tiering.table.use_times import UseTimes


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=200), st.integers(4, 50))
def test_a_use_is_never_told_older_than_it_is(steps, most: int) -> None:
    before, use_times.MOST_PAIRS = use_times.MOST_PAIRS, most
    try:
        times, used, now, tick = UseTimes(), {}, 0.0, 0
        for uses, seconds in steps:
            for _ in range(uses):
                tick += 1
                used[tick] = now
            times.note(tick, now)
            now += seconds
        assert all(times.seconds_since(one, now) <= now - at for one, at in used.items())
        assert len(times._ticks) <= most
        if len(steps) <= most:
            assert all(times.seconds_since(one, now) == now - at for one, at in used.items()), "nothing was dropped"
    finally:
        use_times.MOST_PAIRS = before


def test_what_was_never_used_here_is_not_known() -> None:
    times = UseTimes()
    times.note(3, 100.0)
    assert times.seconds_since(-5, 200.0) is None
    assert times.seconds_since(0, 200.0) is None
    assert times.seconds_since(4, 200.0) == 0, "used since"
