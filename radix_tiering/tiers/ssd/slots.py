"""Slot allocation: which slots of which devices are free, and where the next page goes.

Not thread-safe: the stripe set's lock guards it.
"""

from __future__ import annotations

from array import array as packed
from collections.abc import Iterable, Sequence

import numpy as np

from .layout import Placement

#: A slot is FREE, or RESERVED by a placement whose page is not written yet, or TAKEN by one whose page is, or LEAVING:
#: released, but still read or written by a transfer under way.
FREE, TAKEN, LEAVING, RESERVED = 0, 1, 2, 3


class SlotMap:
    """The slots of one device. Each operation is O(1); about seven bytes of memory per slot."""

    def __init__(self, count: int, taken: Iterable[int] = ()) -> None:
        self._states = bytearray(count)
        self._users = packed("H", bytes(2 * count))
        for slot in taken:
            self._states[slot] = TAKEN
        # Taken from the end, so that an empty device is filled from its beginning.
        free = np.flatnonzero(np.frombuffer(self._states, dtype=np.uint8) == FREE)[::-1]
        self._free = packed("I", free.astype(np.uint32).tobytes())

    @property
    def count(self) -> int:
        return len(self._states)

    @property
    def free(self) -> int:
        """Slots that `take` can still give."""
        return len(self._free)

    def take(self) -> int:
        """A free slot. Raises IndexError where there is none."""
        slot = self._free.pop()
        self._states[slot] = RESERVED
        return slot

    def fill(self, slot: int) -> None:
        """RESERVED -> TAKEN: its page is written."""
        self._states[slot] = TAKEN

    def is_taken(self, slot: int) -> bool:
        """Whether a placement has it, its page written or not."""
        return self._states[slot] in (TAKEN, RESERVED)

    def states(self) -> bytes:
        """Of each slot, a copy."""
        return bytes(self._states)

    def give_back(self, slot: int) -> None:
        """To FREE, or LEAVING while a transfer uses the slot."""
        if self._users[slot]:
            self._states[slot] = LEAVING
        else:
            self._states[slot] = FREE
            self._free.append(slot)

    def hold(self, slot: int) -> None:
        """A transfer begins to use the slot: it is not given to another page until `unhold`."""
        self._users[slot] += 1

    def unhold(self, slot: int) -> None:
        self._users[slot] -= 1
        if self._states[slot] == LEAVING and not self._users[slot]:
            self._states[slot] = FREE
            self._free.append(slot)

    @property
    def held(self) -> int:
        """Slots that a transfer uses, for tests and audits."""
        return sum(1 for users in self._users if users)


class SlotAllocator:
    """Spreads the units of a page over the open devices, round-robin from a rotating start (Swarm, Eq. 7)."""

    def __init__(self, maps: Sequence[SlotMap | None]) -> None:
        self._maps = list(maps)  # by device; None for one that never was in service
        self._open = [device for device, slots in enumerate(maps) if slots is not None]
        self._pointer = 0

    @property
    def free_units(self) -> int:
        """Units that can still be reserved on the open devices; exact."""
        return sum(slots.free for slots in self._open_maps())

    @property
    def capacity_units(self) -> int:
        """Units that the open devices can hold, free or not; exact."""
        return sum(slots.count for slots in self._open_maps())

    def _open_maps(self) -> list[SlotMap]:
        return [slots for device in self._open if (slots := self._maps[device]) is not None]

    def add(self, slots: SlotMap | None) -> None:
        """One more device, the last; None for one that cannot be used."""
        if slots is not None:
            self._open.append(len(self._maps))
        self._maps.append(slots)

    def shut(self, device: int) -> None:
        """Give no more slots of this device."""
        if device in self._open:
            self._open.remove(device)

    def take(self, units: int) -> Placement | None:
        """A place for each unit, or None, and nothing taken, where the open devices have no room for all.

        Full devices are passed over. The pointer moves on by as many devices as there are units, so that pages
        written one after the other continue each other and the load stays even; a page that goes round exactly
        moves it by one, so that not every page begins on the same device.
        """
        maps = self._open_maps()
        if units > sum(slots.free for slots in maps):
            return None
        count = len(maps)
        at = self._pointer % count
        places = []
        for _ in range(units):
            while not maps[at].free:
                at = (at + 1) % count
            places.append((self._open[at], maps[at].take()))
            at = (at + 1) % count
        self._pointer = at if units % count else (at + 1) % count
        return tuple(places)

    def check_places(self, placement: Placement) -> None:
        """Raise ValueError where a place does not exist: a page of another session, or of another stripe set."""
        for device, slot in placement:
            slots = self._maps[device] if 0 <= device < len(self._maps) else None
            if slots is None or not 0 <= slot < slots.count:
                raise ValueError(f"there is no slot {slot} on device {device}: is the page of an earlier session?")

    def check_taken(self, placement: Placement) -> None:
        """Raise ValueError where a place is not reserved: released twice, or never given by this stripe set."""
        self.check_places(placement)
        for device, slot in placement:
            if not self._slots(device).is_taken(slot):
                raise ValueError(f"slot {slot} of device {device} is not reserved: was its page released before?")

    def give_back(self, placement: Placement) -> None:
        """Return every place of a reservation. Raises ValueError, and returns none, where one is not reserved."""
        self.check_taken(placement)
        for device, slot in placement:
            self._slots(device).give_back(slot)

    def give_back_taken(self, placement: Placement) -> None:
        """Return those places of a reservation that have not been returned already."""
        for device, slot in placement:
            slots = self._slots(device)
            if slots.is_taken(slot):
                slots.give_back(slot)

    def fill(self, placement: Placement) -> None:
        """The page of this reservation is written."""
        for device, slot in placement:
            self._slots(device).fill(slot)

    def hold(self, placement: Placement) -> None:
        """A transfer begins to use these places."""
        for device, slot in placement:
            self._slots(device).hold(slot)

    def unhold(self, placement: Placement) -> None:
        for device, slot in placement:
            self._slots(device).unhold(slot)

    def _slots(self, device: int) -> SlotMap:
        slots = self._maps[device]
        assert slots is not None  # check_taken let it pass
        return slots
