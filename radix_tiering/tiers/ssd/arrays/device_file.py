"""One device of the SSD tier, opened: a regular file or a whole block device."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ....base.errors import ConfigError, StripeSetBusyError
from ....base.page import BLOCK_BYTES

#: How the superblock of a device begins, and where its copies are.
SUPERBLOCK_MAGIC = b"SWFTSUPR"
SUPERBLOCK_OFFSETS = (0, BLOCK_BYTES)
#: Why buffered I/O is only a fallback, for `description`.
BUFFERED = "buffered (no O_DIRECT here)"
DIRECT = "O_DIRECT"
#: Behind the name of a device file: the file in which it is being made.
HALF_MADE = ".new"
#: A server that was killed ends a moment after whoever starts the next one has heard of it: by then it has let go.
HELD_SECONDS = 5.0
#: How often whoever waits for another process looks whether it still holds a device, seconds.
LOOK_AGAIN = 0.05


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

    Allocating now means that no later write can fail for want of space. The file is there whole or not at all: it is
    made under another name (see `half_made`), which a process that is killed meanwhile leaves to the next one. An empty
    file of that name is replaced. Raises ConfigError where there is no room, or where something is there already, and
    StripeSetBusyError where another process is making it.
    """
    path = Path(path)
    new = path.with_name(path.name + HALF_MADE)
    fd = _open_half_made(new)
    try:
        os.ftruncate(fd, 0)
        os.posix_fallocate(fd, 0, size)
        os.fsync(fd)
        if os.path.lexists(path) and not is_empty_file(path):
            raise ConfigError(f"{path}: is there already; remove it, or name another directory")
        os.rename(new, path)
    except OSError as error:
        room = os.statvfs(path.parent)
        new.unlink(missing_ok=True)
        raise ConfigError(
            f"{path}: cannot be made {size} bytes long: {error.strerror} ({room.f_bavail * room.f_frsize} bytes are "
            "free); free some space or configure a smaller size"
        ) from error
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _open_half_made(new: Path) -> int:
    """The file in which a device file is made, locked: an earlier one that nobody works on, or a new one."""
    fd = -1
    try:
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        details = os.fstat(fd)
        if not stat.S_ISREG(details.st_mode):
            raise ConfigError(f"{new}: is not a regular file; remove it, or name another directory")
        _check_owner(new, details)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, another process may have finished it: by now it may be a device in use.
            mine = os.path.samestat(os.lstat(new), details)
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise StripeSetBusyError(f"{new}: another process is making it; wait until it has, or stop it")
        os.fchmod(fd, 0o600)
    except BaseException as error:
        if fd >= 0:
            os.close(fd)
        if isinstance(error, OSError):
            why = "a symbolic link is there" if error.errno == errno.ELOOP else error.strerror
            raise ConfigError(
                f"{new}: cannot be created: {why}; remove what is there, or name another directory"
            ) from error
        raise
    return fd


def half_made(directory: Path) -> list[tuple[Path, int]]:
    """Files in which processes that were killed were making device files, and the bytes that each takes.

    Files of others, and those that somebody is working on, are not among them.
    """
    return [(path, size) for path, size in _half_made(directory, remove=False)]


def remove_half_made(directory: Path) -> list[Path]:
    """Remove them; returns what was removed."""
    return [path for path, _ in _half_made(directory, remove=True)]


def _half_made(directory: Path, *, remove: bool) -> Iterator[tuple[Path, int]]:
    for path in sorted(directory.glob(f"swift-tiers-*.stripe{HALF_MADE}")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            details = os.fstat(fd)
            if not stat.S_ISREG(details.st_mode) or details.st_uid != os.geteuid():
                continue
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.lstat(path), details):
                continue
            if remove:
                path.unlink()
            yield path, details.st_blocks * 512
        except OSError:
            continue  # somebody is working on it, or has finished it
        finally:
            os.close(fd)


def is_empty_file(path: Path) -> bool:
    """Whether `path` is a regular file of 0 bytes: nothing is left of what it may have been."""
    try:
        details = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(details.st_mode) and details.st_size == 0


