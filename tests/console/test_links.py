"""The view of links: what it says of the world."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from swift_tiers.console.model.glyphs import ASCII
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.views.links.view import Links
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.console.views.parts.ways import Way, flows, way_of
from swift_tiers.radix_tiering.bus.hear.figures import size

from support.console_world import World, moment_of, scene_of

TOP = Place("links")
VIEW = Links()


def plain(scene: Scene) -> str:
    return "\n".join(line.plain for line in VIEW.lines(scene))


def cells(scene: Scene) -> dict[str, dict[str, object]]:
    """By the key of the row, then by the column."""
    table = VIEW.table(scene)
    names = [column.name for column in table.columns]
    return {row.key: dict(zip(names, (cell.content for cell in row.cells), strict=True)) for row in table.rows}


@pytest.mark.parametrize(
    ("link", "way"),
    [
        ("device-host", Way("device", "host")),
        ("host-ssd", Way("host", "ssd")),
        ("alpha.dp0-tp0-host", Way("alpha.dp0-tp0", "host")),
        ("host-alpha.dp0-tp0", Way("host", "alpha.dp0-tp0")),
        ("host-7.dp0-tp1-host", Way("host-7.dp0-tp1", "host")),
        ("host-host-7.dp0-tp1", Way("host", "host-7.dp0-tp1")),
        ("remote-device", Way("remote", "device")),
        ("host-device", Way("host", "device")),
        ("peer-device", Way("peer", "device")),
        ("device-7.dp0-tp0-device", Way("device-7.dp0-tp0", "device")),
        ("device-alpha.dp0-tp0", Way("device", "alpha.dp0-tp0")),
    ],
)
def test_names_of_links_are_read_whatever_servers_are_called(link: str, way: Way) -> None:
    assert way_of(link) == way


def test_rows_are_the_sums_of_all_ranks_and_the_worst_of_their_latencies() -> None:
    scene = scene_of(TOP)
    links = [one for rank in scene.moment.ranks() for one in rank.links if one.link == "ssd-host"]
    assert len(links) == 2
    row = cells(scene)["ssd-host"]
    assert row["total"] == sum(one.bytes for one in links)
    assert row["p99"] == max(one.recent_p99_seconds for one in links)
    assert row["rate/s"] == pytest.approx(sum(scene.moment.history.rate(one, "bytes", seconds=2.0) for one in links))
    assert row["ranks"] == 2


def test_what_single_donors_have_is_not_counted_twice() -> None:
    scene = scene_of(TOP, height=40)
    ways = {one.name: one for one in flows(scene.moment.ranks(), scene.moment.history)}
    tiers = sum(one.bytes_per_second for one in ways.values() if not one.way.is_donor)
    assert any(one.way.is_donor for one in ways.values())
    totals = next(line for line in plain(scene).splitlines() if line.startswith("all"))
    assert f"{size(tiers)}/s" in totals


def test_one_server_alone_can_be_looked_at() -> None:
    both, one = cells(scene_of(TOP)), cells(scene_of(TOP, only="beta"))
    assert one["host-ssd"]["total"] < both["host-ssd"]["total"]
    assert one["host-ssd"]["ranks"] == 1


def test_the_matrix_has_the_rate_of_each_way_in_its_row_and_column() -> None:
    scene = scene_of(TOP, width=78)
    lines = plain(scene).splitlines()
    head = lines[0]
    row = next(line for line in lines if line.startswith("ssd"))
    rate = f"{size(cells(scene)['ssd-host']['rate/s'])}/s"
    assert row.index(rate) + len(rate) == head.index("to host") + len("to host")
    assert row.count("-") == 3  # nothing goes from ssd to device, peer or ssd


def test_a_way_leads_to_its_ranks_and_these_to_their_charts() -> None:
    scene = scene_of(TOP)
    row = next(row for row in VIEW.table(scene).rows if row.key == "ssd-host")
    assert row.place == Place("links", (PlaceStep("link", "ssd-host"),))
    inner = scene_of(row.place)
    assert "read for restores" in plain(inner)
    rows = VIEW.table(inner).rows
    assert [row.cells[0].text for row in rows] == ["alpha", "beta"]
    alone = scene_of(rows[0].place)
    assert not VIEW.table(alone).columns
    assert len(VIEW.lines(alone)) <= alone.height


@pytest.mark.parametrize("size_of_screen", [(78, 20), (118, 36), (198, 56), (30, 8)])
@pytest.mark.parametrize(
    "steps", [(), (PlaceStep("link", "host-ssd"),), (PlaceStep("link", "host-ssd"), PlaceStep("server", "beta"))]
)
def test_no_line_is_wider_than_the_screen(size_of_screen: tuple[int, int], steps: tuple[PlaceStep, ...]) -> None:
    width, height = size_of_screen
    scene = scene_of(Place("links", steps), width=width, height=height)
    if width >= 78:
        assert max(len(line.plain) for line in VIEW.lines(scene)) <= width
    assert len(VIEW.lines(scene)) <= height


def test_without_unicode_nothing_else_is_drawn() -> None:
    for place in (TOP, Place("links", (PlaceStep("link", "host-ssd"),))):
        scene = scene_of(place, glyphs=ASCII)
        assert plain(scene).isascii()
        assert all(cell.text.isascii() for row in VIEW.table(scene).rows for cell in row.cells)


def test_what_is_gone_and_what_was_never_said_is_told() -> None:
    assert "gamma is gone" in VIEW.table(scene_of(TOP, only="gamma")).empty
    assert "not on the bus any more" in plain(scene_of(Place("links", (PlaceStep("link", "host-moon"),))))


def test_a_server_that_was_just_found_has_no_rates_and_its_own_figure_of_them() -> None:
    class Mute(World):
        def _link(self, *args):
            return msgspec.structs.replace(super()._link(*args), bytes_per_second=None, recent_p99_seconds=None)

    scene = Scene(moment_of(Mute(), ticks=1), TOP)
    row = VIEW.table(scene).rows[0]
    named = dict(zip((column.name for column in VIEW.table(scene).columns), row.cells, strict=True))
    assert named["rate/s"].text == "?"
    assert named["busy"].text == "?"
    assert named["p99"].text == "-"


def test_one_rate_has_one_value_on_the_screen() -> None:
    """Titles of charts said that of the last look, and the table beneath them that of two seconds."""
    scene = bursting(scene_of(TOP, width=158, height=60))
    text = plain(scene)
    rows = cells(scene)
    way = Way("ssd", "host")
    rate = rows["ssd-host"]["rate/s"]
    assert f"{way.source} to {way.destination}  {size(rate)}/s" in text
    scene = bursting(scene_of(Place("links", (PlaceStep("link", "ssd-host"),)), width=158, height=60))
    assert re.search(rf"bytes, the last [^/]*  {re.escape(size(rate))}/s", plain(scene))


def bursting(scene: Scene) -> Scene:
    """One more look, since which much has been read."""
    assert scene.moment.snapshot is not None
    servers = tuple(
        msgspec.structs.replace(
            state,
            ranks=tuple(
                msgspec.structs.replace(
                    rank,
                    links=tuple(
                        msgspec.structs.replace(one, time=(one.time or 0.0) + 0.5, bytes=(one.bytes or 0) + 10**9)
                        for one in rank.links
                    ),
                )
                for rank in state.ranks
            ),
        )
        for state in scene.moment.snapshot.servers
    )
    snapshot = msgspec.structs.replace(scene.moment.snapshot, servers=servers)
    scene.moment.history.observe(snapshot)
    return replace(scene, moment=replace(scene.moment, snapshot=snapshot))


def test_it_says_which_time_its_figures_are_of() -> None:
    assert VIEW.windows(TOP) == "/s: last 2 s, p50 p99: last 60 s"
