"""What the blocks view says of tiers, requests and pages."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from swift_tiers.console.feeds.feed import ViewAnswers, ViewQuestion
from swift_tiers.console.model.glyphs import ASCII, UNICODE
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.model.table import Sorting, Table, ordered
from swift_tiers.console.views.blocks.view import Blocks
from swift_tiers.console.views.parts.view import Answered, Scene
from swift_tiers.radix_tiering.bus.contract.commands import CommandRefusedError, Drop, Flush, Pin, Unpin
from swift_tiers.radix_tiering.bus.contract.views import MapPart, MapView, PageView

from support.console_answers import (
    KEY,
    PARENT,
    STRANGER,
    answers_of,
    large_map,
    map_view,
    page_view,
    prefix_view,
)
from support.console_world import World, scene_of

ALPHA = (PlaceStep("server", "alpha"), PlaceStep("rank", "dp0-tp0"))
DEVICE = ViewQuestion("map", "device", "alpha")
REQUEST = f"0decode{'0' * 25}"
BLOCKS = Blocks()


def tier(name: str, *more: PlaceStep) -> Place:
    return Place("blocks", (*ALPHA, PlaceStep("tier", name), *more))


def with_answers(scene: Scene, **failed: str) -> Scene:
    """What the view asks is answered as the world's servers do, half a second ago."""
    said = {one: Answered(answers_of(("alpha", "beta"), one), 0.5, **failed) for one in BLOCKS.questions(scene)}
    return replace(scene, answers=said)


def replied(scene: Scene, question: ViewQuestion, *views: Any, silent: tuple[tuple[str, str], ...] = ()) -> Scene:
    return replace(scene, answers={question: Answered(ViewAnswers(views=views, silent=silent), 0.5)})


def words(scene: Scene) -> str:
    return "\n".join(line.plain for line in BLOCKS.lines(scene))


def cells(table: Table, column: str) -> list[str]:
    at = [one.name for one in table.columns].index(column)
    return [row.cells[at].text for row in table.rows]


def row_with(table: Table, *texts: str) -> Any:
    return next(row for row in table.rows if all(any(one in cell.text for cell in row.cells) for one in texts))


# ---- everything ----


def test_the_top_lists_tiers_and_requests_and_asks_for_one_rank_only() -> None:
    scene = scene_of(Place("blocks"))
    table = BLOCKS.table(scene)
    assert cells(table, "blocks of")[:6] == ["device", "peer", "host", "ssd", REQUEST, f"0restore{'0' * 24}"]
    assert {question.server for question in BLOCKS.questions(scene)} == {"alpha"}
    beta = row_with(table, "beta", "host")
    asked = BLOCKS.questions(replace(scene, selected=beta))
    assert asked == tuple(ViewQuestion("map", name, "beta") for name in ("device", "peer", "host", "ssd"))


def test_maps_of_the_rank_under_the_cursor_stand_above() -> None:
    scene = with_answers(scene_of(Place("blocks"), width=150, height=44))
    said = words(scene)
    assert "alpha dp0-tp0" in said
    assert "it borrows nothing" in said
    assert "device 2" in said
    assert UNICODE.signs["out"] * 20 in said
    assert UNICODE.signs["lent"] * 20 in said
    assert "lent 5000" in row_with(BLOCKS.table(scene), "alpha", "device").cells[-1].text
    assert "14.88GiB of" in row_with(BLOCKS.table(scene), "beta", "device").cells[-1].text, "no map was asked for"


def test_the_pages_of_a_request_stand_out_on_the_device() -> None:
    scene = with_answers(scene_of(Place("blocks"), width=150, height=44))
    of_request = replace(scene, selected=row_with(BLOCKS.table(scene), REQUEST))
    assert UNICODE.marked not in words(scene)
    assert words(of_request).count(UNICODE.marked) > 3, "its two runs of pages, and the legend"
    assert "on the device of 0decode" in words(of_request)


def test_before_an_answer_fill_is_shown_and_that_it_is_asked() -> None:
    said = words(scene_of(Place("blocks")))
    assert "asking" in said
    assert "93%" in said


@pytest.mark.parametrize(("place", "only"), [(Place("blocks", ALPHA[:1]), None), (Place("blocks"), "alpha")])
def test_one_server_only(place: Place, only: str | None) -> None:
    assert set(cells(BLOCKS.table(scene_of(place, only=only)), "server")) == {"alpha"}


