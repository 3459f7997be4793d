"""What worlds with real donors are for: each of these defects in lending is found within so many of them."""

from __future__ import annotations

import gc
import os

import pytest

from swift_tiers.ops.lab.torture.outcome import live
from swift_tiers.ops.lab.torture.plan import make_plan

from support.defects import Defect
from support.finding import first_failure, put_in
from support.lending_defects import IN_LENDING, NOT_FOUND_IN_LENDING

#: Seeds within which each is found.
MOST = 100
#: Of these the default run looks for some of each room: they are found in the first worlds.
QUICK = {
    "a donor counts a term too short",
    "what comes back is not the donor's again",
    "nobody asks whether a lease is held before a store",
    "a job that nobody is told of",
    "a place that is left while it is used is free",
}


@pytest.mark.parametrize("defect", [one for one in IN_LENDING if one.name in QUICK], ids=lambda defect: defect.name)
def test_some_defects_of_lending_are_found_at_once(defect: Defect) -> None:
    assert first_failure(defect, ("borrowed",), MOST) is not None


@pytest.mark.exhaustive
@pytest.mark.parametrize("defect", IN_LENDING, ids=lambda defect: defect.name)
def test_defects_of_lending_are_found(defect: Defect) -> None:
    """In the default run: `test_some_defects_of_lending_are_found_at_once`."""
    assert first_failure(defect, ("borrowed",), MOST) is not None


@pytest.mark.parametrize("defect", [*IN_LENDING, *NOT_FOUND_IN_LENDING], ids=lambda defect: defect.name)
def test_every_defect_can_be_put_in(defect: Defect) -> None:
    """The table follows the engine."""
    with put_in(defect):
        pass


def test_a_seed_is_one_history() -> None:
    for seed in range(3):
        first, second = live(make_plan("borrowed", seed)), live(make_plan("borrowed", seed))
        assert first == second
        assert first.history


def test_nothing_is_left_of_worlds_in_which_servers_are_killed() -> None:
    killed = 0

    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    live(make_plan("borrowed", 0))
    before = descriptors()
    for seed in range(1, 9):
        killed += live(make_plan("borrowed", seed)).happened["neighbour: kill"]
    assert killed > 2
    assert descriptors() == before
