"""Looks for worlds that find a defect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from swift_tiers.ops.lab.torture import outcome
from swift_tiers.ops.lab.torture.outcome import Outcome, live
from swift_tiers.ops.lab.torture.plan import make_plan
from swift_tiers.radix_tiering.table import kernels

from .defects import Defect
from .mutate import mutate


@contextmanager
def put_in(defect: Defect) -> Iterator[None]:
    """The engine has this defect. Raises AssertionError where the table does not follow the engine any more."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch, defect.owner, defect.method, defect.old, defect.new)
        if defect.owner is kernels:
            # Nothing is compiled then. A chain that has become a ring is followed until this has passed, and what
            # follows it may collect what it finds: 2 GB in ten seconds.
            patch.setattr(outcome, "STEP_SECONDS", 3.0)
        yield


def first_failure(defect: Defect, kinds: Sequence[str], seeds: int) -> Outcome | None:
    """The first world of these kinds that fails with this defect, within so many seeds of each; None if none does."""
    with put_in(defect):
        for seed in range(defect.seed, defect.seed + seeds):
            for kind in kinds:
                one = live(make_plan(kind, seed, fine=defect.fine))
                if one.error is not None:
                    return one
    return None
