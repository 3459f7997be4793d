"""The console as it is used: every key, the mouse, what is typed, a Redis that is lost."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path

import pytest
from textual.pilot import Pilot

from swift_tiers.console import ConsoleApp, ViewAnswers, ViewQuestion
from swift_tiers.console.feeds.feed import Nature
from swift_tiers.console.feeds.recorded import RecordedFeed
from swift_tiers.console.feeds.recording import RecordingFeed
from swift_tiers.console.looker import LookTaken, Lost, QuestionAnswered
from swift_tiers.console.screens.help import HelpScreen
from swift_tiers.console.views import VIEWS
from swift_tiers.console.widgets.grid import Grid

from support.console_screen import SIZE, console, screen_text, shows, told, until
from support.console_world import World, WorldFeed

pytestmark = pytest.mark.anyio


async def ready(pilot: Pilot) -> ConsoleApp:
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    await shows(pilot, "alpha", "beta", "GONE")
    return app


async def test_it_says_who_is_unwell_and_why() -> None:
    async with console().run_test(size=(80, 24), notifications=True) as pilot:
        text = await shows(pilot, "3 WRONG", "GONE")
        alarm = next(line for line in text.splitlines() if "device 2" in line)
        assert "WRONG alpha" in alarm
        assert "is out of service: write failed" in alarm, "the reason is there at 80 columns"
        assert "gone; last heard of 12 min 34 s ago" in text


async def test_digits_and_tab_turn_the_views() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        for number, view in enumerate(VIEWS, 1):
            await pilot.press(str(number))
            text = await shows(pilot, f"[{number} {view.TITLE}]")
            assert "this view failed" not in text
        await pilot.press("tab")
        assert app.session.view.NAME == VIEWS[0].NAME
        await pilot.press("shift+tab")
        assert app.session.view.NAME == VIEWS[-1].NAME


async def test_enter_and_escape() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        name = app.grid.row.key
        await pilot.press("enter")
        await shows(pilot, f"Overview › {name}", "10.0.0.", without=("GONE",))
        await pilot.press("escape")
        await shows(pilot, "GONE", VIEWS[0].QUESTION)


async def test_the_cursor_moves_and_stays_on_its_row() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        keys = [row.key for row in app.grid.rows]
        await pilot.press("j", "down")
        assert app.grid.row.key == keys[2]
        await pilot.press("k")
        assert app.grid.row.key == keys[1]
        await pilot.press("G")
        assert app.grid.cursor == 2
        await pilot.press("g", "pagedown")
        assert app.grid.cursor == 2
        await pilot.press("home", "j")
        wanted = app.grid.row.key
        await pilot.press("colon", *"sort server up", "enter")
        await until(pilot, lambda: [row.key for row in app.grid.rows] == ["alpha", "beta", "gamma"])
        assert app.grid.row.key == wanted


async def test_filter_as_it_is_typed_and_taken_away() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("slash", *"!bet")
        await until(pilot, lambda: len(app.grid.rows) == 2)
        assert [row.key for row in app.grid.rows] == ["alpha", "gamma"]
        await pilot.press("enter")
        await shows(pilot, "/!bet", "/2 of 3")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.grid.rows) == 3)
        await pilot.press("slash", *"/(")
        await pilot.press("slash")
        await shows(pilot, "not a regular expression")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.grid.rows) == 3)


async def test_sorting_by_key_and_by_heading() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("s", "s")
        assert app.navigation.sorting.column == "server"
        assert [row.key for row in app.grid.rows] == ["gamma", "beta", "alpha"]
        await pilot.press("r")
        assert [row.key for row in app.grid.rows] == ["alpha", "beta", "gamma"]
        await shows(pilot, "server▲")
        await pilot.press("S", "S")
        assert app.navigation.sorting.column is None
        await pilot.click(Grid, offset=(11, 0))
        await until(pilot, lambda: app.navigation.sorting == ("server", True))


async def test_the_mouse() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.click(Grid, offset=(12, 2))
        await until(pilot, lambda: app.grid.cursor == 1)
        await pilot.click(Grid, offset=(12, 2))
        await shows(pilot, f"Overview › {app.navigation.place.name('server')}")
        await pilot.click("#crumbs", offset=(3, 0))
        await shows(pilot, "GONE")
        await pilot.click("#tabs", offset=(len("[1 Overview]") + 4, 0))
        await until(pilot, lambda: app.session.view.NAME == VIEWS[1 % len(VIEWS)].NAME)


async def test_pause_freezes_the_screen_and_reading_goes_on() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("space")
        await shows(pilot, "PAUSED")
        shown, looks = app.session.moment.snapshot, feed.looks
        await until(pilot, lambda: feed.looks > looks + 3)
        assert app.session.moment.snapshot is shown
        await pilot.press("space")
        await shows(pilot, "LIVE")
        await until(pilot, lambda: app.session.moment.snapshot is not shown)


async def test_how_often_it_looks() -> None:
    async with console(interval=0.4).run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("plus")
        assert app.session.interval == pytest.approx(0.2)
        await pilot.press("minus", "minus")
        assert app.session.interval == pytest.approx(0.8)
        await pilot.press("colon", *"rate 0.3", "enter")
        await shows(pilot, "every 0.3 s")
        await pilot.press("colon", *"rate often", "enter")
        await shows(pilot, "usage: rate SECONDS")


async def test_help_lists_what_lives_here() -> None:
    async with console().run_test(size=(120, 60), notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("question_mark")
        text = await shows(pilot, "flush the pages of", "ctrl+p", VIEWS[0].QUESTION)
        assert "10 seconds back" not in text, "keys of recordings live elsewhere"
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await shows(pilot, "GONE")


async def test_maximise_goes_round() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        await ready(pilot)
        await pilot.press("m")
        await shows(pilot, "GONE", without=("is out of service",))
        await pilot.press("m")
        await shows(pilot, "is out of service", without=("TTFT p50",))
        await pilot.press("m")
        await shows(pilot, "GONE", "is out of service")


async def test_export(tmp_path: Path) -> None:
    async with console(folder=tmp_path).run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("slash", *"alpha", "enter")
        await pilot.press("e")
        await shows(pilot, "Export what is shown")
        await pilot.press("enter")
        written = tmp_path / "swift-tiers-overview-20261121-030000.csv"
        await until(pilot, written.exists)
        assert written.stat().st_mode & 0o777 == 0o600
        rows = list(csv.DictReader(written.open()))
        assert [row["server"] for row in rows] == ["alpha"]
        assert float(rows[0]["host (share, 0 to 1)"]) == pytest.approx(0.97, abs=0.01), "values, not their pictures"
        assert rows[0]["state"] == "WRONG", "a word, not its number"
        assert rows[0]["p99 (s to the first token, last 256 requests, 5 min at most)"], "a figure with its unit"
        assert "-" not in rows[0].values(), "what is not known is empty"
        await pilot.press("colon", *"export json all.json", "enter")
        await until(pilot, (tmp_path / "all.json").exists)
        assert json.loads((tmp_path / "all.json").read_text())[0]["server"] == "alpha"
        await pilot.press("colon", *"export svg screen.svg", "enter")
        await until(pilot, lambda: "screen.svg" in told(app))
        picture = (tmp_path / "screen.svg").read_text()
        assert picture.startswith("<svg")
        assert "screen" not in picture, "what was typed is no part of the picture"
        before = (tmp_path / "all.json").read_bytes()
        await pilot.press("colon", *"export json all.json", "enter")
        await until(pilot, lambda: "is there already" in told(app))
        assert (tmp_path / "all.json").read_bytes() == before
        assert app.is_running


async def test_a_picture_is_without_what_was_typed_however_soon_it_could_be_taken(tmp_path: Path) -> None:
    """What comes after a refresh may come before the layout that closes the line."""
    async with console(folder=tmp_path).run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        app.call_after_refresh = lambda does, *arguments: does(*arguments)  # type: ignore[method-assign]
        await pilot.press("colon", *"export svg screen.svg", "enter")
        await until(pilot, lambda: "screen.svg" in told(app))
        assert "screen" not in (tmp_path / "screen.svg").read_text()


async def test_one_server_only() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("colon", *"server beta", "enter")
        await shows(pilot, "only beta", without=("GONE",))
        assert [row.key for row in app.grid.rows] == ["beta"]
        await pilot.press("escape")
        await shows(pilot, "GONE", without=("only beta",))
        await pilot.press("colon", *"server delta", "enter")
        await shows(pilot, "there is none; there are all, alpha")


async def test_what_was_typed_comes_back() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("colon", *"rate 5", "enter", "colon", *"rate 6", "enter", "colon", "up", "up", "enter")
        await until(pilot, lambda: app.session.interval == 5.0)
        assert app.session.interval == 5.0


async def test_a_wrong_line_can_be_mended() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("colon", *"rat", "x", "enter")
        await shows(pilot, "ratx: is not known")
        await pilot.press("backspace", *"e 2", "enter")
        await until(pilot, lambda: app.session.interval == 2.0)
        assert not app.entry.is_open


async def test_palette() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("ctrl+p", *"server beta")
        await shows(pilot, "Server beta")
        await pilot.press("enter")
        await until(pilot, lambda: app.navigation.only == "beta")
        assert app.navigation.only == "beta"


async def test_themes() -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        await pilot.press("t")
        assert app.theme == "textual-light"
        assert not app.grid.palette.dark
        await pilot.press("colon", *"theme dark", "enter")
        await until(pilot, lambda: app.theme == "textual-dark")
        await pilot.press("colon", *"theme nord", "enter")
        await until(pilot, lambda: app.theme == "nord")
        await pilot.press("colon", *"theme none", "enter")
        await shows(pilot, "there are dark, light")


async def test_ascii_draws_nothing_else() -> None:
    async with console(ascii=True).run_test(size=SIZE, notifications=True) as pilot:
        await ready(pilot)
        for number in range(1, len(VIEWS) + 1):
            await pilot.press(str(number))
            text = await shows(pilot, f"[{number} ")
            strange = {sign for sign in text if ord(sign) > 126 and sign != "\n"}
            assert not strange, f"view {number}: {strange}"
        await pilot.press("question_mark")
        text = await shows(pilot, "ctrl+p")
        assert {sign for sign in text if ord(sign) > 126} <= {" "}


async def test_a_lost_redis_is_shown_with_the_age_of_what_is_shown_and_heals() -> None:
    feed = WorldFeed()
    clock = [100.0]
    async with console(feed, monotonic=lambda: clock[0]).run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)
        feed.lost = "bus: redis://10.0.0.9:6379 cannot be reached: connection refused"
        await shows(pilot, "LOST", "connection refused", "alpha")  # a look that had begun before has come by then
        clock[0] += 12.0
        await shows(pilot, "LOST", "connection refused", "shown is 12.0 s old", "alpha")
        assert app.grid.dimmed
        feed.lost = ""
        await shows(pilot, "LIVE", without=("LOST",))
        assert not app.grid.dimmed


async def test_a_lost_redis_is_never_called_well() -> None:
    feed = WorldFeed(World(("alpha",), gone=()))
    feed.world.sick = False
    async with console(feed).run_test(size=SIZE) as pilot:
        await shows(pilot, "LIVE", "alpha")
        feed.lost = "bus: connection refused"
        await shows(pilot, "LOST", "not known now", without=("all well", "nothing is wrong "))
        await pilot.press("space")
        await shows(pilot, "LOST", "not known now", without=("all well",))


async def test_pausing_the_demo_is_shown() -> None:
    feed = WorldFeed()
    feed.nature = Nature.DEMO
    async with console(feed).run_test(size=SIZE) as pilot:
        await shows(pilot, "DEMO", "alpha", without=("PAUSED",))
        await pilot.press("space")
        await shows(pilot, "DEMO", "PAUSED")
        await pilot.press("space")
        await shows(pilot, "DEMO", without=("PAUSED",))


async def test_a_key_means_one_thing_in_a_recording(tmp_path: Path) -> None:
    recording = RecordingFeed(WorldFeed(), tmp_path / "world.rec", "0.1.0")
    for _ in range(4):
        recording.look()
    recording.close()
    async with console(RecordedFeed(tmp_path / "world.rec")).run_test(size=(160, 40)) as pilot:
        await shows(pilot, "RECORDING", "space play", "q quit", without=("space pause",))


async def test_without_colours_no_chart_is_underlined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Underlining is what marks a warning then; a chart of requests that wait is none, and blanks have no line."""
    monkeypatch.setenv("NO_COLOR", "1")
    feed = WorldFeed(World(("alpha",), gone=()))
    feed.world.sick = False
    async with console(feed).run_test(size=(180, 48)) as pilot:
        await shows(pilot, "requests waiting")
        app = pilot.app
        underlined = [
            segment.text
            for y in range(app.panel.size.height)
            for segment in app.panel.render_line(y)
            if segment.style is not None and segment.style.underline
        ]
        assert not [text for text in underlined if not text.strip() or set(text) & set("▁▂▃▄▅▆▇█")], underlined


