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

    # Up to which level of holding all that lack get something: it rises until one has what it wants, or another lacks.
    level = total = lacking = 0
    turns = [(ask.held, 1) for ask in asks.values()] + [(ask.held + ask.wanted, -1) for ask in asks.values()]
    for turn, change in sorted(turns):
        if total + lacking * (turn - level) > amount:
            level += (amount - total) // lacking
            break
        total += lacking * (turn - level)
        level, lacking = turn, lacking + change
    return {key: min(max(level - ask.held, 0), ask.wanted) for key, ask in asks.items()}
