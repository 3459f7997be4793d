"""Where the console's looks come from: the bus, a recording, or whoever else makes looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .feed import Feed, Look, Nature, Player, ViewAnswers, ViewQuestion
    from .live import LiveFeed
    from .recorded import RecordedFeed
    from .recording import RecordingFeed
    from .watching import Watcher
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Feed",
    "LiveFeed",
    "Look",
    "Nature",
    "Player",
    "RecordedFeed",
    "RecordingFeed",
    "ViewAnswers",
    "ViewQuestion",
    "Watcher",
]