def test_a_server_that_is_gone_has_nothing() -> None:
    table = BLOCKS.table(scene_of(Place("blocks", (PlaceStep("server", "gamma"),))))
    assert not table.rows
    assert "not on the bus any more" in table.empty


# ---- a tier ----


def test_a_tier_shows_every_slot_and_who_holds_it() -> None:
    scene = with_answers(scene_of(tier("device")))
    table = BLOCKS.table(scene)
    assert len(table.rows) == 46_605
    assert table.rows[0].cells[0].text == "1"
    held = table.rows[16]  # slot 17, the first of the decoding request
    assert [cell.text for cell in held.cells] == ["17", "█ private", REQUEST, "1", "-"]
    assert table.rows[199].cells[3].text == "65", "the 65th page is the first of the second run"
    assert held.place == Place("blocks", (*ALPHA, PlaceStep("request", REQUEST)))
    assert "lent 5000" in words(scene)
    assert "46,605 slots of 360KiB" in words(scene)


def test_the_sign_under_the_cursor_is_marked() -> None:
    scene = with_answers(scene_of(tier("device"), glyphs=ASCII))
    last = replace(scene, selected=BLOCKS.table(scene).rows[-1])
    drawn = BLOCKS.lines(last)
    assert "slot 46605: free" in words(last)
    assert drawn[-1].plain.rstrip().endswith("@")
    assert "@" not in drawn[-2].plain


@pytest.mark.parametrize("size", [(78, 20), (158, 44), (198, 56), (298, 76)])
@pytest.mark.parametrize("name", ["device", "host", "ssd"])
def test_the_map_fits_every_screen(size: tuple[int, int], name: str) -> None:
    width, height = size
    for glyphs in (ASCII, UNICODE):
        scene = with_answers(scene_of(tier(name), width=width, height=height, glyphs=glyphs))
        lines = BLOCKS.lines(scene)
        assert len(lines) <= int(height * BLOCKS.LINES_SHARE)
        assert max(line.cell_len for line in lines) <= width
        if glyphs.ascii:
            assert all(line.plain.isascii() for line in lines)
            assert all(cell.text.isascii() for row in BLOCKS.table(scene).rows[:50] for cell in row.cells)


def test_cells_of_many_slots_say_so() -> None:
    scene = with_answers(scene_of(tier("ssd"), width=158, height=44))
    table = BLOCKS.table(scene)
    assert table.rows[0].cells[0].text == "0-255"
    assert table.rows[-1].cells[-1].text == "device 3"
    assert "~" in words(scene)
    assert "a sign is" in words(scene)
    assert "device 2" in words(scene)


def test_more_parts_than_lines_are_shown_around_the_cursor() -> None:
    parts = tuple(MapPart(f"alpha.dp0-tp0/{number}", 10) for number in range(100))
    view = map_view("alpha", "peer", (("borrowed", 1000),), parts=parts)
    scene = replied(scene_of(tier("peer")), ViewQuestion("map", "peer", "alpha"), view)
    at_end = replace(scene, selected=BLOCKS.table(scene).rows[-1])
    assert "alpha.dp0-tp0/0 " in words(scene)
    assert "of 100 parts shown" in words(scene)
    assert "alpha.dp0-tp0/99" in words(at_end)
    assert "alpha.dp0-tp0/0 " not in words(at_end)


def test_a_rank_that_cannot_answer_says_why_and_a_silent_one_is_named() -> None:
    cannot = MapView(server="alpha", rank="dp0-tp0", tier="ssd", reason="there is no ssd tier")
    question = ViewQuestion("map", "ssd", "alpha")
    scene = replied(scene_of(tier("ssd")), question, cannot, silent=(("alpha", "dp0-tp1"),))
    assert "there is no ssd tier" in words(scene)
    assert "no answer from alpha dp0-tp1" in words(scene)
    assert not BLOCKS.table(scene).columns
    failed = replace(scene, answers={question: Answered(ViewAnswers(), 0.1, "connection refused")})
    assert "connection refused" in words(failed)


