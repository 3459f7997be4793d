"""Links, stripes and restores in a running console: from one to the other by keys, and what is sent."""

from __future__ import annotations

import pytest

from swift_tiers.console.feeds.feed import ViewQuestion
from swift_tiers.radix_tiering.bus.contract.commands import AddDevice, DrainDevice

from support.console_screen import SIZE, console, screen_text, shows, until
from support.console_world import KEY, WorldFeed

pytestmark = pytest.mark.anyio


async def test_from_a_lane_to_a_request_to_where_its_units_lie_and_back() -> None:
    feed = WorldFeed()
    app = console(feed)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "alpha")
        await pilot.press("4")
        await shows(pilot, "write failed: Input/output error", "queue")
        await pilot.press("enter")
        await shows(pilot, "device 0 in service", "requests in flight", "enter shows where its units lie")
        await pilot.press("enter")
        await shows(pilot, "stripe units of the prefix", "slots")
        await until(pilot, lambda: ViewQuestion("prefix", KEY, "alpha") in feed.asked)
        await pilot.press("enter")
        await shows(pilot, "device 0 in service")
        for _ in range(4):
            await pilot.press("escape")
        await shows(pilot, "how do the SSDs do", without=("requests in flight",))


async def test_from_a_restore_to_its_story_to_its_stripe_units() -> None:
    app = console()
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "alpha")
        await pilot.press("5")
        await shows(pilot, "running", "in time", "token-wise: loading all takes 2.1 s")
        await pilot.press("/", *"late", "enter", "enter")
        await shows(pilot, "it fell behind: ssd fell behind", "where its stripe units lie")
        app.grid.select("where its stripe units lie")
        await pilot.press("enter")
        await shows(pilot, "stripe units of the prefix")


async def test_from_a_way_to_one_rank_of_it() -> None:
    app = console()
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "alpha")
        await pilot.press("3")
        await shows(pilot, "to host", "at most", "busy")
        await pilot.press("/", *"from:ssd", "enter", "enter")
        await shows(pilot, "pages read for restores", "copies/s", "beta")
        await pilot.press("enter")
        await shows(pilot, "ssd-host", "alpha", "dp0-tp0", without=("beta",))


async def test_draining_and_adding_devices_are_confirmed_and_sent() -> None:
    feed = WorldFeed()
    app = console(feed)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "alpha")
        await pilot.press("4")
        await shows(pilot, "queue")
        await pilot.press("j", "D")
        await shows(pilot, "drain device 1 of alpha", "gets no new pages any more")
        assert not feed.sent
        await pilot.press("y")
        await until(pilot, lambda: feed.sent == [("alpha", DrainDevice(device=1))])
        await pilot.press("A")
        await shows(pilot, "add a device to the stripe set of alpha")
        await pilot.press(*"/ssd9", "enter")
        await shows(pilot, "Name it under ssd.directories")
        await pilot.press("y")
        await until(pilot, lambda: feed.sent[1:] == [("alpha", AddDevice(directory="/ssd9"))])


@pytest.mark.parametrize("number", ["3", "4", "5"])
async def test_a_lost_bus_leaves_what_was_known_and_takes_nothing_for_new(number: str) -> None:
    feed = WorldFeed()
    app = console(feed)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "alpha")
        await pilot.press(number)
        await until(pilot, lambda: len(app.grid.rows) > 0)
        rows = len(app.grid.rows)
        feed.lost = "Redis at nowhere: connection refused"
        await shows(pilot, "connection refused")
        assert len(app.grid.rows) == rows
        assert app.grid.dimmed
        assert "this view failed" not in screen_text(app)