async def test_a_redis_that_was_never_there() -> None:
    feed = WorldFeed()
    feed.lost = "bus: there is no Redis at /run/redis.sock"
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "LOST", "there is no Redis", "swift-tiers doctor")
        feed.lost = ""
        await shows(pilot, "LIVE", "alpha")


async def test_a_view_that_fails_does_not_take_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    async with console().run_test(size=SIZE, notifications=True) as pilot:
        app = await ready(pilot)

        def broken(scene: object) -> None:
            raise ZeroDivisionError("of ours")

        monkeypatch.setattr(app.session.view, "lines", broken)
        await shows(pilot, "this view failed: ZeroDivisionError: of ours")
        await pilot.press("2")
        await shows(pilot, f"[2 {VIEWS[1].TITLE}]" if len(VIEWS) > 1 else "[1 ")


@pytest.mark.parametrize("size", [(80, 24), (300, 80), (40, 10), (20, 6)])
async def test_every_view_at_every_size(size: tuple[int, int]) -> None:
    async with console().run_test(size=size, notifications=True) as pilot:
        app = pilot.app
        await until(pilot, lambda: app.session.moment.snapshot is not None)
        for number in range(1, len(VIEWS) + 1):
            await pilot.press(str(number))
            await pilot.pause()
            assert "this view failed" not in screen_text(app)


async def test_leaving_stops_the_threads() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        await ready(pilot)
        await pilot.press("q")
    looks = feed.looks
    await asyncio.sleep(0.4)
    assert feed.looks <= looks + 1


async def test_what_comes_while_the_console_is_left_is_let_go() -> None:
    app = console()
    async with app.run_test(size=SIZE) as pilot:
        await ready(pilot)
    # Its threads may post until they have seen that it ended.
    app.on_question_answered(QuestionAnswered(ViewQuestion("map", "host"), ViewAnswers(), "", 0.0))
    app.on_look_taken(LookTaken(WorldFeed().look(), 0.0))
    app.on_lost(Lost("gone"))
    app._tick()


async def test_it_rests_when_the_first_look_is_there_and_then_while_nobody_presses_a_key() -> None:
    now, rests = 0.0, []
    app = console(monotonic=lambda: now, rest=lambda: rests.append(now))
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "Overview")
        await until(pilot, lambda: rests == [0.0])
        now = 9.0
        app._tick()
        assert rests == [0.0]
        await pilot.press("j")
        now = 10.5
        app._tick()
        assert rests == [0.0], "a key was pressed just before"
        now = 11.5
        app._tick()
        app._tick()
        assert rests == [0.0, 11.5]
