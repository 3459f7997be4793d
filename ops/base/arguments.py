"""What words of a command line may be: argparse's types that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from swift_tiers.radix_tiering.bus.contract.commands import is_author

from .errors import USAGE, CommandError

#: Schedulers of one server: more than any machine has, and few enough to look at each.
MOST_RANKS = 4096


def place_argument(text: str) -> str:
    """A path, as text. An empty one, as of a variable that is not set, would be the directory that one is in."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no path; is a variable not set?")
    return text


def path_argument(text: str) -> Path:
    """`place_argument`, as a path."""
    return Path(place_argument(text))


def author_argument(text: str) -> str:
    """Who is told to want a command: as servers take it."""
    if not is_author(text):
        raise argparse.ArgumentTypeError("an author is 1 to 200 printable characters, for the audit")
    return text


def check_between(option: str, value: float | None, least: int, most: int) -> None:
    """Raises CommandError for a number that is given and is not from `least` to `most`; nan is never."""
    if value is not None and not least <= value <= most:
        given = f"{value:g}" if isinstance(value, float) else value
        raise CommandError(f"{option}: {given} is not between {least} and {most}", USAGE)
