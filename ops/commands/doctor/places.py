"""What lies beneath a path: its mount, its file system, and the disks that carry it, as the kernel shows them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from swift_tiers.radix_tiering.base.kernel_files import number_in, unescaped

#: File systems on another machine, or that may be.
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "9p", "afs", "beegfs", "gpfs", "virtiofs"}
#: File systems in memory.
MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
#: Layers above another file system, as containers have them.
LAYERED = {"overlay", "aufs"}
#: File systems that write elsewhere than over the old: more work for what is only ever overwritten.
COPYING = {"btrfs", "zfs", "bcachefs"}


class Mount(NamedTuple):
    """One line of mountinfo."""

    point: str
    kind: str  # of file system: ext4, nfs4, ...
    source: str
    options: frozenset[str]

    @property
    def network(self) -> bool:
        return self.kind in NETWORK or (self.kind.startswith("fuse") and self.kind != "fuseblk")


class Disk(NamedTuple):
    """One physical disk, or what passes for one here."""

    name: str
    rotational: bool
    discards: bool


class RealPlace(NamedTuple):
    """Where a path really lies."""

    path: str
    mount: Mount
    device: int  # st_dev: equal for one file system
    disks: tuple[Disk, ...]  # empty where no block device is behind it

    def shares_with(self, other: RealPlace) -> bool:
        """Whether both end on the same disk, or, where no disk is known, in the same file system."""
        if self.disks and other.disks:
            return bool({disk.name for disk in self.disks} & {disk.name for disk in other.disks})
        return self.device == other.device


def place_of(path: str, mountinfo: Path = Path("/proc/self/mountinfo"), system: Path = Path("/sys")) -> RealPlace:
    """Raises OSError where `path` cannot be looked at."""
    device = os.stat(path).st_dev
    mount = mount_of(os.path.realpath(path), read_mounts(mountinfo.read_text()))
    disks = disks_of(device, system)
    if not disks and mount.source.startswith("/dev/"):
        # btrfs and the like have a number of their own; what they were mounted from leads on.
        try:
            disks = disks_of(os.stat(mount.source).st_rdev, system)
        except OSError:
            pass
    return RealPlace(path, mount, device, disks)


def read_mounts(text: str) -> list[Mount]:
    """The mounts of `/proc/self/mountinfo`, in the order in which they were made."""
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        head, tail = left.split(), right.split()
        options = frozenset(head[5].split(",")) | frozenset(tail[2].split(",") if len(tail) > 2 else ())
        mounts.append(Mount(unescaped(head[4]), tail[0], unescaped(tail[1]), options))
    return mounts


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount:
    """The mount that `path`, an absolute one without links, lies in: the deepest, of equal ones the latest."""
    found = Mount("/", "unknown", "", frozenset())
    for mount in mounts:
        below = mount.point.rstrip("/") + "/"
        if (path == mount.point or path.startswith(below)) and len(mount.point) >= len(found.point):
            found = mount
    return found


def disks_of(device: int, system: Path = Path("/sys")) -> tuple[Disk, ...]:
    """The disks beneath a block device number, through partitions, LVM and RAID; empty if it is no block device."""
    start = system / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    found: dict[str, Disk] = {}
    pending = [start] if start.exists() else []
    while pending:
        node = pending.pop().resolve()
        if (node / "partition").exists():
            node = node.parent
        below = sorted((node / "slaves").glob("*"))
        if below:
            pending.extend(below)
            continue
        queue = node / "queue"
        trims = (number_in(queue / "discard_max_bytes") or 0) > 0
        found[node.name] = Disk(node.name, number_in(queue / "rotational") == 1, trims)
    return tuple(found[name] for name in sorted(found))
