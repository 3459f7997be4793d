"""A blank device that joins a stripe set which is open.

The order makes every crash harmless, as it does on opening: the namespace table goes to the new device; then every
member's superblock says that the set has one more, so that the new one's index is taken for good; then the new one
gets its own superblocks, and is a member; only then are its slots handed out. After a crash in between it is blank
still, and joins when the set is opened with it; its first index may be left to a member that is missing for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .arrays.devices import DeviceArray
from .blockio import Patience
from .device_state import DeviceState, Service
from .layout import Superblock
from .members import write_table
from .opening import write_both, write_superblock
from .slots import SlotMap


class Joined(NamedTuple):
    """What has become of a device that was to join."""

    state: DeviceState  # OUT, with the reason, if it could not
    slots: SlotMap | None
    superblock: Superblock | None  # as written last
    index_taken: bool  # whether the set has one more member now, here or missing


def join(
    array: DeviceArray,
    device: int,
    first: Superblock,
    table: bytes,
    members: Iterable[int],
    superblocks: dict[int, Superblock],
    next_copy: dict[int, int],
    lose: Callable[[int, str], None],
    patience: Patience,
) -> Joined:
    """Write what makes `device`, which is in the array already, a member. On "ssd-io"; waits for the devices.

    `first`: its superblock; `table`: the namespace table. `superblocks` and `next_copy`, of the `members` that can be
    written, are kept up to date; `lose(member, reason)` is called for one that turns out otherwise.
    """
    error = write_table(array, device, table, patience)
    index_taken = not error
    if not error:
        for member in members:
            _raise_count(array, member, first.device_count, superblocks, next_copy, lose, patience)
        error = write_both(array, device, first, patience)
    if error:
        state = DeviceState(device, -1, None, None)
        state.service, state.reason = Service.OUT, patience.reason(error)
        return Joined(state, None, None, index_taken)
    slots = SlotMap(first.geometry.slot_count)
    state = DeviceState(device, first.device_index, first.geometry, slots)
    return Joined(state, slots, first._replace(sequence=first.sequence + 1), index_taken)


def _raise_count(
    array: DeviceArray,
    member: int,
    count: int,
    superblocks: dict[int, Superblock],
    next_copy: dict[int, int],
    lose: Callable[[int, str], None],
    patience: Patience,
) -> None:
    """Let a member say, durably, that the set has `count` devices."""
    old = superblocks[member]
    superblock = old._replace(sequence=old.sequence + 1, device_count=count)
    error = write_superblock(array, member, next_copy[member], superblock, patience)
    if error:
        lose(member, patience.reason(error))
    else:
        superblocks[member] = superblock
        next_copy[member] = 1 - next_copy[member]
