"""Play what `swift-tiers console --record FILE` wrote down, in the console itself.

Space plays and stops; [ and ] jump ten seconds, comma and full stop step look by look, < and > halve and double the
speed; `:seek 90` goes to a time, in seconds from the beginning. Nothing can be steered, and no server or Redis is
needed. A file whose end is missing is played up to there.
"""

from __future__ import annotations

import argparse

from ..base.arguments import path_argument
from . import console_command

SUMMARY = "play a recording of the console"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=path_argument, help="what `console --record` wrote")
    parser.add_argument("--at", type=float, default=0.0, metavar="SECONDS", help="begin there, not at the beginning")
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="FACTOR", help="from 1/16 to 64 (default: 1)")
    parser.add_argument("--paused", action="store_true", help="do not play yet")
    console_command.add_screen_arguments(parser)


def _speed(text: str) -> float:
    """argparse's type."""
    from swift_tiers.console.feeds.recorded import FASTEST, SLOWEST

    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not SLOWEST <= speed <= FASTEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1/16 to 64")
    return speed


def run(options: argparse.Namespace) -> int:
    from swift_tiers.console.feeds.recorded import RecordedFeed

    console_command.check(options)
    feed = RecordedFeed(options.file)
    feed.player.set_speed(options.speed)
    feed.player.seek(options.at)
    feed.player.play(not options.paused and not options.once)
    return console_command.show(feed, options)
