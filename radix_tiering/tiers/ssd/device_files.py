"""The device files of one rank: what they are called, how large they are made, and making one for a running server."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...base.config import SsdConfig
from ...base.errors import ConfigError, StripeSetBusyError
from ...base.page import BLOCK_BYTES
from ...base.units import format_size
from .arrays.devices import NewDevice
from .files import (
    DeviceFile,
    create_device_file,
    half_made,
    is_empty_file,
    open_device_file,
    remove_half_made,
)
from .layout import SUPERBLOCK_OFFSETS

logger = logging.getLogger(__name__)

#: Largest device file that is made without a configured size, bytes.
AUTOMATIC_DEVICE_LIMIT = 256 * 2**30
#: Smallest device file that is of any use, bytes.
SMALLEST_DEVICE = 16 * 2**20
#: What a directory may be that nothing can be made in, whoever this user is, and what to do.
READ_ONLY = "is mounted read-only"
READ_ONLY_REMEDY = "mount it for writing (after an I/O error: look at dmesg, run its fsck)"
_BEFORE, _BEHIND = "swift-tiers-", ".stripe"  # of a rank's name in that of its files


class MadeDevice(NamedTuple):
    """A blank device, opened and locked, that no array has yet."""

    path: str
    device: NewDevice
    #: Closes it (unless an array has it: False) and removes it if it was made for this.
    discard: Callable[[bool], None]


class LaunchRanks(NamedTuple):
    """The names of a server's ranks: "dp0-tp0"."""

    here: tuple[str, ...]  # those on this machine
    everywhere: tuple[str, ...]

    def runs_elsewhere(self, path: Path) -> bool:
        """Whether this device file is named after a rank that another machine has."""
        return _rank_of(path) in self.everywhere and _rank_of(path) not in self.here


class UnusedFile(NamedTuple):
    """A device file that no rank on this machine uses."""

    path: Path
    size: int  # bytes
    elsewhere: bool  # another machine has a rank of that name now; else the server had other ranks

    def __str__(self) -> str:
        return f"{self.path} ({format_size(self.size)})"


class DeviceFiles(NamedTuple):
    """Where one rank of a server has its device files."""

    rank: str  # "dp0-tp0"
    ranks: int  # of the server on this machine: each has a file in every directory
    config: SsdConfig
    names: tuple[str, ...] = ()  # of these ranks, as far as they are known

    def path_in(self, directory: Path) -> Path:
        return directory / f"{_BEFORE}{self.rank}{_BEHIND}"

    def paths(self) -> list[Path]:
        """The device files in the configured directories, then the configured block devices."""
        directories = [self.path_in(Path(directory)) for directory in self.config.directories]
        return directories + [Path(device) for device in self.config.devices]

    def size_in(self, directory: Path) -> int:
        return new_device_size(self.config, directory, self.ranks, self.names)

    def missing(self) -> list[Path]:
        """The device files of the configured directories that a start makes: those that are not there.

        An empty file is all that may be left of a device, so it is made anew only where no other has any content.
        """
        again = nothing_left(self.paths())
        wanted = self.paths()[: len(self.config.directories)]
        return [path for path in wanted if not os.path.lexists(path) or (again and is_empty_file(path))]

    def make_missing(self) -> None:
        """Make those that are missing; all of them or, on an error, none. Raises ConfigError or StripeSetBusyError."""
        again = nothing_left(self.paths())
        missing = self.missing()
        made: dict[Path, int] = {}  # and how large
        for directory in self.config.directories:
            remove_half_made(Path(directory))
        try:
            for path in missing:
                size = self.size_in(path.parent)
                create_device_file(path, size)
                made[path] = size
        except BaseException:
            for path in made:
                path.unlink(missing_ok=True)
            raise
        for path, size in made.items():
            if again:
                logger.info("swift-tiers: made %s, %s", path, format_size(size))
            else:
                # A mount that failed leaves an empty directory behind, on another file system.
                logger.warning(
                    "swift-tiers: made %s, %s: there was none, while other devices of this server have been used; if "
                    "one is missing there, stop the server, mount it, and start again",
                    path,
                    format_size(size),
                )

    def make(self, directory: str, known: Sequence[str]) -> MadeDevice:
        """A blank device file in `directory`, for a set whose devices `known` are open. Allocating it may take long.

        A file of that name which is there already is taken if it is blank. Raises ConfigError or StripeSetBusyError,
        with nothing left behind.
        """
        path = self.path_in(Path(directory))
        if not os.path.isabs(directory) or not os.path.isdir(directory):
            raise ConfigError(f"directory: {directory!r} is not the absolute path of a directory; make it first")
        _check_writable("directory", directory)
        if any(os.path.exists(other) and path.exists() and os.path.samefile(path, other) for other in known):
            raise ConfigError(f"directory: {directory!r} holds a device of this server already; name another")
        existed = os.path.lexists(path) and not is_empty_file(path)
        if not existed:
            self._create(path)
        return _open_blank(path, existed)

    def _create(self, path: Path) -> None:
        remove_half_made(path.parent)
        size, free = self.size_in(path.parent), free_in(path.parent)
        if size < SMALLEST_DEVICE:
            raise ConfigError(
                f"directory: {format_size(size)}, which a file in {str(path.parent)!r} may have, is too small; "
                f"it takes at least {format_size(SMALLEST_DEVICE)}"
            )
        if size > free:
            raise ConfigError(
                f"directory: ssd.size_per_device, {format_size(size)}, does not fit in {str(path.parent)!r}, "
                f"{format_size(free)} are free; free some space, or name another"
            )
        create_device_file(path, size)


