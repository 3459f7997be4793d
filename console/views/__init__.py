"""The eight views, one a file; each answers one question. Their order is that of the digits."""

from swift_tiers.console.views.blocks import Blocks
from swift_tiers.console.views.events import Events
from swift_tiers.console.views.leases import Leases
from swift_tiers.console.views.links import Links
from swift_tiers.console.views.overview import Overview
from swift_tiers.console.views.restores import Restores
from swift_tiers.console.views.stripes import Stripes
from swift_tiers.console.views.tree import TreeShape
from swift_tiers.console.views.view import View

VIEWS: tuple[type[View], ...] = (Overview, Blocks, Links, Stripes, Restores, Leases, TreeShape, Events)
