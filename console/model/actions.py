"""What can be typed after `:`, read into something to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Action(NamedTuple):
    """A command line that was understood: its name and its words."""

    name: str
    words: tuple[str, ...] = ()


class ActionError(ValueError):
    """What was typed cannot be done; the message says what can."""


class Spelling(NamedTuple):
    """One action: how it is written, and what it does."""

    usage: str
    what: str
    least: int = 0  # words that it needs
    most: int = 0  # words that it takes

    @property
    def name(self) -> str:
        return self.usage.split()[0]


SPELLINGS = (
    Spelling("server NAME", "show this server only; `server all`: all of them", 1, 1),
    Spelling("filter WORDS", "as `/`; without words: none", 0, 99),
    Spelling("sort COLUMN [up|down]", "by this column; without one: as the view has them", 0, 99),
    Spelling("rate SECONDS", "between two looks", 1, 1),
    Spelling("export csv|json|svg [FILE]", "what is on the screen, as it is sifted and sorted", 1, 2),
    Spelling("theme dark|light|NAME", "colours", 1, 1),
    Spelling("pause", "stop or go on", 0, 0),
    Spelling("control [SERVER] COMMAND VALUES", "steer a server, as `swift-tiers control`", 1, 99),
    Spelling("page KEY", "one page's life", 1, 1),
    Spelling("request RID", "one request: its restore", 1, 1),
    Spelling("seek SECONDS|+SECONDS|-SECONDS", "in a recording", 1, 1),
    Spelling("speed FACTOR", "of a recording", 1, 1),
    Spelling("help", "the keys that live here"),
    Spelling("quit", "leave; `q` and `q!` too"),
)
ALIASES = {"q": "quit", "q!": "quit", "quit!": "quit", "?": "help", "srv": "server", "req": "request", "ctl": "control"}


def read_action(line: str, views: Sequence[str]) -> Action:
    """A line as it was typed. The name of a view, or its beginning, goes there. Raises ActionError."""
    words = line.split()
    if not words:
        raise ActionError("nothing was typed; `help` lists what can be")
    name = ALIASES.get(words[0], words[0])
    names = [*views, *(spelling.name for spelling in SPELLINGS)]
    found = [name] if name in names else [one for one in names if one.startswith(name)]
    if len(found) != 1:
        close = ", ".join(found) or ", ".join(names)
        raise ActionError(f"{name[:40]}: {'could be' if found else 'is not known; there are'} {close}")
    if found[0] in views:
        if len(words) > 2:
            raise ActionError(f"usage: {found[0]} [SERVER]")
        return Action("view", (found[0], *words[1:]))
    spelling = next(one for one in SPELLINGS if one.name == found[0])
    if not spelling.least <= len(words) - 1 <= spelling.most:
        raise ActionError(f"usage: {spelling.usage}")
    return Action(spelling.name, tuple(words[1:]))