def nothing_left(paths: Sequence[Path]) -> bool:
    """Whether none of these devices has any content: each is missing, or an empty file."""
    return all(not os.path.lexists(path) or is_empty_file(path) for path in paths)


def free_in(directory: Path) -> int:
    """Bytes that new device files may take there: what is free, and what a process that was killed left half-made."""
    return shutil.disk_usage(directory).free + sum(size for _, size in half_made(directory))


def new_device_size(config: SsdConfig, directory: Path, ranks: int, names: Sequence[str] = ()) -> int:
    """Bytes of a new device file in `directory`, which each of so many `ranks` on this machine makes when it comes.

    Unset, it is an even part of half of what was free before those of `names` made theirs: pages are kept as far as
    every rank has room for them, so that ranks whose parts differ use the smallest. Where other files than such ones
    are there, what has yet to be made takes half of what is free now, at most.
    """
    if config.size_per_device is not None:
        return int(config.size_per_device)
    device = os.stat(directory).st_dev
    places = {os.path.realpath(name) for name in (str(directory), *config.directories) if os.path.isdir(name)}
    sharing = [Path(place) for place in places if os.stat(place).st_dev == device]
    # Before what is free is: a file that is made meanwhile must not count as both.
    made = [os.lstat(path).st_size for place in sharing for path in device_files_in(place) if _rank_of(path) in names]
    free, files = free_in(directory), ranks * len(sharing)
    # An empty file is made anew.
    even, left = (free + sum(made)) // 2 // files, free // 2 // max(1, files - sum(size > 0 for size in made))
    return min(AUTOMATIC_DEVICE_LIMIT, even, left)


def check_directories(config: SsdConfig, ranks: int, launch: LaunchRanks | None = None) -> None:
    """Raise ConfigError unless the directories can be used, and new device files fit in them, all of them together.

    `ranks`: of the server on this machine, which `launch` names. Unset, they are taken for those whose files are there.
    """
    names = config.directories
    for index, name in enumerate(names):
        field = f"ssd.directories[{index}]"
        if "\0" in name:
            raise ConfigError(f"{field}: {name!r} is no path")
        if not os.path.isdir(name):
            raise ConfigError(f"{field}: {name!r} is not a directory; make it, mount its device, or remove it")
        _check_writable(field, name)
    if len({os.path.realpath(name) for name in names}) != len(names):
        raise ConfigError("ssd.directories: the same directory is named twice; name each once")
    _check_room(config, ranks, launch)


def _check_writable(field: str, directory: str) -> None:
    if os.access(directory, os.W_OK | os.X_OK):
        return
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise ConfigError(f"{field}: {directory!r} {READ_ONLY}; {READ_ONLY_REMEDY}")
    raise ConfigError(f"{field}: {directory!r} is not writable for this user; change its owner or mode")


