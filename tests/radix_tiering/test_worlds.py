"""The whole engine in virtual time, under many seeds: whatever goes wrong, and in whichever order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from support.engine import end_all
from support.examples import exhaustive
from support.worlds import World, recalled_before_what_follows, recalled_while_it_is_restored

#: Of each kind; a world takes some hundredths of a second.
WORLDS = 1000 if exhaustive() else 100
#: What has to have happened in so many worlds, or they test less than they seem to.
HAPPENINGS = {
    "put", "restore", "leave", "wait_in_line", "pages", "rounds", "flush", "device", "damage_memory", "damage_disk",
    "drop", "pin", "cap", "lease lend", "lease recall", "lease late", "lease end", "lease hold",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    end_all()


@pytest.mark.parametrize(
    ("calm", "lent"), [(False, False), (True, False), (False, True)], ids=["trouble", "calm", "lent memory alone"]
)
def test_whatever_happens_answers_are_right_and_nothing_is_left(calm: bool, lent: bool) -> None:
    happened: Counter[str] = Counter()
    for seed in range(WORLDS):
        world = World(seed, calm=calm, lent=lent)
        try:
            world.run()
        except AssertionError as error:
            error.add_note(f"World({seed}, calm={calm}, lent={lent}).run() does it again")
            raise
        happened += world.happened
    missing = {name for name in HAPPENINGS if not happened[name]}
    assert missing <= ({"flush", "device", "damage_memory", "damage_disk", "drop", "pin", "cap"} if calm else set())


@pytest.mark.parametrize("scenario", [recalled_while_it_is_restored, recalled_before_what_follows])
def test_a_recall(scenario: Callable[[int], None]) -> None:
    for seed in range(2 * WORLDS):
        try:
            scenario(seed)
        except AssertionError as error:
            error.add_note(f"{scenario.__name__}({seed}) does it again")
            raise


def test_a_seed_is_one_history() -> None:
    for seed in range(5):
        first, second = World(seed).run(), World(seed).run()
        assert first.happened == second.happened
        assert (first.runner.history, first.runner.steps) == (second.runner.history, second.runner.steps)
