"""The state machines in simulated worlds where everything goes wrong: thousands by seed, and some that shrink.

`SWIFT_LEASE_SEEDS=20000 pytest tests/radix_tiering/lending/leases/test_simulated.py` tries more. To look at one that
failed: `World(SEED).run()`.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.lease_faults import OF_ALL, OF_BORROWERS, OF_DONORS, Shape, make_fault
from support.lease_world import Violation, World

SEEDS = int(os.environ.get("SWIFT_LEASE_SEEDS", "2000"))
#: Seeds of one test.
BATCH = 250

#: What must have happened for a clean run to mean anything.
HAPPENINGS = {
    *OF_ALL, *OF_DONORS, *OF_BORROWERS,
    "served", "thrown away",
    "Reclaimed unused", "Reclaimed returned", "Reclaimed gone", "Reclaimed expired",
    "LeaseEnded released", "LeaseEnded recalled", "LeaseEnded expired", "LeaseEnded lost",
    "Hello", "Heartbeat", "Request", "Renew", "Return",
    "Welcome", "Offer", "Grant", "Renewed", "Recall", "Expire", "Refuse",
}  # fmt: skip


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.exhaustive) for first in range(BATCH, SEEDS, BATCH))]
)
def test_seeds(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, min(first + BATCH, SEEDS)):
        try:
            happened += World(seed).run().counts
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
    if SEEDS - first >= BATCH:
        assert not HAPPENINGS - set(happened), "these worlds were too kind"


def test_a_seed_says_everything() -> None:
    first, second = World(7).run(), World(7).run()
    assert first.counts == second.counts
    assert first.faults == second.faults
    assert World(8).run().counts != first.counts


FRACTION = st.floats(0, 1, exclude_max=True, allow_subnormal=False)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    shape = Shape(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.booleans()))
    kind = st.sampled_from([*OF_ALL, *OF_DONORS, *OF_BORROWERS])
    faults = st.builds(make_fault, kind, st.just(shape), FRACTION, FRACTION, FRACTION, FRACTION)
    return World(draw(st.integers(0, 2**32)), shape=shape, faults=sorted(draw(st.lists(faults, max_size=12))))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_any_faults(world: World) -> None:
    world.run()
