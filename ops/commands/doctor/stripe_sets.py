"""The device files that are already there: whose they are, and whether a server could open them. Only reads."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from swift_tiers.radix_tiering.base.config import SsdConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.tiers.ssd.arrays.device_file import check_owner
from swift_tiers.radix_tiering.tiers.ssd.claiming import DeviceContent, judge, others_content, read_copies
from swift_tiers.radix_tiering.tiers.ssd.layout import Superblock, forgotten_members

from ..fsck import PATTERN
from .finding import Check, Finding, Status, combined, note, ok, warning, wrong

#: What the only rank of a server calls its device file; whole block devices join that one's stripe set.
ONLY_RANK = "swift-tiers-dp0-tp0.stripe"
_GIVE_UP = "name another, or, to give up what it holds, delete it (a block device: zero its first 8 KiB)"
_CHECK = "check its owner, its mode and its device"


class Content(NamedTuple):
    """What one device file holds."""

    path: Path
    state: str  # "busy", "unreadable", or what it holds: see `DeviceContent`
    detail: str = ""
    superblock: Superblock | None = None  # of a member


def checks(config: SsdConfig, seconds: float) -> Iterator[Check]:
    """One check for all of them. Looking for them is part of it, for that may hang as well."""
    yield Check("device files", partial(device_files, config), seconds)


def device_files(config: SsdConfig) -> Finding:
    """All stripe sets of the configured places, one for each rank; the worst of them decides."""
    by_rank: dict[str, list[Path]] = {}
    for directory in config.directories:
        for path in sorted(Path(directory).glob(PATTERN)):
            by_rank.setdefault(path.name, []).append(path)
    contents = {name: [read_content(path) for path in paths] for name, paths in by_rank.items()}
    # What cannot be read of a block device has been said by the check of that device.
    devices = [content for path in map(Path, config.devices) if (content := read_content(path)).state != "unreadable"]
    if devices:
        contents.setdefault(ONLY_RANK, []).extend(devices)
    if not contents:
        return ok("none yet: the first start makes them")
    findings = [stripe_set(devices) for devices in contents.values()]
    if len(findings) > 1 and all(finding.status is Status.OK for finding in findings):
        return ok(f"{len(findings)} stripe sets, as they should be")
    return combined(finding for finding in findings if len(findings) == 1 or finding.status is not Status.OK)


def stripe_set(contents: Sequence[Content]) -> Finding:
    """What a server's start would say to the devices of one rank."""
    for content in contents:
        path = content.path
        if content.state == "unreadable":
            found, _, remedy = content.detail.rpartition("; ")
            return wrong(f"{path}: cannot be used: {found or remedy}", remedy if found else _CHECK)
        if content.state == "foreign":
            return wrong(f"{path}: holds {content.detail}", _GIVE_UP)
        if content.state == "version":
            return wrong(f"{path}: {content.detail}", f"run the program that wrote it, or {_GIVE_UP}")
    members = [content for content in contents if content.superblock is not None]
    superblocks = [content.superblock for content in members if content.superblock is not None]
    if len({(one.set_id, one.geometry.unit_bytes) for one in superblocks}) > 1:
        names = ", ".join(str(content.path) for content in members)
        return wrong(f"devices of different stripe sets: {names}", "name the devices of one set, or delete the others")
    if len({one.device_index for one in superblocks}) < len(superblocks):
        names = ", ".join(str(content.path) for content in members)
        return wrong(f"copies of one device among {names}", "name only one of them")
    return _state_of_set(contents, superblocks)


def _state_of_set(contents: Sequence[Content], superblocks: Sequence[Superblock]) -> Finding:
    damaged = [content for content in contents if content.state == "damaged"]
    if damaged:
        found = "; ".join(f"{content.path}: damaged ({content.detail})" for content in damaged)
        return warning(f"{found}: it stays out of service", "see what swift-tiers fsck says of all devices of the set")
    busy = [content for content in contents if content.state == "busy"]
    if busy:
        held = ", ".join(str(content.path) for content in busy)
        return note(f"in use: {held}", "nothing, if that is your server; a second one needs directories of its own")
    if not superblocks:
        return ok(f"{len(contents)} device(s), still empty")
    text = f"stripe set {superblocks[0].set_id.hex()[:8]}, {len(superblocks)} device(s)"
    missing = max(one.device_count for one in superblocks) - len(forgotten_members(superblocks)) - len(superblocks)
    if missing > 0:
        return note(
            f"{text}, {missing} more not here: pages that had a part there are misses",
            "name their directories too; if they are gone for good: swift-tiers fsck --repair --forget-missing",
        )
    if not all(one.clean for one in superblocks):
        return ok(f"{text}, not closed in order: the next start looks through every slot")
    return ok(f"{text}, closed in order")


def read_content(path: Path) -> Content:
    """Look at one device, without writing, and without getting in the way of a server that is about to open it."""
    exclusive = os.O_EXCL if path.is_block_device() else 0  # refused while it is mounted, or a server has it
    try:
        check_owner(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | exclusive)
    except OSError as error:
        return Content(path, "busy" if error.errno == errno.EBUSY else "unreadable", error.strerror or str(error))
    except ConfigError as error:
        return Content(path, "unreadable", str(error).removeprefix(f"{path}: "))
    try:
        if not exclusive and _locked(descriptor):
            return Content(path, "busy")
        if not os.access(path, os.W_OK):
            return Content(path, "unreadable", "not writable for this user")
        size = os.lseek(descriptor, 0, os.SEEK_END)

        def read(offset: int, length: int) -> bytes:
            return os.pread(descriptor, length, offset)

        judgement = judge(read_copies(read), size)
        found = others_content(judgement, read, size, path.is_block_device())
    except OSError as error:
        return Content(path, "unreadable", error.strerror or str(error))
    finally:
        os.close(descriptor)
    if found:
        return Content(path, DeviceContent.FOREIGN.value, found)
    superblock = judgement.superblock
    return Content(
        path,
        judgement.content.value,
        judgement.detail,
        superblock._replace(clean=judgement.clean) if superblock is not None else None,
    )


def _locked(descriptor: int) -> bool:
    """Whether a server holds the file. Shared, and given back at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
