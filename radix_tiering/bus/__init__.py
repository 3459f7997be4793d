"""The bus: what the tiers hold and do, on Redis.

`contract` is what is said, `speak` says it, `hear` reads it, and `redis` is the way there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.door import lazily

if TYPE_CHECKING:
    from .hear import Answers, BusReader, EventTail, Gap, Mark, Part, Trouble, Troubles, wait_for
    from .redis import EmbeddedRedis, find_cli, find_server
    from .speak import BusPublisher
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Answers",
    "BusPublisher",
    "BusReader",
    "EmbeddedRedis",
    "EventTail",
    "Gap",
    "Mark",
    "Part",
    "Trouble",
    "Troubles",
    "find_cli",
    "find_server",
    "wait_for",
]
