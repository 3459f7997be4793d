"""The view of events, and its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.console.app import ConsoleApp
from swift_tiers.console.feeds.feed import Look
from swift_tiers.console.model.events import EventHistory
from swift_tiers.console.model.glyphs import ASCII
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.model.sieve import Sieve
from swift_tiers.console.model.table import Row
from swift_tiers.console.views.events.view import Events
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.radix_tiering.bus.hear.event_reading import Gap, StreamEvent

from support.console_screen import until
from support.console_world import KEY, START, World, WorldFeed, moment_of

TOP = Place("events")


def event(number: int, server: str = "alpha", kind: str = "restore.behind", **fields: Any) -> StreamEvent:
    return StreamEvent(
        server=server,
        rank="dp0-tp0",
        entry=f"{number}-0",
        sequence=number,
        time=START,
        happened=START - 100 + number,
        age_seconds=0.0,
        kind=kind,
        fields=fields or {"pages": number},
    )


def log_of(*items: StreamEvent | Gap, kept: int = 100) -> EventHistory:
    log = EventHistory(kept)
    log.add(items)
    return log


def scene_of(log: EventHistory, place: Place = TOP, **changes: Any) -> Scene:
    return replace(Scene(replace(moment_of(World()), events=log), place), **changes)


def said(scene: Scene) -> str:
    return "\n".join(line.plain for line in Events().lines(scene))


def numbers(rows: Any) -> list[int]:
    return [row.subject.sequence for row in rows]


# ---- rows ----


def test_the_newest_come_first_and_gaps_are_where_they_were() -> None:
    gap = Gap(server="alpha", rank="dp0-tp0", first=2, last=4)
    rows = Events().table(scene_of(log_of(event(1), gap, event(5)))).rows
    assert [row.cells[5].text for row in rows] == ["restore.behind", "LOST", "restore.behind"]
    assert "events 2 to 4 (3)" in rows[1].cells[6].text
    assert rows[1].cells[1].text == "LOST"


def test_a_row_is_found_by_its_key_while_others_come_and_old_ones_go() -> None:
    log = log_of(*map(event, range(1, 9)), kept=5)
    view = Events()
    key = view.table(scene_of(log)).rows[1].key
    log.add([event(9), event(10)])
    rows = view.table(scene_of(log)).rows
    assert len(rows) == 5
    assert rows.index_of(key) == 3  # type: ignore[attr-defined]
    assert rows[3].key == key
    log.add(map(event, range(11, 20)))
    assert view.table(scene_of(log)).rows.index_of(key) is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("happened", [1e300, -1e300, float("inf"), float("nan")])
def test_a_clock_that_is_far_out_harms_no_other_row(happened: float) -> None:
    log = log_of(event(1), msgspec.structs.replace(event(2), happened=happened))
    rows = Events().table(scene_of(log, width=198)).rows
    assert rows[0].cells[0].text == "?"
    assert rows[1].cells[0].text != "?"


def test_only_rows_that_are_asked_for_are_made() -> None:
    log = log_of(*map(event, range(20_000)), kept=20_000)
    view = Events()
    rows = view.table(scene_of(log)).rows
    assert len(rows) == 20_000
    assert rows[:3][2].subject.sequence == 19_997
    assert len(view._shelf._rows) == 3


def test_one_server_has_its_own() -> None:
    log = log_of(event(1), event(1, "beta"), event(2))
    assert numbers(Events().table(scene_of(log, only="alpha")).rows) == [2, 1]
    assert len(Events().table(scene_of(log, TOP.enter(PlaceStep("server", "beta")))).rows) == 1


def test_a_filter_tests_only_what_is_new() -> None:
    log, view, tested = log_of(*map(event, range(1, 6))), Events(), []

    class Counting(Sieve):
        def sift(self, table: Any, rows: Any = None) -> Any:
            def passes(row: Row) -> bool:
                tested.append(row.key)
                return row.subject.sequence % 2 == 0

            return table.rows.sifted("even", passes)

    assert numbers(Counting("x").sift(view.table(scene_of(log)))) == [4, 2]
    log.add([event(6)])
    assert numbers(Counting("x").sift(view.table(scene_of(log)))) == [6, 4, 2]
    assert len(tested) == 6


def test_a_log_that_is_begun_anew_is_not_taken_for_the_former_one() -> None:
    log, view = log_of(*map(event, range(1, 6))), Events()
    sieve = Sieve("behind")
    assert numbers(sieve.sift(view.table(scene_of(log)))) == [5, 4, 3, 2, 1]
    log.clear()
    log.add(event(number, kind="device.out") for number in range(11, 18))
    assert numbers(sieve.sift(view.table(scene_of(log)))) == []
    assert numbers(view.table(scene_of(log)).rows) == [17, 16, 15, 14, 13, 12, 11]


@given(
    batches=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=12),
    kept=st.integers(1, 12),
    only=st.sampled_from([None, "alpha", "beta"]),
)
def test_what_is_sifted_step_by_step_is_what_a_whole_walk_finds(
    batches: list[list[int]], kept: int, only: str | None
) -> None:
    log, view, sieve = EventHistory(kept), Events(), Sieve("kind:even")
    for batch in batches:
        log.add(event(one, ("alpha", "beta")[one % 3 == 0], "odd" if one % 2 else "even") for one in batch)
        table = view.table(scene_of(log, only=only))
        found = sieve.sift(table)
        wanted = [row.key for row in table.rows if row.cells[5].text == "even"]
        assert [row.key for row in found] == wanted
        assert [found.index_of(key) for key in wanted] == list(range(len(wanted)))  # type: ignore[attr-defined]


def test_other_columns_can_be_sorted_by() -> None:
    log = log_of(event(1, kind="a.z"), event(2, kind="a.b"))
    rows = Events().table(scene_of(log)).rows
    assert numbers(rows.ordered("kind", True)) == [1, 2]  # type: ignore[attr-defined]
    assert numbers(rows.ordered("time", False)) == [1, 2]  # type: ignore[attr-defined]


# ---- lines ----


def test_what_happened_lately_is_counted_by_mark_and_kind() -> None:
    gap = Gap(server="alpha", rank="dp0-tp0", first=2, last=4)
    old = event(-1000, kind="page.corrupt")
    text = said(scene_of(log_of(old, gap, event(5), event(6), event(7, kind="device.out"))))
    assert "1 WRONG" in text
    assert "2 warnings" in text
    assert "3 LOST" in text
    assert "restore.behind 2" in text
    assert "page.corrupt" not in text


def test_one_event_is_shown_in_full_and_leads_on() -> None:
    log = log_of(event(1, kind="page.corrupt", tier="ssd", key=KEY, reason="checksum"))
    place = TOP.enter(PlaceStep("event", "0"))
    assert "a page was not what was written" in said(scene_of(log, place))
    rows = Events().table(scene_of(log, place)).rows
    assert [(row.cells[0].text, row.cells[1].text) for row in rows][1] == ("key", KEY)
    assert rows[1].place == Place("blocks", (PlaceStep("page", KEY),))


def test_when_an_event_happened_is_not_said_where_nobody_knows() -> None:
    """Redis' clock was set back since."""
    unknown = msgspec.structs.replace(event(1), happened=START + 3600, age_seconds=None)
    shown = [said(scene_of(log_of(one), TOP.enter(PlaceStep("event", "0")))) for one in (event(1), unknown)]
    assert ["ago)" in text for text in shown] == [True, False]
    assert "(?)" in shown[1]


