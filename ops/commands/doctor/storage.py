"""The directories and block devices of the ssd tier."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from swift_tiers.radix_tiering.base.config import SsdConfig, TiersConfig
from swift_tiers.radix_tiering.base.page import BLOCK_BYTES
from swift_tiers.radix_tiering.base.units import format_size

from ..fsck import PATTERN
from . import stripe_sets
from .finding import Check, Finding, combined, note, ok, warning, wrong
from .places import COPYING, LAYERED, MEMORY, Disk, RealPlace, disks_of, place_of

#: Seconds that one look at a device or directory may take; a healthy one answers at once.
DEVICE_SECONDS = 10.0
#: The same for a directory. More, because the first of them may have to import torch.
DIRECTORY_SECONDS = 30.0
#: Disks of virtual machines and files as disks, which often call themselves rotating whatever is behind them.
_VIRTUAL = ("vd", "xvd", "loop")
_MOVE = "use a local SSD"


def checks(config: TiersConfig, ranks: int) -> Iterator[Check]:
    ssd = config.ssd
    if not ssd.directories and not ssd.devices:
        yield Check("ssd tier", _off)
        return
    for name in ssd.directories:
        yield Check(f"directory {name}", partial(_look_at_directory, ssd, name, ranks), DIRECTORY_SECONDS)
    for name in ssd.devices:
        yield Check(f"device {name}", partial(block_device, name, ranks), DEVICE_SECONDS)
    if len(ssd.directories) > 1:
        yield Check("striping", partial(_look_at_striping, ssd, ranks), DEVICE_SECONDS)
    yield from stripe_sets.checks(ssd, DEVICE_SECONDS)


def _look_at_directory(config: SsdConfig, name: str, ranks: int) -> Finding:
    def steps() -> Iterator[Finding]:
        yield directory(name)
        yield file_system(place_of(name))
        yield direct_io(name)
        yield _space(config, name, ranks)

    return combined(steps())


def _look_at_striping(config: SsdConfig, ranks: int) -> Finding:
    # A directory that is not there has been reported.
    places = [place_of(name) for name in config.directories if os.path.isdir(name)]
    found = striping(places, config.throttle is not None)
    if config.size_per_device is None:  # follows what is free
        return found
    size = int(config.size_per_device)
    return combined([found, shared_space(places, lambda path: size * _missing_files(path, ranks), _free)])


def _off() -> Finding:
    return note("off: no ssd.directories", 'to use SSDs: --config \'{"ssd": {"directories": ["/ssd0", "/ssd1"]}}\'')


def directory(name: str) -> Finding:
    """Whether a server can make its device file there; tried, because root may everything but not write everywhere."""
    try:
        details = os.stat(name)
    except OSError as error:
        return wrong(f"{error.strerror}", f"make it, mount its device, or remove it: mkdir -p {name}")
    if not stat.S_ISDIR(details.st_mode):
        return wrong("is not a directory", "name a directory, or, for a block device, use ssd.devices")
    try:
        with tempfile.TemporaryFile(dir=name):
            pass
    except OSError as error:
        if error.errno == errno.EROFS:
            from swift_tiers.radix_tiering.tiers.ssd.device_files import READ_ONLY, READ_ONLY_REMEDY

            return wrong(READ_ONLY, READ_ONLY_REMEDY)
        remedy = f"change its owner or mode for user {os.geteuid()}: chown {os.geteuid()} {name}"
        return wrong(f"cannot be written: {error.strerror}", remedy)
    return ok("writable")


def direct_io(name: str, open_file: Callable[[str, int], int] = os.open) -> Finding:
    """Write a block there past the page cache and read it back. The file has no name by then: nothing can stay."""
    descriptor, path = tempfile.mkstemp(prefix=".swift-tiers-doctor-", dir=name)
    direct = -1
    try:
        try:
            direct = open_file(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        finally:
            os.unlink(path)
        written, read = mmap.mmap(-1, BLOCK_BYTES), mmap.mmap(-1, BLOCK_BYTES)  # a mapping starts at a page
        written.write(os.urandom(BLOCK_BYTES))
        counts = os.pwritev(direct, [written], 0), os.preadv(direct, [read], 0)
        if counts != (BLOCK_BYTES, BLOCK_BYTES) or written[:] != read[:]:
            return wrong("a block came back other than it was written", f"do not use it: check the device, or {_MOVE}")
    except OSError as error:
        if error.errno == errno.EINVAL:
            return warning(
                "direct I/O refused: every page goes through the page cache, twice the memory and slower", _MOVE
            )
        return wrong(f"a block cannot be written and read: {error.strerror}", f"check the device, or {_MOVE}")
    finally:
        os.close(descriptor)
        if direct >= 0:
            os.close(direct)
    return ok("direct I/O works")


def file_system(place: RealPlace) -> Finding:
    mount = place.mount
    text = f"{mount.kind} on {mount.source or 'nothing'}"
    if mount.network:
        return warning(f"{text}: a network or user-space file system, slow and without firm locks", _MOVE)
    if mount.kind in MEMORY:
        return warning(f"{text}: memory, lost at a restart, and taken from the host tier's", _MOVE)
    if mount.kind in LAYERED:
        return warning(f"{text}: a container's own layer, gone with it", "mount a volume that lies on an SSD")
    if mount.kind in COPYING:
        remedy = "use ext4 or xfs, or switch it off for this directory (btrfs: chattr +C)"
        return note(f"{text}: copies on write, so that overwriting is slower", remedy)
    if place.disks:
        text += f" ({', '.join(disk.name for disk in place.disks)})"
    return _about_disks(text, place.disks)


def _about_disks(text: str, disks: Sequence[Disk]) -> Finding:
    rotating = [disk.name for disk in disks if disk.rotational]
    if rotating and all(name.startswith(_VIRTUAL) for name in rotating):
        return note(f"{text}; {', '.join(rotating)} says that it rotates, as virtual disks often do")
    if rotating:
        return warning(f"{text}; {', '.join(rotating)} is a rotating disk: restores miss their deadline", _MOVE)
    return ok(text)


def _space(config: SsdConfig, name: str, ranks: int) -> Finding:
    from swift_tiers.radix_tiering.tiers.ssd.device_files import new_device_size

    return space(_missing_files(name, ranks), new_device_size(config, Path(name), ranks), _free(name))


def _missing_files(name: str, ranks: int) -> int:
    """Device files that a start would make in this directory."""
    return max(0, ranks - len(list(Path(name).glob(PATTERN))))


def _free(name: str) -> int:
    return shutil.disk_usage(name).free


def space(missing: int, size: int, free: int) -> Finding:
    """Room for the device files still to be made: `missing` of `size` bytes each."""
    from swift_tiers.radix_tiering.tiers.ssd.device_files import SMALLEST_DEVICE

    if not missing:
        return ok(f"device files are there, {format_size(free)} free")
    text = f"{missing} new device file{'s' * (missing > 1)} of {format_size(size)}, {format_size(free)} free"
    if size < SMALLEST_DEVICE:
        return wrong(text, f"free some space, or set ssd.size_per_device to at least {format_size(SMALLEST_DEVICE)}")
    if missing * size > free:
        return wrong(text, f"set ssd.size_per_device to at most {format_size(free // missing)}, or free some space")
    return ok(text)


def shared_space(places: Sequence[RealPlace], need: Callable[[str], int], free: Callable[[str], int]) -> Finding:
    """Whether what directories on one file system need fits there together. `need`, `free`: bytes, by directory."""
    for first in places:
        paths = [place.path for place in places if place.device == first.device]
        together, room = sum(map(need, paths)), free(first.path)
        if len(paths) > 1 and together > room:
            text = f"{', '.join(paths)} need {format_size(together)} together, {format_size(room)} free"
            return wrong(text, "make ssd.size_per_device smaller, or name directories on other SSDs")
    return ok("room for all")


def block_device(name: str, ranks: int) -> Finding:
    """A whole device, read only: whether it is one, whether it is free, and whether direct reads work."""
    try:
        details = os.stat(name)
        if not stat.S_ISBLK(details.st_mode):
            return wrong("is not a block device", "name a block device, or put its directory under ssd.directories")
        if ranks > 1:
            remedy = "make a file system on it and name that under ssd.directories"
            return wrong(f"a whole device cannot be shared by {ranks} ranks", remedy)
        if not os.access(name, os.R_OK | os.W_OK):
            return wrong(
                "not readable and writable for this user", f"give user {os.geteuid()} access (its group: disk)"
            )
        size = _read_direct(name)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return note("in use: mounted, or held by a running server", "unless that is your server, unmount it")
        return wrong(f"cannot be read: {error.strerror}", "check the device (dmesg, smartctl), or remove it")
    disks = disks_of(details.st_rdev)
    discards = "discards" if all(disk.discards for disk in disks) else "no discards, and none are sent"
    return _about_disks(f"{format_size(size)}, direct reads work, {discards}", disks)


def _read_direct(name: str) -> int:
    """Read the first block past the page cache; the device's size, bytes. EBUSY for a device that is someone's."""
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECT | os.O_EXCL | os.O_CLOEXEC)
    try:
        block = mmap.mmap(-1, BLOCK_BYTES)
        if os.preadv(descriptor, [block], 0) != BLOCK_BYTES:
            raise OSError(errno.EIO, "shorter than a block")
        return os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)


def striping(places: Sequence[RealPlace], throttled: bool) -> Finding:
    """Several directories on one disk: their devices share its speed and its end."""
    real = [os.path.realpath(place.path) for place in places]
    twice = sorted({path for path in real if real.count(path) > 1})
    if twice:
        return wrong(f"named twice: {', '.join(twice)}", "name each directory once")
    pairs = [(one, other) for one, other in combinations(places, 2) if one.shares_with(other)]
    if not pairs:
        return ok(f"{len(places)} directories on disks of their own")
    shared = "; ".join(f"{one.path} and {other.path}" for one, other in pairs)
    text = f"on one disk: {shared}"
    if throttled:
        return note(f"{text} (ssd.throttle is set: a try-out)")
    return warning(f"{text}: striping gains nothing there", "name one directory on each SSD")
