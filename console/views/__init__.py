"""The eight views, one a file; each answers one question. Their order is that of the digits."""

from swift_tiers.console.views.blocks.view import Blocks
from swift_tiers.console.views.events.view import Events
from swift_tiers.console.views.leases.view import Leases
from swift_tiers.console.views.links.view import Links
from swift_tiers.console.views.overview.view import Overview
from swift_tiers.console.views.parts.view import View
from swift_tiers.console.views.restores.view import Restores
from swift_tiers.console.views.stripes.view import Stripes
from swift_tiers.console.views.tree.view import TreeShape

VIEWS: tuple[type[View], ...] = (Overview, Blocks, Links, Stripes, Restores, Leases, TreeShape, Events)
