"""The bus as who watches it reads it: looks at everything, events as they come, questions, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.door import lazily

if TYPE_CHECKING:
    from .asking import Answers
    from .command_words import make_command, name_of, usage
    from .event_reading import Gap, StreamEvent
    from .event_tail import EventTail, Item
    from .lease_pairs import Pair, PairedLease, leases_of, pairs_of
    from .reader import EVERYTHING, BusReader, Part
    from .trouble import Mark, Trouble
    from .troubles import Troubles
    from .waiting import wait_for
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "EVERYTHING",
    "Answers",
    "BusReader",
    "EventTail",
    "Gap",
    "Item",
    "Mark",
    "Pair",
    "PairedLease",
    "Part",
    "StreamEvent",
    "Trouble",
    "Troubles",
    "leases_of",
    "make_command",
    "name_of",
    "pairs_of",
    "usage",
    "wait_for",
]
