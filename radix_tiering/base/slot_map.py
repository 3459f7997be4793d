"""What is in every slot of a tier at one moment, and how that is told in few words."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec
import numpy as np


class SlotState(IntEnum):
    """What a slot is used for. Where a cell stands for several and two states are equally many, the later one counts:
    no cell is `free` or `out` unless most of its slots are."""

    OUT = 0  # its device is not in service
    FREE = 1  # nobody has it
    BORROWED = 2  # of another server's memory: lent to this one, and no page in it
    CACHED = 3  # a page that may leave
    PINNED = 4  # a page that may not: in use by a request, being copied, or held by an operator
    PRIVATE = 5  # taken, and not by a page that others could find: by a request alone, or by one that has just left
    LENT = 6  # taken out of the pool for other servers
    LOADING = 7  # a copy to it is under way
    RECOMPUTING = 8  # is being computed, for a page that was found below

    @property
    def word(self) -> str:
        return self.name.lower()


class MapPiece(NamedTuple):
    """Slots that belong together: a device's, or a lease's."""

    name: str
    slots: int


class TierMap(msgspec.Struct, frozen=True, kw_only=True):
    """Every slot of one tier. `pieces` is empty for a tier that is of one."""

    time: float  # seconds since the epoch
    slot_bytes: int
    states: np.ndarray  # uint8 [slots], of `SlotState`
    first_slot: int = 0  # number of the first one
    pieces: tuple[MapPiece, ...] = ()


_WORDS = [state.word for state in SlotState]
_WORD_BYTES = np.array([len(word) for word in _WORDS])
_TENS = 10 ** np.arange(1, 18)


class Cells(NamedTuple):
    """A map in words: `free 120 cached 30`."""

    text: str
    slots_per_cell: int


def write_cells(found: TierMap, most_bytes: int) -> Cells:
    """The map in at most `most_bytes`: where there are more, a cell stands for two slots, or four, and so on.

    A cell never reaches over the end of a piece. Raises ValueError where no number of slots is enough.
    """
    sizes = [piece.slots for piece in found.pieces] or [len(found.states)]
    cells, share = found.states, 1
    counts: np.ndarray | None = None
    states, lengths = _runs(cells)
    # Only a text that is short enough is written: one of a million slots may be of megabytes.
    while _text_bytes(states, lengths) > most_bytes:
        if max(sizes) <= 1:
            raise ValueError(f"a map of {len(sizes)} pieces does not fit into {most_bytes} bytes")
        if counts is None:
            kinds = np.unique(states)[::-1]  # those that there are
            counts = cells == kinds[:, None]
        counts, sizes, share = _halved(counts, sizes), [(size + 1) // 2 for size in sizes], 2 * share
        cells = kinds[counts.argmax(axis=0)]  # the later one of two
        states, lengths = _runs(cells)
    runs = zip(states.tolist(), lengths.tolist(), strict=True)
    return Cells(" ".join(f"{_WORDS[state]} {length}" for state, length in runs), share)


def _halved(counts: np.ndarray, sizes: list[int]) -> np.ndarray:
    """How many slots of each cell are in which state, int32 [states, cells], where every two cells of a piece become
    one. `counts`: the same of those before; `sizes`: cells of each piece."""
    odd = np.cumsum(sizes)[np.array(sizes) % 2 == 1]
    even = np.insert(counts, odd, 0, axis=1) if len(odd) else counts
    found: np.ndarray = np.add(even[:, ::2], even[:, 1::2], dtype=np.int32)
    return found


def _runs(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cells that are alike and follow each other: the state of each run, and its length."""
    begins = np.flatnonzero(np.concatenate([[len(cells) > 0], cells[1:] != cells[:-1]]))
    return cells[begins], np.diff(begins, append=len(cells))


def _text_bytes(states: np.ndarray, lengths: np.ndarray) -> int:
    """What these runs take in words."""
    digits = 1 + np.searchsorted(_TENS, lengths, side="right")
    return max(0, int((_WORD_BYTES[states] + digits).sum()) + 2 * len(states) - 1)
