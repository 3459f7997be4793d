"""What readers of the bus ask of one scheduler, answered: by the tier stack, and by the scheduler's thread."""

from __future__ import annotations

import time

from swift_tiers.radix_tiering.observing import prefix_places, tier_map
from swift_tiers.radix_tiering.slot_map import TierMap
from swift_tiers.radix_tiering.stack import TierStack
from swift_tiers.radix_tiering.telemetry import NoAnswer, PageAnswer, PrefixAnswer, TreeNodes


class Answers:
    """The engine's `Answerer`, for one publisher's thread."""

    def __init__(self, stack: TierStack) -> None:
        self._stack = stack

    def page(self, key: bytes) -> PageAnswer:
        return PageAnswer(self._stack.page_facts(key))

    def prefix(self, key: bytes, most: int) -> PrefixAnswer:
        listed = prefix_places(self._stack, key, most)
        return PrefixAnswer(listed[-1].depth if listed else 0, listed)

    def map(self, tier: str) -> TierMap:
        found = tier_map(self._stack, tier, time=time.time())
        if found is None:
            raise NoAnswer(f"there is no {tier} tier")
        return found

    def nodes(self, count: int) -> TreeNodes:
        raise NoAnswer("not told so far")
