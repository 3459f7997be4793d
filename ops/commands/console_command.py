"""See and steer the tiers of all servers of a bus, from a terminal. `?` in it lists its keys.

It reads the bus and nothing else, so it runs beside the servers or from afar. Commands that it sends ask for a yes
first, and need bus.control = true at the server. --record writes down what the bus says; `swift-tiers replay` plays it.
--demo shows simulated servers, without any real one.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ..base.arguments import author_argument, path_argument
from ..base.errors import USAGE, CommandError
from .console_once import print_once, view_named
from .inspect.bus import add_bus_arguments, bus_config, seconds_argument

if TYPE_CHECKING:
    from swift_tiers.console.feeds.feed import Feed

SUMMARY = "the operator console: see and steer the tiers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bus_arguments(parser)
    add_screen_arguments(parser)
    parser.add_argument("--readonly", action="store_true", help="without any command to servers")
    parser.add_argument("--author", type=author_argument, help="who steers, for the audit (default: user@host)")
    parser.add_argument("--demo", action="store_true", help="simulated servers: nothing is needed, and nothing is real")
    parser.add_argument(
        "--record", metavar="FILE", type=path_argument, help="write down what the bus says, for `replay`"
    )


def add_screen_arguments(parser: argparse.ArgumentParser) -> None:
    """What every way of starting the console takes."""
    parser.add_argument(
        "--interval", type=seconds_argument, default=0.5, metavar="SECONDS", help="between two looks (default: 0.5)"
    )
    parser.add_argument("--ascii", action="store_true", help="only signs that every terminal has")
    parser.add_argument("--light", action="store_true", help="for a light ground; `t` turns it around")
    parser.add_argument("--view", metavar="NAME", help="begin with this one (default: overview)")
    parser.add_argument("--server", metavar="NAME", help="show this one only; `:server all` shows the others")
    parser.add_argument("--once", action="store_true", help="print one look and end; without a screen")
    parser.add_argument("--json", action="store_true", help="with --once: alarms, the view and everything seen as JSON")


def run(options: argparse.Namespace) -> int:
    check(options)
    return show(recorded(demo_feed(options) if options.demo else live_feed(options), options), options)


def demo_feed(options: argparse.Namespace) -> Feed:
    """Servers that are made up. Raises CommandError where a bus is named, too."""
    from .console_demo import DemoFeed

    if options.config is not None or options.url is not None or options.directory is not None:
        raise CommandError("--demo looks at no bus; leave --url, --directory and --config away", USAGE)
    return DemoFeed(steers=not options.readonly)


def live_feed(options: argparse.Namespace) -> Feed:
    """The bus that the options name. Raises ConfigError, CommandError."""
    from swift_tiers.console.feeds.live import LiveFeed

    from .control_command import author

    return LiveFeed(bus_config(options), options.author or author(), steers=not options.readonly)


def recorded(feed: Feed, options: argparse.Namespace) -> Feed:
    """The same feed, written down if the options say so. Raises RecordingError."""
    if options.record is None:
        return feed
    from importlib.metadata import version

    from swift_tiers.console.feeds.recording import RecordingFeed

    return RecordingFeed(feed, options.record, version("swift-tiers"))


def check(options: argparse.Namespace) -> None:
    """Before anything is opened or written. Raises CommandError for options that do not go together."""
    if options.json and not options.once:
        raise CommandError("--json is what --once prints; the screen has `e` to export what it shows", USAGE)
    if options.view is not None:
        view_named(options.view)
    if not options.once and not has_screen():
        raise CommandError(
            "this is no terminal: its input or output is a file or a pipe. --once prints one look, --once --json for "
            "programs; over ssh, -t makes a terminal",
            USAGE,
        )


def has_screen() -> bool:
    """Whether there is a terminal to draw on and to read keys from, or a browser's stand-in for one (textual serve)."""
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return bool(os.environ.get("TEXTUAL_DRIVER")) or all(one is not None and one.isatty() for one in streams)


def show(feed: Feed, options: argparse.Namespace) -> int:
    """Open the console on a feed, until the operator leaves it, or print it once; the exit code."""
    if options.once:
        try:
            return print_once(feed, options)
        finally:
            feed.close()
    from swift_tiers.console.app import ConsoleApp
    from swift_tiers.console.collector import Collector

    app = ConsoleApp(
        feed,
        interval=options.interval,
        readonly=not feed.steers,
        ascii=options.ascii,
        dark=not options.light,
        rest=Collector().rest,
    )
    if options.server is not None:
        app.navigation.limit(options.server)
    if options.view is not None and app.navigation.place.view != view_named(options.view).NAME:
        app.navigation.turn(view_named(options.view).NAME)
    app.run()
    return app.return_code or 0
