"""See and steer the tiers of all servers of a bus, from a terminal. `?` in it lists its keys.

It reads the bus and nothing else, so it runs beside the servers or from afar. Commands that it sends ask for a yes
first, and need bus.control = true at the server. --record writes down what the bus says; `swift-tiers replay` plays it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from swift_tiers.ops.inspect.bus import add_bus_arguments, bus_config, seconds_argument

if TYPE_CHECKING:
    from swift_tiers.console.feeds.feed import Feed

SUMMARY = "the operator console: see and steer the tiers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bus_arguments(parser)
    add_screen_arguments(parser)
    parser.add_argument("--readonly", action="store_true", help="without any command to servers")
    parser.add_argument("--author", help="who steers, for the audit (default: user@host)")
    parser.add_argument("--record", metavar="FILE", type=Path, help="write down what the bus says, for `replay`")


def add_screen_arguments(parser: argparse.ArgumentParser) -> None:
    """What every way of starting the console takes."""
    parser.add_argument(
        "--interval", type=seconds_argument, default=0.5, metavar="SECONDS", help="between two looks (default: 0.5)"
    )
    parser.add_argument("--ascii", action="store_true", help="only signs that every terminal has")
    parser.add_argument("--light", action="store_true", help="for a light ground; `t` turns it around")


def run(options: argparse.Namespace) -> int:
    return show(recorded(live_feed(options), options), options)


def live_feed(options: argparse.Namespace) -> Feed:
    """The bus that the options name. Raises ConfigError, CommandError."""
    from swift_tiers.console.feeds.live import LiveFeed
    from swift_tiers.ops.control_command import author

    return LiveFeed(bus_config(options), options.author or author(), steers=not options.readonly)


def recorded(feed: Feed, options: argparse.Namespace) -> Feed:
    """The same feed, written down if the options say so. Raises RecordingError."""
    if options.record is None:
        return feed
    from importlib.metadata import version

    from swift_tiers.console.feeds.recording import RecordingFeed

    return RecordingFeed(feed, options.record, version("swift-tiers"))


def show(feed: Feed, options: argparse.Namespace) -> int:
    """Open the console on a feed, until the operator leaves it; the exit code."""
    from swift_tiers.console.app import ConsoleApp

    app = ConsoleApp(
        feed, interval=options.interval, readonly=not feed.steers, ascii=options.ascii, dark=not options.light
    )
    app.run()
    return app.return_code or 0
