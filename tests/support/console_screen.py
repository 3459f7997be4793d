"""What a running console shows, as text, and waiting until it shows something."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from textual.pilot import Pilot

from swift_tiers.console import ConsoleApp
from swift_tiers.console.feeds.feed import Feed

from support.console_world import World, WorldFeed

#: A guard against hanging, not a measure.
PATIENCE = 60.0
SIZE = (120, 40)
NOW = datetime(2026, 11, 21, 3, 0, 0)


def console(feed: Feed | None = None, **options: Any) -> ConsoleApp:
    """A console that looks often, at a world of three servers or at a feed; its wall clock stands still."""
    settings = {"interval": 0.1, "now": lambda: NOW, **options}
    return ConsoleApp(WorldFeed(World()) if feed is None else feed, **settings)


def screen_text(app: ConsoleApp) -> str:
    """Every line of the screen as it is drawn, what lies above a view included."""
    width, height = app.size
    lines = app.screen._compositor.render_strips() if hasattr(app.screen, "_compositor") else []
    text = "\n".join("".join(segment.text for segment in strip) for strip in lines)
    assert (len(lines), width > 0) == (height, True)
    return text


async def shows(pilot: Pilot[Any], *words: str, without: tuple[str, ...] = ()) -> str:
    """Wait until the screen has all these words and none of the others; its text."""
    app = pilot.app
    text = ""

    def there() -> bool:
        nonlocal text
        if pilot.app.screen._compositor.size != pilot.app.size:
            return False  # it was opened just now, and has not been laid out
        text = screen_text(app)  # type: ignore[arg-type]
        return all(word in text for word in words) and not any(word in text for word in without)

    await until(pilot, there, lambda: f"{[word for word in words if word not in text]} is not in\n{text}")
    return text


async def until(pilot: Pilot[Any], condition: Callable[[], Any], what: Callable[[], str] = lambda: "") -> None:
    """Wait until it is true; `what` says afterwards why it is not."""
    waited = 0.0
    while not condition():
        assert waited < PATIENCE, what()
        await pilot.pause(0.05)
        waited += 0.05


def told(app: ConsoleApp) -> str:
    """The words beneath the view that go away by themselves; on the screen they are broken into lines."""
    return app.said.text
