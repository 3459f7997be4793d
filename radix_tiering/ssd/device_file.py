"""One device of the SSD tier, opened: a regular file or a whole block device."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from swift_tiers.radix_tiering.errors import ConfigError, StripeSetBusyError

#: Why buffered I/O is only a fallback, for `description`.
BUFFERED = "buffered (no O_DIRECT here)"
DIRECT = "O_DIRECT"


class DeviceFile:
    """An open, exclusively locked file or block device. `close` releases the lock."""

    def __init__(self, path: Path, fd: int, size: int, *, direct: bool) -> None:
        self.path = path
        self.fd = fd
        self.size = size  # bytes
        self.direct = direct
        details = os.fstat(fd)
        self.is_block = stat.S_ISBLK(details.st_mode)
        #: Equal for two paths that lead to the same file or block device.
        self.identity = (0, details.st_rdev) if self.is_block else (details.st_dev, details.st_ino)

    def sync(self) -> int:
        """fdatasync; 0 or an errno."""
        if self.fd < 0:
            return errno.EBADF
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def present(self) -> bool:
        """False once the file has been deleted or cut short, or the block device has gone."""
        if self.fd < 0:
            return False
        try:
            # A node in /dev loses its name when its device goes, as a file does when it is deleted.
            if os.fstat(self.fd).st_nlink == 0:
                return False
            return os.lseek(self.fd, 0, os.SEEK_END) >= self.size
        except OSError:
            return False

    def close(self) -> None:
        """Safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create_device_file(path: Path | str, size: int) -> None:
    """Make a new regular file of `size` bytes, all of it allocated, mode 0600; durable when this returns.

    Allocating now means that no later write can fail for want of space. An existing file is grown to `size` and keeps
    its content; one that is longer keeps its length. Raises ConfigError where there is no room for it.
    """
    path = Path(path)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be created: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(f"{path}: is not a regular file; only a regular file can be given a size")
        os.fchmod(fd, 0o600)
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
    except OSError as error:
        room = os.statvfs(path)
        free = room.f_bavail * room.f_frsize
        raise ConfigError(
            f"{path}: cannot be made {size} bytes long: {error.strerror} ({free} bytes are free); "
            "free some space or configure a smaller size"
        ) from error
    finally:
        os.close(fd)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def open_device_file(path: Path | str) -> DeviceFile:
    """Open `path` for direct reads and writes and lock it against every other process.

    Where O_DIRECT is refused (some network and overlay file systems) it is opened buffered, and `direct` says so.
    Raises StripeSetBusyError when another open of it holds the lock or, for a block device, when it is mounted;
    ConfigError when it is missing, empty, or neither a regular file nor a block device.
    """
    path = Path(path)
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFBLK):
            raise ConfigError(f"{path}: is neither a regular file nor a block device")
        # O_EXCL on a block device is refused while it is mounted or part of an array: the bytes are someone's.
        exclusive = os.O_EXCL if kind == stat.S_IFBLK else 0
        fd, direct = _open(path, os.O_RDWR | os.O_CLOEXEC | exclusive)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise StripeSetBusyError(
                f"{path}: the block device is mounted or in use; unmount it, or name another"
            ) from error
        raise ConfigError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        _lock(path, fd)
        if kind == stat.S_IFREG:
            _make_private(path, fd)
        size = os.lseek(fd, 0, os.SEEK_END)
        if size == 0:
            raise ConfigError(f"{path}: is empty; give it a size, or name a device that has one")
        return DeviceFile(path, fd, size, direct=direct)
    except BaseException:
        os.close(fd)
        raise


def _open(path: Path, flags: int) -> tuple[int, bool]:
    try:
        return os.open(path, flags | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags), False


def _lock(path: Path, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StripeSetBusyError(
            f"{path}: another server holds it; stop that server, or give this one devices of its own"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be locked: {error.strerror}; use a file system with flock") from error


def _make_private(path: Path, fd: int) -> None:
    """Pages hold what users typed: nobody else may read them."""
    if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
        try:
            os.fchmod(fd, 0o600)
        except OSError as error:
            raise ConfigError(f"{path}: others may read it and it is not ours to change; chmod it to 0600") from error
