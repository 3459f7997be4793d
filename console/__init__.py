"""The operator console. It sees the world only through the bus reader and recordings of what that gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .app import ConsoleApp
    from .feeds import Answers, Feed, LiveFeed, Look, Nature, Player, Question, RecordedFeed, RecordingFeed
    from .session import Session
    from .views import VIEWS
    from .views.parts import Offer, Scene, View
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "VIEWS",
    "Answers",
    "ConsoleApp",
    "Feed",
    "LiveFeed",
    "Look",
    "Nature",
    "Offer",
    "Player",
    "Question",
    "RecordedFeed",
    "RecordingFeed",
    "Scene",
    "Session",
    "View",
]
