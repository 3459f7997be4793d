"""Worlds of whole servers: SGLang's own scheduler and tree on one rank or several, in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest

from swift_tiers.ops.lab.torture.outcome import RANK_HAPPENINGS
from swift_tiers.ops.lab.torture.plan import RANKS, make_plan, ranks_of
from swift_tiers.ops.lab.torture.ranks.server import arguments

from support.finding import put_in
from support.rank_defects import NOT_FOUND, ON_RANKS
from support.rank_worlds import first_failure, history, live
from support.scheduler_process import SchedulerProcess

#: Found again in the default run: B3 and B11 of the first look from outside.
AT_ONCE = {"two requests of one id are one", "who has lost its restore does not ask the others"}
#: Worlds of the default run, and of `--all`.
QUICK, ALL = 10, 200
#: What a few worlds reach already.
OFTEN = ("answers", "retracted", "pages loaded", "pages from ssd", "restores split", "answers refused", "stumble")
#: Worlds within which each defect is found.
MOST = 40


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory):
    with SchedulerProcess(arguments(tmp_path_factory.mktemp("ranks"))) as process:
        yield process


def test_every_answer_is_right_and_ranks_stay_together(scheduler) -> None:
    happened = scheduler(live, RANKS, range(QUICK))
    assert all(happened[name] for name in OFTEN), "worlds test less than they seem to"


@pytest.mark.exhaustive
def test_in_more_worlds_too(scheduler) -> None:
    """In the default run: the first of them."""
    happened: Counter[str] = Counter()
    for first in range(QUICK, ALL, QUICK):
        happened += scheduler(live, RANKS, range(first, first + QUICK))
    missing = {name for name in RANK_HAPPENINGS if not happened[name]}
    assert not missing, "worlds test less than they seem to"


def test_a_seed_is_one_history(scheduler) -> None:
    seed = next(seed for seed in range(100) if ranks_of(make_plan(RANKS, seed)) > 1)
    assert scheduler(history, RANKS, seed) == scheduler(history, RANKS, seed)


@pytest.mark.parametrize(
    "name",
    [one.name if one.name in AT_ONCE else pytest.param(one.name, marks=pytest.mark.exhaustive) for one in ON_RANKS],
)
def test_defects_of_the_way_to_sglang_are_found(scheduler, name: str) -> None:
    """Two that the project had are found in the default run, too."""
    assert scheduler(first_failure, RANKS, name, MOST) is not None


@pytest.mark.parametrize("defect", NOT_FOUND, ids=lambda defect: defect.name)
def test_every_defect_can_be_put_in(defect) -> None:
    """The table follows the engine."""
    with put_in(defect):
        pass
