"""Which devices of an array belong to the stripe set, and in what state each is.

A device is a MEMBER (at least one whole superblock copy), BLANK (both copies all zeros: may join), DAMAGED (once a
member, no whole copy left: stays out, nothing is written to it), or ABSENT. Anything else is refused, never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from swift_tiers.radix_tiering.errors import FormatError
from swift_tiers.radix_tiering.page import BLOCK_BYTES
from swift_tiers.radix_tiering.ssd.blockio import Patience, aligned_buffer, execute, read_blocks, sync_devices
from swift_tiers.radix_tiering.ssd.devices import DeviceArray, Operation, Request
from swift_tiers.radix_tiering.ssd.layout import (
    CHECKPOINT_OFFSET,
    SUPERBLOCK_OFFSETS,
    TABLE_BYTES,
    TABLE_OFFSETS,
    Defect,
    Superblock,
)
from swift_tiers.radix_tiering.ssd.layout import decode_superblock as decode
from swift_tiers.radix_tiering.ssd.namespaces import NamespaceTable


class Standing(Enum):
    MEMBER = "member"
    BLANK = "blank"
    DAMAGED = "damaged"
    ABSENT = "absent"


class Probe(NamedTuple):
    """What the first 8 KiB of a device say."""

    device: int  # position in the array
    standing: Standing
    reason: str
    copies: tuple[Superblock | Defect, ...]
    superblock: Superblock | None  # the newest whole copy
    clean: bool  # the checkpoint may be trusted: "clean", and no newer copy can have been lost

    @property
    def next_copy(self) -> int:
        """The superblock copy to write next: never the one that counts now."""
        return 1 if self.copies and self.copies[0] is self.superblock else 0


def probe(array: DeviceArray, device: int) -> Probe:
    """Look at one device. Raises FormatError for content that is not ours or of another format version."""
    if not array.present(device):
        return Probe(device, Standing.ABSENT, "not present", (), None, False)
    if array.sizes[device] < CHECKPOINT_OFFSET:
        return Probe(device, Standing.DAMAGED, f"only {array.sizes[device]} bytes long", (), None, False)
    blocks = [read_blocks(array, device, offset, BLOCK_BYTES) for offset in SUPERBLOCK_OFFSETS]
    copies = tuple(
        Defect("damaged", "cannot be read") if block is None else decode(block.tobytes()) for block in blocks
    )
    for copy in copies:
        if isinstance(copy, Defect) and copy.kind == "version":
            raise FormatError(
                f"device {device}: {copy.detail}: run the program that wrote it, or zero its first 8 KiB to give it up"
            )
    whole = [copy for copy in copies if isinstance(copy, Superblock)]
    defects = [copy for copy in copies if isinstance(copy, Defect)]
    if whole:
        newest = max(whole, key=lambda copy: copy.sequence)
        if newest.geometry.end > array.sizes[device]:
            detail = f"{array.sizes[device]} bytes long, its superblock says {newest.geometry.end}"
            return Probe(device, Standing.DAMAGED, detail, copies, None, False)
        return Probe(device, Standing.MEMBER, "", copies, newest, newest.clean and len(whole) == len(copies))
    if all(block is None for block in blocks):
        return Probe(device, Standing.ABSENT, "cannot be read", copies, None, False)
    kinds = {defect.kind for defect in defects}
    if kinds == {"blank"}:
        return Probe(device, Standing.BLANK, "", copies, None, False)
    if kinds <= {"foreign", "blank"}:
        raise FormatError(
            f"device {device} holds something that is not a stripe set: name another, or zero its first 8 KiB"
        )
    return Probe(device, Standing.DAMAGED, "no whole superblock copy: run fsck", copies, None, False)


class Members(NamedTuple):
    """The devices of an array, sorted out."""

    probes: tuple[Probe, ...]  # by position in the array
    set_id: bytes
    unit_bytes: int
    device_count: int  # as the set knows it, members that are missing included

    def of(self, standing: Standing) -> list[Probe]:
        return [probe for probe in self.probes if probe.standing is standing]


def find_members(array: DeviceArray) -> Members:
    """Sort out an array whose devices come in any order.

    Raises FormatError where no member is there, where devices of two sets are mixed, or one device appears twice.
    """
    probes = tuple(probe(array, device) for device in range(len(array.sizes)))
    superblocks = [(one.device, one.superblock) for one in probes if one.superblock is not None]
    if not superblocks:
        states = ", ".join(f"device {one.device} {one.standing.value}" for one in probes) or "no devices"
        raise FormatError(f"no member of a stripe set here ({states}): create one, or name its devices")
    first_device, first = superblocks[0]
    seen: dict[int, int] = {}
    for device, superblock in superblocks:
        if superblock.set_id != first.set_id or superblock.geometry.unit_bytes != first.geometry.unit_bytes:
            raise FormatError(
                f"device {first_device} is of stripe set {first.set_id.hex()}, device {device} of "
                f"{superblock.set_id.hex()}: name the devices of one set, or zero the first 8 KiB of the other's"
            )
        if superblock.device_index in seen:
            raise FormatError(
                f"devices {seen[superblock.device_index]} and {device} are copies of one member: name only one of them"
            )
        seen[superblock.device_index] = device
    count = max(superblock.device_count for _, superblock in superblocks)
    return Members(probes, first.set_id, first.geometry.unit_bytes, count)


def read_tables(array: DeviceArray, device: int) -> list[NamespaceTable | None]:
    """Both copies of the namespace table of one device; None for one that is not whole."""
    raws = [read_blocks(array, device, offset, TABLE_BYTES) for offset in TABLE_OFFSETS]
    return [None if raw is None else NamespaceTable.decode(raw.tobytes()) for raw in raws]


def newest_table(array: DeviceArray, devices: Sequence[int]) -> NamespaceTable:
    """The newest namespace table on any of the devices; an empty one where none is whole.

    Without a table no page is recovered: a page whose namespace is unknown might have been flushed.
    """
    tables = [table for device in devices for table in read_tables(array, device) if table is not None]
    return max(tables, key=lambda table: table.sequence, default=NamespaceTable())


def write_tables(
    array: DeviceArray, devices: Iterable[int], content: bytes, patience: Patience | None = None
) -> dict[int, int]:
    """Write an encoded table to both copies of each device, with a sync after each: 0 or an errno for each device.

    On every device a whole copy exists at every moment. The devices work side by side, so that many that do not
    answer are waited for no longer than one.
    """
    errors = dict.fromkeys(devices, 0)
    buffer = aligned_buffer(TABLE_BYTES)
    buffer[:] = np.frombuffer(content, dtype=np.uint8)
    for offset in TABLE_OFFSETS:
        alive = [device for device, error in errors.items() if not error]
        requests = [Request(0, Operation.WRITE, device, offset, [buffer]) for device in alive]
        errors.update(zip(alive, execute(array, requests, patience), strict=True))
        alive = [device for device in alive if not errors[device]]
        errors.update(sync_devices(array, alive, patience))
    return errors


def write_table(array: DeviceArray, device: int, content: bytes) -> int:
    """`write_tables` for one device; 0 or an errno."""
    return write_tables(array, [device], content)[device]
