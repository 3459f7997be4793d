"""What views have in common: what a view is, and the parts that several of them show."""

from .view import Answered, ConsoleView, OfferedAction, Scene

__all__ = ["Answered", "ConsoleView", "OfferedAction", "Scene"]
