"""Makes a world that fails smaller, as long as it fails in the same way.

Actions are taken out, first many at a time, then one by one (delta debugging, Zeller and Hildebrandt 2002). With fewer
actions threads go on in another order, in which the failure may be missed: so a smaller world is tried in several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .outcome import Outcome, live
from .plan import Plan
from .scenarios import SEED_ALONE

#: Worlds that are tried at most.
MOST_TRIES = 400
#: Orders in which a smaller world is tried, the one of the world before it first.
ORDERS = 4

Unit = tuple[str, int]


class Shrinker:
    """Use `shrink`."""

    def __init__(self, failed: Outcome, lives: Callable[[Plan], Outcome], most_tries: int) -> None:
        self.best = failed
        self._whole = failed.plan
        self._complaint = failed.complaint
        self._lives = lives
        self._tries_left = most_tries

    def run(self) -> Outcome:
        units = [(name, number) for name, numbers in self._whole.kept().items() for number in numbers]
        for name in [job.name for job in self._whole.jobs]:
            units = self._without([unit for unit in units if unit[0] == name], units)
        size = max(1, len(units) // 2)
        while True:
            at = 0
            while at < len(units):
                left = self._without(units[at : at + size], units)
                at += size if len(left) == len(units) else 0
                units = left
            if size == 1:
                return self.best
            size = max(1, size // 2)

    def _without(self, taken: Sequence[Unit], units: list[Unit]) -> list[Unit]:
        """`units` without those that are `taken`, if it fails without them; else as they are."""
        left = [unit for unit in units if unit not in taken]
        return left if taken and self._fails(left) else units

    def _fails(self, units: Sequence[Unit]) -> bool:
        kept: dict[str, list[int]] = {}
        for name, number in units:
            kept.setdefault(name, []).append(number)
        smaller = self._whole.keeping(kept)
        for order in range(ORDERS):
            if not self._tries_left:
                return False
            self._tries_left -= 1
            schedule = self.best.plan.schedule if not order else self._whole.seed + order
            outcome = self._lives(smaller._replace(schedule=schedule))
            if outcome.complaint == self._complaint:
                self.best = outcome
                return True
        return False


def shrink(failed: Outcome, lives: Callable[[Plan], Outcome] = live, most_tries: int = MOST_TRIES) -> Outcome:
    """The smallest world found that fails as `failed` does; that itself, if none is. Scenarios are as small as can be.

    `lives` lets a world happen.
    """
    if failed.plan.kind in SEED_ALONE:
        return failed
    return Shrinker(failed, lives, most_tries).run()
