"""The view of leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from swift_tiers.console.model.glyphs import ASCII
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.views.leases.view import Leases, lending_table
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.radix_tiering.bus.contract.commands import (
    CapLending,
    CommandRefusedError,
    PinLease,
    RecallLeases,
    UnpinLease,
)
from swift_tiers.radix_tiering.bus.hear.event_reading import StreamEvent

from support.console_world import GIB, MIB, START, World, moment_of, scene_of

TOP = Place("leases")
DONOR, BORROWER = "alpha.dp0-tp0", "beta.dp0-tp0"
PAIR = TOP.enter(PlaceStep("donor", DONOR), PlaceStep("borrower", BORROWER))
view = Leases()


def said(scene: Scene) -> str:
    return "\n".join(line.plain for line in view.lines(scene))


def told(kind: str, server: str = "alpha", **fields: Any) -> StreamEvent:
    return StreamEvent(
        server=server,
        rank="dp0-tp0",
        entry="9-0",
        sequence=9,
        time=START,
        happened=START,
        age_seconds=0.0,
        kind=kind,
        fields=fields,
    )


def selecting(scene: Scene, number: int) -> Scene:
    return replace(scene, selected=view.table(scene).rows[number])


def test_a_pair_is_shown_as_both_sides_say_it() -> None:
    table = view.table(scene_of(TOP))
    (row,) = table.rows
    content = {column.name: cell.content for column, cell in zip(table.columns, row.cells, strict=True)}
    assert (content["donor"], content["borrower"]) == (DONOR, BORROWER)
    assert content["lent"] == content["borrowed"] == 2 * GIB
    assert content["both say"] == "the same"
    assert content["recalls"] == 1
    assert row.place == PAIR


def test_why_so_much_is_lent() -> None:
    text = said(scene_of(TOP))
    table = lending_table(scene_of(TOP))
    lender = dict(zip((column.name for column in table.columns), table.rows[0].cells, strict=True))
    assert [lender[name].text for name in ("lends", "of", "needed", "within")] == ["2GiB", "5GiB", "5GiB", "1 min"]
    assert "ScaleUp: takes back, from 3GiB to 2GiB" in text


def test_a_decision_is_told_with_its_window() -> None:
    moment = moment_of(World())
    moment.events.add(
        [
            told(
                "lending.sized",
                decision="grow",
                from_bytes=GIB,
                to_bytes=2 * GIB,
                peak_bytes=5 * GIB,
                free_bytes=3 * GIB,
            )
        ]
    )
    text = said(Scene(moment, TOP, width=198, height=56))
    assert "ScaleDown: lends more, from 1GiB to 2GiB: needed 5GiB within 1 min" in text
    assert "free 3GiB" in text


def test_a_donor_that_is_gone_is_told_at_its_pair() -> None:
    world = World(gone=("alpha",))
    (row,) = view.table(scene_of(TOP, world)).rows
    assert row.cells[0].text == "warning"
    assert "only the borrower" in [cell.text for cell in row.cells]
    assert "its donor is gone" in said(scene_of(PAIR, world))
    assert view.offers(selecting(scene_of(TOP, world), 0)) == ()


def test_leases_of_a_pair_have_both_states_and_their_ends() -> None:
    table = view.table(scene_of(PAIR))
    assert [row.key for row in table.rows] == [str(number) for number in range(12, 20)]
    recalled = table.rows[2]
    assert [cell.text for cell in recalled.cells[2:4]] == ["recalled", "recalled"]
    assert table.rows[1].cells[6].text == "pinned"
    assert table.rows[0].cells[4].content == pytest.approx(2.0)


def test_a_lease_that_has_ended_is_said_to_have_with_its_history() -> None:
    text = said(scene_of(PAIR.enter(PlaceStep("lease", "11"))))
    assert "lease 11 has ended" in text
    assert "borrowed.recalled" in text
    assert "pages 700" in text
    assert "ScaleUp" not in text  # that is about the donor, not about this lease


def test_a_pair_that_is_gone_is_said_to_be() -> None:
    place = TOP.enter(PlaceStep("donor", "x.dp0-tp0"), PlaceStep("borrower", BORROWER))
    assert "have no leases any more" in said(scene_of(place))
    assert view.table(scene_of(place)).rows == []


@pytest.mark.parametrize("server", ["alpha", "beta"])
def test_one_server_shows_its_pairs_from_either_side(server: str) -> None:
    assert len(view.table(scene_of(TOP.enter(PlaceStep("server", server)))).rows) == 1
    assert len(view.table(scene_of(TOP, only=server)).rows) == 1
    assert DONOR in said(scene_of(TOP.enter(PlaceStep("server", server))))


def test_a_server_without_leases_has_none() -> None:
    table = view.table(scene_of(TOP, World(gone=()), only="gamma"))
    assert not table.rows
    assert "peer.donate" in table.empty


# ---- steering ----


def test_a_lease_is_recalled_at_its_donor() -> None:
    offers = {offer.key: offer for offer in view.offers(selecting(scene_of(PAIR), 3))}
    assert {offer.server for offer in offers.values()} == {"alpha"}
    assert offers["R"].make("") == RecallLeases(leases=15, borrower=BORROWER, rank="dp0-tp0")
    assert offers["A"].make("") == RecallLeases(leases="all", borrower=BORROWER, rank="dp0-tp0")
    assert offers["P"].make("") == PinLease(lease=15, rank="dp0-tp0")
    assert "U" not in offers


def test_a_pinned_lease_can_be_unpinned_and_not_pinned() -> None:
    offers = {offer.key: offer for offer in view.offers(selecting(scene_of(PAIR), 1))}
    assert offers["U"].make("") == UnpinLease(lease=13, rank="dp0-tp0")
    assert "P" not in offers


def test_a_lease_that_is_looked_at_is_what_is_acted_on_whatever_was_selected_before() -> None:
    scene = selecting(scene_of(PAIR), 3)
    inside = replace(scene, place=PAIR.enter(PlaceStep("lease", "16")))
    offers = {offer.key: offer for offer in view.offers(inside)}
    assert offers["R"].make("") == RecallLeases(leases=16, borrower=BORROWER, rank="dp0-tp0")


def test_lending_is_capped_in_units_or_not_at_all() -> None:
    offers = {offer.key: offer for offer in view.offers(selecting(scene_of(TOP), 0))}
    assert set(offers) == {"A", "C"}
    assert offers["C"].make("8GiB") == CapLending(limit=8 * GIB, rank="dp0-tp0")
    assert offers["C"].make("none") == CapLending(limit=None, rank="dp0-tp0")
    with pytest.raises(CommandRefusedError, match="cap lending"):
        offers["C"].make("much")


def test_a_donor_that_obeys_no_commands_gets_none() -> None:
    moment = moment_of(World())
    assert moment.snapshot is not None
    servers = tuple(
        msgspec.structs.replace(state, server=msgspec.structs.replace(state.server, control=False))
        for state in moment.snapshot.servers
    )
    deaf = replace(moment, snapshot=msgspec.structs.replace(moment.snapshot, servers=servers))
    assert view.offers(selecting(Scene(deaf, PAIR), 0)) == ()


# ---- how it looks ----


@pytest.mark.parametrize(
    "place", [TOP, PAIR, PAIR.enter(PlaceStep("lease", "12")), TOP.enter(PlaceStep("server", "beta"))]
)
@pytest.mark.parametrize("size", [(78, 20), (198, 56)])
def test_ascii_terminals_get_ascii_and_lines_leave_room_for_the_table(place: Place, size: tuple[int, int]) -> None:
    scene = scene_of(place, glyphs=ASCII, width=size[0], height=size[1])
    assert said(scene).isascii()
    assert all(cell.text.isascii() for row in view.table(scene).rows for cell in row.cells)
    limit = size[1] if place.name("lease") else int(size[1] * view.LINES_SHARE) + 1
    assert len(view.lines(scene)) <= limit


def test_the_world_lends_in_leases_of_a_quarter() -> None:
    (row,) = view.table(scene_of(TOP)).rows
    assert row.subject.lent.table[0].bytes == 256 * MIB


def test_what_has_happened_is_told_in_order_whoever_was_read_first() -> None:
    """Looks read one server after the other, and clocks are off: what was read last need not have happened last."""
    moment = moment_of(World())
    now = moment.snapshot.time if moment.snapshot is not None else 0.0
    for seconds, server in ((9.0, "alpha"), (2.0, "beta"), (7.0, "alpha"), (3.0, "alpha"), (3.5, "beta")):
        one = told("lease.recalled", server, borrower=BORROWER, lease=1)
        moment.events.add([msgspec.structs.replace(one, happened=now - seconds)])
    lines = said(replace(scene_of(TOP, height=40), moment=moment)).splitlines()
    start = next(number for number, line in enumerate(lines) if "what has happened" in line)
    ages = [float(line.split()[0]) for line in lines[start + 1 :] if "lease.recalled" in line and " s ago" in line]
    assert len(ages) >= 5
    assert ages == sorted(ages)
