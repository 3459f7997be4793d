"""What words of a command line may be: argparse's types that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path


def place_argument(text: str) -> str:
    """A path, as text. An empty one, as of a variable that is not set, would be the directory that one is in."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no path; is a variable not set?")
    return text


def path_argument(text: str) -> Path:
    """`place_argument`, as a path."""
    return Path(place_argument(text))
