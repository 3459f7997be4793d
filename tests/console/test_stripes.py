"""The view of stripes: lanes, one device, and where a prefix lies."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.console.feeds.feed import ViewAnswers, ViewQuestion
from swift_tiers.console.model.glyphs import ASCII
from swift_tiers.console.model.history import History
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.views.parts.lanes import sets_of
from swift_tiers.console.views.parts.measures import imbalance
from swift_tiers.console.views.parts.view import Answered, Scene
from swift_tiers.console.views.stripes.stripe_prefix import placed, slot_runs
from swift_tiers.console.views.stripes.view import Stripes, set_table
from swift_tiers.radix_tiering.bus.contract.commands import AddDevice, DrainDevice, ReadmitDevice
from swift_tiers.radix_tiering.bus.contract.views import PrefixPage, PrefixView

from support.console_world import KEY, World, scene_of

VIEW = Stripes()
TOP = Place("stripes")
DEVICE = Place("stripes", (PlaceStep("server", "alpha"), PlaceStep("device", "dp0-tp0:2")))
PAGE = Place("stripes", (PlaceStep("page", KEY),))


def plain(scene: Scene) -> str:
    return "\n".join(line.plain for line in VIEW.lines(scene))


def cells(scene: Scene) -> dict[str, dict[str, str]]:
    table = VIEW.table(scene)
    names = [column.name for column in table.columns]
    return {row.key: dict(zip(names, (cell.text for cell in row.cells), strict=True)) for row in table.rows}


def prefix(server: str = "alpha", **changes: object) -> PrefixView:
    """Six pages of two units each: device 1 has more than its share, one page is in host memory only."""
    table = tuple(
        PrefixPage(depth=depth, key=f"{depth:016x}", ssd=((1, 2 * depth), (depth % 2 * 3, depth)))
        for depth in range(1, 6)
    )
    view = PrefixView(
        server=server,
        rank="dp0-tp0",
        key=KEY,
        age_seconds=0.4,
        pages=6,
        listed=6,
        table=(*table, PrefixPage(depth=6, key=KEY[:16], host=17)),
    )
    return msgspec.structs.replace(view, **changes)


def asked(place: Place, *views: PrefixView, **changes: object) -> Scene:
    scene = scene_of(place, **changes)
    return scene_of(
        place, answers={one: Answered(ViewAnswers(views=views), 0.1) for one in VIEW.questions(scene)}, **changes
    )


# ---- lanes ----


def test_every_device_of_every_set_is_a_lane_with_what_is_wrong_with_it() -> None:
    rows = cells(scene_of(TOP))
    assert len(rows) == 8
    assert rows["alpha dp0-tp0 2"]["state"] == "OUT"
    assert rows["alpha dp0-tp0 2"]["reason"] == "write failed: Input/output error"
    assert rows["beta dp0-tp0 1"]["corrupt"] == "1"
    assert rows["alpha dp0-tp0 0"]["state"] == "ok"


def test_only_the_slow_device_has_its_p99_marked() -> None:
    table = VIEW.table(scene_of(TOP))
    at = [column.name for column in table.columns].index("p99")
    assert [row.key for row in table.rows if row.cells[at].style] == ["beta dp0-tp0 3"]


def test_what_is_uneven_is_said_of_those_in_service_alone() -> None:
    scene = scene_of(TOP)
    alpha = sets_of(scene.moment, "alpha", 20.0)[0]
    serving = [lane.read for lane in alpha.lanes if lane.device.number != 2]
    assert alpha.uneven_reads == pytest.approx(max(serving) / (sum(serving) / 3))
    table = set_table(scene)
    (cells,) = (row.cells for row in table.rows if row.subject.server == "alpha")
    row = dict(zip((column.name for column in table.columns), cells, strict=True))
    assert row["uneven reads"].value == pytest.approx(alpha.uneven_reads)
    assert row["out"].text == "1"
    assert f"{alpha.uneven_reads:.2f}" in plain(scene)


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=20))
def test_imbalance_is_one_for_equals_and_at_most_their_number(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    found = imbalance(values)
    if len(known) < 2 or not any(known):
        assert found is None
    else:
        assert 0.999 <= found <= len(known) * 1.001
    assert imbalance([7.0] * 5) == 1.0


def test_one_server_alone_and_one_that_is_gone() -> None:
    assert {row["server"] for row in cells(scene_of(TOP, only="beta")).values()} == {"beta"}
    assert "gamma is gone" in VIEW.table(scene_of(TOP, only="gamma")).empty


def test_sets_that_do_worst_are_named_where_there_is_no_room_for_all() -> None:
    world = World(tuple(f"s{number}" for number in range(12)), gone=())
    text = plain(scene_of(TOP, world))
    assert re.search("WRONG +s0 +dp0-tp0", text)  # a device of it is out
    assert re.search("WRONG +s1 +dp0-tp0", text)  # it has corrupt units
    assert re.search("and [0-9]+ more", text)


# ---- one device ----


def test_a_device_says_what_is_wrong_and_leads_to_prefixes() -> None:
    row = next(row for row in VIEW.table(scene_of(TOP)).rows if row.key == "alpha dp0-tp0 2")
    assert row.place == DEVICE
    scene = scene_of(DEVICE)
    assert "Input/output error" in plain(scene)
    assert "requests in flight" in plain(scene)
    request = VIEW.table(scene).rows[0]
    assert request.place == Place("stripes", (PlaceStep("server", "alpha"), PlaceStep("page", KEY)))


def test_a_device_that_is_gone_is_said_to_be() -> None:
    for name in ("dp0-tp0:9", "dp7-tp0:1", "nonsense"):
        scene = scene_of(Place("stripes", (PlaceStep("server", "alpha"), PlaceStep("device", name))))
        assert "is not on the bus" in plain(scene)
        assert not VIEW.table(scene).columns


# ---- a prefix ----


def test_a_place_of_a_page_asks_for_its_prefix() -> None:
    assert VIEW.questions(scene_of(PAGE)) == (ViewQuestion("prefix", KEY, None),)
    narrow = Place("stripes", (PlaceStep("server", "beta"), PlaceStep("page", KEY)))
    assert VIEW.questions(scene_of(narrow)) == (ViewQuestion("prefix", KEY, "beta"),)
    assert not VIEW.questions(scene_of(TOP))


def test_units_are_counted_by_device_and_their_slots_named() -> None:
    rows = cells(asked(PAGE, prefix()))
    assert [(row["#"], row["units"], row["slots"]) for row in rows.values()] == [
        ("0", "2", "2 4"), ("1", "5", "2 4 6 8 10"), ("2", "0", "-"), ("3", "3", "1 3 5"),
    ]  # fmt: skip
    text = plain(asked(PAGE, prefix()))
    assert "6 pages: on ssd 5, largest/mean 1.50; also host 1" in text


def test_a_row_of_a_prefix_leads_to_its_device() -> None:
    row = VIEW.table(asked(PAGE, prefix())).rows[2]
    assert row.place == DEVICE


def test_who_does_not_know_the_page_and_who_was_silent_is_said() -> None:
    text = plain(asked(PAGE, prefix(), prefix("beta", pages=0, listed=0, table=())))
    assert "beta dp0-tp0 does not know this page" in text
    scene = scene_of(PAGE)
    silent = Answered(ViewAnswers(silent=(("beta", "dp0-tp0"),)), 0.1)
    assert "no answer from beta dp0-tp0" in plain(scene_of(PAGE, answers={VIEW.questions(scene)[0]: silent}))
    assert "asking" in plain(scene)


def test_a_long_sequence_says_that_only_its_end_is_listed() -> None:
    assert "(the last 6 are listed)" in plain(asked(PAGE, prefix(pages=9000)))


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200)), max_size=4), max_size=60))
def test_no_unit_is_lost_or_counted_twice(units: list[list[tuple[int, int]]]) -> None:
    found = placed(PrefixPage(depth=at, key="", ssd=tuple(ssd)) for at, ssd in enumerate(units, 1))
    flat = [unit for page in units for unit in page]
    assert Counter(device for device, _ in flat) == {device: one.units for device, one in found.items()}
    for device, one in found.items():
        assert list(one.slots) == sorted(slot for other, slot in flat if other == device)
        assert one.pages == sum(any(other == device for other, _ in page) for page in units)


@given(st.sets(st.integers(0, 300), max_size=80), st.integers(12, 200))
def test_runs_of_slots_name_every_slot_or_say_how_many_they_leave_out(slots: set[int], room: int) -> None:
    words, named, left = slot_runs(sorted(slots), room), set(), 0
    if " more" in words:
        words, _, tail = words.rpartition("and ")
        left = int(tail.removesuffix(" more"))
    for word in words.split():
        first, _, last = word.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert len(named) + left == len(slots)
    assert named == set(sorted(slots)[: len(named)])
    assert len(slot_runs(sorted(slots), room)) <= max(room, len("299-300 and 80 more"))


# ---- steering ----


def test_a_device_in_service_can_be_drained_and_one_that_is_out_readmitted() -> None:
    rows = VIEW.table(scene_of(TOP)).rows
    offers = VIEW.offers(scene_of(TOP, selected=rows[1]))
    assert [offer.key for offer in offers] == ["D", "A"]
    assert (offers[0].server, offers[0].make("")) == ("alpha", DrainDevice(device=1))
    assert offers[1].make("/ssd9/kv") == AddDevice(directory="/ssd9/kv")
    (back, _) = VIEW.offers(scene_of(TOP, selected=rows[2]))
    assert (back.server, back.make("")) == ("alpha", ReadmitDevice(device=2))
    assert [offer.label for offer in VIEW.offers(scene_of(DEVICE))] == ["readmit", "add device"]


def test_nothing_is_offered_where_nothing_obeys() -> None:
    class Deaf(World):
        def _server(self, number: int):
            state = super()._server(number)
            return msgspec.structs.replace(state, server=msgspec.structs.replace(state.server, control=False))

    rows = VIEW.table(scene_of(TOP)).rows
    assert VIEW.offers(scene_of(TOP, Deaf(), selected=rows[1])) == ()
    assert VIEW.offers(scene_of(TOP)) == ()  # no row, and no server: there is nothing to steer


@pytest.mark.parametrize("size_of_screen", [(78, 20), (118, 36), (198, 56)])
@pytest.mark.parametrize("place", [TOP, DEVICE, PAGE])
def test_lines_fit_and_need_no_unicode(place: Place, size_of_screen: tuple[int, int]) -> None:
    width, height = size_of_screen
    scene = asked(place, prefix(), prefix("beta", pages=9000), width=width, height=height, glyphs=ASCII)
    assert max(len(line.plain) for line in VIEW.lines(scene)) <= width
    assert len(VIEW.lines(scene)) <= scene.room(VIEW.LINES_SHARE, len(VIEW.table(scene).rows)) + 1
    assert plain(scene).isascii()
    assert all(cell.text.isascii() for row in VIEW.table(scene).rows for cell in row.cells)


def many(devices: int, **changes: object) -> Scene:
    """A scene of one server with so many devices, all of which read, some of which are in trouble."""
    scene = scene_of(TOP, **changes)
    assert scene.moment.snapshot is not None
    state = scene.moment.snapshot.servers[0]
    (rank,) = state.ranks
    first = rank.devices[0]
    numbers = [
        msgspec.structs.replace(first, number=number, service="in service", write_errors=number % 2)
        for number in range(devices)
    ]
    history = History()
    for look in range(12):
        said = tuple(
            msgspec.structs.replace(
                one, time=100.0 + look / 2, bytes_read=2**20 * (one.number + 1) * look * (9 if look == 11 else 1)
            )
            for one in numbers
        )
        state = msgspec.structs.replace(state, ranks=(msgspec.structs.replace(rank, devices=said),))
        snapshot = msgspec.structs.replace(scene.moment.snapshot, servers=(state,))
        history.observe(snapshot)
    return replace(scene, moment=replace(scene.moment, snapshot=snapshot, history=history))


@pytest.mark.parametrize(("width", "height"), [(118, 32), (78, 20), (158, 44), (218, 56)])
def test_lanes_use_the_room_there_is(width: int, height: int) -> None:
    scene = many(10, width=width, height=height)
    lines = VIEW.lines(scene)
    text = "\n".join(line.plain for line in lines)
    assert all(f"alpha {number} " in text for number in range(10)), text
    assert any(set(line.plain) & set("▁▂▃▄▅▆▇█") for line in lines), text
    assert len(lines) <= scene.room(VIEW.LINES_SHARE, 10)
    assert all(line.cell_len <= width for line in lines)


@pytest.mark.parametrize(("width", "height"), [(118, 32), (158, 60)])
def test_a_lane_says_what_its_row_says(width: int, height: int) -> None:
    """Titles said what was read in the last look, and rows what was read in two seconds."""
    scene = many(3, width=width, height=height)
    rows, text = cells(scene), plain(scene)
    for number in range(3):
        rate = rows[f"alpha dp0-tp0 {number}"]["read/s"]
        assert rate not in ("0B", "?")
        assert re.search(rf"alpha {number} .*{re.escape(rate)}/s", text), text
