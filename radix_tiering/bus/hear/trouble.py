"""One thing that is wrong, and how bad it is."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ..contract.views import View
from .figures import text


class Mark(IntEnum):
    """How bad it is. Shown as a word, so that no colour is needed."""

    OK = 0
    NOTE = 1  # worth knowing
    WARNING = 2  # works, but less well than it could
    WRONG = 3

    def __str__(self) -> str:
        return ("ok", "note", "warning", "WRONG")[self]


class Trouble(NamedTuple):
    """Something about one view that an operator should know."""

    mark: Mark
    view: View
    what: str
    remedy: str = ""
    part: str = ""  # what the view is of, within its rank
    counted: int = 0  # how often since a start: it stays counted when it is over

    @property
    def place(self) -> str:
        """`alpha dp0-tp0 host`."""
        words = (self.view.server, getattr(self.view, "rank", ""), self.part)
        return " ".join(text(word) for word in words if word)
