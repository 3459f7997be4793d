"""The eight views, one a file; each answers one question. Their order is that of the digits."""

from .blocks import Blocks
from .events import Events
from .leases import Leases
from .links import Links
from .overview import Overview
from .parts import View
from .restores import Restores
from .stripes import Stripes
from .tree import TreeShape

__all__ = ["VIEWS", "Blocks", "Events", "Leases", "Links", "Overview", "Restores", "Stripes", "TreeShape", "View"]

VIEWS: tuple[type[View], ...] = (Overview, Blocks, Links, Stripes, Restores, Leases, TreeShape, Events)
