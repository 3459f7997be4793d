"""The operator console. It sees the world only through the bus reader and recordings of what that gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .app import ConsoleApp
    from .feeds import Feed, LiveFeed, Look, Nature, Player, RecordedFeed, RecordingFeed, ViewAnswers, ViewQuestion
    from .session import Session
    from .views import VIEWS
    from .views.parts import ConsoleView, OfferedAction, Scene
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "VIEWS",
    "ConsoleApp",
    "ConsoleView",
    "Feed",
    "LiveFeed",
    "Look",
    "Nature",
    "OfferedAction",
    "Player",
    "RecordedFeed",
    "RecordingFeed",
    "Scene",
    "Session",
    "ViewAnswers",
    "ViewQuestion",
]
