"""The content name of a file: the SHA-256 of its bytes, found without reading them wherever it is known already.

Known it is of a file in the Hugging Face hub cache, which is called by it, and of one that this user's servers have
read before, as long as nobody has touched it since. "Touched" is told by the time of the last change of the file's
state (ctime), which no program can set: one that changes a bit and restores size and time of modification is noticed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.home import user_cache
from swift_tiers.radix_tiering.base.private_directory import open_private_directory

logger = logging.getLogger(__name__)

#: A file that changed less than so many seconds before it was read may change again at what its clock calls the same
#: time, so its name is not remembered.
SETTLED_SECONDS = 2.0
#: Files of which a name is remembered; the longest unused make room.
MOST_REMEMBERED = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileChangedError(Exception):
    """A file changed while it was read."""


class FileState(NamedTuple):
    """What changes whenever a file does."""

    path: str  # without links
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Raises OSError."""
        real = os.path.realpath(path)
        found = os.stat(real)
        return cls(real, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class _Entry(msgspec.Struct, frozen=True):
    """What is remembered of one file."""

    state: FileState
    sha256: str


class ContentNames:
    """Finds content names. Any thread; several processes share what they remember, and read each file once."""

    def __init__(
        self, directory: Path | None, *, read_all: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """`directory`: where names are remembered, of this user alone and made if need be; None: nowhere. `read_all`:
        believe neither the hub's names nor what is remembered."""
        self._directory = None if read_all else directory
        self._read_all = read_all
        self._clock = clock
        #: Bytes that were read by this process.
        self.bytes_read = 0

    def of(self, path: Path) -> str:
        """64 hexadecimal digits. Raises OSError, and FileChangedError for a file that changes meanwhile."""
        known = None if self._read_all else hub_name(path)
        if known is not None:
            return known
        state = FileState.of(path)
        entry = self._open_entry(state.path)
        if entry is None:
            return self._read(state)
        try:
            name = self._remembered(entry, state)
            if name is None:
                name = self._read(state)
                self._remember(entry, state, name)
            return name
        finally:
            os.close(entry)

    def _read(self, state: FileState) -> str:
        started = self._clock()
        with open(state.path, "rb", buffering=0) as file:
            name = hashlib.file_digest(file, "sha256").hexdigest()  # without the interpreter's lock
        if FileState.of(Path(state.path)) != state:
            raise FileChangedError(f"{state.path} changed while it was read")
        self.bytes_read += state.size
        seconds = max(self._clock() - started, 1e-9)
        if state.size >= 2**30:
            logger.info(
                "swift-tiers: read %s to know its content: %.1f GB at %.1f GB/s",
                state.path,
                state.size / 1e9,
                state.size / 1e9 / seconds,
            )
        return name

    def _open_entry(self, path: str) -> int | None:
        """The file in which the name of `path` is remembered; None where there is no place for it."""
        if self._directory is None:
            return None
        try:
            self._directory.parent.mkdir(parents=True, exist_ok=True)
            folder = open_private_directory(self._directory, "XDG_CACHE_HOME", create=True, narrows=True)
            try:
                _make_room(self._directory)
                return os.open(
                    xxhash.xxh3_128_hexdigest(os.fsencode(path)),
                    os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                    0o600,
                    dir_fd=folder,
                )
            finally:
                os.close(folder)
        except (ConfigError, OSError) as error:
            self._remember_nothing(error)
            return None

    def _remembered(self, entry: int, state: FileState) -> str | None:
        """The name of a file in this state; None: it is not remembered, or cannot be looked up. Waits for another
        process that reads the same file now."""
        try:
            fcntl.flock(entry, fcntl.LOCK_EX)
            remembered = _decode(os.pread(entry, 1 << 16, 0))
            is_ours = os.fstat(entry).st_uid == os.geteuid()  # the directory may have been open to a group before
        except OSError as error:
            self._remember_nothing(error)
            return None
        if not is_ours or remembered is None or remembered.state != state:
            return None
        with contextlib.suppress(OSError):
            os.utime(entry)
        return remembered.sha256

    def _remember(self, entry: int, state: FileState, name: str) -> None:
        """A file is known whether or not there is room to remember it."""
        if state.ctime_ns >= (self._clock() - SETTLED_SECONDS) * 1e9:
            return
        try:
            os.ftruncate(entry, 0)
            os.pwrite(entry, msgspec.json.encode(_Entry(state, name)), 0)
        except OSError as error:
            self._remember_nothing(error)

    def _remember_nothing(self, error: Exception) -> None:
        logger.warning("swift-tiers: weights are read at every start: %s", error)
        self._directory = None


def cache_directory() -> Path | None:
    """Where this user's servers remember content names; None: nowhere, which the log says."""
    directory = user_cache("content-names")
    if directory is None:
        logger.warning(
            "swift-tiers: weights are read at every start: this user has no home directory; set XDG_CACHE_HOME"
        )
    return directory


def hub_name(path: Path) -> str | None:
    """The SHA-256 of a file in the hub cache, by which its blob is called; None of any other file.

    The hub makes the link in a snapshot once the blob is complete. A blob that was touched after that may have been
    written through the link, so it is not believed. Copies of a cache have other times of change, and keep those of
    modification.
    """
    try:
        blob = Path(path.parent, os.readlink(path))
        if blob.parent.name != "blobs" or not _SHA256.fullmatch(blob.name):
            return None
        file, link = os.stat(path), os.lstat(path)
        untouched = file.st_ctime_ns <= link.st_ctime_ns and file.st_mtime_ns <= link.st_mtime_ns
        return blob.name if untouched else None
    except OSError:
        return None


def _decode(raw: bytes) -> _Entry | None:
    try:
        return msgspec.json.decode(raw, type=_Entry)
    except msgspec.MsgspecError:
        return None  # empty, or of a process that was killed while it wrote


def _make_room(directory: Path) -> None:
    names = os.listdir(directory)
    if len(names) >= MOST_REMEMBERED:
        by_age = sorted((directory / name for name in names), key=lambda entry: entry.stat().st_mtime_ns)
        for entry in by_age[: MOST_REMEMBERED // 2]:
            entry.unlink(missing_ok=True)
