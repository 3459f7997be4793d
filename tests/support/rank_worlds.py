"""Worlds of whole servers, in the process of a scheduler from which the ranks of each world are forked.

Functions whose first parameter is a `StepScheduler` run there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from swift_tiers.ops.lab.torture.plan import make_plan
from swift_tiers.ops.lab.torture.ranks.server import Servers

from support.mutate import mutate
from support.rank_defects import ON_RANKS, WITH_WINDOWS


def servers(s) -> Servers:
    if not hasattr(s, "servers"):
        s.servers = Servers.over(s)
    return s.servers


def live(s, kind: str, seeds: Iterable[int]) -> Counter[str]:
    """Worlds of these seeds: what happened in all of them. Raises what the first one raises that fails."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        history: list[str] = []
        try:
            happened += servers(s).live(make_plan(kind, seed), history)[1]
        except AssertionError as error:
            tail = "\n".join(history[-60:])
            raise AssertionError(f"./swift torture --kind {kind} --seed {seed} --seeds 1\n{error}\n{tail}") from error
    return happened


def history(s, kind: str, seed: int) -> tuple[int, list[str]]:
    """What is done in a world, and how many steps its threads take."""
    told: list[str] = []
    steps, _ = servers(s).live(make_plan(kind, seed), told)
    return steps, told


def first_failure(s, kind: str, name: str, most: int) -> tuple[int, str] | None:
    """The first world that fails with a defect, and why; None if none does."""
    (defect,) = [one for one in (*ON_RANKS, *WITH_WINDOWS) if one.name == name]
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch, defect.owner, defect.method, defect.old, defect.new)
        for seed in range(defect.seed, defect.seed + most):
            try:
                servers(s).live(make_plan(kind, seed), [])
            except AssertionError as error:
                return seed, str(error).splitlines()[0]
    return None
