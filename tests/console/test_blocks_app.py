"""The blocks view in a running console: the cursor, the heat map, the mouse."""

from __future__ import annotations

import pytest

from swift_tiers.console.feeds.feed import ViewQuestion
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.radix_tiering.bus.contract.commands import Pin

from support.console_screen import SIZE, console, screen_text, shows, until
from support.console_world import WorldFeed

pytestmark = pytest.mark.anyio

KEY = "5e" * 32
DEVICE = Place("blocks", (PlaceStep("server", "alpha"), PlaceStep("rank", "dp0-tp0"), PlaceStep("tier", "device")))


async def test_a_click_in_the_map_moves_the_cursor_and_the_map_follows_it() -> None:
    app = console()
    async with app.run_test(size=SIZE) as pilot:
        app.enter(DEVICE)
        await shows(pilot, "46,605 slots", "slot 1: free")
        await pilot.click("#panel", offset=(40, 8))
        await until(pilot, lambda: app.grid.cursor > 0)
        row = app.grid.row
        assert row is not None
        text = await shows(pilot, f"slot {row.cells[0].text}: cached")
        lines = text.splitlines()
        line = next(
            number for number, one in enumerate(lines) if app.session.glyphs.marked in one[:60] and "slot" not in one
        )
        assert lines[line].index(app.session.glyphs.marked) == 40
        await pilot.press("down")
        await shows(pilot, f"slot {int(row.cells[0].text) + 1}: cached")


async def test_a_click_before_the_signs_does_nothing() -> None:
    app = console()
    async with app.run_test(size=SIZE) as pilot:
        app.enter(DEVICE)
        await shows(pilot, "46,605 slots")
        await pilot.click("#panel", offset=(3, 8))
        await pilot.pause()
        assert app.grid.cursor == 0


async def test_from_a_request_to_a_page_to_a_slot_and_back() -> None:
    app = console()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await shows(pilot, "0decode")
        app.grid.select(f"alpha dp0-tp0 0decode{'0' * 25}")
        await pilot.press("enter")
        await shows(pilot, "133 pages of 16 tokens", "240-255", "0000000000000001")
        app.grid.select("127")
        await pilot.press("enter")
        await shows(pilot, "computed here", "unit 0 of 2: device 0, slot 228")
        await pilot.press("down", "enter")  # its copy in host memory
        await shows(pilot, "host of alpha dp0-tp0", "slot 127: cached")
        await pilot.press("escape", "escape", "escape")
        await shows(pilot, "blocks of")
        assert app.navigation.place == Place("blocks")


async def test_maps_are_asked_of_the_server_under_the_cursor() -> None:
    feed = WorldFeed()
    app = console(feed)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: ViewQuestion("map", "device", "alpha") in feed.asked)
        assert not [question for question in feed.asked if question.server == "beta"]
        app.grid.select("beta dp0-tp0 host")
        await until(pilot, lambda: ViewQuestion("map", "ssd", "beta") in feed.asked)
        await shows(pilot, "beta dp0-tp0  answered")


async def test_a_page_is_pinned() -> None:
    feed = WorldFeed()
    app = console(feed)
    async with app.run_test(size=SIZE) as pilot:
        app.typed.line(f"page {KEY}")
        await shows(pilot, "computed here")
        await pilot.press("p")
        await shows(pilot, "pin page 5e5e5e5e5e5e5e5e")
        await pilot.press("y")
        await until(pilot, lambda: feed.sent == [("alpha", Pin(page=KEY))])


async def test_the_tree_leads_to_pages() -> None:
    app = console()
    async with app.run_test(size=SIZE) as pilot:
        app.action_view("tree")
        await shows(pilot, "80%", "12.3k")
        app.grid.select("alpha dp0-tp0 33")
        await pilot.press("enter")
        await shows(pilot, "computed here")
        await pilot.press("escape")
        await shows(pilot, "largest of")
        assert "reuse" in screen_text(app)


async def test_a_tier_is_sifted_and_a_filter_that_nothing_passes_says_so() -> None:
    app = console()
    async with app.run_test(size=SIZE) as pilot:
        app.enter(DEVICE)
        await shows(pilot, "46,605 slots")
        app.typed.line("filter state:recomputing")
        text = await shows(pilot, "1/40 of 46605")
        assert "slot 20396: recomputing" in text
        app.typed.line("filter state:nothing")
        await shows(pilot, "nothing passes the filter", without=("it has no slots",))