def test_the_cursor_begins_at_the_slot_that_the_place_names() -> None:
    table = BLOCKS.table(with_answers(scene_of(tier("device", PlaceStep("slot", "17")))))
    assert table.start == "16"
    unit = BLOCKS.table(with_answers(scene_of(tier("ssd", PlaceStep("slot", "1:428")))))
    assert unit.rows[int(unit.start)].cells[0].text == "256-511"
    assert unit.rows[int(unit.start)].cells[-1].text == "device 1"
    gone = with_answers(scene_of(tier("device", PlaceStep("slot", "999999"))))
    assert BLOCKS.table(gone).start == ""
    assert "slot 999999 is not there" in words(gone)


def test_a_large_tier_is_sorted() -> None:
    scene = replied(scene_of(tier("device")), DEVICE, large_map())
    table = BLOCKS.table(scene)
    rows = ordered(table, Sorting("state", True))
    assert len(rows) == 100_000
    assert rows[0].cells[1].content == "recomputing"
    assert rows[-1].cells[1].content == "cached"
    by_request = ordered(table, Sorting("request", True))
    assert by_request[0].cells[2].text == REQUEST
    assert by_request[200].cells[2].text == "-"


def test_old_answers_are_greyed() -> None:
    scene = with_answers(scene_of(tier("device")))
    assert not BLOCKS.table(scene).rows[0].stale
    old = replace(scene, answers={one: said._replace(age=60.0) for one, said in scene.answers.items()})
    assert BLOCKS.table(old).rows[0].stale
    assert "answered 1 min ago" in words(old)


# ---- a request, and a sequence ----


def test_a_request_shows_where_each_page_lies() -> None:
    scene = with_answers(scene_of(Place("blocks", (*ALPHA, PlaceStep("request", REQUEST)))))
    table = BLOCKS.table(scene)
    assert BLOCKS.questions(scene) == (ViewQuestion("prefix", KEY, "alpha"),)
    assert len(table.rows) == 133
    by_column = {column.name: cell.text for column, cell in zip(table.columns, table.rows[64].cells, strict=True)}
    assert by_column["device"] == "200"
    assert by_column["found"] == "host"
    assert by_column["copies"] == "3"
    assert by_column["ssd"] == "1:165 2:365"
    assert by_column["tokens"] == "1024-1039"
    assert table.rows[132].cells[9].text == "?", "pages behind the prompt's have no key that is told"
    assert "device 133" in words(scene)


def test_pages_lead_to_their_lives() -> None:
    rows = BLOCKS.table(with_answers(scene_of(Place("blocks", (*ALPHA, PlaceStep("request", REQUEST)))))).rows
    assert rows[127].place is not None
    assert rows[127].place.last == PlaceStep("page", KEY)
    assert rows[9].place is not None
    assert rows[9].place.last == PlaceStep("page", rows[9].cells[9].text), "its first digits will do"
    assert len(rows[9].place.last.name) == 16
    assert rows[132].place is None


def test_a_request_that_has_ended_shows_what_is_left_of_it() -> None:
    rid = f"0done0{'0' * 26}"
    scene = with_answers(scene_of(Place("blocks", (*ALPHA, PlaceStep("request", rid)))))
    said = words(scene)
    assert "nowhere 3" in said
    assert "not told 136" in said
    assert "finished" in said
    assert cells(BLOCKS.table(scene), "now")[39] == "× nowhere"


def test_a_request_that_is_gone() -> None:
    scene = scene_of(Place("blocks", (*ALPHA, PlaceStep("request", "nobody"))))
    assert "is not on the bus any more" in words(scene)
    assert not BLOCKS.table(scene).columns
    assert BLOCKS.questions(scene) == ()
    assert BLOCKS.offers(scene) == ()


def test_of_a_long_sequence_the_last_pages_are_told() -> None:
    place = Place("blocks", (*ALPHA, PlaceStep("prefix", KEY)))
    scene = replied(
        scene_of(place), ViewQuestion("prefix", KEY, "alpha"), prefix_view("alpha", pages=5000, listed=4096)
    )
    table = BLOCKS.table(scene)
    assert len(table.rows) == 5000
    assert "the last 4096 of 5000 pages are told" in words(scene)
    assert table.rows[903].cells[1].content == "not told"
    assert table.rows[904].cells[1].content == "device"


