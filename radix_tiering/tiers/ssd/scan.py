"""Recovery, part one: read what is on the devices. Part two, `assemble`, tells which of it are whole pages.

Both a scan of all slot headers and a checkpoint yield the same thing, an array of `RECORD_DTYPE`, one element for
each slot that holds a unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...base.page import BLOCK_BYTES
from .arrays.devices import DeviceArray, Operation, Request
from .blockio import Patience, aligned_buffer, execute
from .layout import (
    CODE_HEADER_BYTES,
    HEADER_DTYPE,
    LAYOUT_VERSION,
    RECORD_BYTES,
    RECORD_DTYPE,
    SLOT_MAGIC,
    WRITE_IDENTITY,
    Superblock,
    sealed,
)
from .namespaces import NamespaceEntry
from .stored_pages import StoredPages, record_words

#: Device, slots done, slots in all.
Progress = Callable[[int, int, int], None]
#: Headers read per round of each device, which takes 4 MiB of memory.
HEADERS_PER_ROUND = 1024


class ScanResult(NamedTuple):
    """What the slot headers of one device say."""

    records: np.ndarray  # RECORD_DTYPE, by slot
    last_generation: int  # the highest in any valid header, 0 if none
    damaged: tuple[int, ...]  # slots whose header was once written and does not check out
    unreadable: tuple[int, ...]


def _header_requests(device: int, superblock: Superblock, slots: Sequence[int], blocks: np.ndarray) -> list[Request]:
    """What reads the header blocks of `slots` into `blocks`, in order."""
    return [
        Request(0, Operation.READ, device, superblock.geometry.slot_offset(slot),
                [blocks[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]])
        for at, slot in enumerate(slots)
    ]  # fmt: skip


class Scan:
    """The scan of one device, a round of headers at a time."""

    def __init__(self, device: int, superblock: Superblock) -> None:
        self.device = device
        self.slots = superblock.geometry.slot_count
        self._superblock = superblock
        self._blocks = aligned_buffer(min(self.slots, HEADERS_PER_ROUND) * BLOCK_BYTES)
        self._parts: list[np.ndarray] = []
        self._damaged: list[int] = []
        self._unreadable: list[int] = []
        self._last_generation = 0

    def requests(self, slots: range) -> list[Request]:
        """What reads the headers of these slots."""
        return _header_requests(self.device, self._superblock, slots, self._blocks)

    def take(self, slots: range, errors: Sequence[int]) -> None:
        """The headers of these slots have been read, or not."""
        good = []
        for at, slot in enumerate(slots):
            if errors[at]:
                self._unreadable.append(slot)
                continue
            block = self._blocks[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES].data
            if block[:8] != SLOT_MAGIC:
                continue  # never used; what lies there is of an earlier life of the device
            if sealed(block):  # type: ignore[arg-type]
                good.append(at)
            else:
                self._damaged.append(slot)
        headers = self._blocks.view(HEADER_DTYPE)[good]
        ours = (
            (headers["version"] == LAYOUT_VERSION)
            & (headers["set_id"] == np.void(self._superblock.set_id))
            & (headers["device_index"] == self._superblock.device_index)
            & (headers["slot"] == np.asarray(good, dtype=np.uint64) + np.uint64(slots.start))
        )
        # A sound header of another set or another place is what an earlier life of the device left there: free.
        headers = headers[ours]
        if len(headers):
            self._last_generation = max(self._last_generation, int(headers["generation"].max()))
            records = np.zeros(len(headers), dtype=RECORD_DTYPE)
            for name in RECORD_DTYPE.names or ():
                if not name.startswith("reserved"):
                    records[name] = headers[name]
            self._parts.append(records)

    def result(self) -> ScanResult:
        return ScanResult(_joined(self._parts), self._last_generation, tuple(self._damaged), tuple(self._unreadable))


def scan_devices(
    array: DeviceArray,
    superblocks: Mapping[int, Superblock],
    patience: Patience,
    progress: Progress = lambda device, done, slots: None,
) -> dict[int, ScanResult]:
    """Read the header of every slot of these devices, of all of them together, a round at a time. Never raises for what
    it finds.

    The slots of a device that falls silent meanwhile are unreadable from there on.
    """
    scans = [Scan(device, superblock) for device, superblock in superblocks.items()]
    for start in range(0, max((scan.slots for scan in scans), default=0), HEADERS_PER_ROUND):
        rounds = [
            (scan, range(start, min(start + HEADERS_PER_ROUND, scan.slots))) for scan in scans if start < scan.slots
        ]
        errors = iter(execute(array, [request for one, slots in rounds for request in one.requests(slots)], patience))
        for scan, slots in rounds:
            scan.take(slots, list(itertools.islice(errors, len(slots))))
            progress(scan.device, slots.stop, scan.slots)
    return {scan.device: scan.result() for scan in scans}


#: What the words of a name are multiplied by, so that no word is lost in their sum.
_ODD = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5, 0x85EBCA77C2B2AE63], np.uint64
)


class Assembly(NamedTuple):
    """Which units make whole pages, of namespaces that are known and have not been flushed since."""

    pages: StoredPages  # the newest whole version of each page, those first that were written first
    incomplete: list[tuple[int, int]]  # (device, slot) of units whose page is not whole


def assemble(found: Mapping[int, np.ndarray], namespaces: Mapping[int, NamespaceEntry], unit_bytes: int) -> Assembly:
    """Put units together to pages. `found`: records by device.

    Units belong together if everything in their headers agrees, the digest of the whole page included. So even two
    sessions that used the same generation, each without the other's devices, can never be mixed.
    """
    records = _joined(list(found.values()))
    devices = np.repeat(np.array(list(found), dtype=np.int64), [len(found[device]) for device in found])
    least = np.full(len(records), np.iinfo(np.uint64).max, dtype=np.uint64)
    for identifier, entry in namespaces.items():
        least[records["namespace_id"] == identifier] = entry.minimum_generation
    valid = (records["generation"] >= least) & (records["length"] > 0)
    if not valid.all():
        records, devices = _taken(records, np.flatnonzero(valid)), devices[valid]

    # Sorted by generation the units of one write lie together, and later writes of a page come after earlier ones.
    order = _order(records)
    ordered = _taken(records, order)
    if _mixed(ordered):
        # A generation has several writes, which is rare: all that tells them apart counts then.
        words = np.ascontiguousarray(_identities(records)).view(np.uint64)
        apart = [words[:, word] for word in range(words.shape[1])]
        order = np.lexsort((records["unit_index"], *apart, records["generation"]))
        ordered = _taken(records, order)
    records, devices = ordered, devices[order]
    begins = _begins(_identities(records))
    counts = np.diff(begins, append=len(records))
    whole = _are_whole(records, begins, counts, unit_bytes)
    of_whole = np.repeat(whole, counts)
    pages = StoredPages(
        records if of_whole.all() and len(begins) == len(records) else _taken(records, begins[whole]),
        counts[whole],
        devices[of_whole],
        records["slot"][of_whole].astype(np.int64),
        {identifier: entry.digest for identifier, entry in namespaces.items()},
    )
    torn = zip(devices[~of_whole].tolist(), records["slot"][~of_whole].tolist(), strict=True)
    newest = _newest(pages.records)
    return Assembly(pages if newest.all() else pages.take(newest), list(torn))


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """RECORD_DTYPE, one part behind the other."""
    if not parts:
        return np.zeros(0, dtype=RECORD_DTYPE)
    return np.concatenate([record_words(part) for part in parts]).view(RECORD_DTYPE).ravel()


def _taken(records: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Some of them, by number: int64."""
    return np.take(record_words(records), which, axis=0).view(RECORD_DTYPE).ravel()


