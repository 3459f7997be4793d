"""Whether what is named as a block device may be taken for a stripe set: before a server does, and without writing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ...base.errors import ConfigError
from ...base.page import BLOCK_BYTES
from .layout import SUPERBLOCK_OFFSETS, Defect, decode_superblock

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

        blocks = [read(offset, BLOCK_BYTES) for offset in SUPERBLOCK_OFFSETS]
        if any(len(block) < BLOCK_BYTES for block in blocks):
            return  # damaged: it is left out
        copies = [decode_superblock(block) for block in blocks]
        defects = [copy for copy in copies if isinstance(copy, Defect)]
        for defect in defects:
            if defect.kind == "version":
                raise ConfigError(
                    f"{path}: {defect.detail}: run the program that wrote it, or zero its first 8 KiB to give it up"
                )
        kinds = {defect.kind for defect in defects}
        if len(defects) < len(copies) or "damaged" in kinds:
            return  # ours
        block = path.is_block_device()
        if "foreign" in kinds:
            found = "something that is not of a stripe set"
        else:
            found = signature(read, size) if block else ""
    if found:
        remedy = "name another device, or, if nobody needs it, `wipefs --all` it" if block else "remove it"
        raise ConfigError(f"{path}: holds {found}; {remedy}")


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
