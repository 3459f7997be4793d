"""The view of restores: bars, verdicts, and the story of one."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.console.model.glyphs import ASCII, UNICODE
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.views.parts.measures import seconds_cell
from swift_tiers.console.views.parts.view import Scene
from swift_tiers.console.views.restores.restore_bar import BarStretch, RestoreCourse, bar, course, divided, letters
from swift_tiers.console.views.restores.restored import Restored, find, grouped, restores, saved, verdict
from swift_tiers.console.views.restores.view import MOVING, Restores
from swift_tiers.radix_tiering.bus.contract.views import RankState, RequestView, ServerState, ServerView, Snapshot
from swift_tiers.radix_tiering.figures.story import RestoreStory

from support.console_world import KEY, World, moment_of, scene_of

VIEW = Restores()
TOP = Place("restores")
DONE = f"0done3{'0' * 26}"
STORY = RestoreStory(
    page_tokens=16,
    wanted_pages=100,
    found_pages={"host": 20, "ssd": 60},
    strategy="token-wise",
    why="both sides",
    estimated_seconds=0.5,
    planned_lead_pages=0,
    planned_meeting_pages=40,
)


def story(**changes: object) -> RestoreStory:
    return msgspec.structs.replace(STORY, **changes)


def over(**changes: object) -> RestoreStory:
    return story(
        **{"runs": (("compute", 30), ("ssd", 50)), "meeting_pages": 30, "there_seconds": 0.48, "compute_seconds": 0.3}
        | changes
    )


def view(told: RestoreStory | None, rank: str = "dp0-tp0", **changes: object) -> RequestView:
    known = {"server": "alpha", "rank": rank, "rid": "r1", "state": "finished", "time": 100.0, "arrived": 90.0}
    return RequestView(**{**known, "age_seconds": 0.2, "restore": "split", "restore_story": told, **changes})


def plain(scene: Scene) -> str:
    return "\n".join(line.plain for line in VIEW.lines(scene))


def cells(scene: Scene) -> dict[str, dict[str, str]]:
    table = VIEW.table(scene)
    names = [column.name for column in table.columns]
    return {row.key: dict(zip(names, (cell.text for cell in row.cells), strict=True)) for row in table.rows}


def drawn(shown: RestoreCourse, width: int = 40) -> str:
    return "".join(part if isinstance(part, str) else part[0] for part in bar(ASCII, shown, width))


class OneRequest(World):
    """Two ranks of alpha, which say this of one request."""

    def __init__(self, *views: RequestView) -> None:
        super().__init__(("alpha",), gone=())
        self.views = views

    def _server(self, number: int):
        state = super()._server(number)
        ranks = tuple(
            msgspec.structs.replace(
                state.ranks[0], name=said.rank, requests=(said,), devices=(), links=(), lent=(), borrowed=()
            )
            for said in self.views
        )
        return msgspec.structs.replace(state, ranks=ranks)


# ---- bars ----


def test_both_sides_grow_towards_the_planned_point_and_the_rest_is_open() -> None:
    shown = course(story(runs=(("compute", 20),), arrived_pages=24, loading_pages=8))
    assert [(one.kind, one.pages) for one in shown.stretches] == [
        ("compute", 20), ("open", 28), ("loading", 8), ("arrived", 24),
    ]  # fmt: skip
    assert (shown.planned, shown.met) == (40, None)
    assert drawn(shown) == "#" * 10 + "." * 10 + ":" + "." * 3 + "-" * 4 + "=" * 12


def test_where_both_met_is_marked_beside_where_they_were_to_meet() -> None:
    assert drawn(course(over())) == "#" * 15 + "X" + "=" * 4 + ":" + "=" * 19


def test_what_was_loaded_first_lies_before_what_was_computed() -> None:
    shown = course(over(runs=(("host", 10), ("compute", 20), ("ssd", 50)), meeting_pages=30))
    assert drawn(shown)[:16] == "=" * 5 + "#" * 10 + "X"
    assert letters(shown, 8) == "HCCSSSSS"


def test_layers_stand_for_pages_where_it_was_restored_by_layers() -> None:
    told = over(
        runs=(("compute", 80),), meeting_pages=80, strategy="layer-wise", layers=32, planned_layer=16, met_layer=8
    )
    shown = course(told)
    assert (shown.unit, shown.whole, shown.planned, shown.met) == ("layers", 32, 16, 8)
    assert drawn(shown, 32) == "#" * 8 + "X" + "=" * 7 + ":" + "=" * 15
    assert saved(told).tokens == 80 * 16 * 24 // 32


def test_one_side_alone_met_nobody() -> None:
    assert course(over(runs=(("compute", 80),), meeting_pages=80)).met is None
    assert course(over(runs=(("ssd", 80),), meeting_pages=0, planned_meeting_pages=0)).planned is None


def test_counts_that_cannot_be_are_cut_to_what_is_left() -> None:
    shown = course(story(runs=(("compute", 79),), arrived_pages=500, loading_pages=9))
    assert sum(one.pages for one in shown.stretches) == 80


@given(st.lists(st.integers(0, 10**6), max_size=8), st.integers(0, 200))
def test_cells_are_divided_without_loss_and_nothing_is_hidden(parts: list[int], width: int) -> None:
    cells = divided(parts, width)
    assert len(cells) == len(parts)
    assert sum(cells) == (width if sum(parts) else 0)
    some = [share for share, part in zip(cells, parts, strict=True) if part]
    if len(some) <= width:
        assert all(some)
    assert not any(share for share, part in zip(cells, parts, strict=True) if not part)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@given(
    runs=st.lists(st.tuples(st.sampled_from(["compute", "ssd", "device", "tape"]), st.integers(1, 50)), max_size=6),
    more=st.integers(0, 40), arrived=st.none() | st.integers(0, 99), loading=st.none() | st.integers(0, 99),
    planned=st.none() | st.integers(0, 300), met=st.none() | st.integers(0, 300), width=st.integers(1, 150),
)  # fmt: skip
def test_a_bar_has_its_width_whatever_is_told(glyphs, runs, more, arrived, loading, planned, met, width) -> None:
    found = sum(pages for _, pages in runs) + more
    told = RestoreStory(
        found_pages={"ssd": found},
        runs=tuple(runs),
        arrived_pages=arrived,
        loading_pages=loading,
        planned_meeting_pages=planned,
        meeting_pages=met,
    )
    parts = bar(glyphs, course(told), width)
    assert sum(len(part if isinstance(part, str) else part[0]) for part in parts) == width


# ---- verdicts ----


@pytest.mark.parametrize(
    ("told", "changes", "word"),
    [
        (over(), {}, "in time"),
        (over(there_seconds=0.7), {}, "in time"),
        (over(there_seconds=0.9), {}, "late"),
        (over(there_seconds=9.0, waited_seconds=0.1), {}, "in time"),  # nobody waited for the rest of it
        (over(late="ssd fell behind", late_pages=3), {}, "late"),
        (over(estimated_seconds=None), {}, "done"),
        (over(), {"restore": "cut short"}, "cut short"),
        (over(), {"restore": "expired"}, "out of time"),
        (story(runs=(("compute", 9),)), {"state": "aborted"}, "cancelled"),
        (story(runs=(("compute", 9),)), {"state": "restoring"}, "running"),
        (story(runs=(("compute", 9),), there_seconds=0.2), {"state": "waiting"}, "all there"),
        (RestoreStory(wanted_pages=9), {}, "nothing found"),
        (None, {"state": "waiting"}, "nothing found"),
    ],
)
def test_verdicts(told: RestoreStory | None, changes: dict[str, str], word: str) -> None:
    assert verdict(view(told, **changes)).word == word


def test_what_loading_saved_is_priced_by_what_was_computed() -> None:
    assert saved(over()).tokens == 50 * 16
    assert saved(over()).seconds == pytest.approx(0.3 / 30 * 50)
    assert saved(over(runs=(("ssd", 80),), compute_seconds=0.0)).seconds is None


# ---- all of them ----


def test_what_runs_comes_first_and_then_the_latest() -> None:
    rows = list(cells(scene_of(TOP)).values())
    assert [row["verdict"] for row in rows[:3]] == ["running", "running", "in time"]
    assert [row["ago"] for row in rows[2:]] == sorted(row["ago"] for row in rows[2:])
    late = next(row for row in rows if row["request"] == DONE)
    assert (late["verdict"], late["why late"], late["met at"], late["planned"]) == (
        "late", "ssd fell behind", "123", "128",
    )  # fmt: skip


def test_the_latest_is_the_latest_whatever_clocks_say() -> None:
    """A server whose clock is an hour ahead has not restored later for it."""

    def state(name: str, ended: float, off: float) -> ServerState:
        one = view(over(), server=name, ended=ended + off, time=ended + off, arrived=ended - 1 + off)
        server = ServerView(server=name, alive=True, clock_offset_seconds=off)
        return ServerState(server=server, ranks=(RankState(name="dp0-tp0", requests=(one,)),))

    states = (state("alpha", 500.0, 3600.0), state("beta", 600.0, 0.0), state("gamma", 550.0, -60.0))
    moment = replace(moment_of(World()), snapshot=Snapshot(time=700.0, servers=states))
    assert [one.worst.server for one in restores(moment, None)[1]] == ["beta", "gamma", "alpha"]
    assert [one.worst.server for one in restores(moment, "gamma")[1]] == ["gamma"]


def test_running_ones_have_their_bars_and_say_why() -> None:
    text = plain(scene_of(TOP))
    assert "0restore" in text
    assert "token-wise: loading all takes 2.1 s" in text
    assert "of 840 ms" in text


def test_requests_of_which_nothing_was_found_are_no_restores() -> None:
    running, done = restores(moment_of(OneRequest(view(RestoreStory(wanted_pages=9)))), None)
    assert not running
    assert not done


def test_ranks_of_a_server_are_one_row_and_the_worst_speaks() -> None:
    slow = view(over(late="ssd fell behind", there_seconds=0.6), rank="dp0-tp1")
    scene = scene_of(TOP, OneRequest(view(over()), slow))
    (row,) = cells(scene).values()
    assert (row["verdict"], row["took"], row["ranks"]) == ("late", "600 ms", "2")
    inner = scene_of(VIEW.table(scene).rows[0].place, OneRequest(view(over()), slow))
    assert "the slowest of 2 ranks" in plain(inner)
    assert [column.name for column in VIEW.table(inner).columns] == ["what", "estimated", "dp0-tp1", "dp0-tp0"]
    there = next(row for row in VIEW.table(inner).rows if row.key == "all there after")
    assert [cell.text for cell in there.cells] == ["all there after", "500 ms", "600 ms", "480 ms"]


def test_one_rank_that_is_not_done_holds_the_others_up() -> None:
    late = view(story(runs=(("compute", 9),)), rank="dp0-tp1", state="restoring")
    one = Restored(grouped(_ranks(view(over(), state="restoring"), late))[0].views)
    assert one.running
    assert one.worst.rank == "dp0-tp1"


def _ranks(*views: RequestView) -> list[RankState]:
    return [RankState(name=said.rank, requests=(said,)) for said in views]


def test_data_ranks_have_requests_of_their_own() -> None:
    assert len(grouped(_ranks(view(over()), view(over(), rank="dp1-tp0")))) == 2


def test_an_unknown_strategy_and_tier_are_shown_as_they_are() -> None:
    told = over(strategy="by-telepathy", why="it can", runs=(("tape", 30), ("compute", 50)), meeting_pages=80)
    world = OneRequest(view(told))
    assert next(iter(cells(scene_of(TOP, world)).values()))["strategy"] == "by-telepathy"
    text = plain(scene_of(Place("restores", (PlaceStep("request", "r1"),)), world))
    assert "by-telepathy, since it can" in text
    assert "30 tape" in text


def test_what_is_over_does_not_get_old_but_what_runs_does() -> None:
    def stale(state: str) -> bool:
        told = over() if state == "finished" else story(runs=(("compute", 9),))
        scene = scene_of(TOP, OneRequest(view(told, state=state, age_seconds=100.0)))
        return VIEW.table(scene).rows[0].stale

    assert not stale("finished")
    assert stale("restoring")


def test_nothing_restored_and_a_server_that_is_gone() -> None:
    assert "nothing was restored" in VIEW.table(scene_of(TOP, OneRequest(view(None)))).empty
    assert "gamma is gone" in VIEW.table(scene_of(TOP, only="gamma")).empty


# ---- one of them ----


def test_a_request_is_found_with_its_server_and_without() -> None:
    for steps in ((PlaceStep("request", DONE),), (PlaceStep("server", "alpha"), PlaceStep("request", DONE))):
        text = " ".join(plain(scene_of(Place("restores", steps))).split())
        assert "computing and loading met behind page 123, planned was page 128" in text
        assert "it fell behind: ssd fell behind; 12 pages were left to be computed" in text
    assert find(scene_of(TOP).moment, "beta", DONE) is None


def test_from_a_story_to_its_pages_and_their_stripe_units() -> None:
    rows = {row.key: row for row in VIEW.table(scene_of(Place("restores", (PlaceStep("request", DONE),)))).rows}
    assert rows["last page: its life"].place == Place("blocks", (PlaceStep("page", KEY),))
    assert rows["where its stripe units lie"].place == Place(
        "stripes", (PlaceStep("server", "alpha"), PlaceStep("page", KEY))
    )


def test_a_request_that_nobody_knows_is_said_to_be_unknown() -> None:
    scene = scene_of(Place("restores", (PlaceStep("request", "moon\x1b[2J"),)))
    assert "no server knows request moon\\x1b[2J" in plain(scene)
    assert not VIEW.table(scene).columns


def test_a_request_without_a_story_has_not_had_its_turn() -> None:
    scene = scene_of(Place("restores", (PlaceStep("request", "r1"),)), OneRequest(view(None, state="waiting")))
    said = " ".join(plain(scene).split())
    assert "its prompt has no whole page, or it has not had its turn yet" in said


@pytest.mark.parametrize("size_of_screen", [(78, 20), (118, 36), (198, 56)])
@pytest.mark.parametrize("steps", [(), (PlaceStep("request", DONE),)])
def test_lines_fit_and_need_no_unicode(steps: tuple[PlaceStep, ...], size_of_screen: tuple[int, int]) -> None:
    width, height = size_of_screen
    scene = scene_of(Place("restores", steps), width=width, height=height, glyphs=ASCII)
    assert max(len(line.plain) for line in VIEW.lines(scene)) <= width
    assert plain(scene).isascii()
    assert all(cell.text.isascii() for row in VIEW.table(scene).rows for cell in row.cells)
    if not steps:
        assert len(VIEW.lines(scene)) <= height * VIEW.LINES_SHARE


def test_many_running_ones_leave_room_for_the_table() -> None:
    world = World(tuple(f"s{number}" for number in range(30)), gone=())
    scene = scene_of(TOP, world)
    assert len(VIEW.lines(scene)) <= scene.height * VIEW.LINES_SHARE
    assert "more that run" in plain(scene)
    assert len(VIEW.table(scene).rows) == 30 * 7


def test_stretches_are_named_by_what_they_are() -> None:
    assert BarStretch("tape", 3).style == "tape"
    assert BarStretch("tape", 3).sign(ASCII) == ASCII.arrived


@given(st.floats(1e-4, 1e7) | st.just(0.0) | st.none())
def test_what_goes_on_of_a_restore_that_is_over_is_written_with_the_signs_that_are_said(value: float | None) -> None:
    """Else a filter would pass over it."""
    (signs,) = MOVING.values()
    assert {*seconds_cell(value).text.casefold()} <= signs


def test_no_line_of_a_restore_has_a_sign_that_stands_alone() -> None:
    """A sign between two meanings is drawn apart from the words before it."""
    for place in (Place("restores"), Place("restores", (PlaceStep("server", "alpha"),))):
        for line in Restores().lines(scene_of(place, width=158, height=44)):
            assert not [span for span in line.spans if line.plain[span.start : span.end].strip() in (";", ",", ":")]
