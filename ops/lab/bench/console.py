"""What the console takes of a core, and how soon a key is on the screen: eight busy servers, 100,000 pages.

The servers are on a real Redis only, where a process of its own says twice a second what they would. The console looks
twice a second, at 160x48, and draws into nothing. For each view in turn, and for the map of one device with 100,000
slots: CPU time of the console's process, all threads, over time. Then keys, one after the other: from the key to the
end of drawing the frame that shows what it did, by the console's own clock; looks come meanwhile as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from textual import events
from textual.pilot import Pilot

from swift_tiers.console import ConsoleApp
from swift_tiers.console.collector import Collector
from swift_tiers.console.feeds.live import LiveFeed
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.model.sieve import Sieve
from swift_tiers.console.views import VIEWS
from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.bus.redis.redis_server import EmbeddedRedis

from ...base.errors import CommandError
from ...commands.bench.report import Figure, finish, parser

SERVERS, PAGES, SIZE, INTERVAL = 8, 100_000, (160, 48), 0.5
CPU_BOUND, KEY_BOUND = 10.0, 50.0
PATIENCE_SECONDS = 20.0
#: A key that has changed nothing after so long does nothing here.
KEY_SECONDS = 0.5
#: What tables of requests are sifted for: it stands in one of 2,000, and every cell of the others is looked at.
WORD = "ended-0123"
#: Keys that are pressed in each view.
KEYS = ("j", "j", "k", "G", "g", "s", "s", "S", "S", "m", "m", "m", "pagedown", "pageup")


class Frame(NamedTuple):
    """When one was drawn, and what a key could have changed of it."""

    time: float
    state: tuple[Any, ...]


class TimedConsole(ConsoleApp):
    """Remembers its frames."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.frames: list[Frame] = []

    def state(self) -> tuple[Any, ...]:
        """Place, cursor, what is scrolled, sorted and visible."""
        grid, panel, hidden = self.grid, self.panel, self.grid.has_class("-hidden")
        sorting = None if hidden or not grid.table.columns else self.navigation.sorting
        return (
            self.navigation.place, grid.cursor, grid.scroll_offset, sorting, hidden, panel.has_class("-hidden"),
            panel.size,
        )  # fmt: skip

    def _display(self, *arguments: Any) -> None:
        super()._display(*arguments)
        self.frames.append(Frame(time.perf_counter(), self.state()))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser("console", __doc__, rounds=1)
    arguments.add_argument("--seconds", type=float, default=10.0, help="in each view (%(default)s)")
    arguments.add_argument("--servers", type=int, default=SERVERS, help="how many are watched (%(default)s)")
    arguments.add_argument("--pages", type=int, default=PAGES, help="of each server's device (%(default)s)")
    known = [view.NAME for view in VIEWS]
    arguments.add_argument("--views", nargs="+", default=known, choices=known, metavar="VIEW", help="these only")
    options = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="swift-bench-", ignore_cleanup_errors=True) as folder:
        return _measure(Path(folder), options)


def _measure(folder: Path, options: argparse.Namespace) -> int:
    bus = EmbeddedRedis(folder)
    bus.ensure()
    socket = str(folder / "redis.sock")
    words = [
        sys.executable,
        "-m",
        "swift_tiers.ops.lab.bench.console_servers",
        socket,
        str(options.servers),
        str(options.pages),
    ]
    servers = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        shares, keys = asyncio.run(_drive(BusConfig(directory=str(folder)), options))
    finally:
        servers.kill()
        servers.wait()
        bus.close()
    for name, share in shares.items():
        print(f"  {name:24} {share:6.2f} % of a core")
    keys.sort()
    print(f"  {len(keys)} keys: median {keys[len(keys) // 2]:.1f} ms, 99th percentile {_p99(keys):.1f} ms")
    figures = [
        Figure("cpu", max(shares.values()), "% of a core", at_most=CPU_BOUND),
        Figure("key_to_paint_p99", _p99(keys), "ms", at_most=KEY_BOUND),
        Figure("key_to_paint_p50", keys[len(keys) // 2], "ms"),
    ]
    smaller = options.servers < SERVERS or options.pages < PAGES or len(options.views) < len(VIEWS)
    return finish("console", figures, {"cpu": shares, "keys_ms": keys}, options.json, smaller=smaller)


def _p99(values: Sequence[float]) -> float:
    return values[min(len(values) - 1, -(-99 * len(values) // 100) - 1)]


async def _drive(config: BusConfig, options: argparse.Namespace) -> tuple[dict[str, float], list[float]]:
    app = TimedConsole(LiveFeed(config, "bench", steers=False), interval=INTERVAL, rest=Collector().rest)
    shares: dict[str, float] = {}
    keys: list[float] = []
    async with app.run_test(size=SIZE) as pilot:
        await _until(
            pilot, lambda: len(app.session.moment.servers) == options.servers, "the servers are not on the bus"
        )
        await asyncio.sleep(3)
        for number, view in enumerate(VIEWS, 1):
            if view.NAME not in options.views:
                continue
            await pilot.press(str(number))
            shares[view.NAME] = await _share(options.seconds)
            keys += await _keys(app, pilot, KEYS)
            if view.SHOWS_REQUESTS:
                app.navigation.sieve = Sieve(WORD)
                shares[f"{view.NAME}, sifted"] = await _share(options.seconds)
                app.navigation.sieve = Sieve()
        steps = (PlaceStep("server", "server-0"), PlaceStep("rank", "dp0-tp0"), PlaceStep("tier", "device"))
        app.enter(Place("blocks", steps))
        await _until(pilot, lambda: len(app.grid.rows) >= options.pages * 0.99, "there is no map of the device")
        shares[f"map of {options.pages:,} slots"] = await _share(options.seconds)
        keys += await _keys(app, pilot, KEYS)
        keys += await _keys(app, pilot, [str(number) for number in range(1, len(VIEWS) + 1)])
    return shares, keys


async def _share(seconds: float) -> float:
    """Of a core, per cent."""
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return 100 * (time.process_time() - used) / (time.perf_counter() - began)


async def _keys(app: TimedConsole, pilot: Pilot[None], keys: Sequence[str]) -> list[float]:
    measured = [await _key(app, pilot, key) for key in keys]
    return [one for one in measured if one is not None]


async def _key(app: TimedConsole, pilot: Pilot[None], key: str) -> float | None:
    """Milliseconds from the key to the first frame that shows what it did, whatever else is drawn before. One that
    changes nothing where it is pressed is not counted."""
    before, pressed = app.state(), time.perf_counter()
    app.frames.clear()
    # Not pilot.press, which waits until nothing is left to do.
    event = events.Key(key, key if len(key) == 1 else None)
    event.set_sender(app)
    app.post_message(event)
    drawn: float | None = None
    while drawn is None and time.perf_counter() - pressed < (
        KEY_SECONDS if app.state() == before else PATIENCE_SECONDS
    ):
        await asyncio.sleep(0.001)
        drawn = next((frame.time for frame in app.frames if frame.state != before), None)
    await pilot.pause()
    return None if drawn is None else 1e3 * (drawn - pressed)


async def _until(pilot: Pilot[None], condition: Any, problem: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise CommandError(f"bench console: {problem}")
        await pilot.pause(0.1)


if __name__ == "__main__":
    raise SystemExit(main())
