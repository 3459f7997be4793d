"""Threads that switch between statements: a lock that is missing shows, and nothing else changes."""

from __future__ import annotations

import itertools

import pytest

from swift_tiers.ops.lab.torture import statements
from swift_tiers.ops.lab.torture.outcome import live
from swift_tiers.ops.lab.torture.plan import WORLDS, make_plan
from swift_tiers.ops.lab.torture.scenarios import SCENARIOS
from swift_tiers.radix_tiering.table.page_table import PageTable
from swift_tiers.radix_tiering.way.down import Intake

from support.mutate import mutate

#: Seeds within which a missing lock has to show.
MOST = 20


@pytest.mark.parametrize("kind", [*WORLDS, *SCENARIOS])
def test_worlds_are_right_between_statements_too(kind: str) -> None:
    for seed in range(3):
        outcome = live(make_plan(kind, seed, fine=True))
        if outcome.error is not None:
            outcome.error.add_note(f"`{outcome.replay}` does it again")
            raise outcome.error


def test_a_seed_is_one_history_and_the_engine_is_left_as_it_was() -> None:
    code, before = PageTable.find.__code__, live(make_plan("trouble", 3))
    first, second = live(make_plan("trouble", 3, fine=True)), live(make_plan("trouble", 3, fine=True))
    assert first == second
    assert first.steps > 2 * before.steps
    assert PageTable.find.__code__ is code
    assert live(make_plan("trouble", 3)) == before


def test_most_of_the_engine_has_turns() -> None:
    with statements.switching():
        functions = list(statements._functions())
        turning = [one for one in functions if statements.TURN in one.__code__.co_names]
    assert len(turning) > 0.85 * len(functions) > 800


def test_a_missing_lock_shows_between_statements_above_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside that only where one of them takes another lock, in few worlds."""
    mutate(monkeypatch, Intake, "begin", "with self._table.lock:", "if True:")
    worlds = list(itertools.product(range(MOST), ("trouble", "calm")))
    found = {
        fine: sum(live(make_plan(kind, seed, fine=fine)).error is not None for seed, kind in worlds)
        for fine in (False, True)
    }
    assert found[True] > 3 * found[False]