def open_device_file(path: Path | str, wait_seconds: float = 0.0) -> DeviceFile:
    """Open `path` for direct reads and writes and lock it against every other process; wait for so long for one that
    still holds it.

    Where O_DIRECT is refused (some network and overlay file systems) it is opened buffered, and `direct` says so. An
    empty file is opened too: it is for the stripe set to say that nothing is left of a device.
    Raises StripeSetBusyError when another open of it holds the lock or, for a block device, when it is mounted;
    ConfigError when it is missing, of another user, a symbolic link, or neither a regular file nor a block device;
    nothing of it has been changed then.
    """
    until = time.monotonic() + wait_seconds
    while True:
        try:
            return _open_unheld(Path(path))
        except StripeSetBusyError:
            if time.monotonic() >= until:
                raise
        time.sleep(LOOK_AGAIN)


def _open_unheld(path: Path) -> DeviceFile:
    try:
        real = _without_link(path)
        kind = stat.S_IFMT(os.lstat(real).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFBLK):
            raise ConfigError(f"{path}: is neither a regular file nor a block device; name one, or remove it")
        # O_EXCL on a block device is refused while it is mounted or part of an array: the bytes are someone's.
        exclusive = os.O_EXCL if kind == stat.S_IFBLK else 0
        fd, direct = _open(real, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | exclusive)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise StripeSetBusyError(
                f"{path}: the block device is mounted or in use; unmount it, or name another"
            ) from error
        raise ConfigError(f"{path}: cannot be opened: {error.strerror}; mend that, or name another") from error
    try:
        details = os.fstat(fd)
        if stat.S_IFMT(details.st_mode) != kind:
            raise ConfigError(f"{path}: was replaced while it was opened; see who may write to its directory")
        _check_owner(path, details)
        _lock(path, fd)
        if kind == stat.S_IFREG and _is_of_a_stripe_set(fd):
            _make_private(path, fd)
        return DeviceFile(path, fd, os.lseek(fd, 0, os.SEEK_END), direct=direct)
    except BaseException:
        os.close(fd)
        raise


def check_owner(path: Path) -> None:
    """Raise ConfigError where `open_device_file` would for whose `path` is, without opening it; OSError, if missing."""
    real = _without_link(path)
    _check_owner(path, os.lstat(real))


def _without_link(path: Path) -> Path:
    """`path`, or, where it is a link to a block device that root or this user made (/dev/disk/by-id), that device."""
    details = os.lstat(path)
    if not stat.S_ISLNK(details.st_mode):
        return path
    real = Path(os.path.realpath(path))
    if details.st_uid not in (0, os.geteuid()) or not real.is_block_device():
        raise ConfigError(f"{path}: is a symbolic link; remove it, or name what it leads to")
    return real


def _check_owner(path: Path, details: os.stat_result) -> None:
    """Raise ConfigError for what others could read users' pages from, or write theirs to, later on."""
    user = os.geteuid()
    if stat.S_ISBLK(details.st_mode):
        if details.st_uid not in (0, user):
            raise ConfigError(f"{path}: belongs to uid {details.st_uid}, not to root or {user} who runs this; chown it")
        if details.st_mode & 0o006:
            raise ConfigError(f"{path}: every user may read or write it; run `chmod o-rw` on it")
    elif details.st_uid != user:
        raise ConfigError(
            f"{path}: belongs to uid {details.st_uid}, not to {user} who runs this; "
            "remove it, or name another directory"
        )
    elif details.st_nlink > 1:
        raise ConfigError(
            f"{path}: has {details.st_nlink} names (hard links); remove the others, or name another directory"
        )


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


def _is_of_a_stripe_set(fd: int) -> bool:
    """Whether it says so, or may become one's: what is anybody else's is left as it is."""
    with mmap.mmap(-1, len(SUPERBLOCK_OFFSETS) * BLOCK_BYTES) as aligned:
        try:
            os.preadv(fd, [aligned], 0)
        except OSError:
            return False
        copies = [aligned[offset : offset + BLOCK_BYTES] for offset in SUPERBLOCK_OFFSETS]
    return any(copy.startswith(SUPERBLOCK_MAGIC) for copy in copies) or not any(map(any, copies))


def _make_private(path: Path, fd: int) -> None:
    """Pages hold what users typed: nobody else may read them."""
    if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
        try:
            os.fchmod(fd, 0o600)
        except OSError as error:
            raise ConfigError(f"{path}: others may read it and it is not ours to change; chmod it to 0600") from error
