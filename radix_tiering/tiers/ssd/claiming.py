"""What a device holds, by its first 8 KiB: one of a stripe set, nothing, or what is somebody else's.

And whether what is named as a block device may be taken for a stripe set, before a server does, and without writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from ...base.errors import ConfigError
from ...base.page import BLOCK_BYTES
from .layout import SUPERBLOCK_OFFSETS, Defect, Superblock, decode_superblock

#: Why a device of no bytes at all stays out.
EMPTY = "is empty, nothing of it is left: remove it, and the next start makes it anew"
#: What to do about a format of another program, which is named before it.
OTHER_VERSION = "run the program that wrote it, or zero its first 8 KiB to give it up"
#: What others leave on a device whose first 8 KiB they leave alone: what it is, where (from the end, if negative), and
#: how it begins.
_SIGNATURES = (
    ("a btrfs file system", 0x10040, b"_BHRfS_M"),
    ("a ReiserFS file system", 0x10034, b"ReIsEr"),
    ("an ISO 9660 or UDF file system", 0x8001, b"CD001"),
    ("an ISO 9660 or UDF file system", 0x8001, b"BEA01"),
    ("a member of a RAID (md)", -0x2000, b"\xfc\x4e\x2b\xa9"),
    ("a member of a RAID (md)", -0x10000, b"\xfc\x4e\x2b\xa9"),
    ("a partition table (its copy at the end)", -512, b"EFI PART"),
)
#: Where ZFS keeps its uberblocks, one a KiB, and how each begins, on machines of either order of bytes.
_ZFS_UBERBLOCKS = (128 << 10, 256 << 10)
_ZFS_MAGIC = (b"\x0c\xb1\xba\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\xba\xb1\x0c")

Read = Callable[[int, int], bytes]  # from, bytes; less where there is no more


class DeviceContent(Enum):
    """What a device holds."""

    MEMBER = "member"
    BLANK = "blank"
    DAMAGED = "damaged"  # what was one of a stripe set
    FOREIGN = "foreign"
    VERSION = "version"  # of a stripe set, in a format of another program


class Judgement(NamedTuple):
    """What the copies of a superblock come to."""

    content: DeviceContent
    detail: str = ""  # why it is damaged, or which version it is
    superblock: Superblock | None = None  # of a member: the newest whole copy
    clean: bool = False  # the checkpoint may be trusted: "clean", and no newer copy can have been lost


def judge(copies: Sequence[Superblock | Defect], size: int) -> Judgement:
    """`copies`: as `decode_superblock` reads them, none where the device is shorter; `size`: of the device, bytes."""
    if not copies:
        return Judgement(DeviceContent.DAMAGED, f"only {size} bytes long" if size else EMPTY)
    defects = [copy for copy in copies if isinstance(copy, Defect)]
    for defect in defects:
        if defect.kind == "version":
            return Judgement(DeviceContent.VERSION, defect.detail)
    whole = [copy for copy in copies if isinstance(copy, Superblock)]
    if whole:
        newest = max(whole, key=lambda copy: copy.sequence)
        if newest.geometry.end > size:
            return Judgement(DeviceContent.DAMAGED, f"{size} bytes long, its superblock says {newest.geometry.end}")
        return Judgement(DeviceContent.MEMBER, "", newest, newest.clean and len(whole) == len(copies))
    kinds = {defect.kind for defect in defects}
    if kinds == {"blank"}:
        return Judgement(DeviceContent.BLANK)
    if kinds <= {"foreign", "blank"}:
        return Judgement(DeviceContent.FOREIGN)
    return Judgement(DeviceContent.DAMAGED, "no whole superblock copy")


def check_device(path: Path) -> None:
    """Raise ConfigError unless `path` is a block device that is a stripe set's, or has nothing of anybody's."""
    if not path.is_block_device():
        raise ConfigError(f"{path}: is not a block device; name its directory under ssd.directories, or a block device")
    check_content(path)


def check_content(path: Path) -> None:
    """Raise ConfigError where `path`, a device file or block device, holds what is not ours, or of another version."""
    with open(path, "rb", buffering=0) as device:
        size = device.seek(0, os.SEEK_END)

        def read(offset: int, length: int) -> bytes:
            return os.pread(device.fileno(), length, offset)

        judgement = judge(read_copies(read), size)
        block = path.is_block_device()
        found = others_content(judgement, read, size, block)
    if judgement.content is DeviceContent.VERSION:
        raise ConfigError(f"{path}: {judgement.detail}: {OTHER_VERSION}")
    if found:
        remedy = "name another device, or, if nobody needs it, `wipefs --all` it" if block else "remove it"
        raise ConfigError(f"{path}: holds {found}; {remedy}")


def read_copies(read: Read) -> list[Superblock | Defect]:
    """Both copies of a superblock; none of a device that is too short for them."""
    blocks = [read(offset, BLOCK_BYTES) for offset in SUPERBLOCK_OFFSETS]
    return [decode_superblock(block) for block in blocks] if min(map(len, blocks)) == BLOCK_BYTES else []


def others_content(judgement: Judgement, read: Read, size: int, block: bool) -> str:
    """What a device holds that is not ours; empty: nothing. `block`: it is a block device, which somebody else may use
    beyond its first 8 KiB."""
    if judgement.content is DeviceContent.FOREIGN:
        return "something that is not of a stripe set"
    return signature(read, size) if judgement.content is DeviceContent.BLANK and block else ""


def signature(read: Read, size: int) -> str:
    """What somebody else has put on a device whose beginning is blank; empty: nothing that is known here."""
    for what, offset, begins in _SIGNATURES:
        at = offset if offset >= 0 else (size + offset) // 512 * 512
        if 0 <= at <= size - len(begins) and read(at, len(begins)) == begins:
            return what
    labels = read(_ZFS_UBERBLOCKS[0], _ZFS_UBERBLOCKS[1] - _ZFS_UBERBLOCKS[0])
    if any(labels[at : at + 8] in _ZFS_MAGIC for at in range(0, len(labels), 1024)):
        return "a member of a ZFS pool"
    return ""