def _order(records: np.ndarray) -> np.ndarray:
    """By generation, and by unit within one."""
    generations, units = records["generation"].copy(), records["unit_index"].astype(np.uint64)
    width = units.max(initial=0) + np.uint64(1)
    if generations.max(initial=0) < np.iinfo(np.uint64).max // width:
        return np.argsort(generations * width + units, kind="stable")
    return np.lexsort((units, generations))


def _mixed(ordered: np.ndarray) -> bool:
    """Whether a generation has records of several writes."""
    same = ordered["generation"][1:] == ordered["generation"][:-1]
    at = np.flatnonzero(same)
    identities = _identities(ordered)
    return bool(len(at)) and bool((identities[at + 1] != identities[at]).any())


def _identities(records: np.ndarray) -> np.ndarray:
    """All that the units of one write have in common: bytes [records, ...]."""
    raw = records.view(np.uint8).reshape(len(records), RECORD_BYTES)
    return raw[:, RECORD_BYTES - WRITE_IDENTITY.size :]


def _begins(identities: np.ndarray) -> np.ndarray:
    """Where runs of equal ones begin: int64."""
    if not len(identities):
        return np.zeros(0, np.int64)
    changes = (identities[1:] != identities[:-1]).any(axis=1)
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def _are_whole(records: np.ndarray, begins: np.ndarray, counts: np.ndarray, unit_bytes: int) -> np.ndarray:
    """Which runs, sorted by unit, are of all units of a page: bool."""
    lengths, held, unit = records["length"][begins], counts.astype(np.uint64), np.uint64(unit_bytes)
    wanted = (lengths - np.uint64(1)) // unit + np.uint64(1)
    # A page that is coded has fewer units than its length asks for, and half of it in them as it is.
    coded = (held < wanted) & (lengths % np.uint64(2) == 0)
    coded &= lengths // np.uint64(2) + np.uint64(CODE_HEADER_BYTES) < held * unit
    expected = np.arange(len(records)) - np.repeat(begins, counts)
    right = np.logical_and.reduceat(records["unit_index"] == expected, begins) if len(begins) else counts > 0
    found: np.ndarray = right & ((held == wanted) | coded) & (counts == records["unit_count"][begins])
    return found


def _newest(records: np.ndarray) -> np.ndarray:
    """Which of these, the later versions of a page behind the earlier ones, is the last of its page: bool."""
    newest = np.ones(len(records), np.bool_)
    several = _alike(records)
    if not len(several):
        return newest
    some = records[several]
    keys = np.ascontiguousarray(some["key"]).view(np.uint64).reshape(-1, 4)
    order = np.lexsort((some["namespace_id"], keys[:, 3], keys[:, 2], keys[:, 1], keys[:, 0]))
    names = np.column_stack([keys, some["namespace_id"].astype(np.uint64)])[order]
    newest[several[order]] = np.append((names[1:] != names[:-1]).any(axis=1), True)
    return newest


def _alike(records: np.ndarray) -> np.ndarray:
    """Those that may be of one page with another: int64, ascending. Few, as a page is seldom written again: so names
    are not sorted but sums over them."""
    words = np.ascontiguousarray(records["key"]).view(np.uint64).reshape(-1, 4)
    sums = records["namespace_id"].astype(np.uint64) * _ODD[4]
    for word in range(4):
        sums += words[:, word] * _ODD[word]
    order = np.argsort(sums)
    same = np.flatnonzero(sums[order][1:] == sums[order][:-1])
    return np.unique(order[np.concatenate([same, same + 1])])
