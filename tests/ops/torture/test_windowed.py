"""Worlds of whole servers whose model has layers with a sliding window, and SGLang a pool of their own for these."""

from __future__ import annotations

from collections import Counter

import pytest

from swift_tiers.ops.lab.torture.plan import WINDOWED
from swift_tiers.ops.lab.torture.ranks.server import arguments

from support.finding import put_in
from support.rank_defects import WITH_WINDOWS
from support.rank_worlds import first_failure, live
from support.scheduler_process import SchedulerProcess

#: Found again in the default run.
AT_ONCE = {"the first parts of a window come back"}
#: Worlds of the default run, and of `--all`.
QUICK, ALL = 8, 200
#: What a few worlds reach already, and what it takes more for.
OFTEN = ("answers", "pages loaded", "states loaded", "stumble")
SELDOM = (
    "retracted",
    "pages from ssd",
    "answers refused",
    "stumble: pool.states.copy_in",
    "stumble: pool.states.copy_out",
)
#: Worlds within which each defect is found.
MOST = 40


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory):
    with SchedulerProcess(arguments(tmp_path_factory.mktemp("ranks"), WINDOWED)) as process:
        yield process


def test_every_answer_is_right_and_ranks_stay_together(scheduler) -> None:
    happened = scheduler(live, WINDOWED, range(QUICK))
    assert all(happened[name] for name in OFTEN), "worlds test less than they seem to"


@pytest.mark.exhaustive
def test_in_more_worlds_too(scheduler) -> None:
    """In the default run: the first of them."""
    happened: Counter[str] = Counter()
    for first in range(QUICK, ALL, QUICK):
        happened += scheduler(live, WINDOWED, range(first, first + QUICK))
    assert all(happened[name] for name in (*OFTEN, *SELDOM)), "worlds test less than they seem to"


@pytest.mark.parametrize(
    "name",
    [one.name if one.name in AT_ONCE else pytest.param(one.name, marks=pytest.mark.exhaustive) for one in WITH_WINDOWS],
)
def test_defects_of_windows_are_found(scheduler, name: str) -> None:
    """One of them in the default run, too."""
    assert scheduler(first_failure, WINDOWED, name, MOST) is not None


@pytest.mark.parametrize("defect", WITH_WINDOWS, ids=lambda defect: defect.name)
def test_every_defect_can_be_put_in(defect) -> None:
    """The table follows the engine."""
    with put_in(defect):
        pass
