"""A player by a clock that stands still, and a recording in the console."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.console.app import ConsoleApp
from swift_tiers.console.feeds.recorded import FASTEST, SLOWEST, RecordedFeed, TapePlayer
from swift_tiers.console.feeds.recording import RecordingFeed

from support.console_screen import shows, told, until
from support.console_world import World, WorldFeed


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def player(clock: Clock) -> TapePlayer:
    return TapePlayer([0.5, 1.0, 2.0, 4.0], 5.0, clock)


def test_it_stands_still_until_it_is_played_and_stops_at_the_end() -> None:
    clock = Clock()
    one = player(clock)
    clock.now += 10
    assert (one.position, one.playing) == (0.5, False)
    one.play(True)
    clock.now += 1
    assert (one.position, one.playing) == (1.5, True)
    one.play(False)
    clock.now += 1
    assert one.position == 1.5
    one.play(True)
    clock.now += 100
    assert (one.position, one.playing) == (5.0, False)
    one.play(True)
    assert (one.position, one.playing) == (0.5, True)


def test_speed_counts_from_when_it_was_changed() -> None:
    clock = Clock()
    one = player(clock)
    one.play(True)
    clock.now += 1
    one.set_speed(2)
    clock.now += 0.5
    assert one.position == 2.5
    for speed, kept in ((1000, FASTEST), (0, SLOWEST)):
        one.set_speed(speed)
        assert one.speed == kept


def test_steps_stop_it_and_go_from_look_to_look() -> None:
    clock = Clock()
    one = player(clock)
    one.play(True)
    clock.now += 0.7  # between the second look and the third
    for looks, at in ((1, 2.0), (1, 4.0), (1, 4.0), (-2, 1.0), (-9, 0.5)):
        one.step(looks)
        assert (one.position, one.playing) == (at, False)


@given(st.lists(st.tuples(st.sampled_from(["seek", "speed", "step", "play", "stop", "wait"]), st.floats(-99, 99))))
def test_it_never_leaves_the_tape(orders: list[tuple[str, float]]) -> None:
    clock = Clock()
    one = player(clock)
    for order, value in orders:
        before, playing = one.position, one.playing
        if order == "seek":
            one.seek(value)
        elif order == "speed":
            one.set_speed(value)
            assert one.position == before
        elif order == "step":
            one.step(int(value))
        elif order == "wait":
            clock.now += abs(value)
            assert one.position >= before
            assert playing or one.position == before
        else:
            one.play(order == "play")
            assert order == "play" or one.position == before
        assert 0.5 <= one.position <= 5.0


# ---- in the console ----

pytestmark = pytest.mark.anyio


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Half a minute; the device is pulled after 20 s."""
    clock, world = Clock(), World(gone=())
    recording = RecordingFeed(WorldFeed(world), tmp_path / "a.rec", "0.1.0", monotonic=clock)
    for number in range(60):
        world.sick = number >= 40
        recording.look()
        clock.now += 0.5
    recording.close()
    return tmp_path / "a.rec"


async def test_a_recording_is_played_stepped_and_put_back(tape: Path) -> None:
    clock = Clock()
    feed = RecordedFeed(tape, clock)
    app = ConsoleApp(feed, interval=0.1)
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "RECORDING", "00:00/00:29 paused x1", "1 warning", without=("WRONG",))
        await pilot.press("space")
        await until(pilot, lambda: feed.player.playing)
        clock.now += 21
        await shows(pilot, "00:21/00:29 playing x1", "is out of service")
        await pilot.press("comma")
        await shows(pilot, "00:20/00:29 paused")
        await pilot.press("left_square_bracket")
        await shows(pilot, "00:10/00:29 paused", without=("is out of service",))
        rates = app.session.moment.history.rates(app.session.moment.ranks()[0].tiers[0], "bytes_read")
        assert len(rates) == 21  # at 10.5 s: as if it had been watched from the beginning
        assert len(app.session.moment.events) == len(World().events())
        await pilot.press("full_stop", "greater_than_sign")
        await shows(pilot, "x2")
        await pilot.press(":", *"seek 29", "enter")
        await shows(pilot, "00:29/00:29", "is out of service")


async def test_alarms_are_as_old_as_they_were(tape: Path) -> None:
    app = ConsoleApp(RecordedFeed(tape, Clock()), interval=0.1)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session.moment.snapshot is not None)
        await pilot.press(":", *"seek 28", "enter")
        await until(pilot, lambda: any("out of service" in alarm.what for alarm in app.session.moment.alarms))
        (out,) = (alarm for alarm in app.session.moment.alarms if "out of service" in alarm.what)
        assert app.session.moment.snapshot is not None
        assert 6.0 <= app.session.moment.snapshot.time - out.since <= 8.0


async def test_nothing_is_steered_in_a_recording(tape: Path) -> None:
    app = ConsoleApp(RecordedFeed(tape, Clock()), interval=0.1)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session.moment.snapshot is not None)
        assert app.session.offers() == ()
        await pilot.press(":", *"control alpha flush", "enter")
        await until(pilot, lambda: "readonly" in told(app))
