"""The host tier: a slab of block-major pages in this machine's DRAM."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...base.checksum import digests_at
from ...base.memory import huge_array
from ...base.page import PageGeometry
from ...base.slot_map import SlotState, TierMap
from ...table.tier_copies import HostSlots
from .device_digests import DeviceDigests


class HostTier(HostSlots):
    """`slots` places for one page each; allocating and freeing one is O(1), and the capacity is exact.

    Not thread-safe: used under the page table's lock, except that the bytes of a slot belong to whoever holds it.
    """

    def __init__(
        self,
        geometry: PageGeometry,
        size_bytes: int,
        *,
        allocate: Callable[[int], np.ndarray] = huge_array,
    ) -> None:
        """`allocate(bytes)` gives zeroed, 4 KiB-aligned memory; the size is rounded down to whole pages.

        Raises ValueError if not even one page fits, MemoryError if the machine has too little memory.
        """
        self.geometry = geometry
        self.slots = size_bytes // geometry.stride_bytes
        if self.slots < 1:
            raise ValueError(f"{size_bytes} bytes hold no page of {geometry.stride_bytes} bytes")
        self.slab = allocate(self.slots * geometry.stride_bytes)[: self.slots * geometry.stride_bytes].reshape(
            self.slots, geometry.stride_bytes
        )
        self.digests = DeviceDigests(self.slots)
        self.limit_slots = self.slots  # lowered by an operator
        # Popped from the end: low slots first, so that a chain of pages gets neighbouring slots and is copied in
        # long runs.
        self._free = list(range(self.slots - 1, -1, -1))
        self._states = bytearray([SlotState.FREE]) * self.slots

    @property
    def capacity_bytes(self) -> int:
        return self.slots * self.geometry.stride_bytes

    @property
    def used_slots(self) -> int:
        return self.slots - len(self._free)

    @property
    def free_slots(self) -> int:
        """Slots that may still be used."""
        return max(0, self.limit_slots - self.used_slots)

    @property
    def limit_bytes(self) -> int:
        return self.limit_slots * self.geometry.stride_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit: int) -> None:
        """Allow only as many slots as fit into `limit` bytes; those in use stay so."""
        self.limit_slots = min(self.slots, limit // self.geometry.stride_bytes)

    def allocate(self) -> int | None:
        if self.used_slots >= self.limit_slots:
            return None
        slot = self._free.pop()
        self.digests.forget(slot)
        self._states[slot] = SlotState.PRIVATE
        return slot

    def free(self, slot: int) -> None:
        self._free.append(slot)
        self._states[slot] = SlotState.FREE

    def release(self, places: Sequence[int]) -> None:
        """Free slots, in this order."""
        for slot in places:
            self.free(slot)

    def size_of(self, length: int) -> int:
        """Bytes of a slot, whatever is in it."""
        return self.geometry.stride_bytes

    def slot_map(self, states: np.ndarray, *, time: float) -> TierMap:
        """What is in each slot, as the page table says. `time`: now, seconds since the epoch."""
        return TierMap(time=time, slot_bytes=self.geometry.stride_bytes, states=states)

    def mark(self, slot: int, state: SlotState) -> None:
        """What a slot is used for that is taken, and not by a page."""
        self._states[slot] = state

    def states(self, some: slice = slice(None)) -> np.ndarray:
        return np.frombuffer(self._states[some], dtype=np.uint8)

    def page(self, slot: int) -> np.ndarray:
        """The page's bytes in `slot`: uint8 [page_bytes], a view. Raises IndexError where there is no such slot."""
        return self.block_run(slot)[: self.geometry.page_bytes]

    def addresses(self, slots: Sequence[int]) -> np.ndarray:
        """Where the pages in these slots begin in memory: int64 [slots]. Raises ValueError for a slab that is none,
        where the bytes of a page do not lie one behind the other."""
        apart, together = self.slab.strides
        if together != 1:
            raise ValueError("the bytes of a page do not lie together: this slab is a model without memory")
        return self.slab.ctypes.data + np.array(slots, np.int64) * apart

    def checksums(self, slots: Sequence[int], unit_bytes: int | None) -> list[bytes]:
        """Of the pages in these slots, see `digests_at`. Any thread; whoever calls keeps the slots."""
        return digests_at(self.addresses(slots), self.geometry.page_bytes, unit_bytes)

    def block_run(self, slot: int) -> np.ndarray:
        """The whole slot in whole 4 KiB blocks, for direct I/O: uint8 [stride_bytes], a view. Raises IndexError where
        there is no such slot."""
        if slot < 0:  # which numpy would take for the last one
            raise IndexError(f"host memory has no slot {slot}")
        return self.slab[slot]
