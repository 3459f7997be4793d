"""The operator console. It sees the world only through the bus reader and recordings of what that gave."""

from .app import ConsoleApp
from .feeds.feed import Answers, Feed, Look, Nature, Player, Question

__all__ = ["Answers", "ConsoleApp", "Feed", "Look", "Nature", "Player", "Question"]
