"""What the screen is made of. Each draws only what is visible."""

from .entry import Entry
from .grid import Grid
from .notice import Notice
from .panel import Panel
from .status import StatusLine

__all__ = ["Entry", "Grid", "Notice", "Panel", "StatusLine"]
