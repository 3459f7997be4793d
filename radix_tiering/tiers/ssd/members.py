"""Which devices of an array belong to the stripe set, and in what state each is.

A device is a MEMBER (at least one whole superblock copy), BLANK (both copies all zeros: may join), DAMAGED (once a
member, no whole copy left: stays out, nothing is written to it), ABSENT, or SILENT (there, but it does not answer).
Anything else is refused, never changed.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from ...base.errors import FormatError
from ...base.page import BLOCK_BYTES
from .arrays.devices import DeviceArray, Operation, Request
from .blockio import (
    Patience,
    aligned_buffer,
    execute,
    read_blocks,
    sync_devices,
    write_blocks,
)
from .claiming import OTHER_VERSION, DeviceContent, judge
from .layout import (
    CHECKPOINT_OFFSET,
    SUPERBLOCK_OFFSETS,
    TABLE_BYTES,
    TABLE_OFFSETS,
    Defect,
    Superblock,
    forgotten_members,
)
from .layout import decode_superblock as decode
from .namespaces import NamespaceTable


class Standing(Enum):
    MEMBER = "member"
    BLANK = "blank"
    DAMAGED = "damaged"
    ABSENT = "absent"
    SILENT = "not answering"


_STANDINGS = {
    DeviceContent.MEMBER: Standing.MEMBER,
    DeviceContent.BLANK: Standing.BLANK,
    DeviceContent.DAMAGED: Standing.DAMAGED,
}


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


def probe_all(array: DeviceArray, patience: Patience) -> tuple[Probe, ...]:
    """Look at every device, at all of them at once, so that many that do not answer cost no more time than one.

    Raises FormatError for content that is not ours or of another format version.
    """
    devices = range(len(array.sizes))
    asked = [device for device in devices if array.present(device) and array.sizes[device] >= CHECKPOINT_OFFSET]
    requests = [
        Request(0, Operation.READ, device, offset, [aligned_buffer(BLOCK_BYTES)])
        for device in asked
        for offset in SUPERBLOCK_OFFSETS
    ]
    answers: dict[int, list[tuple[int, np.ndarray]]] = {device: [] for device in asked}
    for request, error in zip(requests, execute(array, requests, patience), strict=True):
        answers[request.device].append((error, request.buffers[0]))
    return tuple(_judge(array, device, answers.get(device), patience) for device in devices)


def _judge(
    array: DeviceArray, device: int, answers: Sequence[tuple[int, np.ndarray]] | None, patience: Patience
) -> Probe:
    """What the errno and the content of both superblock copies say; None for a device that could not be asked."""
    if answers is None:
        if array.present(device):
            return Probe(device, Standing.DAMAGED, judge((), array.sizes[device]).detail, (), None, False)
        return Probe(device, Standing.ABSENT, "not present", (), None, False)
    if any(error == errno.ETIMEDOUT for error, _ in answers):
        return Probe(device, Standing.SILENT, patience.no_answer, (), None, False)
    copies = tuple(
        Defect("damaged", "cannot be read") if error else decode(block.tobytes()) for error, block in answers
    )
    if all(error for error, _ in answers):
        return Probe(device, Standing.ABSENT, "cannot be read", copies, None, False)
    judgement = judge(copies, array.sizes[device])
    if judgement.content is DeviceContent.VERSION:
        raise FormatError(f"device {device}: {judgement.detail}: {OTHER_VERSION}")
    if judgement.content is DeviceContent.FOREIGN:
        raise FormatError(
            f"device {device} holds something that is not a stripe set: name another, which is of one or blank"
        )
    return Probe(device, _STANDINGS[judgement.content], judgement.detail, copies, judgement.superblock, judgement.clean)


def silent_devices(array: DeviceArray, devices: Sequence[int], patience: Patience) -> list[int]:
    """Those that do not answer. All are asked at once, so that many silent ones cost no more time than one."""
    requests = [
        Request(0, Operation.READ, device, SUPERBLOCK_OFFSETS[0], [aligned_buffer(BLOCK_BYTES)]) for device in devices
    ]
    errors = execute(array, requests, patience)
    return [device for device, error in zip(devices, errors, strict=True) if error == errno.ETIMEDOUT]


class Members(NamedTuple):
    """The devices of an array, sorted out."""

    probes: tuple[Probe, ...]  # by position in the array
    set_id: bytes
    unit_bytes: int
    device_count: int  # as the set knows it, members that are missing included
    forgotten: frozenset[int]  # those of them that are not looked for any more, by index in the set

    @property
    def missing(self) -> int:
        """Members that are looked for and cannot be used."""
        return self.device_count - len(self.forgotten) - len(self.of(Standing.MEMBER))

    def of(self, standing: Standing) -> list[Probe]:
        return [probe for probe in self.probes if probe.standing is standing]


def find_members(array: DeviceArray, patience: Patience) -> Members:
    """Sort out an array whose devices come in any order.

    Raises FormatError where no member is there, where devices of two sets are mixed, or one device appears twice.
    """
    probes = probe_all(array, patience)
    superblocks = [(one.device, one.superblock) for one in probes if one.superblock is not None]
    if not superblocks:
        states = ", ".join(f"device {one.device} {one.standing.value}" for one in probes) or "no devices"
        remedy = "create one, or name its devices"
        if any(one.standing is Standing.SILENT for one in probes):
            remedy = "check the devices that do not answer, or leave them out"
        raise FormatError(f"no member of a stripe set here ({states}): {remedy}")
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
    forgotten = forgotten_members([superblock for _, superblock in superblocks])
    return Members(probes, first.set_id, first.geometry.unit_bytes, count, forgotten)


def read_tables(array: DeviceArray, device: int, patience: Patience) -> list[NamespaceTable | None]:
    """Both copies of the namespace table of one device; None for one that is not whole."""
    raws = [read_blocks(array, device, offset, TABLE_BYTES, patience) for offset in TABLE_OFFSETS]
    return [None if raw is None else NamespaceTable.decode(raw.tobytes()) for raw in raws]


def member_tables(array: DeviceArray, devices: Sequence[int], patience: Patience) -> dict[int, NamespaceTable]:
    """The newest namespace table on each of the devices that has a whole one.

    Without any no page is recovered: a page whose namespace is unknown might have been flushed.
    """
    found = {}
    for device in devices:
        copies = [table for table in read_tables(array, device, patience) if table is not None]
        if copies:
            found[device] = max(copies, key=lambda table: table.sequence)
    return found


def write_table(array: DeviceArray, device: int, content: bytes, patience: Patience) -> int:
    """Write an encoded table to both copies of a device, with a sync after each; 0 or an errno.

    A whole copy exists at every moment.
    """
    for offset in TABLE_OFFSETS:
        error = write_blocks(array, device, offset, content, patience)
        error = error or sync_devices(array, [device], patience)[device]
        if error:
            return error
    return 0
