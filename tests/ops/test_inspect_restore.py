"""`swift-tiers inspect restore`: what an operator reads of how a prefix came back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest
from rich.console import Console

from swift_tiers.ops.commands.inspect.viewed import show_restore
from swift_tiers.radix_tiering.bus.contract.views import RequestView
from swift_tiers.radix_tiering.bus.hear.restore_words import explain_restore
from swift_tiers.radix_tiering.figures.story import RestoreStory

from support.bus import RID, HandWritten
from support.bus import STORY as ON_THE_BUS
from support.command_line import run_command
from support.redis import RealRedis
from support.telemetry import STORY

#: Nothing of the prefix was held.
MISS = RestoreStory(page_tokens=16, wanted_pages=40)
#: Computing and loading met behind page 21, everything as planned but for that.
BOTH = msgspec.structs.replace(STORY, held_seconds=0.0, lost_pages={})

#: Its pages lay in host memory; those above the ninth layer were copied.
BY_LAYERS = msgspec.structs.replace(
    BOTH, runs=(("compute", 30),), meeting_pages=30, layers=36, planned_layer=8, met_layer=9
)


def changed(story: RestoreStory, **fields: Any) -> RestoreStory:
    return msgspec.structs.replace(story, **fields)


def view(story: RestoreStory | None, rank: str = "dp0-tp0", **fields: Any) -> RequestView:
    known = {"server": "a", "rank": rank, "rid": "x", "state": "finished", "time": 9.0, "arrived": 4.0}
    return RequestView(**{**known, "age_seconds": 1.0, "restore_story": story, **fields})


def explained(story: RestoreStory, **fields: Any) -> str:
    return "\n".join(explain_restore(view(story, **fields), story))


def read(*views: RequestView, columns: int = 160) -> list[str]:
    """The page, line by line."""
    console = Console(width=columns, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        for part in show_restore(views).shown:
            console.print(part)
    return [line.rstrip() for line in capture.get().splitlines()]


def facts(*views: RequestView) -> dict[str, list[str]]:
    """The table: what stands beside each of its rows."""
    lines = read(*views)
    (at,) = (number for number, line in enumerate(lines) if line.startswith("what "))
    rows = [re.split(r" {2,}", line.strip()) for line in lines[at + 1 :]]
    return {row[0]: row[1:] for row in rows}


# ---- on a bus ----


@pytest.fixture
def alpha() -> Iterator[HandWritten]:
    with RealRedis() as redis:
        yield HandWritten(redis.admin, ranks=("dp0-tp0", "dp0-tp1")).write()


Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inspect(alpha: HandWritten, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inspect:
    monkeypatch.setenv("COLUMNS", "160")
    path = alpha.client.connection_pool.connection_kwargs["path"]

    def run(*words: str) -> tuple[int, str, str]:
        return run_command(capsys, "inspect", *words, "--url", f"unix://{path}")

    return run


def written(**changes: Any) -> Mapping[str, str]:
    return {"restore_story": json.dumps({**ON_THE_BUS, **changes})}


def test_a_restore(inspect: Inspect, alpha: HandWritten) -> None:
    slow = written(there_seconds=0.5, waited_seconds=0.49, found_pages={"host": 30, "ssd": 2}, runs=[["host", 32]])
    alpha.request(RID, "dp0-tp1", **slow)
    code, out, error = inspect("restore", RID[:6])
    assert code == 0, error
    assert f"restore of request {RID}, running" in out
    assert "alpha dp0-tp1, the slowest of 2 ranks" in out
    assert "▓ 32 from host memory  of 32 pages" in out
    assert "the device had 12 pages and lacked 34; 32 of them were found below it (host 30, ssd 2)" in out
    assert "2 were held nowhere: new, or gone" in out
    assert "decided: load, and compute nothing, since every page is in host memory (nothing was estimated)" in out
    (heading,) = (line.split() for line in out.splitlines() if line.startswith("what "))
    assert heading == ["what", "estimated", "dp0-tp1", "dp0-tp0"], "the slowest first"
    rows = {line[:28].strip(): line[28:].split() for line in out.splitlines()}
    assert rows["decided"] == ["-", "load", "load"]
    assert rows["all there after"] == ["-", "490", "ms", "200", "ms"]
    assert rows["pages loaded"] == ["-", "32", "30"]
    assert rows["fell behind"] == ["-", "-", "-"]
    assert rows["tokens of a page"] == ["-", "16", "16"]
    content = json.loads(inspect("restore", RID, "--json")[1])
    assert [one["restore_story"]["there_seconds"] for one in content["requests"]] == [0.5, 0.21]
    assert any("found below it (host 30, ssd 2)" in line for line in content["why"])
    assert content["troubles"] == []


def test_a_request_that_nobody_knows_is_one_line(inspect: Inspect, alpha: HandWritten) -> None:
    code, out, error = inspect("restore", "nothing")
    assert (code, out) == (1, "")
    assert "request nothing: no server here knows it; ended ones are kept for 5 min, see `inspect requests`" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("said", ["", "no json", "[1]", '{"runs": 3}'])
def test_what_was_not_told_or_cannot_be_read_is_said(inspect: Inspect, alpha: HandWritten, said: str) -> None:
    for rank in alpha.ranks:
        alpha.request(RID, rank, restore_story=said)
    code, out, _ = inspect("restore", RID)
    assert code == 0
    assert "nothing was looked for below the device" in out
    assert json.loads(inspect("restore", RID, "--json")[1])["requests"][0]["restore_story"] is None


def test_what_is_wrong_with_the_request_comes_first(inspect: Inspect, alpha: HandWritten) -> None:
    alpha.request("late", restore="expired", recomputed_tokens=700, **written())
    lines = inspect("restore", "late")[1].splitlines()
    assert lines[1].startswith("out of time  late  running at alpha dp0-tp0")
    assert lines[2].startswith("warning its pages did")


# ---- estimated and real ----


def test_estimates_stand_beside_what_happened() -> None:
    rows = facts(view(BOTH))
    assert rows["all there after"] == ["200 ms", "210 ms"]
    assert rows["after its arrival"] == ["-", "320 ms"]
    assert rows["computing"] == ["200 ms", "200 ms"]
    assert rows["loading from ssd"] == ["190 ms", "250 ms"]
    assert rows["pages computed"] == ["10", "11"]
    assert rows["pages loaded"] == ["20", "19"]
    assert rows["pointers met behind page"] == ["20", "21"]


def test_what_was_not_estimated_is_a_dash() -> None:
    nothing = {"estimated_seconds": None, "estimated_compute_seconds": None, "estimated_load_seconds": {}}
    story = changed(BOTH, planned_lead_pages=None, planned_meeting_pages=None, **nothing)
    rows = facts(view(story))
    assert rows["all there after"] == ["-", "210 ms"]
    assert rows["loading from ssd"] == ["-", "250 ms"]
    assert rows["pages computed"] == ["-", "11"]


def test_each_rank_says_what_it_estimated_held_lost_and_why_it_fell_behind() -> None:
    other = changed(BOTH, estimated_seconds=0.15, late="its deadline passed", strategy="load")
    rows = facts(view(STORY), view(other, rank="dp0-tp1"))
    assert rows["estimated, all there after"] == ["-", "150 ms", "200 ms"]
    assert rows["decided"] == ["-", "load", "token-wise"]
    assert rows["fell behind"] == ["-", "its deadline passed", "-"]
    assert rows["holding for pages"] == ["-", "-", "10 ms"]
    assert rows["pages lost on the way"] == ["-", "0", "1"]


# ---- in words ----


@pytest.mark.parametrize(
    ("story", "said"),
    [
        (MISS, "the device had 0 pages and lacked 40; none was held below it, so all were computed"),
        (MISS, "where to look: `inspect tiers`"),
        (
            changed(MISS, strategy="recompute", why="restore.strategy is recompute"),
            "nothing was looked for below it: restore.strategy is recompute",
        ),
        (RestoreStory(prefix_pages=9), "the device had 9 pages: every whole page of the prompt"),
        (BOTH, "30 of them were found below it (host 10, ssd 20); 4 were held nowhere: new, or gone"),
        (BOTH, "decided: compute from the front while loading from the back, since recomputing 160 of 480 tokens"),
        (BOTH, "11 computed, 10 loaded from host memory, 9 loaded from ssd"),
        (BOTH, "met behind page 21, planned was page 20"),
        (BOTH, "all there 210 ms after it was waited for (estimated 200 ms, so 105% of that)"),
        (changed(BOTH, waited_seconds=None), "all there 320 ms after its arrival; nobody had to wait for them"),
        (
            changed(BOTH, whole="it wants log probabilities of its prompt"),
            "it needed its prefix whole before anything was computed: it wants log probabilities of its prompt",
        ),
        (
            changed(BOTH, why="what loading from ssd costs is not known yet", estimated_seconds=None),
            "since what loading from ssd costs is not known yet (nothing was estimated)",
        ),
        (
            changed(BOTH, why="", estimated_seconds=None),
            "decided: compute from the front while loading from the back (nothing was estimated)",
        ),
        (changed(BOTH, later="load: ssd is faster"), "decided anew: load, and compute nothing, since ssd is faster"),
        (
            changed(BY_LAYERS, strategy="layer-wise", why="restore.strategy is layer-wise"),
            "decided: compute the lower layers while loading the upper ones, since restore.strategy is layer-wise",
        ),
        (BY_LAYERS, "of the 30 pages: 9 of 36 layers computed, the upper 27 copied from host memory"),
        (
            changed(BY_LAYERS, met_layer=36),
            "36 of 36 layers computed, none copied: they came too late, or failed",
        ),
        (changed(BOTH, held_seconds=0.01), "it held for 10 ms"),
        (
            changed(BOTH, late="its deadline passed", late_pages=7),
            "it fell behind: its deadline passed; 7 pages were left to be computed",
        ),
        (changed(BOTH, lost_pages={"ssd: corrupt: key": 3}), "3 pages did not come from ssd (corrupt: key)"),
        (changed(BOTH, late="its deadline passed"), "where to look: `inspect events`"),
    ],
)
def test_it_is_told_in_words(story: RestoreStory, said: str) -> None:
    assert said in explained(story)


def test_layers_have_a_row_of_their_own() -> None:
    rows = facts(view(BY_LAYERS), view(changed(BY_LAYERS, met_layer=12), rank="dp0-tp1"))
    assert rows["layers computed, of 36"] == ["8", "9", "12"]
    assert not any("pointers met" in row for row in rows)


def test_what_has_not_come_is_told() -> None:
    story = changed(BOTH, runs=(("host", 10), ("compute", 4)), meeting_pages=None)
    assert "of the 30 pages so far: 4 computed, 10 loaded from host memory; 16 have not come" in explained(
        story, state="running"
    )
    assert "of the 30 pages before it ended: " in explained(story, state="aborted")
    far = changed(story, computed_pages=4, arrived_pages=9, loading_pages=3)
    said = "16 have not come: 9 have come up, 3 are on their way"
    assert said in explained(far, state="running")
    assert said not in explained(far, state="aborted")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"load_seconds": {"ssd": 1.9}}, "mostly by loading from ssd; `inspect devices`"),
        (
            {"load_seconds": {"peer": 1.9}, "estimated_load_seconds": {"peer": 0.1}},
            "loading from peer; `inspect links`",
        ),
        ({"compute_seconds": 1.9}, "mostly by computing; "),
        ({"load_seconds": {"ssd": 0.1}}, "mostly by waiting for its turn on the device"),
    ],
)
def test_what_made_it_slower_than_estimated(fields: dict[str, Any], said: str) -> None:
    assert said in explained(changed(BOTH, waited_seconds=2.0, **fields))
    assert "slower than estimated" not in explained(BOTH)


def test_a_client_cannot_move_the_cursor() -> None:
    story = changed(BOTH, why="\x1b[2J", late="\x1b[2J", runs=(("\x1b[2J", 30),))
    assert not any("\x1b" in line for line in read(view(story, rid="\x1b[2J")))
