"""What each device of the stripe sets does."""

from .view import Stripes

__all__ = ["Stripes"]