def _ranks_there(config: SsdConfig, ranks: int) -> list[str]:
    """So many names of ranks, first of those that have device files."""
    there = [_rank_of(path) for name in config.directories for path in device_files_in(Path(name))]
    return list(dict.fromkeys([*there, *(f"dp0-tp{number}" for number in range(ranks))]))[:ranks]


def _rank_of(path: Path) -> str:
    return path.name.removeprefix(_BEFORE).removesuffix(_BEHIND)


def unused_files(config: SsdConfig, launch: LaunchRanks) -> list[UnusedFile]:
    """The device files in the directories that are no rank's of this machine, and nobody's who holds them, as others do
    where machines share a directory: of a server that had other ranks, or had these ranks on other machines."""
    found = [path for name in config.directories for path in device_files_in(Path(name))]
    return [
        UnusedFile(path, os.lstat(path).st_size, launch.runs_elsewhere(path))
        for path in found
        if _rank_of(path) not in launch.here and not _is_held(path)
    ]


def _is_held(path: Path) -> bool:
    try:
        open_device_file(path).close()
    except StripeSetBusyError:
        return True
    except ConfigError:
        pass  # `check_machine` says what is wrong with it
    return False


def _check_room(config: SsdConfig, ranks: int, launch: LaunchRanks | None) -> None:
    names = _ranks_there(config, ranks) if launch is None else launch.here
    missing = Counter(str(path.parent) for rank in names for path in DeviceFiles(rank, ranks, config).missing())
    needs: dict[int, list[tuple[str, int]]] = {}  # by file system: directory, bytes of its new files
    for name, files in missing.items():
        size, device = new_device_size(config, Path(name), ranks, names), os.stat(name).st_dev
        if size < SMALLEST_DEVICE:
            raise ConfigError(
                f"ssd.size_per_device: {format_size(size)} in {name!r} is too small; it takes at least "
                f"{format_size(SMALLEST_DEVICE)}{_or_remove(config, launch, device)}"
            )
        needs.setdefault(device, []).append((name, size * files))
    for device, together in needs.items():
        need = sum(size for _, size in together)
        # What was left half-made in any of them goes before anything is made there.
        left = sum(size for name, _ in together for _, size in half_made(Path(name)))
        free = shutil.disk_usage(together[0][0]).free + left
        if need > free:
            where = " and ".join(repr(name) for name, _ in together)
            raise ConfigError(
                f"ssd.size_per_device: the {format_size(need)} of new device files do not fit in {where}"
                f"{', which share a file system' if len(together) > 1 else ''}: {format_size(free)} are free; "
                f"make it smaller{_or_remove(config, launch, device)}"
            )


def _or_remove(config: SsdConfig, launch: LaunchRanks | None, device: int) -> str:
    """Which files have room on this file system that no rank here uses."""
    unused = [] if launch is None else unused_files(config, launch)
    there = [str(file) for file in unused if os.lstat(file.path).st_dev == device]
    return f", or remove what no rank on this machine uses: {', '.join(there)}" if there else ""


def device_files_in(directory: Path) -> list[Path]:
    """The device files there, of all ranks."""
    return sorted(directory.glob(f"{_BEFORE}*{_BEHIND}"))


def _open_blank(path: Path, existed: bool) -> MadeDevice:
    """Open a file that must hold nothing. Raises ConfigError or StripeSetBusyError."""

    file: DeviceFile | None = None

    def discard(close: bool) -> None:
        if close and file is not None:
            file.close()
        if not existed:
            path.unlink(missing_ok=True)

    try:
        file = open_device_file(path)
        with open(path, "rb") as content:
            head = content.read(len(SUPERBLOCK_OFFSETS) * BLOCK_BYTES)
        if any(head):
            raise ConfigError(
                f"{path}: is not blank; name its directory under ssd.directories and start the server again, "
                "or remove the file"
            )
    except OSError as error:
        discard(True)
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except BaseException:
        discard(True)
        raise
    return MadeDevice(str(path), file, discard)
