"""Small files in which the kernel says something, and which are not there on every machine."""

from __future__ import annotations

import re
from pathlib import Path


def text_in(file: Path) -> str:
    """What it says; nothing where it cannot be read."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def number_in(file: Path) -> int | None:
    """The number that it says; None where it cannot be read, or says a word."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def unescaped(field: str) -> str:
    """A field of a mount table, in which spaces and the like are octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
