"""Arrival memory: the slots that the engine and this server both see, and what has arrived in them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .objects import ObjectHeader


class ArrivedObject(NamedTuple):
    """An object in a slot."""

    slot: int
    header: ObjectHeader


class ArrivalMemory:
    """A slot is free, or somebody's who took it, or holds an object that has arrived: pages of one object are read one
    after the other, so it stays until its slot is needed. Used by the tier's thread alone.
    """

    def __init__(self) -> None:
        """Without a slot; see `begin`."""
        self._memory = np.empty((0, 0), np.uint8)
        self._free: list[int] = []
        self._arrived: OrderedDict[str, ArrivedObject] = OrderedDict()  # by name; the one read last is the last

    def begin(self, memory: np.ndarray) -> None:
        """A life of the engine begins: uint8 [slots, stride], all of them free."""
        self._memory = memory
        self._free = list(range(len(memory) - 1, -1, -1))

    def end(self) -> None:
        """It has ended: no slot is anybody's any more."""
        self._memory = np.empty((0, 0), np.uint8)  # no view, which would keep all of it
        self._free = []
        self._arrived.clear()

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def unused(self) -> int:
        """Slots that are free, or would be made so."""
        return len(self._free) + len(self._arrived)

    def __getitem__(self, slot: int) -> np.ndarray:
        """Its bytes: uint8 [stride]."""
        memory: np.ndarray = self._memory[slot]
        return memory

    def take(self, count: int) -> list[int]:
        """Up to so many, for one job: no more than a quarter of all, so that there are some for others. What was read
        longest ago makes room."""
        count = min(count, max(1, len(self._memory) // 4))
        while len(self._free) < count and self._arrived:
            self._free.append(self._arrived.popitem(last=False)[1].slot)
        return [self._free.pop() for _ in range(min(count, len(self._free)))]

    def give_back(self, slots: Sequence[int]) -> None:
        """They were taken, and the engine is done with them."""
        self._free += slots

    def keep(self, name: str, slot: int, header: ObjectHeader) -> ArrivedObject:
        """An object has arrived in a slot that was taken for it."""
        arrived = self._arrived[name] = ArrivedObject(slot, header)
        return arrived

    def arrived(self, name: str) -> ArrivedObject | None:
        """The object of this name, if it is here; it is read."""
        arrived = self._arrived.get(name)
        if arrived is not None:
            self._arrived.move_to_end(name)
        return arrived

    @property
    def holds(self) -> int:
        """Objects that have arrived, and are still here."""
        return len(self._arrived)

    def forget(self) -> None:
        """What has arrived is not wanted again."""
        self._free += [arrived.slot for arrived in self._arrived.values()]
        self._arrived.clear()
