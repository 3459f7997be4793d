"""The whole engine in virtual time, under many seeds: whatever goes wrong, and in whichever order."""

from __future__ import annotations

from collections import Counter

import pytest

from swift_tiers.ops.lab.torture.many import MANY_HAPPENINGS
from swift_tiers.ops.lab.torture.neighbours import RANK_FAILURES
from swift_tiers.ops.lab.torture.outcome import CRASHES, HAPPENINGS, live
from swift_tiers.ops.lab.torture.plan import TROUBLE, make_plan
from swift_tiers.ops.lab.torture.scenarios import SCENARIOS

from support.examples import exhaustive

#: Of each kind; a world takes some hundredths of a second.
WORLDS_EACH = 500 if exhaustive() else 100
#: Of worlds with real donors, or a store beyond the machine, which take longer.
FEWER = 300 if exhaustive() else 25
#: Of a scenario, whose worlds take less, but for one, of which the default run has fewer.
IN_A_SCENARIO = 2 * WORLDS_EACH
FEWER_OF = {} if exhaustive() else {"landing-here": 50}
#: Of worlds of some thousands of pages.
MANY_PAGES = 200 if exhaustive() else 40
#: What needs a device, or a crash.
OF_DEVICES = {name for name in HAPPENINGS if name.startswith(("device ", "fault: "))}
#: What needs the model of lent memory.
OF_LEASES = {name for name in HAPPENINGS if name.startswith("lease ")}
#: What needs real donors.
OF_DONORS = {name for name in HAPPENINGS if name.startswith(("neighbour: ", "network: ", "donor: "))}
OF_DONORS |= {"pages lent", "pages from lent memory"}
#: What needs a store that others use, too.
OF_STORES = {name for name in HAPPENINGS if name.startswith("store: ")} | {"pages from the store"}
#: What needs donors of several ranks, which have worlds in `tests/ops/torture/test_ranked_donors.py`.
OF_RANKS = {"neighbour: stumble", *(f"donor: {name} fails" for name in RANK_FAILURES)}
#: What needs damage in memory between a claim and its copy.
BESIDE = "damage found beside a copy"
#: What kinds of worlds do not have to reach.
SELDOM = {
    "trouble": {
        *CRASHES,
        "fault: a short read",
        "fault: a sync does nothing",
        "fault: a sync fails",
        "device readmitted",
    },
    "calm": {*CRASHES, *OF_DEVICES, *TROUBLE, BESIDE},
    "lent": {*CRASHES, *OF_DEVICES, "pages read to the device", "pages coded"},
    "crash": {"fault: a sync fails"},
    "borrowed": {*CRASHES, *OF_DEVICES, *OF_LEASES, *TROUBLE, BESIDE, "pages coded"},
    "shared": {*CRASHES, *OF_DEVICES, "pages read to the device", "pages coded"},
}


def live_well(kind: str, seed: int) -> Counter[str]:
    """What happens in a world, of which nothing may be wrong."""
    outcome = live(make_plan(kind, seed))
    if outcome.error is not None:
        outcome.error.add_note(f"`{outcome.replay}` does it again")
        raise outcome.error
    return outcome.happened


@pytest.mark.parametrize("kind", SELDOM)
def test_whatever_happens_answers_are_right_and_nothing_is_left(kind: str) -> None:
    happened: Counter[str] = Counter()
    for seed in range(FEWER if kind in ("borrowed", "shared") else WORLDS_EACH):
        happened += live_well(kind, seed)
    missing = {name for name in HAPPENINGS if not happened[name]}
    missing -= SELDOM[kind] if kind == "borrowed" else SELDOM[kind] | OF_DONORS
    missing -= OF_RANKS if kind == "shared" else OF_RANKS | OF_STORES
    assert not missing, "worlds test less than they seem to"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_worlds_at_large_hardly_ever_reach(scenario: str) -> None:
    for seed in range(FEWER_OF.get(scenario, IN_A_SCENARIO)):
        live_well(scenario, seed)


def test_what_is_done_to_thousands_of_pages() -> None:
    """A million of them: `./swift torture --kind million`, by night."""
    happened: Counter[str] = Counter()
    for seed in range(MANY_PAGES):
        happened += live_well("many", seed)
    assert happened.keys() >= set(MANY_HAPPENINGS) - {"stopped while opening"}, "worlds test less than they seem to"


def test_a_seed_is_one_history() -> None:
    for seed in range(5):
        first, second = live(make_plan("trouble", seed)), live(make_plan("trouble", seed))
        assert first == second
        assert first.history
