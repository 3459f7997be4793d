"""The eight views, one a file; each answers one question. Their order is that of the digits."""

from .blocks.view import Blocks
from .events.view import Events
from .leases.view import Leases
from .links.view import Links
from .overview.view import Overview
from .parts.view import View
from .restores.view import Restores
from .stripes.view import Stripes
from .tree.view import TreeShape

VIEWS: tuple[type[View], ...] = (Overview, Blocks, Links, Stripes, Restores, Leases, TreeShape, Events)
