"""Which server is unwell: one row for each, with every tier that there is."""

from __future__ import annotations

from swift_tiers.console.model.place import Place
from swift_tiers.console.views.overview.view import Overview

from support.console_world import World, scene_of


def test_a_tier_that_nobody_knew_has_a_column_as_the_others() -> None:
    world = World()
    world.tiers = (*world.tiers, "attic")
    table = Overview().table(scene_of(Place("overview"), world))
    names = [column.name for column in table.columns]
    assert names[names.index("device") : names.index("lent")] == ["device", "peer", "host", "ssd", "attic"]
    fills = {row.cells[names.index("server")].text: row.cells[names.index("attic")].value for row in table.rows}
    assert fills["alpha"]
    assert not fills["gamma"], "it is gone, and says nothing"
