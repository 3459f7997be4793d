"""Which server is unwell: one row for each, with every tier that there is."""

from __future__ import annotations

import msgspec
import pytest

from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.views.overview.view import Overview
from swift_tiers.console.views.parts.measures import gauges
from swift_tiers.radix_tiering.bus.contract.commands import CapTier, CommandRefusedError
from swift_tiers.radix_tiering.bus.contract.views import Snapshot

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


def test_no_cap_of_a_tier_is_lifted_by_a_word_that_is_missing() -> None:
    view, scene = Overview(), scene_of(Place("overview", (PlaceStep("server", "alpha"),)))
    (cap,) = (offer for offer in view.offers(scene) if offer.label == "cap tier")
    assert cap.make("host 8GiB") == CapTier(tier="host", limit="8GiB")
    assert cap.make("ssd none") == CapTier(tier="ssd")
    for typed in ("host", "", "host 8GiB more"):
        with pytest.raises(CommandRefusedError):
            cap.make(typed)


class ReplicatedWorld(World):
    """Each server runs two data-parallel replicas of two ranks each."""

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        servers = []
        for state in snapshot.servers:
            ranks = []
            for name in ("dp0-tp0", "dp0-tp1", "dp1-tp0", "dp1-tp1") if state.ranks else ():
                one = state.ranks[0]
                assert one.rank is not None
                rank = msgspec.structs.replace(one.rank, rank=name, running_requests=2, waiting_requests=3)
                requests = [msgspec.structs.replace(request, rank=name) for request in one.requests]
                ranks.append(msgspec.structs.replace(one, name=name, rank=rank, requests=tuple(requests)))
            servers.append(msgspec.structs.replace(state, ranks=tuple(ranks)))
        return msgspec.structs.replace(snapshot, servers=tuple(servers))


def test_every_replica_of_a_server_counts_once_however_many_ranks_it_has() -> None:
    scene = scene_of(Place("overview"), ReplicatedWorld())
    table = Overview().table(scene)
    names = [column.name for column in table.columns]
    row = next(row for row in table.rows if row.cells[names.index("server")].text == "alpha")
    assert [row.cells[names.index(name)].value for name in ("run", "wait")] == [4, 6]
    assert gauges(scene.moment, "running_requests", "alpha")[-1] == 4


def test_a_server_with_a_remote_store_shows_how_it_gets_on_with_it() -> None:
    class Remote(World):
        engine = ""

        def snapshot(self) -> Snapshot:
            snapshot = super().snapshot()
            state = snapshot.servers[0]
            rank = msgspec.structs.replace(state.ranks[0].rank, remote_engine=self.engine)
            state = msgspec.structs.replace(state, ranks=(msgspec.structs.replace(state.ranks[0], rank=rank),))
            return msgspec.structs.replace(snapshot, servers=(state, *snapshot.servers[1:]))

    world = Remote()
    place = Place("overview", (PlaceStep("server", world.servers[0]),))
    assert "remote store" not in "\n".join(line.plain for line in Overview().lines(scene_of(place, world)))
    world.engine = "cannot be opened"
    lines = [line.plain for line in Overview().lines(scene_of(place, world))]
    (heading,) = (number for number, line in enumerate(lines) if "remote store" in line and "questions" in line)
    assert lines[heading + 1].split()[:5] == ["warning", "dp0-tp0", "cannot", "be", "opened"]
