"""The device files of one rank: what they are called, how large they are made, and making one for a running server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from swift_tiers.radix_tiering.config import SsdConfig
from swift_tiers.radix_tiering.errors import ConfigError
from swift_tiers.radix_tiering.page import BLOCK_BYTES
from swift_tiers.radix_tiering.ssd.devices import NewDevice
from swift_tiers.radix_tiering.ssd.files import DeviceFile, create_device_file, open_device_file
from swift_tiers.radix_tiering.ssd.layout import SUPERBLOCK_OFFSETS
from swift_tiers.radix_tiering.units import format_size

#: Largest device file that is made without a configured size, bytes.
AUTOMATIC_DEVICE_LIMIT = 256 * 2**30
#: Smallest device file that is of any use, bytes.
SMALLEST_DEVICE = 16 * 2**20


class MadeDevice(NamedTuple):
    """A blank device, opened and locked, that no array has yet."""

    path: str
    device: NewDevice
    #: Closes it (unless an array has it: False) and removes it if it was made for this.
    discard: Callable[[bool], None]


class DeviceFiles(NamedTuple):
    """Where one rank of a server has its device files."""

    rank: str  # "dp0-tp0"
    ranks: int  # of the server: each has a file in every directory
    config: SsdConfig

    def path_in(self, directory: Path) -> Path:
        return directory / f"swift-tiers-{self.rank}.stripe"

    def paths(self) -> list[Path]:
        """The device files in the configured directories, then the configured block devices."""
        directories = [self.path_in(Path(directory)) for directory in self.config.directories]
        return directories + [Path(device) for device in self.config.devices]

    def size_in(self, directory: Path) -> int:
        return new_device_size(self.config, directory, self.ranks)

    def make(self, directory: str, known: Sequence[str]) -> MadeDevice:
        """A blank device file in `directory`, for a set whose devices `known` are open. Allocating it may take long.

        A file of that name which is there already is taken if it is blank. Raises ConfigError or StripeSetBusyError,
        with nothing left behind.
        """
        path = self.path_in(Path(directory))
        if not os.path.isabs(directory) or not os.path.isdir(directory):
            raise ConfigError(f"directory: {directory!r} is not the absolute path of a directory; make it first")
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(f"directory: {directory!r} is not writable for this user; change its owner or mode")
        if any(os.path.exists(other) and path.exists() and os.path.samefile(path, other) for other in known):
            raise ConfigError(f"directory: {directory!r} holds a device of this server already; name another")
        existed = path.exists()
        if not existed:
            self._create(path)
        return _open_blank(path, existed)

    def _create(self, path: Path) -> None:
        size, free = self.size_in(path.parent), shutil.disk_usage(path.parent).free
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
        try:
            create_device_file(path, size)
        except ConfigError:
            path.unlink(missing_ok=True)
            raise


def new_device_size(config: SsdConfig, directory: Path, ranks: int) -> int:
    """Bytes of a new device file in `directory`."""
    if config.size_per_device is not None:
        return int(config.size_per_device)
    return min(AUTOMATIC_DEVICE_LIMIT, shutil.disk_usage(directory).free // 2 // ranks)


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
