"""What the screen is made of. Each draws only what is visible."""

from .entry import Entry
from .grid import Grid
from .panel import Panel
from .said import Said
from .status import Line

__all__ = ["Entry", "Grid", "Line", "Panel", "Said"]
