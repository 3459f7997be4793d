"""The console's feed over a real Redis with servers' state written by hand, and its threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from swift_tiers.console.feeds.live import LiveFeed
from swift_tiers.console.model.events import EventHistory
from swift_tiers.console.model.history import History
from swift_tiers.console.model.moment import Moment
from swift_tiers.radix_tiering.base.errors import BusError
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.contract.commands import Flush
from swift_tiers.radix_tiering.bus.contract.views import RequestView

from support.bus import HandWritten
from support.console_screen import SIZE, console, shows
from support.console_world import WorldFeed
from support.redis import RealRedis, answers, wait_for

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[RealRedis]:
    with RealRedis() as redis:
        yield redis


def live(server: RealRedis, **options: object) -> LiveFeed:
    return LiveFeed(parse_config({"bus": {"url": server.url}}).bus, "ann@box", steers=True, **options)  # type: ignore[arg-type]


def test_a_look_has_the_state_and_what_happened_since(server: RealRedis) -> None:
    alpha = HandWritten(server.client(), "alpha").write()
    feed = live(server)
    look = feed.look()
    assert [state.server.server for state in look.snapshot.servers] == ["alpha"]
    assert [event.kind for event in look.items] == ["stripe.opened"]
    alpha.event("device.out", device="/ssd1")
    assert [event.kind for event in feed.look().items] == ["device.out"]
    assert feed.look().items == ()
    feed.close()


def test_requests_are_only_as_old_as_is_wanted_and_their_ages_tell(server: RealRedis) -> None:
    """Looks that do not read them again show how old they are all the same."""
    alpha = HandWritten(server.client(), "alpha", offset=500.0).write()
    feed = live(server)
    feed.look()
    feed.requests_seconds = 1e6
    alpha.request("new", ago=0.0)
    history, events = History(), EventHistory()

    def moment() -> Moment:
        return Moment(feed.look().snapshot, 0.25, "", history, (), events)

    def request(moment: Moment) -> RequestView:
        (one,) = moment.servers[0].ranks[0].requests
        return one

    first = moment()
    second = wait_for(lambda: one if (one := moment()).snapshot.time > first.snapshot.time + 0.2 else None)
    assert request(second) == request(first)
    aged = second.age_of(request(second)) - first.age_of(request(first))
    assert aged == pytest.approx(second.snapshot.time - first.snapshot.time)
    feed.requests_seconds = 0.0
    assert len(moment().servers[0].ranks[0].requests) == 2
    feed.close()


async def test_a_view_that_shows_requests_has_them_read_in_every_look() -> None:
    feed = WorldFeed()
    app = console(feed)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "Overview")
        assert feed.requests_seconds > 0
        for number, name in enumerate(app.session.views, 1):
            await pilot.press(str(number))
            assert name == app.session.view.NAME
            assert (feed.requests_seconds == 0) == (name in ("blocks", "restores"))


def test_it_opens_the_bus_anew_after_an_error(server: RealRedis) -> None:
    HandWritten(server.client(), "alpha").write()
    feed = live(server)
    feed.look()
    server.kill()
    with pytest.raises(BusError):
        feed.look()
    server.restart(empty=True)
    HandWritten(server.client(), "beta").write()
    assert [state.server.server for state in feed.look().snapshot.servers] == ["beta"]
    feed.close()


def test_a_command_to_nobody_is_an_error_and_looking_goes_on(server: RealRedis) -> None:
    HandWritten(server.client(), "alpha").write()
    feed = live(server, timeout=1.0)
    with pytest.raises(BusError, match="not known here"):
        feed.command("delta", Flush())
    assert feed.look().snapshot.servers
    feed.close()


async def test_a_redis_that_is_stopped_hung_and_back(server: RealRedis) -> None:
    alpha = HandWritten(server.client(), "alpha", offset=86_400.0).write()
    async with console(live(server)).run_test(size=SIZE, notifications=True) as pilot:
        text = await shows(pilot, "LIVE", "alpha")
        assert "its clock is 1 d" in text, "a clock that is a day ahead is said"
        await pilot.press("enter")
        await shows(pilot, "up 2 h, heard of", "clock +86400")  # and does not make it older than it is
        server.kill()
        await shows(pilot, "LOST", "alpha")
        server.restart(empty=True)
        HandWritten(server.client(), "alpha").write()
        await shows(pilot, "LIVE", "alpha", without=("LOST", "its clock is"))
        assert alpha.name == "alpha"


async def test_keys_work_while_redis_hangs(server: RealRedis) -> None:
    HandWritten(server.client(), "alpha").write()
    async with console(live(server)).run_test(size=SIZE) as pilot:
        await shows(pilot, "LIVE", "alpha")
        server.pause(3600)
        await pilot.press("enter")
        await shows(pilot, "Overview › alpha")
        assert not answers(server.client(socket_timeout=0.2, retry=None)), "Redis was back before the screen changed"
        server.restart()
        HandWritten(server.client(), "alpha").write()
        await shows(pilot, "LIVE", "alpha")


def test_close_while_looking(server: RealRedis) -> None:
    """Leaving must not wait for a Redis that hangs."""
    HandWritten(server.client(), "alpha").write()
    feed = live(server)
    feed.look()
    feed.close()
    feed.close()
    assert wait_for(lambda: feed.look().snapshot.servers)
    feed.close()
