"""Rates and series out of looks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.console.model.history import LOOKS, History
from swift_tiers.radix_tiering.bus.contract.views import (
    DeviceView,
    RankState,
    ServerState,
    ServerView,
    Snapshot,
    TierView,
)


def look(*tiers: TierView, devices: Sequence[DeviceView] = ()) -> Snapshot:
    rank = RankState(name="dp0-tp0", tiers=tiers, devices=tuple(devices))
    return Snapshot(time=0.0, servers=(ServerState(server=ServerView(server="a", alive=True), ranks=(rank,)),))


def tier(time: float | None, **fields: int) -> TierView:
    return TierView(server="a", rank="dp0-tp0", tier="host", time=time, **fields)


def history_of(*views: TierView) -> History:
    history = History()
    for view in views:
        history.observe(look(view))
    return history


def test_rates_are_by_the_servers_clock() -> None:
    views = [tier(time, bytes_read=amount, hits=1) for time, amount in ((10.0, 0), (10.5, 100), (12.5, 500))]
    history = history_of(*views)
    assert history.rate(views[-1], "bytes_read") == pytest.approx(200)
    assert history.rate(views[-1], "bytes_read", seconds=2.5) == pytest.approx(200)
    assert history.rates(views[-1], "bytes_read") == pytest.approx([200, 200])
    assert history.rate(views[-1], "bytes_read", "hits") == pytest.approx(200)
    assert history.growths(views[-1], "bytes_read", 1.0) == (400, 100)


def test_a_look_that_says_nothing_newer_is_none() -> None:
    """The console looks more often than servers speak: that must not read as standing still."""
    views = [tier(time, hits=hits) for time, hits in ((1.0, 0), (1.5, 10), (1.5, 10), (1.5, 10))]
    assert history_of(*views).rate(views[-1], "hits") == pytest.approx(20)
    assert history_of(*views).rates(views[-1], "hits") == pytest.approx([20])


def test_rates_begin_anew_where_a_servers_clock_was_set_back() -> None:
    """The old ones are not of now, however long it takes until the clock is where it was."""
    views = [tier(1e9 + second, bytes_read=1000 * second) for second in range(2 * LOOKS)]
    after = [tier(1e9 - 3600 + second, bytes_read=1000 * len(views)) for second in range(3)]
    history = history_of(*views, after[0])
    assert history.rate(after[0], "bytes_read", seconds=5.0) is None
    assert history.rates(after[0], "bytes_read") == []
    for view in after[1:]:
        history.observe(look(view))
    assert history.rate(after[-1], "bytes_read", seconds=5.0) == 0.0
    assert history.times(after[-1], 60.0) == [view.time for view in after]


def test_a_server_that_was_started_anew_has_no_rate() -> None:
    views = [tier(1.0, hits=1000), tier(2.0, hits=5), tier(3.0, hits=25)]
    history = history_of(*views[:2])
    assert history.rate(views[1], "hits") is None
    history.observe(look(views[2]))
    assert history.rate(views[2], "hits") == pytest.approx(20)
    assert history.rates(views[2], "hits") == [None, pytest.approx(20)]
    assert history.growths(views[2], "hits", 10.0) == (20, 0)


def test_a_rate_between_two_times_by_the_servers_clock() -> None:
    views = [tier(time, hits=hits) for time, hits in ((10.0, 0), (11.0, 10), (12.0, 10), (13.0, 1010))]
    history = history_of(*views)

    def between(first: float, last: float) -> float | None:
        return history.rate_between(views[-1], "hits", first, last)

    assert between(10.0, 12.0) == pytest.approx(5)
    assert between(10.5, 12.0) == pytest.approx(5 / 1.5)
    assert between(12.5, 13.0) == pytest.approx(1000)
    assert between(9.0, 12.0) == pytest.approx(5), "of the part of it that was seen"
    assert between(7.0, 11.0) is None, "too little of it was seen"
    assert between(13.0, 15.0) is None
    assert history.times(views[-1], 2.0) == [11.0, 12.0, 13.0]


def test_a_rate_between_two_times_across_a_start() -> None:
    views = [tier(1.0, hits=1000), tier(2.0, hits=5), tier(3.0, hits=25), tier(4.0)]
    history = history_of(*views)
    assert history.rate_between(views[-1], "hits", 1.0, 3.0) is None
    assert history.rate_between(views[-1], "hits", 2.0, 3.0) == pytest.approx(20)
    assert history.rate_between(views[-1], "misses", 2.0, 3.0) is None
    assert history_of().rate_between(views[-1], "hits", 2.0, 3.0) is None
    assert history_of().times(views[-1], 2.0) == []


def test_what_was_not_said_is_not_nought() -> None:
    views = [tier(1.0), tier(2.0, hits=5)]
    history = history_of(*views)
    assert history.rate(views[1], "hits") is None
    assert history.values(views[1], "hits") == [None, 5]
    assert history.rate(tier(None), "misses") is None


def test_what_left_the_bus_is_forgotten() -> None:
    history = history_of(tier(1.0, hits=1), tier(2.0, hits=2))
    history.observe(look())
    history.observe(look(tier(3.0, hits=3)))
    assert history.rates(tier(3.0), "hits") == []


def test_devices_of_a_set_are_apart() -> None:
    history = History()
    for time in (1.0, 2.0):
        devices = [
            DeviceView(server="a", rank="dp0-tp0", number=number, time=time, reads=int(100 * number * time))
            for number in (1, 2)
        ]
        history.observe(look(devices=devices))
    assert [history.rate(device, "reads") for device in devices] == pytest.approx([100, 200])


@given(st.lists(st.integers(0, 100), min_size=2, max_size=LOOKS + 50))
def test_the_newest_looks_are_kept_in_order(steps: list[int]) -> None:
    history, total = History(), 0
    for at, step in enumerate(steps):
        total += step
        history.observe(look(tier(float(at), hits=total)))
    kept = steps[1:][-(LOOKS - 1) :]
    assert history.rates(tier(0.0), "hits") == pytest.approx(kept)
    assert sum(history.growths(tier(0.0), "hits", 5.0)) == sum(kept)
