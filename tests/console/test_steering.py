"""What the operator steers: asked for, confirmed, sent, acknowledged or refused."""

from __future__ import annotations

import msgspec
import pytest
from textual.pilot import Pilot

from swift_tiers.console import ConsoleApp
from swift_tiers.console.screens.ask import AskScreen
from swift_tiers.radix_tiering.base.errors import BusError, CommandUnclearError
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand, CapTier, DrainDevice, Flush
from swift_tiers.radix_tiering.bus.contract.views import CommandView

from support.console_screen import SIZE, console, shows, told, until
from support.console_world import WorldFeed

pytestmark = pytest.mark.anyio


async def at_alpha(pilot: Pilot) -> ConsoleApp:
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    await shows(pilot, "alpha", "F flush")
    app.grid.select("alpha")
    return app


async def test_nothing_is_sent_without_a_yes() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        await at_alpha(pilot)
        await pilot.press("F", *"all", "enter")
        await shows(pilot, "flush the pages of alpha all?", "Requests recompute", '{"type":"flush","tiers":"all"}')
        await pilot.press("enter")
        await shows(pilot, "GONE")
        await pilot.press("F", *"host", "enter", "n")
        await pilot.press("F", "escape")
        await pilot.pause(0.1)
        assert feed.sent == []


async def test_a_yes_sends_it_and_the_acknowledgement_is_shown() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        app = await at_alpha(pilot)
        await pilot.press("F", *"host", "enter")
        await shows(pilot, "flush the pages of alpha host?")
        await pilot.press("y")
        await until(pilot, lambda: "done: flush the pages of alpha; dp0-tp0: done" in told(app))
        assert feed.sent == [("alpha", Flush(tiers="host"))]


async def test_a_refusal_stays_until_it_was_read() -> None:
    feed = WorldFeed()
    feed.outcome = CommandView(
        server="", id="c-2", state="refused", reason="bus.control is false", ranks={"dp0-tp0": "refused: no"}
    )
    async with console(feed).run_test(size=SIZE) as pilot:
        await at_alpha(pilot)
        await pilot.press("C", *"host 8GiB", "enter", "y")
        await shows(pilot, "REFUSED: limit a tier of alpha", "bus.control is false", "dp0-tp0: refused: no")
        assert feed.sent == [("alpha", CapTier(tier="host", limit="8GiB"))]
        await pilot.press("enter")
        await shows(pilot, "GONE")


@pytest.mark.parametrize(
    ("error", "title"),
    [
        (BusError("server alpha: is gone"), "NOT DONE"),
        (CommandUnclearError("not answered", "nobody answered within 10 s"), "NOT ANSWERED"),
        (CommandUnclearError("not known", "no answer within 1 s"), "NOT KNOWN"),
        (CommandUnclearError("not finished", "no word from dp0-tp1"), "NOT FINISHED"),
        (ValueError("a fault of ours, before or after it was sent"), "NOT KNOWN"),
    ],
)
async def test_what_was_sent_is_not_called_not_done(error: Exception, title: str) -> None:
    class Failing(WorldFeed):
        def command(self, server: str, command: AnyCommand) -> CommandView:
            raise error

    async with console(Failing()).run_test(size=SIZE) as pilot:
        await at_alpha(pilot)
        await pilot.press("F", *"host", "enter", "y")
        await shows(pilot, f"{title}: flush the pages of alpha", str(error))


async def test_what_cannot_be_understood_is_not_asked_about() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        app = await at_alpha(pilot)
        await pilot.press("F", *"everything", "enter")
        await shows(pilot, "everything", "tiers 'everything'")
        assert isinstance(app.screen, AskScreen), "what was typed is there to be mended"
        await pilot.press(*["backspace"] * len("everything"), *"host", "enter")
        await shows(pilot, "flush the pages of alpha host?")
        assert feed.sent == []


