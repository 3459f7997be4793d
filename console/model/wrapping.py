"""Lines that are longer than the screen is wide."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

#: A line goes on beneath its beginning, so many cells further in; where that is deep in already, at most there.
STEP, DEEPEST = 4, 12


def wrapped(lines: Iterable[Text], width: int, indent: int | None = None) -> list[Text]:
    """What is longer than `width` cells goes on in lines beneath, broken between words, `indent` cells further in."""
    found: list[Text] = []
    for line in lines:
        found += _broken(line, width, _indent(line) if indent is None else indent) if line.cell_len > width else [line]
    return found


def _indent(line: Text) -> int:
    return min(DEEPEST, len(line.plain) - len(line.plain.lstrip(" ")) + STEP)


def _broken(line: Text, width: int, indent: int) -> list[Text]:
    if width <= 2 * indent:
        return [line]
    pieces, rest, room = [], line, width
    while rest.cell_len > room:
        at = _cut(rest.plain, room)
        piece, rest = rest[:at], rest[at:]
        piece.rstrip()
        pieces.append(piece)
        rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ")) :]
        room = width - indent
    pieces.append(rest)
    first, *others = [_plain_ends(piece) for piece in pieces if piece.plain.strip()]
    return [first, *(_indented(piece, indent) for piece in others)]


def _cut(plain: str, room: int) -> int:
    """Where a line of at most so many cells ends: at the last space, unless that leaves it half empty."""
    fits = plain
    while Text(fits).cell_len > room:
        fits = fits[: len(fits) - max(1, (Text(fits).cell_len - room) // 2)]
    if plain[len(fits) : len(fits) + 1] == " ":
        return len(fits)
    at = fits.rstrip(" ").rfind(" ") + 1
    return at if at > len(fits) // 2 else max(1, len(fits))


def _plain_ends(line: Text) -> Text:
    line.no_wrap, line.overflow, line.end = True, "crop", ""
    return line


def _indented(line: Text, indent: int) -> Text:
    """The spaces apart from the words, as in `Scene.line`."""
    found = Text(" " * indent, no_wrap=True, overflow="crop", end="")
    return found.append_text(line)
