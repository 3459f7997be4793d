"""Draws the pictures of docs/pictures from the demo.

    python -m swift_tiers.ops.commands.console_demo.pictures docs/pictures

Time is made up, so that the same code draws the same pictures. They are to be looked at before they are committed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from textual.pilot import Pilot

from swift_tiers.console.app import ConsoleApp
from swift_tiers.console.feeds.feed import Look

from .feed import DemoFeed

#: When the demo is looked at first, seconds since 1970; what its screens show as the time.
BEGIN = 1_793_500_000.0
#: Between two looks, seconds of the demo.
APART = 0.5
#: Looks at what stands still, until all of it is on the screen.
LOOKS = 20
#: How long the screen may take to show what it has been told, seconds.
PATIENCE = 120.0


class Picture(NamedTuple):
    """One screen: the keys that lead there, and after how long in the demo."""

    name: str
    size: tuple[int, int]
    after: float  # seconds
    keys: tuple[str, ...]


PICTURES = (
    Picture("overview", (120, 36), 65.0, ("1",)),
    Picture("overview-80x24", (80, 24), 65.0, ("1",)),
    Picture("blocks", (120, 36), 65.0, ("2",)),
    Picture("links", (120, 36), 65.0, ("3",)),
    Picture("stripes", (120, 36), 100.0, ("4",)),
    Picture("restores", (120, 36), 100.0, ("5",)),
    Picture("leases", (120, 36), 65.0, ("6",)),
    Picture("tree", (120, 36), 65.0, ("7",)),
    Picture("events", (120, 36), 100.0, ("8",)),
)


class Frozen(DemoFeed):
    """Goes on by one step with each look, until it has come so far; then it stands still."""

    def __init__(self, after: float) -> None:
        self.now = 0.0
        self.late_looks = 0
        self._after = after
        super().__init__(monotonic=lambda: self.now, wall=lambda: BEGIN)

    def look(self) -> Look:
        if self.now < self._after:
            self.now += APART
        else:
            self.late_looks += 1
        return super().look()


async def draw(picture: Picture) -> str:
    """The screen as SVG."""
    feed = Frozen(picture.after)
    app = ConsoleApp(
        feed, interval=0.02, monotonic=lambda: 0.0, now=lambda: datetime.fromtimestamp(BEGIN + feed.now, UTC)
    )
    async with app.run_test(size=picture.size) as pilot:
        for key in picture.keys:
            await pilot.press(key)
        await _until(pilot, lambda: _is_still(app, feed))
        await pilot.pause()
        return app.export_screenshot(title="swift-tiers console --demo")


def _is_still(app: ConsoleApp, feed: Frozen) -> bool:
    """Whether the demo stands, some looks at it were painted, and what the view asks was answered."""
    return feed.late_looks >= LOOKS and all(
        one in app.session.answers for one in app.session.view.questions(app.session.scene())
    )


async def _until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError("the demo does not come to its end")
        await pilot.pause(0.05)


def main(folder: Path) -> None:
    os.environ.pop("NO_COLOR", None)
    os.environ["TZ"] = "UTC"  # events are shown by local time
    time.tzset()
    for picture in PICTURES:
        svg = asyncio.run(draw(picture))
        path = folder / f"{picture.name}.svg"
        path.write_text(svg)
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
