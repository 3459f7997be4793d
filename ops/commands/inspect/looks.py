"""What one look at the bus gave: for programs, and as lines that say what is wrong, the worst first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from rich.console import ConsoleOptions, RenderableType
from rich.text import Text

from swift_tiers.console.model.glyphs import ASCII, UNICODE, Glyphs
from swift_tiers.console.model.palette import MARKS, Palette
from swift_tiers.radix_tiering.bus.hear.trouble import Trouble

#: Lines that a view may take to tell its things, and rows of its table.
HEIGHT, MOST_ROWS = 60, 10_000


class Inspection(NamedTuple):
    """What one look at the bus gave."""

    content: dict[str, Any]  # for JSON
    shown: list[RenderableType]


def lines(found: Iterable[Trouble]) -> list[RenderableType]:
    """One for each trouble, the worst first."""
    result: list[RenderableType] = []
    for trouble in sorted(found, key=lambda one: -one.mark):
        line = Text.assemble((str(trouble.mark), Palette()[MARKS[trouble.mark]]), f" {trouble.place}: {trouble.what}")
        if trouble.remedy:
            line.append(f"; {trouble.remedy}")
        result.append(line)
    if result:
        result.append(Text(""))
    return result


def describe(views: Iterable[msgspec.Struct]) -> list[Any]:
    """For JSON."""
    return [msgspec.to_builtins(view) for view in views]


def describe_troubles(found: Iterable[Trouble]) -> list[dict[str, str]]:
    return [
        {"mark": str(trouble.mark), "place": trouble.place, "what": trouble.what, "remedy": trouble.remedy}
        for trouble in found
    ]


def glyphs_of(options: ConsoleOptions) -> Glyphs:
    """Signs that this terminal, or file, can show."""
    return UNICODE if (options.encoding or "").lower().startswith("utf") else ASCII
