"""A map in few words says what the slots are."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.radix_tiering.base import slot_map
from swift_tiers.radix_tiering.base.slot_map import MapPiece, SlotState, TierMap, write_cells

STATES = st.sampled_from(list(SlotState))
#: Pieces of runs of states, so that there is something to shorten.
PIECES = st.lists(st.lists(st.tuples(STATES, st.integers(1, 9)), min_size=1, max_size=12), min_size=1, max_size=5)


def made(pieces: list[list[tuple[SlotState, int]]], *, whole: bool = False) -> TierMap:
    slots = [[state for state, count in piece for _ in range(count)] for piece in pieces]
    return TierMap(
        time=1.0,
        slot_bytes=4096,
        states=np.array([state for piece in slots for state in piece], dtype=np.uint8),
        pieces=() if whole else tuple(MapPiece(str(number), len(piece)) for number, piece in enumerate(slots)),
    )


def read(text: str) -> list[str]:
    words = text.split()
    return [state for state, count in zip(words[::2], words[1::2], strict=True) for _ in range(int(count))]


@given(PIECES)
def test_what_is_written_is_what_there_is(pieces) -> None:
    found = made(pieces)
    text, share = write_cells(found, 10**6)
    assert share == 1
    assert read(text) == [SlotState(state).word for state in found.states]
    runs = text.split()[::2]
    assert all(one != other for one, other in pairwise(runs)), "a run is told in two"


@given(PIECES, st.integers(40, 200), st.booleans())
def test_a_cell_of_several_is_what_most_of_them_are(pieces, most: int, whole: bool) -> None:
    found = made(pieces, whole=whole)
    try:
        text, share = write_cells(found, most)
    except ValueError:
        assert len(pieces) > 1, "one piece always fits"
        return
    assert len(text) <= most
    expected: list[set[str]] = []
    start = 0
    for piece in found.pieces or (MapPiece("", len(found.states)),):
        slots = found.states[start : start + piece.slots]
        start += piece.slots
        for first in range(0, len(slots), share):
            counts = Counter(SlotState(state).word for state in slots[first : first + share])
            expected.append({word for word, count in counts.items() if count == max(counts.values())})
    cells = read(text)
    assert (
        len(cells)
        == len(expected)
        == sum(math.ceil(piece.slots / share) for piece in found.pieces or (MapPiece("", len(found.states)),))
    )
    assert all(cell in words for cell, words in zip(cells, expected, strict=True))
    for cell, words in zip(cells, expected, strict=True):
        assert cell not in ("free", "out") or words <= {"free", "out"}, "as many are in use, and it is called free"


def test_no_more_slots_are_put_together_than_must_be() -> None:
    states = np.tile(np.array([SlotState.FREE, SlotState.CACHED], np.uint8), 5000)
    found = TierMap(time=1.0, slot_bytes=1, states=states)
    text, share = write_cells(found, len("free 1 cached 1 ") * 5000)
    assert share == 1
    assert write_cells(found, len(text) - 1) == ("cached 5000", 2)


def test_a_hundred_thousand_slots_fit_however_they_are_mixed() -> None:
    mixed = np.random.default_rng(7).integers(0, len(SlotState), 100_000, dtype=np.uint8)
    text, share = write_cells(TierMap(time=1.0, slot_bytes=1, states=mixed), 262_144)
    assert len(text) <= 262_144
    assert share in (4, 8)


def test_no_text_is_written_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of all slots may be of megabytes, however often somebody asks."""
    written: list[int] = []

    class Words(list[str]):
        def __getitem__(self, state: Any) -> Any:
            written.append(state)
            return super().__getitem__(state)

    monkeypatch.setattr(slot_map, "_WORDS", Words(slot_map._WORDS))
    states = np.tile(np.array([SlotState.FREE, SlotState.CACHED], np.uint8), 5000)
    assert write_cells(TierMap(time=1.0, slot_bytes=1, states=states), 100) == ("cached 5000", 2)
    assert written == [SlotState.CACHED]


def test_a_tier_without_slots_has_no_cells() -> None:
    nothing = TierMap(time=1.0, slot_bytes=1, states=np.zeros(0, np.uint8))
    assert write_cells(nothing, 10) == ("", 1)
    empty = TierMap(time=1.0, slot_bytes=1, states=np.zeros(0, np.uint8), pieces=(MapPiece("0", 0),))
    assert write_cells(empty, 10) == ("", 1)


def test_a_piece_without_slots_takes_no_cell() -> None:
    found = TierMap(
        time=1.0,
        slot_bytes=1,
        states=np.full(9, SlotState.CACHED, np.uint8),
        pieces=(MapPiece("0", 0), MapPiece("1", 9)),
    )
    assert write_cells(found, 100) == ("cached 9", 1)


def test_more_pieces_than_the_text_has_room_for_is_an_error() -> None:
    states = np.tile(np.array([SlotState.FREE, SlotState.CACHED], np.uint8), 50)
    pieces = tuple(MapPiece(str(number), 1) for number in range(100))
    with pytest.raises(ValueError, match="100 pieces"):
        write_cells(TierMap(time=1.0, slot_bytes=1, states=states, pieces=pieces), 50)