async def test_a_value_that_can_only_be_refused_is_not_asked_about() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        app = await at_alpha(pilot)
        await pilot.press("colon", *"control alpha set-policy eviction mru", "enter")
        await until(pilot, lambda: 'policy.eviction: \'mru\' is not one of "lru" | "lfu"' in told(app))
        assert app.entry.is_open, "what was typed is there to be mended"
        await pilot.press("escape", "C", *"host much", "enter")
        await shows(pilot, "limit: 'much' is not a size")
        assert isinstance(app.screen, AskScreen)
        assert feed.sent == []


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_fields_of_the_policy_are_listed_with_what_they_are_now(size: tuple[int, int]) -> None:
    async with console().run_test(size=size, notifications=True) as pilot:
        await at_alpha(pilot)
        await pilot.press("P")
        text = await shows(pilot, "change a policy value of alpha", "FIELD VALUE", "enter: go on")
        words = " ".join(text.replace("│", " ").split())
        for now in ("eviction lfu", "write through", "restore.strategy auto", "ssd.throttle ?"):
            assert now in words, words
        await pilot.press(*"eviction mru", "enter")
        await shows(pilot, "is not one of")


async def test_names_of_others_do_not_steer_the_terminal() -> None:
    feed = WorldFeed()
    feed.outcome = CommandView(
        server="", id="c-2", state="refused", reason="no\x1b[31m", ranks={"dp0-\x07tp0": "refused: \x1b]0;pwned\x07"}
    )
    async with console(feed).run_test(size=SIZE) as pilot:
        app = await at_alpha(pilot)
        await pilot.press("C", *"host 8GiB", "enter", "y")
        text = await shows(pilot, "REFUSED", "no\\x1b[31m", "dp0-\\x07tp0: refused: \\x1b]0;pwned\\x07")
        assert not {"\x1b", "\x07"} & set(text)
        assert told(app) == "", "that it was sent is no news any more"
        await pilot.press("enter")
        app.tell("there are \x1b[2Jall")
        text = await shows(pilot, "there are \\x1b[2Jall")
        assert "\x1b" not in text


async def test_typed_commands() -> None:
    feed = WorldFeed()
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        app = await at_alpha(pilot)
        await pilot.press("colon", *"control beta drain-device 2", "enter")
        await shows(pilot, "drain-device 2 at beta?", "gets no new pages any more")
        await pilot.press("y")
        await until(pilot, lambda: feed.sent == [("beta", DrainDevice(device=2))])
        await pilot.press("colon", *"control drain-device 2", "enter")
        await until(pilot, lambda: "say which server: alpha, beta" in told(app))
        await pilot.press("escape", "colon", *"control beta drain-device two", "enter")
        await until(pilot, lambda: "usage: control SERVER drain-device DEVICE" in told(app))
        assert len(feed.sent) == 1


async def test_readonly_has_no_such_keys() -> None:
    feed = WorldFeed(steers=False)
    async with console(feed).run_test(size=SIZE, notifications=True) as pilot:
        app = pilot.app
        text = await shows(pilot, "alpha", "readonly")
        assert "flush" not in text
        await pilot.press("F")
        assert len(app.screen_stack) == 1
        await pilot.press("colon", *"control alpha flush", "enter")
        await until(pilot, lambda: "nothing is steered from here" in told(app))
        await pilot.press("escape", "question_mark")
        await shows(pilot, "Steering is off")
        assert feed.sent == []


async def test_servers_that_obey_no_commands_are_offered_none() -> None:
    class Deaf(WorldFeed):
        def look(self):
            look = super().look()
            servers = tuple(
                msgspec.structs.replace(state, server=msgspec.structs.replace(state.server, control=False))
                for state in look.snapshot.servers
            )
            return msgspec.structs.replace(look, snapshot=msgspec.structs.replace(look.snapshot, servers=servers))

    async with console(Deaf()).run_test(size=SIZE) as pilot:
        text = await shows(pilot, "alpha", "GONE")
        assert "flush" not in text
