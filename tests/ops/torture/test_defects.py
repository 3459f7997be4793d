"""What worlds are for: each of these defects, put into the engine, is found within so many of them."""

from __future__ import annotations

import pytest

from swift_tiers.ops.lab.torture.plan import BORROWED, WORLDS

from support.defects import FOUND, NOT_FOUND, Defect
from support.finding import first_failure, put_in

#: Seeds of each kind of world within which each is found.
MOST = 100
#: Kinds of worlds; those with real donors have tables of their own, `test_neighbours.py` and `test_ranked_donors.py`.
KINDS = tuple(kind for kind in WORLDS if kind not in (*BORROWED, "shared"))
#: Of these the default run looks for the first of each room: they are found in the first worlds.
QUICK = {
    "an errand that nobody is told of",
    "a pin that is not counted",
    "a copy is whole though nothing came",
    "a claim that pins nothing",
    "a write that is counted twice",
    "a write that is done counts as one under way",
}


@pytest.mark.parametrize("defect", [one for one in FOUND if one.name in QUICK], ids=lambda defect: defect.name)
def test_some_defects_are_found_at_once(defect: Defect) -> None:
    assert first_failure(defect, KINDS, MOST) is not None


@pytest.mark.exhaustive
@pytest.mark.parametrize("defect", FOUND, ids=lambda defect: defect.name)
def test_defects_are_found(defect: Defect) -> None:
    """In the default run: `test_some_defects_are_found_at_once`."""
    assert first_failure(defect, KINDS, MOST) is not None


def test_the_table_is_as_long_as_it_says() -> None:
    names = [one.name for one in (*FOUND, *NOT_FOUND)]
    assert len(names) == len(set(names))
    assert len(FOUND) >= 30
    assert {one.name for one in FOUND} >= QUICK
    assert all(NOT_FOUND.values()), "each says why"


@pytest.mark.parametrize("defect", [*FOUND, *NOT_FOUND], ids=lambda defect: defect.name)
def test_every_defect_can_be_put_in(defect: Defect) -> None:
    """The table follows the engine."""
    with put_in(defect):
        pass
