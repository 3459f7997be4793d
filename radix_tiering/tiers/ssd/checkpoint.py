"""The checkpoint: the index of a device's live slots, written when a stripe set is closed in order.

It counts only while the device's superblock says "clean", holds its length and its checksum, and both superblock
copies are whole; in every other case the slot headers are scanned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ...base.page import BLOCK_BYTES, page_digest, round_up
from .arrays.devices import DeviceArray
from .blockio import Patience, read_blocks, write_blocks
from .layout import (
    CHECKPOINT_OFFSET,
    RECORD_BYTES,
    RECORD_DTYPE,
    WRITE_IDENTITY,
    StoredPage,
    Superblock,
)

#: The fields of a record before those that are the same in every unit of a page write.
_PLACE = struct.Struct("<QII")


#: Pages whose records are made before the clock is looked at: some ten milliseconds.
PAGES_AT_A_TIME = 4096


class Checkpoint(NamedTuple):
    """Records of one device, ready to be written, and what the superblock says of them."""

    content: np.ndarray  # uint8
    digest: bytes


def build_checkpoints(
    pages: Iterable[StoredPage],
    identifiers: Mapping[bytes, int],
    devices: Iterable[int],
    late: Callable[[], bool] = lambda: False,
) -> dict[int, Checkpoint] | None:
    """A checkpoint for each device. Pages that have a unit elsewhere than on `devices` are left out.

    There may be millions of pages: None once it is `late`, which is asked every few thousand.
    """
    rows = {device: bytearray() for device in devices}
    for number, page in enumerate(pages):
        if number % PAGES_AT_A_TIME == 0 and late():
            return None
        record = page.record
        if any(device not in rows for device, _ in page.placement):
            continue
        identity = WRITE_IDENTITY.pack(
            page.generation,
            record.length,
            identifiers[record.namespace],
            record.depth,
            len(page.placement),
            0,
            record.key,
            record.parent,
            page.digest,
        )
        for index, (device, slot) in enumerate(page.placement):
            rows[device] += _PLACE.pack(slot, index, 0) + identity
    built = {}
    for device, raw in rows.items():
        records = np.frombuffer(raw, dtype=RECORD_DTYPE)
        content = records[np.argsort(records["slot"])].view(np.uint8)
        built[device] = Checkpoint(content, page_digest(content.data))
    return built


def write_checkpoint(array: DeviceArray, device: int, checkpoint: Checkpoint, patience: Patience) -> int:
    """Write the records into the device's checkpoint region; returns 0 or an errno. Does not sync."""
    if not checkpoint.content.nbytes:
        return 0
    return write_blocks(array, device, CHECKPOINT_OFFSET, checkpoint.content, patience)


def read_checkpoint(array: DeviceArray, device: int, superblock: Superblock, patience: Patience) -> np.ndarray | None:
    """The records (RECORD_DTYPE) of a clean device, or None where they cannot be trusted."""
    if superblock.checkpoint_bytes % RECORD_BYTES:
        return None
    length = round_up(superblock.checkpoint_bytes, BLOCK_BYTES)
    raw = read_blocks(array, device, CHECKPOINT_OFFSET, length, patience) if length else np.zeros(0, dtype=np.uint8)
    if raw is None:
        return None
    raw = raw[: superblock.checkpoint_bytes]
    if page_digest(raw.data) != superblock.checkpoint_digest:
        return None
    records = raw.view(RECORD_DTYPE)
    slots = records["slot"]
    if len(slots) and (slots.max() >= superblock.geometry.slot_count or len(np.unique(slots)) != len(slots)):
        return None
    return records