# ---- a page ----


def page(key: str = KEY, *before: PlaceStep) -> Scene:
    return with_answers(scene_of(Place("blocks", (*before, PlaceStep("page", key))), width=118))


def test_a_pages_life_at_all_who_hold_it() -> None:
    scene = page()
    said = words(scene)
    for fact in ("computed here", "used 12 times", "last 4.7 s ago", "pins 1", "9f9f", "page 128, 1 behind it"):
        assert fact in said
    table = BLOCKS.table(scene)
    assert BLOCKS.questions(scene) == (ViewQuestion("page", KEY, None),)
    assert set(cells(table, "server")) == {"alpha", "beta"}
    assert row_with(table, "alpha", "unit 1 of 2: device 1, slot 428").place == tier("ssd", PlaceStep("slot", "1:428"))
    assert row_with(table, "alpha", "device", "slot 144").place == tier("device", PlaceStep("slot", "144"))
    assert row_with(table, "lease 12 slot 5").place == tier("peer", PlaceStep("slot", "alpha.dp0-tp0/12:5"))
    assert row_with(table, "page before").place == Place("blocks", (PlaceStep("page", PARENT),))
    assert row_with(table, "request", REQUEST).place == Place("blocks", (*ALPHA, PlaceStep("request", REQUEST)))


def test_many_who_hold_a_page_are_all_in_the_table() -> None:
    views = [page_view(f"server-{number}") for number in range(40)]
    scene = replied(scene_of(Place("blocks", (PlaceStep("page", KEY),))), ViewQuestion("page", KEY, None), *views)
    assert len(BLOCKS.lines(scene)) <= 20 * BLOCKS.LINES_SHARE
    assert re.search(r"and \d+ more ranks", words(scene))
    assert len(set(cells(BLOCKS.table(scene), "server"))) == 42, "and those of the requests that end with it"


def test_a_page_may_be_named_by_its_beginning() -> None:
    assert BLOCKS.questions(page("5e5e")) == (ViewQuestion("page", KEY, None),)
    assert BLOCKS.questions(page("77")) == ()
    assert "first 16 digits" in words(page("77"))
    assert "first 16 digits" in words(page("x" * 64))


def test_a_page_is_asked_for_by_its_first_digits_and_known_by_the_answer() -> None:
    begin, whole = "ab" * 8, "ab" * 32
    assert BLOCKS.questions(page(begin + "a")) == (ViewQuestion("page", begin, None),), "whole bytes of it"
    unanswered = scene_of(Place("blocks", (PlaceStep("page", begin),)))
    assert "asking" in words(unanswered)
    assert not offered(unanswered), "nothing can be done about a page whose key is not known"
    view = page_view("alpha", begin, whole_key=whole)
    scene = replied(scene_of(Place("blocks", (PlaceStep("page", begin),))), ViewQuestion("page", begin, None), view)
    assert whole in words(replace(scene, width=120))
    assert offered(scene)["pin"].make("") == Pin(page=whole)
    sequence = row_with(BLOCKS.table(scene), "sequence").place
    assert sequence is not None
    assert sequence.last == PlaceStep("prefix", whole)
    other = page_view("beta", begin, whole_key="abab" * 15 + "cdcd")
    both = replied(
        scene_of(Place("blocks", (PlaceStep("page", begin),))), ViewQuestion("page", begin, None), view, other
    )
    assert not offered(both), "two pages begin so"


def test_a_page_that_nobody_holds() -> None:
    scene = page(STRANGER)
    assert "nobody holds it" in words(scene)
    assert cells(BLOCKS.table(scene), "where") == ["not known here", "not known here"]


def test_pages_that_were_computed_apart_have_other_bytes() -> None:
    views = [page_view("alpha"), page_view("beta", checksum="01" * 16)]
    scene = replied(scene_of(Place("blocks", (PlaceStep("page", KEY),))), ViewQuestion("page", KEY, None), *views)
    assert "checksums differ" in words(scene)
    assert "checksums differ" not in words(page())


def test_a_page_on_the_device_only() -> None:
    view = PageView(server="alpha", rank="dp0-tp0", key=KEY, held=False, device_slot=40, age_seconds=0.1)
    scene = replied(scene_of(Place("blocks", (PlaceStep("page", KEY),))), ViewQuestion("page", KEY, None), view)
    assert "on the device only" in words(scene)
    assert "nobody holds it" not in words(scene)
    assert "slot 40" in cells(BLOCKS.table(scene), "where")


