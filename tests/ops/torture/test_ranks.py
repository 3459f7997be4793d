"""Worlds of whole servers: SGLang's own scheduler and tree on one rank or several, in virtual time; and the same over a
model whose layers with a sliding window have a pool of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import pytest

from swift_tiers.ops.lab.torture.outcome import RANK_HAPPENINGS
from swift_tiers.ops.lab.torture.plan import RANKS, WINDOW_STUMBLES, WINDOWED, make_plan, ranks_of
from swift_tiers.ops.lab.torture.ranks.server import arguments

from support.finding import put_in
from support.rank_defects import NOT_FOUND, ON_RANKS, WITH_WINDOWS
from support.rank_worlds import first_failure, history, live
from support.scheduler_process import SchedulerProcess


class OfServers(NamedTuple):
    """A kind of worlds."""

    name: str
    quick: int  # worlds of the default run
    often: Collection[str]  # what these reach already
    seldom: Collection[str]  # what all of them reach


KINDS = (
    OfServers(
        RANKS,
        10,
        ("answers", "retracted", "pages loaded", "pages from ssd", "restores split", "answers refused", "stumble"),
        RANK_HAPPENINGS,
    ),
    OfServers(
        WINDOWED,
        8,
        ("answers", "pages loaded", "states loaded", "stumble"),
        ("retracted", "pages from ssd", "answers refused", *(f"stumble: {name}" for name in WINDOW_STUMBLES)),
    ),
)
#: Worlds of each kind with `--all`.
ALL = 200
#: Found again in the default run: B3 and B11 of the first look from outside, and one of windows.
AT_ONCE = {
    "two requests of one id are one",
    "who has lost its restore does not ask the others",
    "the first parts of a window come back",
}
#: Worlds within which each defect is found.
MOST = 100


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> OfServers:
    return request.param


@pytest.fixture(scope="module")
def scheduler(kind: OfServers, tmp_path_factory: pytest.TempPathFactory):
    with SchedulerProcess(arguments(tmp_path_factory.mktemp("ranks"), kind.name)) as process:
        yield process


def test_every_answer_is_right_and_ranks_stay_together(scheduler, kind: OfServers) -> None:
    happened = scheduler(live, kind.name, range(kind.quick))
    assert all(happened[name] for name in kind.often), "worlds test less than they seem to"


@pytest.mark.exhaustive
def test_in_more_worlds_too(scheduler, kind: OfServers) -> None:
    """In the default run: the first of them."""
    happened: Counter[str] = Counter()
    for first in range(kind.quick, ALL, kind.quick):
        happened += scheduler(live, kind.name, range(first, first + kind.quick))
    missing = {name for name in (*kind.often, *kind.seldom) if not happened[name]}
    assert not missing, "worlds test less than they seem to"


def test_a_seed_is_one_history(scheduler, kind: OfServers) -> None:
    seed = next(seed for seed in range(100) if ranks_of(make_plan(kind.name, seed)) > 1)
    assert scheduler(history, kind.name, seed) == scheduler(history, kind.name, seed)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(of, one.name, marks=[] if one.name in AT_ONCE else [pytest.mark.exhaustive], id=one.name)
        for of, defects in zip(KINDS, (ON_RANKS, WITH_WINDOWS), strict=True)
        for one in defects
    ],
    indirect=["kind"],
    scope="module",
)
def test_defects_of_the_way_to_sglang_are_found(scheduler, kind: OfServers, name: str) -> None:
    """Two that the project had, and one of windows, are found in the default run, too."""
    assert scheduler(first_failure, kind.name, name, MOST) is not None


@pytest.mark.parametrize("defect", [*WITH_WINDOWS, *NOT_FOUND], ids=lambda defect: defect.name)
def test_every_defect_can_be_put_in(defect) -> None:
    """The table follows the engine."""
    with put_in(defect):
        pass
