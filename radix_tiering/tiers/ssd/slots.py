"""Slot allocation: which slots of which devices are free, and where the next page goes.

Not thread-safe: the stripe set's lock guards it.
"""

from __future__ import annotations

from array import array as packed
from collections.abc import Sequence

import numpy as np

from .layout import Placement

#: A slot is FREE, or RESERVED by a placement whose page is not written yet, or TAKEN by one whose page is, or LEAVING:
#: released, but still read or written by a transfer under way.
FREE, TAKEN, LEAVING, RESERVED = 0, 1, 2, 3
#: Of a placement, its page written or not.
_TAKEN = (TAKEN, RESERVED)


class SlotMap:
    """The slots of one device; about seven bytes of memory per slot. Changed by `SlotAllocator` alone."""

    __slots__ = ("released", "state", "users")

    def __init__(self, count: int, taken: Sequence[int] | np.ndarray = ()) -> None:
        state = np.full(count, FREE, np.uint8)
        state[np.asarray(taken, np.int64)] = TAKEN
        self.state = bytearray(state)
        self.users = packed("H", bytes(2 * count))  # transfers under way, by slot
        # Taken from the end, so that an empty device is filled from its beginning.
        free = np.flatnonzero(np.frombuffer(self.state, dtype=np.uint8) == FREE)[::-1]
        self.released = packed("I", free.astype(np.uint32).tobytes())

    @property
    def count(self) -> int:
        return len(self.state)

    @property
    def free(self) -> int:
        """Slots that can still be given."""
        return len(self.released)

    def states(self) -> bytes:
        """Of each slot, a copy."""
        return bytes(self.state)

    @property
    def held(self) -> int:
        """Slots that a transfer uses, for tests and audits."""
        return sum(1 for users in self.users if users)


class SlotAllocator:
    """Spreads the units of a page over the open devices, round-robin from a rotating start (Swarm, Eq. 7).

    Each unit costs a step of a loop here, and nothing a look at every device.
    """

    def __init__(self, maps: Sequence[SlotMap | None]) -> None:
        # By device; one that never was in service has no slots.
        self._maps = [SlotMap(0) if slots is None else slots for slots in maps]
        self._open = [device for device, slots in enumerate(maps) if slots is not None]
        self._pointer = 0
        self._count()

    def _count(self) -> None:
        """After a device has come, or takes no more."""
        opened = [self._maps[device] for device in self._open]
        self._free = [slots.released for slots in opened]  # of the open devices
        #: Units that the open devices can hold, free or not; exact.
        self.capacity_units = sum(slots.count for slots in opened)

    @property
    def free_units(self) -> int:
        """Units that can still be reserved on the open devices; exact."""
        return sum(map(len, self._free))

    def add(self, slots: SlotMap | None) -> None:
        """One more device, the last; None for one that cannot be used."""
        if slots is not None:
            self._open.append(len(self._maps))
        self._maps.append(SlotMap(0) if slots is None else slots)
        self._count()

    def shut(self, device: int) -> None:
        """Give no more slots of this device."""
        if device in self._open:
            self._open.remove(device)
            self._count()

    def reopen(self, device: int) -> None:
        """Give slots of this device again."""
        if device not in self._open:
            self._open = sorted([*self._open, device])
            self._count()

    def makes_room(self, placement: Placement) -> bool:
        """Whether a slot of a page on open devices is among these."""
        return any(device in self._open for device, _ in placement)

    def take(self, units: int) -> Placement | None:
        """A place for each unit, or None, and nothing taken, where the open devices have no room for all.

        Full devices are passed over. The pointer moves on by as many devices as there are units, so that pages
        written one after the other continue each other and the load stays even; a page that goes round exactly
        moves it by one, so that not every page begins on the same device.
        """
        free, devices, maps = self._free, self._open, self._maps
        if units > self.free_units:
            return None
        count = len(free)
        at = self._pointer % count
        places = []
        for _ in range(units):
            while not free[at]:
                at = (at + 1) % count
            device, slot = devices[at], free[at].pop()
            maps[device].state[slot] = RESERVED
            places.append((device, slot))
            at = (at + 1) % count
        self._pointer = at if units % count else (at + 1) % count
        return tuple(places)

    def check_places(self, placement: Placement) -> None:
        """Raise ValueError where a place does not exist: a page of another session, or of another stripe set."""
        maps = self._maps
        for device, slot in placement:
            if not (0 <= device < len(maps) and 0 <= slot < len(maps[device].state)):
                raise ValueError(f"there is no slot {slot} on device {device}: is the page of an earlier session?")

    def check_taken(self, placement: Placement) -> None:
        """Raise ValueError where a place is not reserved: released twice, or never given by this stripe set."""
        self.check_places(placement)
        maps = self._maps
        for device, slot in placement:
            if maps[device].state[slot] not in _TAKEN:
                raise ValueError(f"slot {slot} of device {device} is not reserved: was its page released before?")

    def give_back(self, placement: Placement) -> None:
        """Return every place of a reservation: to FREE, or LEAVING while a transfer uses it. Raises ValueError, and
        returns none, where one is not reserved."""
        self.check_taken(placement)
        self.give_back_taken(placement)

    def give_back_taken(self, placement: Placement) -> None:
        """Return those places of a reservation that have not been returned already."""
        maps = self._maps
        for device, slot in placement:
            slots = maps[device]
            if slots.state[slot] not in _TAKEN:
                continue
            if slots.users[slot]:
                slots.state[slot] = LEAVING
            else:
                slots.state[slot] = FREE
                slots.released.append(slot)

    def fill(self, placement: Placement) -> None:
        """RESERVED -> TAKEN: the page of this reservation is written."""
        maps = self._maps
        for device, slot in placement:
            maps[device].state[slot] = TAKEN

    def hold(self, placement: Placement) -> None:
        """A transfer begins to use these places: they are not given to another page until `unhold`."""
        maps = self._maps
        for device, slot in placement:
            maps[device].users[slot] += 1

    def unhold(self, placement: Placement) -> None:
        maps = self._maps
        for device, slot in placement:
            slots = maps[device]
            slots.users[slot] -= 1
            if slots.state[slot] == LEAVING and not slots.users[slot]:
                slots.state[slot] = FREE
                slots.released.append(slot)