# ---- steering ----


def offered(scene: Scene) -> dict[str, Any]:
    return {offer.label: offer for offer in BLOCKS.offers(scene)}


def test_a_page_can_be_pinned_unpinned_and_dropped_where_the_cursor_is() -> None:
    scene = page()
    row = row_with(BLOCKS.table(scene), "beta", "host")
    offers = offered(replace(scene, selected=row))
    assert {offer.server for offer in offers.values()} == {"beta"}
    made = [offers[label].make("") for label in ("pin", "unpin", "drop")]
    assert made == [Pin(page=KEY), Unpin(page=KEY), Drop(page=KEY)]


def test_host_memory_can_be_flushed_from_its_map_and_the_device_not() -> None:
    host = offered(with_answers(scene_of(tier("host"))))
    assert host["flush"].make("") == Flush(tiers="host")
    assert host["cap"].make("8GiB").limit == "8GiB"
    assert host["cap"].make("none").limit is None
    with pytest.raises(CommandRefusedError, match="none to lift it"):
        host["cap"].make("")
    assert offered(with_answers(scene_of(tier("ssd"))))["flush"].make("") == Flush(tiers="all")
    assert "flush" not in offered(with_answers(scene_of(tier("device"))))


def test_nothing_is_offered_at_servers_that_obey_nothing() -> None:
    scene = page()
    servers = tuple(
        msgspec.structs.replace(one, server=msgspec.structs.replace(one.server, control=False))
        for one in scene.moment.servers
    )
    assert scene.moment.snapshot is not None
    snapshot = msgspec.structs.replace(scene.moment.snapshot, servers=servers)
    assert offered(scene)
    assert not offered(replace(scene, moment=replace(scene.moment, snapshot=snapshot)))


def test_names_from_outside_cannot_move_the_cursor() -> None:
    world = World()
    place = Place(
        "blocks", (PlaceStep("server", "al\x1bpha"), PlaceStep("rank", "dp\x07"), PlaceStep("tier", "ho\nst"))
    )
    for shown in (
        place,
        Place("blocks", (PlaceStep("page", "\x1b[2J"),)),
        Place("blocks", (*ALPHA, PlaceStep("request", "\x1b"))),
    ):
        assert all(line.plain.isprintable() for line in BLOCKS.lines(scene_of(shown, world)))


def test_a_copy_in_borrowed_memory_leads_to_its_lease() -> None:
    view = page_view("beta", peer="alpha.dp0-tp0 lease 12 slot 99")
    scene = replied(scene_of(Place("blocks", (PlaceStep("page", KEY),))), ViewQuestion("page", KEY, None), view)
    row = row_with(BLOCKS.table(scene), "beta", "alpha.dp0-tp0 lease 12 slot 99")
    assert row.place is not None
    assert row.place.last == PlaceStep("slot", "alpha.dp0-tp0/12:99")
    there = with_answers(scene_of(row.place))
    table = BLOCKS.table(there)
    assert table.rows[int(table.start)].cells[0].text == "99"
    assert table.rows[0].place == Place("leases", (PlaceStep("server", "beta"),))


def test_a_slot_on_ssd_leads_to_its_device() -> None:
    rows = BLOCKS.table(with_answers(scene_of(tier("ssd")))).rows
    assert rows[-1].place == Place("stripes", (PlaceStep("server", "alpha"), PlaceStep("device", "dp0-tp0:3")))


def test_requests_that_have_ended_do_not_grow_old() -> None:
    """What is said of them is not said again; of those that run, and of tiers, it is."""
    world = World()
    shown = scene_of(Place("blocks"), world)
    late = replace(shown, moment=replace(shown.moment, age=60.0))
    rows = [row for row in Blocks().table(late).rows if row.cells[0].text == "alpha"]
    by_state = {row.cells[3].text: row.stale for row in rows}
    assert by_state == {"tier": True, "running": True, "restoring": True, "finished": False}
    lost = replace(late, moment=replace(late.moment, lost="no answer"))
    assert all(row.stale for row in Blocks().table(lost).rows)
