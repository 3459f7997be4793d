"""Check a stripe set that nobody has open, and repair it.

`check` changes nothing and trusts nothing: it reads every slot header, and every payload if asked to. `repair` does
what the report says. Both run on the caller's thread, which is the array's only user meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from ...base.errors import ConfigError
from ...base.page import BLOCK_BYTES, ROOT_KEY, page_digest, round_up
from ..tier import ReadOutcome
from .arrays.devices import DeviceArray, Operation, Request
from .blockio import Patience, aligned_buffer, execute, sync_devices, write_blocks
from .checkpoint import build_checkpoints, read_checkpoint, write_checkpoint
from .layout import (
    MAX_FORGOTTEN,
    RECORD_DTYPE,
    Placement,
    SlotPlace,
    StoredPage,
    Superblock,
    stored_bytes,
    unit_length,
)
from .members import (
    Members,
    Probe,
    Standing,
    find_members,
    member_tables,
    read_tables,
    write_table,
)
from .namespaces import NamespaceEntry, NamespaceTable
from .opening import common_table, write_superblock
from .scan import Assembly, ScanResult, assemble, scan_devices
from .stored_pages import StoredPages
from .transfers import verify_unit

#: Stage ("headers" or "payloads"), done, in all.
CheckProgress = Callable[[str, int, int], None]


class Severity(Enum):
    NOTE = "note"  # as a crash leaves it; opening the stripe set deals with it
    WARNING = "warning"  # pages are lost, or a spare copy is
    ERROR = "error"  # a device cannot be used


class Problem(NamedTuple):
    severity: Severity
    device: int | None  # position in the array; None: the stripe set as a whole
    what: str
    remedy: str


class DeviceReport(NamedTuple):
    """One device. used + free + torn + corrupt = slots."""

    device: int
    standing: Standing
    superblock_copies: tuple[str, ...]  # "sequence 7, clean", or what is wrong with it
    table_copies: tuple[bool, ...]  # whether each copy of the namespace table is whole and the newest
    sequence: int  # of the superblock that counts; 0 without one
    clean: bool
    slots: int
    used: int  # hold a unit of a page that can be read
    free: int
    torn: int  # hold a unit of a page that is not whole
    corrupt: int  # damaged, or unreadable


class Report(NamedTuple):
    set_id: bytes
    unit_bytes: int
    missing: int  # members that are looked for and not in the array, or cannot be used
    forgotten: frozenset[int]  # members that are not looked for, by index in the set; `repair` writes that down
    devices: tuple[DeviceReport, ...]
    namespaces: tuple[NamespaceEntry, ...]
    complete: int  # pages that can be read
    incomplete: int  # page writes of which units are missing
    corrupt: int  # pages with a damaged unit
    unreachable: tuple[StoredPage, ...]  # complete, but the page before them in the sequence is not there
    problems: tuple[Problem, ...]
    pages: tuple[StoredPage, ...]  # what `repair` keeps: complete and reachable
    wipe: tuple[tuple[int, int], ...]  # (device, slot) whose headers `repair` zeroes
    next_generation: int
    table: NamespaceTable  # that every device is to have

    @property
    def sound(self) -> bool:
        """Nothing worse than what a crash leaves."""
        return all(problem.severity is Severity.NOTE for problem in self.problems)


class RepairResult(NamedTuple):
    done: tuple[str, ...]
    failed: tuple[str, ...]


def check(
    array: DeviceArray,
    verify_payload: bool = True,
    progress: CheckProgress | None = None,
    patience: Patience | None = None,
    forget_missing: bool = False,
) -> Report:
    """Look at everything. Raises FormatError only where the devices are not one stripe set of this format.

    `forget_missing`: members that are not in the array are gone for good. Raises ConfigError where one is there and
    cannot be used: it may be well again tomorrow.

    A device that does not answer, as `patience` sees it (pass the same one on to `repair`), is reported so, and counts
    as missing. When one falls silent half-way, everything is looked at again without it: its slots are not damaged.
    """
    patience = patience or Patience()
    while True:
        report = _look(array, verify_payload, progress, patience, forget_missing)
        members = {one.device for one in report.devices if one.standing is Standing.MEMBER}
        if not members & patience.given_up:
            return report


def _look(
    array: DeviceArray,
    verify_payload: bool,
    progress: CheckProgress | None,
    patience: Patience,
    forget_missing: bool,
) -> Report:
    """`check`, once through."""
    members = find_members(array, patience)
    if forget_missing:
        members = _forgetting(members)
    alive = {one.device: one.superblock for one in members.of(Standing.MEMBER) if one.superblock is not None}
    tables = member_tables(array, list(alive), patience)
    problems: list[Problem] = []
    corrupt: set[tuple[int, int]] = set()
    found: dict[int, np.ndarray] = {}
    total = sum(superblock.geometry.slot_count for superblock in alive.values())
    seen = dict.fromkeys(alive, 0)

    def tick(device: int, done: int, _: int) -> None:
        seen[device] = done
        if progress is not None:
            progress("headers", sum(seen.values()), total)

    scans = scan_devices(array, alive, patience, tick)
    for device, superblock in alive.items():
        found[device], bad = _live_records(array, members.probes[device], superblock, scans[device], problems, patience)
        corrupt.update((device, slot) for slot in bad)

    table, generation = common_table(alive, scans, tables)
    assembly = _sound_pages(array, members, alive, table, found, corrupt, verify_payload, progress, patience)
    whole = list(assembly.pages)
    pages, unreachable = _by_reachability(whole)
    torn = set(assembly.incomplete) - corrupt
    missing = members.missing
    problems += _set_problems(members, missing, table, len(assembly.incomplete), unreachable, corrupt)
    devices = tuple(
        _device_report(array, one, table, whole, torn, corrupt, problems, patience) for one in members.probes
    )
    # What a member that is not there would make whole, or reachable, is left alone.
    wipe = set() if missing else {place for page in unreachable for place in page.placement} | torn | corrupt
    return Report(
        members.set_id,
        members.unit_bytes,
        missing,
        members.forgotten,
        devices,
        table.entries,
        len(assembly.pages),
        _writes(found, assembly.incomplete),
        len({*_broken(found, corrupt)}),
        tuple(unreachable),
        tuple(problems),
        tuple(pages),
        tuple(sorted(wipe)),
        generation,
        table,
    )


def _forgetting(members: Members) -> Members:
    """These, and whoever is not among them is gone for good."""
    for one in members.probes:
        if one.standing not in (Standing.MEMBER, Standing.BLANK):
            raise ConfigError(
                f"device {one.device} is {one.standing.value} ({one.reason}): mend it, or leave it out, and what is "
                "left out is forgotten"
            )
    here = {one.superblock.device_index for one in members.probes if one.superblock is not None}
    gone = frozenset(range(members.device_count)) - here
    if max(gone, default=0) >= MAX_FORGOTTEN:
        raise ConfigError(f"this set has had more than {MAX_FORGOTTEN} devices: delete its files, and begin a new one")
    return members._replace(forgotten=gone)


def repair(array: DeviceArray, report: Report, patience: Patience | None = None) -> RepairResult:
    """Make the devices what `report`, of a `check` just before, says they should be.

    Zeroes the headers of damaged, torn and unreachable units, puts the newest namespace table everywhere, writes a
    checkpoint of the pages that are left, and then both superblock copies whole and clean. While a member is missing it
    may hold the rest of what is torn here, and the pages that others follow: then all units are left alone, and the
    superblocks stay unclean, so that opening looks at every slot. A crash in between leaves a stripe set that opens.
    Raises ValueError where the devices have changed since the check.
    """
    patience = patience or Patience()
    members = find_members(array, patience)
    alive = {one.device: one for one in members.of(Standing.MEMBER)}
    now = [0 if one.superblock is None else one.superblock.sequence for one in members.probes]
    if members.set_id != report.set_id or now != [device.sequence for device in report.devices]:
        raise ValueError("the stripe set has changed since it was checked: check it again")
    done: list[str] = []
    failed: list[str] = []
    table = report.table
    namespaces = {entry.digest: entry for entry in table.entries}
    units = Counter(device for page in report.pages for device, _ in page.placement)
    checkpoints = (
        build_checkpoints([StoredPages.of(report.pages)], namespaces, {device: units[device] for device in alive}) or {}
    )
    for device, member in alive.items():
        old = member.superblock
        assert old is not None  # what makes it a member
        slots = [slot for place, slot in report.wipe if place == device]
        error = _begin(array, device, member, old, patience)
        error = error or _wipe(array, device, old, slots, patience)
        error = error or write_table(array, device, table.encode(), patience)
        error = error or write_checkpoint(array, device, checkpoints[device], patience)
        error = error or sync_devices(array, [device], patience)[device]
        if not error:
            superblock = old._replace(
                sequence=old.sequence + 2,
                clean=False,
                next_generation=report.next_generation,
                device_count=members.device_count,
                forgotten=report.forgotten,
                checkpoint_bytes=0,
                checkpoint_digest=bytes(16),
            )
            if not report.missing:
                superblock = superblock._replace(
                    clean=True,
                    checkpoint_bytes=checkpoints[device].nbytes,
                    checkpoint_digest=checkpoints[device].digest,
                )
            error = write_superblock(array, device, 1 - member.next_copy, superblock, patience)
        if error:
            failed.append(f"device {device}: {patience.reason(error)}")
        else:
            end = "opening scans it, for a member is missing" if report.missing else "clean"
            done.append(f"device {device}: {len(slots)} slots emptied, tables and superblocks rewritten; {end}")
    failed += [
        f"device {one.device} is {one.standing.value}: {one.reason or 'opening the stripe set lets it join'}"
        for one in members.probes
        if one.device not in alive
    ]
    return RepairResult(tuple(done), tuple(failed))


def _begin(array: DeviceArray, device: int, member: Probe, old: Superblock, patience: Patience) -> int:
    """Before the first change: the spare superblock copy says "not clean"."""
    superblock = old._replace(sequence=old.sequence + 1, clean=False, checkpoint_bytes=0, checkpoint_digest=bytes(16))
    return write_superblock(array, device, member.next_copy, superblock, patience)


def _wipe(array: DeviceArray, device: int, superblock: Superblock, slots: Iterable[int], patience: Patience) -> int:
    for slot in slots:
        error = write_blocks(array, device, superblock.geometry.slot_offset(slot), bytes(BLOCK_BYTES), patience)
        if error:
            return error
    return 0


def _live_records(
    array: DeviceArray,
    one: Probe,
    superblock: Superblock,
    scan: ScanResult,
    problems: list[Problem],
    patience: Patience,
) -> tuple[np.ndarray, list[int]]:
    """The records of the slots in use, and the slots that should be sound and are not."""
    device = one.device
    if one.clean:
        records = read_checkpoint(array, device, superblock, patience)
        if records is not None:
            headers = {int(record["slot"]): record.tobytes() for record in scan.records}
            return records, [int(row["slot"]) for row in records if headers.get(int(row["slot"])) != row.tobytes()]
        problems.append(Problem(Severity.WARNING, device, "the checkpoint is damaged", "repair writes a new one"))
    elif not superblock.clean:
        problems.append(Problem(Severity.NOTE, device, "was not closed in order", "opening it scans its slots"))
    return scan.records, [*scan.damaged, *scan.unreadable]


def _sound_pages(
    array: DeviceArray,
    members: Members,
    alive: Mapping[int, Superblock],
    table: NamespaceTable,
    found: Mapping[int, np.ndarray],
    corrupt: set[tuple[int, int]],
    verify_payload: bool,
    progress: CheckProgress | None,
    patience: Patience,
) -> Assembly:
    """Assemble until nothing damaged is left: behind a damaged version of a page an older, sound one may show."""
    namespaces = table.by_identifier()
    checked: set[Placement] = set()
    while True:
        sound = {
            device: records[[(device, slot) not in corrupt for slot in records["slot"].tolist()]]
            if len(records)
            else np.zeros(0, dtype=RECORD_DTYPE)
            for device, records in found.items()
        }
        assembly = assemble(sound, namespaces, members.unit_bytes)
        fresh = [page for page in assembly.pages if page.placement not in checked]
        if not verify_payload or not fresh:
            return assembly
        before = len(corrupt)
        for number, page in enumerate(fresh):
            corrupt.update(_damaged_units(array, alive, table, page, members.unit_bytes, patience))
            checked.add(page.placement)
            if progress is not None:
                progress("payloads", number + 1, len(fresh))
        if len(corrupt) == before:
            return assembly


def _damaged_units(
    array: DeviceArray,
    alive: Mapping[int, Superblock],
    table: NamespaceTable,
    page: StoredPage,
    unit_bytes: int,
    patience: Patience,
) -> list[tuple[int, int]]:
    """Read a whole page; the places of its units that are not what they should be."""
    requests = []
    stored = stored_bytes(page.record.length, len(page.placement), unit_bytes)
    for index, (device, slot) in enumerate(page.placement):
        length = round_up(unit_length(stored, unit_bytes, index), BLOCK_BYTES)
        buffer = aligned_buffer(BLOCK_BYTES + length)
        offset = alive[device].geometry.slot_offset(slot)
        requests.append(Request(0, Operation.READ, device, offset, (buffer,)))
    entry = table.get(page.record.namespace)
    assert entry is not None  # or the page would not have been assembled
    damaged = []
    for index, error in enumerate(execute(array, requests, patience)):
        device, slot = page.placement[index]
        superblock = alive[device]
        buffer = requests[index].buffers[0]
        length = unit_length(stored, unit_bytes, index)
        place = SlotPlace(superblock.set_id, superblock.device_index, slot)
        if error or ReadOutcome.OK is not verify_unit(
            page, index, entry.identifier, unit_bytes, place,
            buffer[:BLOCK_BYTES].tobytes(), buffer[BLOCK_BYTES : BLOCK_BYTES + length],
        ):  # fmt: skip
            damaged.append((device, slot))
    if not damaged and stored != page.record.length:
        payload = [request.buffers[0][BLOCK_BYTES:] for request in requests]
        if not _decodes(np.concatenate(payload), page, unit_bytes):
            return list(page.placement)
    return damaged


def _decodes(coded: np.ndarray, page: StoredPage, unit_bytes: int) -> bool:
    """Whether a page comes of what it was coded as."""
    from .coding import Coder  # compiled, for whoever has such pages

    length = page.record.length
    room = np.zeros(length, np.uint8)
    room[: len(coded)] = coded
    return Coder().decode(room, len(coded), length) and page_digest(room, unit_bytes) == page.digest


def _by_reachability(pages: Iterable[StoredPage]) -> tuple[list[StoredPage], list[StoredPage]]:
    """Pages whose whole prefix is there, and the others."""
    reachable: set[tuple[bytes, bytes]] = set()
    kept, lost = [], []
    for page in sorted(pages, key=lambda page: page.record.depth):
        record = page.record
        if record.parent == ROOT_KEY or (record.namespace, record.parent) in reachable:
            reachable.add((record.namespace, record.key))
            kept.append(page)
        else:
            lost.append(page)
    return kept, lost


def _writes(found: Mapping[int, np.ndarray], places: Iterable[tuple[int, int]]) -> int:
    """How many page writes these units belong to."""
    return len(set(_broken(found, places)))


def _broken(found: Mapping[int, np.ndarray], places: Iterable[tuple[int, int]]) -> list[bytes]:
    slots: dict[int, list[int]] = {}
    for device, slot in places:
        slots.setdefault(device, []).append(slot)
    return [
        row["key"].tobytes() + row["digest"].tobytes() + row["generation"].tobytes()
        for device, wanted in slots.items()
        for row in found[device][np.isin(found[device]["slot"], wanted)]
    ]


def _set_problems(
    members: Members,
    missing: int,
    table: NamespaceTable,
    incomplete: int,
    unreachable: Sequence[StoredPage],
    corrupt: set[tuple[int, int]],
) -> list[Problem]:
    problems = []
    if missing:
        what = f"{missing} of {members.device_count - len(members.forgotten)} members cannot be used"
        remedy = "attach them, or go on without their pages; if they are gone for good, --repair --forget-missing"
        problems.append(Problem(Severity.WARNING, None, what, remedy))
    if not table.sequence and not table.entries:
        problems.append(Problem(Severity.NOTE, None, "no namespaces", "none needed if the stripe set is new"))
    if incomplete:
        what = f"{incomplete} slots hold units of pages that are not whole"
        problems.append(Problem(Severity.NOTE, None, what, "they count as free; repair empties them"))
    if corrupt:
        what = f"{len(corrupt)} slots are damaged or unreadable"
        problems.append(Problem(Severity.WARNING, None, what, "repair empties them; replace a device that has many"))
    if unreachable:
        what = f"{len(unreachable)} pages cannot be reached: a page before them is gone"
        remedy = "bring the missing devices back" if missing else "repair frees them"
        problems.append(Problem(Severity.NOTE, None, what, remedy))
    return problems


def _device_report(
    array: DeviceArray,
    one: Probe,
    table: NamespaceTable,
    pages: Sequence[StoredPage],
    torn: set[tuple[int, int]],
    corrupt: set[tuple[int, int]],
    problems: list[Problem],
    patience: Patience,
) -> DeviceReport:
    copies = tuple(
        f"sequence {copy.sequence}, {'clean' if copy.clean else 'not clean'}"
        if isinstance(copy, Superblock)
        else f"{copy.kind}: {copy.detail}"
        for copy in one.copies
    )
    if one.superblock is None:
        if one.standing is not Standing.BLANK:
            remedy = "attach it again, or zero its first 8 KiB to let it join empty"
            if one.standing is Standing.SILENT:
                remedy = "check the device and what it is attached to, then check again; or go on without its pages"
            problems.append(Problem(Severity.ERROR, one.device, f"{one.standing.value}: {one.reason}", remedy))
        return DeviceReport(one.device, one.standing, copies, (), 0, False, 0, 0, 0, 0, 0)
    for number, copy in enumerate(one.copies):
        if not isinstance(copy, Superblock):
            what = f"superblock copy {number} is no good: {copy.detail}"
            problems.append(Problem(Severity.WARNING, one.device, what, "repair rewrites it"))
    tables = tuple(
        copy is not None and copy.sequence == table.sequence for copy in read_tables(array, one.device, patience)
    )
    if not all(tables):
        what = "a copy of the namespace table is damaged or old"
        problems.append(Problem(Severity.WARNING, one.device, what, "repair, or opening the stripe set, rewrites it"))
    slots = one.superblock.geometry.slot_count
    used = sum(device == one.device for page in pages for device, _ in page.placement)
    torn_here = sum(device == one.device for device, _ in torn)
    corrupt_here = sum(device == one.device for device, _ in corrupt)
    return DeviceReport(
        one.device,
        one.standing,
        copies,
        tables,
        one.superblock.sequence,
        one.clean,
        slots,
        used,
        slots - used - torn_here - corrupt_here,
        torn_here,
        corrupt_here,
    )
