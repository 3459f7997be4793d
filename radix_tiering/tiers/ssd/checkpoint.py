"""The checkpoint: the index of a device's live slots, written when a stripe set is closed in order.

It counts only while the device's superblock says "clean", holds its length and its checksum, and both superblock
copies are whole; in every other case the slot headers are scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...base.page import BLOCK_BYTES, page_digest, round_up
from .arrays.devices import DeviceArray
from .blockio import Patience, aligned_buffer, read_blocks, write_aligned
from .layout import CHECKPOINT_OFFSET, RECORD_BYTES, RECORD_DTYPE, Superblock
from .namespaces import NamespaceEntry
from .stored_pages import StoredPages, record_words


class Checkpoint(NamedTuple):
    """Records of one device, ready to be written, and what the superblock says of them."""

    blocks: np.ndarray  # uint8 in whole blocks, zeros behind the records
    nbytes: int  # of records
    digest: bytes  # of these


def build_checkpoints(
    batches: Iterable[StoredPages],
    namespaces: Mapping[bytes, NamespaceEntry],
    devices: Mapping[int, int],
    late: Callable[[], bool] = lambda: False,
) -> dict[int, Checkpoint] | None:
    """A checkpoint for each of `devices`, which may have so many records. Pages that have a unit elsewhere are left
    out, and those that were flushed.

    There may be millions of pages: None once it is `late`, which is asked with each batch.
    """
    records = {device: _Records(most) for device, most in devices.items()}
    for pages in batches:
        if late():
            return None
        lost = np.bincount(pages.page_of[~np.isin(pages.devices, list(records))], minlength=len(pages)) > 0
        live = np.repeat(~lost & _live(pages, namespaces), pages.counts)  # of units
        numbers = [namespaces[digest].identifier if digest in namespaces else 0 for digest in pages.namespaces.values()]
        units = pages.unit_records()
        units["namespace_id"] = _renumbered(units["namespace_id"], list(pages.namespaces), numbers)
        for device, of_device in records.items():
            of_device.take(units, np.flatnonzero(live & (pages.devices == device)))
    built = {}
    for device, of_device in records.items():
        if late():
            return None
        built[device] = of_device.checkpoint()
    return built


class _Records:
    """Those of one device, one after the other where the device can take them from. There may be a gigabyte of them:
    each is moved once, and memory is touched only where there are some."""

    def __init__(self, most: int) -> None:
        self._blocks = aligned_buffer(round_up(most * RECORD_BYTES, BLOCK_BYTES))
        self._rows = record_words(self._blocks[: most * RECORD_BYTES])
        self._count = 0

    def take(self, units: np.ndarray, which: np.ndarray) -> None:
        """`units`: RECORD_DTYPE, `which` of them: int64."""
        into = self._rows[self._count : self._count + len(which)]
        # The mode is one in which numpy needs no copy; no number is outside.
        np.take(record_words(units), which, axis=0, out=into, mode="clip")
        self._count += len(which)

    def checkpoint(self) -> Checkpoint:
        nbytes = self._count * RECORD_BYTES
        blocks = self._blocks[: round_up(nbytes, BLOCK_BYTES)]
        return Checkpoint(blocks, nbytes, page_digest(blocks[:nbytes].data))


def _live(pages: StoredPages, namespaces: Mapping[bytes, NamespaceEntry]) -> np.ndarray:
    """Which of them were not flushed: bool."""
    live = np.zeros(len(pages), np.bool_)
    for number, digest in pages.namespaces.items():
        if (entry := namespaces.get(digest)) is not None:
            ours = pages.records["namespace_id"] == number
            live |= ours & (pages.records["generation"] >= np.uint64(entry.minimum_generation))
    return live


def _renumbered(found: np.ndarray, old: Sequence[int], new: Sequence[int]) -> np.ndarray:
    """Each of `found`, which is one of `old`, as `new` says."""
    numbers = np.zeros(len(found), found.dtype)
    for before, after in zip(old, new, strict=True):
        numbers[found == before] = after
    return numbers


def write_checkpoint(array: DeviceArray, device: int, checkpoint: Checkpoint, patience: Patience) -> int:
    """Write the records into the device's checkpoint region; returns 0 or an errno. Does not sync."""
    if not checkpoint.nbytes:
        return 0
    return write_aligned(array, device, CHECKPOINT_OFFSET, checkpoint.blocks, patience)


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
    if not len(slots):
        return records
    if slots.max() >= superblock.geometry.slot_count:
        return None
    seen = np.zeros(superblock.geometry.slot_count, np.bool_)  # sorting them would take the interpreter for long
    seen[slots] = True
    return records if np.count_nonzero(seen) == len(slots) else None
