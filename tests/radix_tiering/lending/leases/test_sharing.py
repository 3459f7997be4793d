"""Sharing what there is among those who ask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.lending.leases.sharing import Ask, share

ASKS = st.dictionaries(st.integers(0, 9), st.builds(Ask, st.integers(0, 50), st.integers(0, 50)), max_size=6)


def test_who_holds_least_gets_first() -> None:
    assert share(4, {"a": Ask(0, 10), "b": Ask(5, 10)}) == {"a": 4, "b": 0}
    assert share(9, {"a": Ask(0, 10), "b": Ask(5, 10)}) == {"a": 7, "b": 2}
    assert share(100, {"a": Ask(0, 10), "b": Ask(5, 10)}) == {"a": 10, "b": 10}
    assert share(7, {}) == {}


@given(st.integers(0, 200), ASKS)
def test_nobody_could_have_more_without_taking_it_from_one_who_has_no_more(amount: int, asks: dict[int, Ask]) -> None:
    given_ = share(amount, asks)
    total = sum(given_.values())
    assert total <= amount
    assert all(0 <= given_[key] <= ask.wanted for key, ask in asks.items())
    if any(given_[key] < ask.wanted for key, ask in asks.items()):
        assert amount - total < len(asks)
    for key, ask in asks.items():
        if given_[key] < ask.wanted:
            level = ask.held + given_[key]
            assert all(other == key or not given_[other] or asks[other].held + given_[other] <= level for other in asks)
