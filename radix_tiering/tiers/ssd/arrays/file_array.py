"""What every array of real devices shares: opening them, and what does not depend on how requests are carried out.

Short transfers: both engines carry on with the rest of a transfer that came back short, because a short count is legal
(2 GiB limit of one call, a signal, memory pressure) and a page that can be read must not count against its device. A
transfer that moves nothing, or stops where direct I/O cannot resume, has met the end of what is there: EIO.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....base.errors import ConfigError
from .checking import check_requests
from .device_file import BUFFERED, DIRECT, HELD_SECONDS, DeviceFile, open_device_file
from .devices import NewDevice, Request

#: Direct I/O resumes at a logical block; 512 is the smallest there is.
_RESUME_BYTES = 512


class FileArray:
    """Open devices, and what does not depend on how requests are carried out."""

    def __init__(self, paths: Sequence[Path | str]) -> None:
        if not paths:
            raise ConfigError("a stripe set needs at least one path")
        self._files: list[DeviceFile] = []
        try:
            identities: dict[tuple[int, int], Path] = {}
            for path in map(Path, paths):
                # Looked up before locking: a path named twice would find itself locked and blame another server.
                identity = _identity(path)
                if identity in identities:
                    raise ConfigError(f"{path}: is the same device as {identities[identity]}; name each device once")
                self._files.append(open_device_file(path, HELD_SECONDS))
                identities[self._files[-1].identity] = path
        except BaseException:
            self._close_files()
            raise
        self._sizes = tuple(file.size for file in self._files)
        self._fds = [file.fd for file in self._files]
        self._direct = [file.direct for file in self._files]
        self._closed = False

    @property
    def sizes(self) -> Sequence[int]:
        return self._sizes

    def append(self, device: NewDevice) -> None:
        if not isinstance(device, DeviceFile):
            raise TypeError(f"an array of files takes an open file, not {type(device).__name__}")
        self._files.append(device)
        self._sizes = (*self._sizes, device.size)
        self._fds.append(device.fd)
        self._direct.append(device.direct)

    @property
    def paths(self) -> Sequence[Path]:
        return [file.path for file in self._files]

    def sync(self, device: int) -> int:
        return self._files[device].sync()

    def present(self, device: int) -> bool:
        return self._files[device].present()

    def _check(self, requests: Sequence[Request]) -> None:
        if self._closed:  # the numbers of our handles may already be someone else's files
            raise ValueError("the array is closed")
        check_requests(requests, self._sizes)

    def _mode(self) -> str:
        buffered = [str(file.path) for file in self._files if not file.direct]
        if not buffered:
            return DIRECT
        return BUFFERED if len(buffered) == len(self._files) else f"{DIRECT}, but {', '.join(buffered)} {BUFFERED}"

    def _close_files(self) -> None:
        for file in self._files:
            file.close()

    def _resumable(self, device: int, moved: int) -> bool:
        return moved > 0 and (not self._direct[device] or moved % _RESUME_BYTES == 0)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        details = path.stat()
    except OSError:
        return None  # opening it says what is wrong
    return (0, details.st_rdev) if path.is_block_device() else (details.st_dev, details.st_ino)
