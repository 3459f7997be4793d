"""How prefixes come back, and whether that was worth it."""

from .view import Restores

__all__ = ["Restores"]
