"""In which unit memory is shared, and who gets how much when there is not enough for all."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


def elastic_unit(*page_bytes: int) -> int:
    """The smallest amount of memory that is whole pages of each of these sizes, bytes: what changes hands between a
    donor and its borrowers (SwiftCache, section 3.4, Eq. 8). The paper counts elements, which needs all caches to have
    one element type; here it is bytes, so that a float16 model may lend to an fp8 one."""
    return math.lcm(*page_bytes)


class Ask(NamedTuple):
    """What one holds and what it would like beyond that, bytes."""

    held: int
    wanted: int


def share(amount: int, asks: Mapping[Key, Ask]) -> dict[Key, int]:
    """`amount` bytes shared so that who holds least gets first, until its holding equals the next one's, and so on.

    The outcome is max-min fair over what each then holds. Nothing is taken from anyone. Left over are fewer bytes than
    there are asks, unless the asks do not reach that far.
    """

    def given(level: int) -> dict[Key, int]:
        return {key: min(max(level - ask.held, 0), ask.wanted) for key, ask in asks.items()}

    low, high = 0, max((ask.held + ask.wanted for ask in asks.values()), default=0)
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if sum(given(level).values()) <= amount else (low, level - 1)
    return given(low)
