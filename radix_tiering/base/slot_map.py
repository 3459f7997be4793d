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


class Cells(NamedTuple):
    """A map in words: `free 120 cached 30`."""

    text: str
    slots_per_cell: int


def write_cells(found: TierMap, most_bytes: int) -> Cells:
    """The map in at most `most_bytes`: where there are more, a cell stands for two slots, or four, and so on.

    A cell never reaches over the end of a piece. Raises ValueError where no number of slots is enough.
    """
    sizes = [piece.slots for piece in found.pieces] or [len(found.states)]
    share = 1
    while len(text := _text(_merged(found.states, sizes, share))) > most_bytes:
        if share > max(sizes):
            raise ValueError(f"a map of {len(sizes)} pieces does not fit into {most_bytes} bytes")
        share *= 2
    return Cells(text, share)


def _merged(states: np.ndarray, sizes: list[int], share: int) -> np.ndarray:
    """The state of each cell of `share` slots: what most of them are."""
    if share == 1 or not len(states):
        return states
    ends = np.cumsum(sizes)
    starts = np.concatenate([np.arange(end - size, end, share) for end, size in zip(ends, sizes, strict=True)])
    most = np.zeros(len(starts), dtype=np.int64)
    merged = np.zeros(len(starts), dtype=np.uint8)
    for state in SlotState:
        count = np.add.reduceat(states == state, starts, dtype=np.int64)
        np.copyto(merged, np.uint8(state), where=count >= np.maximum(most, 1))
        np.maximum(most, count, out=most)
    return merged


def _text(cells: np.ndarray) -> str:
    if not len(cells):
        return ""
    begins = np.concatenate([[0], np.flatnonzero(cells[1:] != cells[:-1]) + 1])
    counts = np.diff(begins, append=len(cells))
    words = [state.word for state in SlotState]
    return " ".join(
        f"{words[state]} {count}" for state, count in zip(cells[begins].tolist(), counts.tolist(), strict=True)
    )
