"""The eight views, one a file; each answers one question. Their order is that of the digits."""

from .blocks import Blocks
from .events import Events
from .leases import Leases
from .links import Links
from .overview import Overview
from .parts import ConsoleView
from .restores import Restores
from .stripes import Stripes
from .tree import TreeShape

__all__ = [
    "VIEWS",
    "Blocks",
    "ConsoleView",
    "Events",
    "Leases",
    "Links",
    "Overview",
    "Restores",
    "Stripes",
    "TreeShape",
]

VIEWS: tuple[type[ConsoleView], ...] = (Overview, Blocks, Links, Stripes, Restores, Leases, TreeShape, Events)