@pytest.mark.parametrize("number", ["7", "-1", "x", "99999999999999999999"])
def test_an_event_that_is_not_kept_is_said_not_to_be(number: str) -> None:
    assert "kept no more" in said(scene_of(log_of(event(1)), TOP.enter(PlaceStep("event", number))))
    assert not Events().table(scene_of(log_of(event(1)), TOP.enter(PlaceStep("event", number)))).rows


@pytest.mark.parametrize("width", [78, 198])
def test_ascii_terminals_get_ascii(width: int) -> None:
    log = log_of(event(1, **{"na\x1bme": "\x1b[2J"}), Gap(server="alpha", rank="dp0-tp0", first=None, last=4))
    for place in (TOP, TOP.enter(PlaceStep("event", "0")), TOP.enter(PlaceStep("event", "1"))):
        scene = scene_of(log, place, glyphs=ASCII, width=width)
        assert said(scene).replace("\n", "").isprintable()
        assert said(scene).isascii()
        assert all(
            cell.text.isascii() and cell.text.isprintable() for row in Events().table(scene).rows for cell in row.cells
        )


# ---- on the screen ----

pytestmark = pytest.mark.anyio


class TalkingFeed(WorldFeed):
    """Each look brings one event."""

    def look(self) -> Look:
        look = super().look()
        items = (*look.items, event(1000 + self.looks, kind=f"talk.n{self.looks}"))
        return Look(snapshot=look.snapshot, items=items)


async def test_a_cursor_at_the_newest_follows_and_another_one_stays() -> None:
    feed = TalkingFeed()
    app = ConsoleApp(feed, interval=0.1)
    async with app.run_test(size=(80, 24)) as pilot:
        app.action_view("events")
        await until(pilot, lambda: len(app.grid.rows) > 8)
        assert app.grid.cursor == 0
        seen = app.grid.row
        await until(pilot, lambda: app.grid.row != seen)
        assert app.grid.cursor == 0
        await pilot.press("down", "down")
        await until(pilot, lambda: app.grid.cursor >= 2)
        stayed, at = app.grid.row, app.grid.cursor
        await until(pilot, lambda: app.grid.cursor > at)
        assert app.grid.row == stayed
