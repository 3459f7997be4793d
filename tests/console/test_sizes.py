"""Views at any size, with what is there and what is not: they are drawn, and in no sign that was not asked for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.text import Text

from swift_tiers.console.model.glyphs import ASCII, UNICODE
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.views import VIEWS
from swift_tiers.console.views.overview.view import Overview
from swift_tiers.console.views.parts.view import ConsoleView
from swift_tiers.radix_tiering.bus.hear.trouble import Mark

from support.console_world import KEY, World, scene_of
from support.examples import examples

SERVER = PlaceStep("server", "beta")
#: Of each view, what can be entered there; also what is not there.
STEPS: dict[str, tuple[tuple[PlaceStep, ...], ...]] = {
    "links": ((PlaceStep("link", "ssd-host"),), (PlaceStep("link", "ssd-host"), SERVER, PlaceStep("rank", "dp0-tp0"))),
    "stripes": ((SERVER,), (SERVER, PlaceStep("device", "dp0-tp0:1")), (PlaceStep("page", KEY),)),
    "restores": ((SERVER,), (PlaceStep("request", f"1restore{'0' * 24}"),), (SERVER, PlaceStep("request", "nobody"))),
}
PLACES = [Place(view.NAME, steps) for view in VIEWS for steps in ((), *STEPS.get(view.NAME, ()))]
VIEW: dict[str, ConsoleView] = {view.NAME: view() for view in VIEWS}


@pytest.mark.parametrize(
    "place", PLACES, ids=lambda place: "-".join((place.view, *(step.kind for step in place.steps)))
)
@settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(
    width=st.integers(20, 300), height=st.integers(4, 80), ascii=st.booleans(),
    ticks=st.sampled_from([0, 1, 40]), only=st.sampled_from([None, "alpha", "gamma", "nobody"]),
)  # fmt: skip
def test_views_are_drawn_at_any_size(place, width, height, ascii, ticks, only) -> None:
    world = World()
    world.tick(ticks)
    glyphs = ASCII if ascii else UNICODE
    scene = replace(scene_of(place, world), width=width, height=height, glyphs=glyphs, only=only)
    view = VIEW[place.view]
    table = view.table(scene)
    rows = table.rows[:50]
    lines = view.lines(replace(scene, selected=rows[0] if rows else None))
    view.offers(replace(scene, selected=rows[0] if rows else None))
    said = [line.plain for line in lines] + [cell.text for row in rows for cell in row.cells]
    assert all(len(row.cells) == len(table.columns) for row in rows)
    assert not any("\n" in one for one in said)
    assert not ascii or all(one.isascii() for one in said)


def joined(lines: list[Text]) -> str:
    """Lines that go on beneath, as one."""
    return re.sub(r"\s+", " ", " ".join(line.plain for line in lines))


def test_remedies_are_whole_on_a_narrow_terminal() -> None:
    """Of the worst alarms first, as far as there is room; where one has entered the server, of all of its own."""
    world = World()
    top = scene_of(Place("overview"), world, width=78, height=20)
    worst = [alarm for alarm in top.moment.alarms if alarm.mark is Mark.WRONG]
    shown = joined(Overview().lines(top))
    assert worst
    assert all(alarm.what in shown and alarm.remedy in shown for alarm in worst)
    inside = scene_of(Place("overview", (PlaceStep("server", "alpha"),)), world, width=78, height=20)
    of_it = [alarm for alarm in inside.moment.alarms if alarm.target.name("server") == "alpha"]
    shown = joined(Overview().lines(inside))
    assert any(len(alarm.remedy) > 30 for alarm in of_it)
    assert all(alarm.remedy in shown for alarm in of_it if alarm.mark > Mark.NOTE)
    assert max(line.cell_len for line in (*Overview().lines(top), *Overview().lines(inside))) <= 78
