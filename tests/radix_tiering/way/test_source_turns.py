"""What is learnt from restores that have ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swift_tiers.radix_tiering.restore.cost import ComputeCost, CostModel, SourceCost
from swift_tiers.radix_tiering.restore.live import LiveCosts
from swift_tiers.radix_tiering.restore.plan import Strategy
from swift_tiers.radix_tiering.restore.planner import Planner
from swift_tiers.radix_tiering.way.source_turns import SourceTurns

PAGE, PAGE_BYTES, PAGES = 16, 16_000, 512


@pytest.mark.parametrize("ssd", [8e6, 60e6], ids=["slower than computing", "faster"])
def test_a_bad_minute_of_doing_both_at_once_is_forgotten_whatever_is_done_instead(ssd: float) -> None:
    """Where costs are what they were, it is chosen again."""
    model = CostModel(
        compute=ComputeCost(fixed_seconds=0.005, token_seconds=1 / 20_000, pair_seconds=0.0),
        sources={"ssd": SourceCost(latency_seconds=0.001, bytes_per_second=ssd)},
    )
    costs = LiveCosts(model)
    planner = Planner(costs, page_tokens=PAGE, page_bytes=PAGE_BYTES, layers=4)
    planner.forward_tokens = 2048
    turns = SourceTurns.__new__(SourceTurns)
    turns._costs = costs

    def decided() -> Strategy:
        return planner.decide(0, ["ssd"] * PAGES, 64).strategy

    def ends(strategy: Strategy, took: float) -> None:
        story = SimpleNamespace(strategy=strategy.value, late=False, lost_pages=0, waited_seconds=took)
        restore: Any = SimpleNamespace(
            estimate=1.0, started=0.0, computing_since=0.0, story=SimpleNamespace(told=lambda: story)
        )
        turns.ended(restore)

    assert decided() is Strategy.TOKEN_WISE
    for _ in range(6):
        ends(Strategy.TOKEN_WISE, 3.0)
    assert decided() is not Strategy.TOKEN_WISE, "it has not been bad enough: this tests nothing"
    restores = 0
    while decided() is not Strategy.TOKEN_WISE:
        ends(decided(), 1.0)
        restores += 1
        assert restores < 100, "it is never chosen again"
