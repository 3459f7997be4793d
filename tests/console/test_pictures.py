"""A picture of every view, at two sizes, in colour and without. Those in `__snapshots__` were looked at.

After a change that is meant to be seen: `./swift python -m pytest tests/console/test_pictures.py --snapshot-update`,
and look at them again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from swift_tiers.console import ConsoleApp
from swift_tiers.console.views import VIEWS

from support.console_screen import console, until
from support.console_world import StillFeed

#: Until nothing changes any more: looks that the world goes on for.
LOOKS = 24


#: Each size and each way to colour; all of them with `--all`.
SIZES = {"160x48-colour": ((160, 48), True), "80x24-monochrome": ((80, 24), False)}
OTHERS = {"160x48-monochrome": ((160, 48), False), "80x24-colour": ((80, 24), True)}
in_all_sizes = pytest.mark.parametrize(
    ("size", "colour"),
    [
        *(pytest.param(*one, id=name) for name, one in SIZES.items()),
        *(pytest.param(*one, id=name, marks=pytest.mark.exhaustive) for name, one in OTHERS.items()),
    ],
)


@in_all_sizes
@pytest.mark.parametrize("number", range(1, len(VIEWS) + 1), ids=[view.NAME for view in VIEWS])
def test_views(
    number: int, size: tuple[int, int], colour: bool, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = StillFeed(LOOKS)
    assert snap_compare(picture(feed, colour, monkeypatch), terminal_size=size, run_before=still(feed, number))


@in_all_sizes
def test_links_of_servers_on_gpus(
    size: tuple[int, int], colour: bool, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With NVML's figures beside the engine's."""
    feed = StillFeed(LOOKS)
    feed.world.on_gpus = True
    assert snap_compare(picture(feed, colour, monkeypatch), terminal_size=size, run_before=still(feed, 3))


def picture(feed: StillFeed, colour: bool, monkeypatch: pytest.MonkeyPatch) -> ConsoleApp:
    """The console that is drawn."""
    if colour:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "UTC")  # events are shown by local time
    time.tzset()
    return console(feed, interval=0.02, monotonic=lambda: 100.0)


def still(feed: StillFeed, number: int) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Until the view with this number has all that it asks for, and nothing changes any more."""

    async def wait(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ConsoleApp)
        await pilot.press(str(number))
        await until(pilot, lambda: feed.looks > LOOKS + 1)
        wanted = app.session.view.questions(app.session.scene())
        await until(pilot, lambda: set(wanted) <= app.session.scene().answers.keys())
        app._looker.stop()
        app.set_rate(0.5)
        await pilot.pause()

    return wait
