"""What is in each slot of a tier, where the pages of a request or a sequence are, and one page."""

from .view import Blocks

__all__ = ["Blocks"]
