"""What happened, in its order."""

from .view import Events

__all__ = ["Events"]
