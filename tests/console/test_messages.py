"""What the console says beneath the view: whole, where it covers nothing, whatever signs are in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from swift_tiers.console.screens.ask import AskScreen

from support.console_screen import console, screen_text, shows, told, until
from support.console_world import WorldFeed

pytestmark = pytest.mark.anyio
SMALL = (80, 24)


@pytest.mark.parametrize("typed", ["/[/", "/[b/", "[/x]", "/(?P<x/", "field:/[/", '"open', "[red", "!/[/"])
async def test_a_filter_may_be_anything(typed: str) -> None:
    """Brackets are no markup; what is no regular expression is said as it is typed."""
    async with console().run_test(size=SMALL) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        await pilot.press("slash", *typed, "enter")
        await pilot.pause(0.2)
        assert app.is_running
        await pilot.press("escape", "escape")
        await until(pilot, lambda: len(app.grid.rows) == 3)


async def test_a_broken_expression_is_said_until_it_is_mended() -> None:
    async with console().run_test(size=SMALL) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        await pilot.press("slash", *"/[be/")
        await shows(pilot, "/[be/: not a regular expression: unterminated character set")
        await pilot.press("backspace", *"]/")
        await shows(pilot, "/[be]/", without=("not a regular expression",))
        assert app.entry.is_open


async def test_a_long_refusal_is_whole_at_80_columns_and_what_was_typed_stays() -> None:
    async with console().run_test(size=SMALL) as pilot:
        await shows(pilot, "alpha")
        await pilot.press("colon", *"nonsense", "enter")
        text = await shows(pilot, "nonsense: is not known; there are overview", ": nonsense", "quit")
        assert "alpha" in text, "the view is not covered"
        await pilot.press("escape")
        await shows(pilot, "alpha", without=("is not known",))


@pytest.mark.parametrize("line", ["rate nan", "rate inf", "rate -1", "rate 0", "rate 1e999", "rate 61", "rate"])
async def test_a_rate_that_is_none_changes_nothing(line: str) -> None:
    async with console(interval=0.4).run_test(size=SMALL) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        await pilot.press("colon", *line, "enter")
        await until(pilot, lambda: "rate" in told(app))
        assert app.session.interval == 0.4


async def test_messages_never_lie_over_a_question() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SMALL) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        for _ in range(3):
            app.tell("something that was refused; usage: control SERVER set-policy " + "a|" * 80, bad=True)
        await pilot.press("g", "F", *"host", "enter")
        await shows(pilot, "Yes (y)", "No (n)", "It forgets the pages of its namespace", "no answer")


async def test_only_the_newest_message_is_there_and_a_click_takes_it_away() -> None:
    async with console().run_test(size=SMALL) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        app.tell("the first one")
        app.tell("the second one")
        await shows(pilot, "the second one", without=("the first one",))
        await pilot.click("#said")
        await shows(pilot, "alpha", without=("the second one",))


async def test_a_message_leaves_the_cursor_in_sight() -> None:
    async with console().run_test(size=SMALL) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        await pilot.press("2")
        await until(pilot, lambda: len(app.grid.rows) > 20)
        height = app.grid.size.height
        for _ in range(height - 2):
            await pilot.press("j")
        key = app.grid.row.key
        app.tell("a message " * 20)
        await until(pilot, lambda: app.grid.size.height < height)

        def in_sight() -> bool:
            top = app.grid.scroll_offset.y
            return top <= app.grid.cursor < top + app.grid.size.height - 1

        await until(pilot, in_sight)
        assert app.grid.row.key == key


async def test_an_export_that_fails_asks_again_with_what_was_typed(tmp_path: Path) -> None:
    async with console(folder=tmp_path / "nowhere").run_test(size=SMALL) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        await pilot.press("e", "enter")
        await shows(pilot, "Export what is shown", "No such file or")
        assert isinstance(app.screen, AskScreen)
        app.screen.query_one(Input).value = f"json {tmp_path}/two words.json"
        await pilot.press("enter")
        await until(pilot, (tmp_path / "two words.json").exists)
        await until(pilot, lambda: "written: " in told(app))
        await pilot.press("e", *["backspace"] * 3, *"yaml", "enter")
        await shows(pilot, "export yaml: there are csv, json, svg")
        await pilot.press("escape")
        await shows(pilot, "alpha", without=("export yaml",))


async def test_the_panel_alone_is_scrolled_by_keys_and_says_so_where_it_is_cut() -> None:
    async with console().run_test(size=(80, 10)) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        await pilot.press("enter")
        await shows(pilot, "more lines: m shows them")
        await pilot.press("m", "m")
        await shows(pilot, "lines alone (m)", without=("more lines",))
        assert app.focused is app.panel
        before = screen_text(app)
        await pilot.press("j", "j")
        await until(pilot, lambda: app.panel.scroll_offset.y == 2)
        assert screen_text(app) != before
        await pilot.press("G")
        await until(pilot, lambda: app.panel.scroll_offset.y == app.panel.max_scroll_y > 2)
        await pilot.press("m")
        await shows(pilot, "rank", "tier", without=("alone (m)",))
        assert app.focused is app.grid


async def test_a_lost_redis_is_explained_whole_on_a_narrow_terminal() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SMALL) as pilot:
        await shows(pilot, "alpha")
        feed.lost = (
            "Redis at redis://10.0.0.9:6379/0: no answer within 1 s; check that it runs and that it may be reached"
        )
        await shows(pilot, "check that it runs", "may be reached", "servers go on without it", "LOST", "alpha")
        feed.lost = ""
        await shows(pilot, "LIVE", without=("servers go on without it",))


async def test_an_empty_bus_is_not_called_well() -> None:
    feed = WorldFeed()
    feed.world.servers = ()
    async with console(feed).run_test(size=SMALL) as pilot:
        await shows(pilot, "no server is on this bus", "--enable-swift-tiers", without=("all well", "nothing is wrong"))
        feed.world.servers = ("alpha",)
        await shows(pilot, "alpha", without=("no server",))


@pytest.mark.parametrize(
    "line", ["rate nan", "server nobody", "sort nothing", "theme neon", "export csv /nowhere/x",
             "control alpha flush x y",
             "seek 10", "export pdf", "page", "blocks nobody"],
)  # fmt: skip
async def test_a_command_that_cannot_be_done_stays_to_be_mended(line: str) -> None:
    async with console(interval=0.4).run_test(size=SMALL) as pilot:
        app = pilot.app
        await shows(pilot, "alpha")
        await pilot.press("colon", *line, "enter")
        await until(pilot, lambda: bool(told(app)))
        await shows(pilot, f": {line}")
        await shows(pilot, "help", told(app)[:40].partition(" ")[0])
        await pilot.press("escape")
        await until(pilot, lambda: not app.entry.is_open)
        assert told(app) == ""


@pytest.mark.parametrize("ascii", [False, True])
async def test_the_palette_has_our_commands_alone(ascii: bool) -> None:
    async with console(ascii=ascii).run_test(size=SMALL) as pilot:
        await shows(pilot, "alpha")
        await pilot.press("ctrl+p")
        text = await shows(pilot, "a view, a server", "View Blocks", without=("Screenshot", "focused"))
        assert not ascii or {sign for sign in text if ord(sign) > 126} <= {"\n"}
        await pilot.press(*"quit", "enter")
        await until(pilot, lambda: not pilot.app.is_running)
