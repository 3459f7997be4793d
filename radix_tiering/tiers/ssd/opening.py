"""Creating and opening a stripe set: from what the devices hold to what the engine works with.

The order of opening for writing is what makes every crash harmless: read everything, write
"not clean" to every member, sync, and only then hand out slots.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...base.errors import ConfigError, FormatError
from ...base.page import page_digest
from .arrays.devices import DeviceArray
from .blockio import Patience, sync_devices, write_blocks
from .checkpoint import read_checkpoint
from .device_state import DeviceState, Service
from .layout import SUPERBLOCK_OFFSETS, Defect, Geometry, Superblock
from .members import (
    Members,
    Probe,
    Standing,
    member_tables,
    probe_all,
    read_tables,
    silent_devices,
    write_table,
)
from .namespaces import MemberTable, NamespaceTable, reconcile
from .scan import ScanResult, assemble, scan_devices
from .slots import SlotAllocator, SlotMap
from .stored_pages import StoredPages


class Opened(NamedTuple):
    """A stripe set ready for use."""

    set_id: bytes
    unit_bytes: int
    device_count: int  # members of the set, those that are not here included
    forgotten: frozenset[int]  # those of them that are not looked for any more, by index in the set
    devices: list[DeviceState]  # by position in the array
    allocator: SlotAllocator
    table: NamespaceTable
    recovered: StoredPages
    next_generation: int
    scanned: tuple[int, ...]  # devices whose slot headers had to be read
    superblocks: dict[int, Superblock]  # as written last, of the devices in service
    next_copy: dict[int, int]  # superblock copy to write next


def is_new(array: DeviceArray, patience: Patience) -> bool:
    """Whether there are devices to which nothing was ever written but a part of `create_set`, which was killed there,
    and of all others nothing is left.

    Raises FormatError as `open_set` does.
    """
    probes = [one for one in probe_all(array, patience) if array.sizes[one.device]]
    made = [one.superblock for one in probes if one.superblock is not None]
    # What could not be read, or is damaged, may say that the set was used.
    said = [copy for one in probes for copy in one.copies if isinstance(copy, Defect)]
    if len(made) == len(probes) or any(copy.kind != "blank" for copy in said):
        return False
    if any(one.standing not in (Standing.BLANK, Standing.MEMBER) for one in probes):
        return False
    return all(
        (one.set_id, one.device_count) == (made[0].set_id, len(probes))
        # Opening a set raises the sequence: as it was made, and never used.
        and (one.clean, one.next_generation, one.checkpoint_bytes) == (True, 1, 0)
        and one.sequence <= len(SUPERBLOCK_OFFSETS)
        for one in made
    )


def create_set(array: DeviceArray, unit_bytes: int, patience: Patience, set_id: bytes) -> None:
    """Make the devices of an array a new, empty stripe set, whatever they hold. One of 0 bytes is left out.

    Raises FormatError where a device does not answer or cannot be written, ConfigError where it is too small. Slots are
    left as they are: a header of another stripe set never counts.
    """
    devices = [device for device, size in enumerate(array.sizes) if size]
    if not devices:
        raise FormatError("every device is empty: give one a size, or remove them, and the next start makes them anew")
    geometries = {device: Geometry.of(array.sizes[device], unit_bytes) for device in devices}
    for device in silent_devices(array, devices, patience):
        raise FormatError(f"device {device} does not answer ({patience.no_answer}): check it, or leave it out")
    for index, (device, geometry) in enumerate(geometries.items()):
        # Closed in order with nothing in it: whoever opens it need not look at every slot for what cannot be there.
        superblock = Superblock(
            set_id, 1, index, len(devices), geometry, next_generation=1, clean=True, checkpoint_digest=page_digest(b"")
        )
        error = write_table(array, device, NamespaceTable().encode(), patience)
        for copy in range(len(SUPERBLOCK_OFFSETS)):
            error = error or write_superblock(array, device, copy, superblock._replace(sequence=1 + copy), patience)
        if error:
            raise FormatError(f"device {device} {patience.reason(error)}: check it, or leave it out")


def not_opened(members: Members) -> Opened:
    """A stripe set of which nothing is known but its devices: it has no pages, and no room."""
    devices = []
    for one in members.probes:
        geometry, index = None, -1
        if one.superblock is not None:
            geometry, index = one.superblock.geometry, one.superblock.device_index
        state = DeviceState(one.device, index, geometry, None)
        state.service = Service.OPENING if one.standing in (Standing.MEMBER, Standing.BLANK) else Service.OUT
        state.reason = one.reason
        devices.append(state)
    return Opened(
        members.set_id,
        members.unit_bytes,
        members.device_count,
        members.forgotten,
        devices,
        SlotAllocator([None] * len(devices)),
        NamespaceTable(),
        StoredPages.of(()),
        0,
        (),
        {one.device: one.superblock for one in members.probes if one.superblock is not None},
        {},
    )


def open_set(
    array: DeviceArray,
    members: Members,
    patience: Patience,
    progress: Callable[[int, int, int], None] | None = None,
    go_on: Callable[[], None] = lambda: None,
) -> Opened:
    """Open for writing the set that `members` are of. `progress(device, slots done, slots)` is called while slot
    headers are scanned.

    There may be millions of pages: `go_on` is called now and then, and ends it all by what it raises. Until everything
    is read nothing is written, so that the next opening finds what this one has found. A device that cannot be used, or
    falls silent meanwhile, is left out.
    """
    alive = {one.device: one for one in members.of(Standing.MEMBER)}
    reasons = {one.device: one.reason for one in members.probes if one.device not in alive}
    tables = member_tables(array, list(alive), patience)
    known = {device: _superblock(member) for device, member in alive.items()}
    found: dict[int, np.ndarray | None] = {}
    for device, member in alive.items():
        go_on()
        found[device] = read_checkpoint(array, device, known[device], patience) if member.clean else None

    def scanning(device: int, done: int, slots: int) -> None:
        go_on()
        if progress is not None:
            progress(device, done, slots)

    scanned = tuple(device for device, records in found.items() if records is None)
    scans = scan_devices(array, {device: known[device] for device in scanned}, patience, scanning)
    records = {device: scans[device].records if one is None else one for device, one in found.items()}
    table, generation = common_table(known, scans, tables)

    def pages_of(devices: Container[int]) -> StoredPages:
        go_on()
        ours = {device: of_device for device, of_device in records.items() if device in devices}
        return assemble(ours, table.by_identifier(), members.unit_bytes).pages

    pages = pages_of(alive)
    go_on()
    blank = members.of(Standing.BLANK)
    superblocks, next_copy = _mark_open(array, members, alive, blank, table, generation, reasons, patience)
    if not superblocks.keys() >= alive.keys():
        pages = pages_of(superblocks)
    devices, allocator = _devices(len(members.probes), superblocks, reasons, pages)
    return Opened(
        members.set_id,
        members.unit_bytes,
        max([members.device_count, *_counts(superblocks)]),
        members.forgotten,
        devices,
        allocator,
        table,
        pages,
        generation,
        scanned,
        superblocks,
        next_copy,
    )


def common_table(
    superblocks: Mapping[int, Superblock], scans: Mapping[int, ScanResult], tables: Mapping[int, NamespaceTable]
) -> tuple[NamespaceTable, int]:
    """What members' namespace tables come to, and the generation that no page of theirs has reached. All by device;
    `scans`: of those whose slot headers were read."""
    reach = {device: superblock.next_generation for device, superblock in superblocks.items()}
    for device, scan in scans.items():
        reach[device] = max(reach[device], scan.last_generation + 1)
    minimums = [entry.minimum_generation for table in tables.values() for entry in table.entries]
    generation = max([1, *reach.values(), *minimums])
    return reconcile([MemberTable(table, reach[device]) for device, table in tables.items()], generation), generation


def write_superblock(array: DeviceArray, device: int, copy: int, superblock: Superblock, patience: Patience) -> int:
    """Write one copy and sync the device; returns 0 or an errno."""
    error = write_blocks(array, device, SUPERBLOCK_OFFSETS[copy], superblock.encode(), patience)
    return error or sync_devices(array, [device], patience)[device]


def write_both(array: DeviceArray, device: int, first: Superblock, patience: Patience) -> int:
    """Both superblock copies of a device that becomes a member, `first` being the older one; 0 or an errno."""
    error = write_superblock(array, device, 0, first, patience)
    return error or write_superblock(array, device, 1, first._replace(sequence=first.sequence + 1), patience)


def _mark_open(
    array: DeviceArray,
    members: Members,
    alive: dict[int, Probe],
    blank: Sequence[Probe],
    table: NamespaceTable,
    generation: int,
    reasons: dict[int, str],
    patience: Patience,
) -> tuple[dict[int, Superblock], dict[int, int]]:
    """Let blank devices join and mark every member as being written to; those that fail get a reason instead."""
    count = members.device_count
    joining: dict[int, Superblock] = {}
    for one in blank:
        try:
            geometry = Geometry.of(array.sizes[one.device], members.unit_bytes)
        except ConfigError as too_small:
            reasons[one.device] = str(too_small)
            continue
        joining[one.device] = Superblock(members.set_id, 1, count, 0, geometry, generation)
        count += 1
    superblocks: dict[int, Superblock] = {}
    next_copy: dict[int, int] = {}
    # Members first: once a device has joined, every member knows that its index is taken.
    for device, member in alive.items():
        old = _superblock(member)
        superblock = old._replace(
            sequence=old.sequence + 1,
            clean=False,
            device_count=count,
            next_generation=generation,
            checkpoint_bytes=0,
            checkpoint_digest=bytes(16),
            forgotten=members.forgotten,
        )
        known = read_tables(array, device, patience)
        error = 0
        if any(copy is None or copy.sequence != table.sequence for copy in known):
            error = write_table(array, device, table.encode(), patience)
        error = error or write_superblock(array, device, member.next_copy, superblock, patience)
        if error:
            reasons[device] = patience.reason(error)
            continue
        superblocks[device] = superblock
        next_copy[device] = 1 - member.next_copy
    for device, fresh in joining.items():
        superblock = fresh._replace(device_count=count, forgotten=members.forgotten)
        error = write_table(array, device, table.encode(), patience)
        error = error or write_both(array, device, superblock, patience)
        if error:
            reasons[device] = patience.reason(error)
            continue
        superblocks[device] = superblock._replace(sequence=2)
        next_copy[device] = 0
    return superblocks, next_copy


def _devices(
    count: int, superblocks: dict[int, Superblock], reasons: dict[int, str], pages: StoredPages
) -> tuple[list[DeviceState], SlotAllocator]:
    maps = [
        SlotMap(superblocks[device].geometry.slot_count, pages.slots[pages.devices == device])
        if device in superblocks
        else None
        for device in range(count)
    ]
    devices = []
    for device in range(count):
        superblock = superblocks.get(device)
        if superblock is None:
            state = DeviceState(device, -1, None, None)
            state.service = Service.OUT
            state.reason = reasons.get(device) or "not used"
        else:
            state = DeviceState(device, superblock.device_index, superblock.geometry, maps[device])
        devices.append(state)
    return devices, SlotAllocator(maps)


def _counts(superblocks: dict[int, Superblock]) -> list[int]:
    return [superblock.device_count for superblock in superblocks.values()]


def _superblock(member: Probe) -> Superblock:
    assert member.superblock is not None  # what makes it a member
    return member.superblock
