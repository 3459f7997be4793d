"""The file of a recording: frames one after the other, each readable by itself. `docs/recording.md` describes it.

A file that was cut anywhere is read up to there. Nothing in it is trusted: frames have a checksum and a bound, what is
in them is decoded into types.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import msgspec

from swift_tiers.radix_tiering.base.errors import SwiftTiersError

#: The first line; the number is the version of the format.
BEGINNING, VERSION = b"SWIFT-TIERS RECORDING ", 1
#: Kind, length of the content, seconds since the beginning, checksum of these three and the content.
_HEADER = struct.Struct(">BId")
_CHECKSUM = struct.Struct(">I")
#: What the content of one frame may be at most, bytes, unpacked: far more than servers can say.
MOST_BYTES = 64 << 20

Content = TypeVar("Content")


class RecordingError(SwiftTiersError):
    """A recording that cannot be written, or not be read; the message says why."""


class FrameKind(IntEnum):
    """Of a frame."""

    HEAD = 1  # the first one: `Head`
    WHOLE = 2  # a look by itself: `Entries`
    CHANGES = 3  # what differs from the look before: `Entries`
    EVENTS = 4  # those of the look before it
    ANSWERS = 5  # to a question
    LOST = 6  # there was no look: why


class Head(msgspec.Struct, frozen=True):
    """What was recorded."""

    name: str  # what was looked at: the address of a Redis
    nature: str  # `live`, or `demo`
    began: float  # seconds since 1970, by the clock of the machine that recorded
    version: str  # of swift-tiers


class FramePlace(NamedTuple):
    """Where one is."""

    kind: int
    at: float  # seconds since the beginning
    offset: int  # of its content
    length: int


class Writer:
    """Appends frames. One thread at a time. What is written stays readable, whatever happens to this process."""

    def __init__(self, path: Path, head: Head) -> None:
        """Raises RecordingError; a file that is there is never overwritten."""
        self.size = 0
        self._path = path
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise RecordingError(f"{path}: is there already; give another name") from None
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from None
        self._put(BEGINNING + str(VERSION).encode() + b"\n")
        self.append(FrameKind.HEAD, 0.0, head)

    def append(self, kind: FrameKind, at: float, content: Any) -> None:
        """Raises OSError; then what was written of the frame is taken back."""
        packed = zlib.compress(msgspec.msgpack.encode(content), 6)
        header = _HEADER.pack(kind, len(packed), at)
        checksum = _CHECKSUM.pack(zlib.crc32(packed, zlib.crc32(header)))
        self._put(header + checksum + packed)

    def _put(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            raise
        self.size += written

    def close(self) -> None:
        os.close(self._file)

    def discard(self) -> None:
        """Close it, and take the file away again, unless another one has its name by now."""
        try:
            if os.path.samestat(os.fstat(self._file), os.lstat(self._path)):
                os.unlink(self._path)
        except OSError:
            pass  # it is gone, or stays: nothing is in it
        finally:
            self.close()


class Reader:
    """All frames of a file. Any thread."""

    def __init__(self, path: Path) -> None:
        """Raises RecordingError for what is no recording, of another version, or damaged."""
        self.path = path
        self._data = _map(path)
        try:
            self.cut = False  # whether its end is missing
            self.frames = self._scan(self._first())
            if not self.frames or self.frames[0].kind != FrameKind.HEAD:
                raise RecordingError(f"{path}: is cut at its beginning: nothing of it can be read")
            self.head = self.read(self.frames[0], Head)
        except BaseException:
            self._data.close()
            raise

    def close(self) -> None:
        self._data.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(self, frame: FramePlace, kind: type[Content]) -> Content:
        """What is in a frame. Raises RecordingError if it is not what it says."""
        try:
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(self._data[frame.offset : frame.offset + frame.length], MOST_BYTES)
            if unpacker.unconsumed_tail:
                raise ValueError(f"more than {MOST_BYTES} bytes")
            return msgspec.msgpack.decode(content, type=kind)
        except (zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RecordingError(f"{self.path}: byte {frame.offset}: cannot be read: {error}") from None

    def _first(self) -> int:
        """Where the first frame begins."""
        line = self._data[:64].partition(b"\n")[0]
        if not line.startswith(BEGINNING):
            raise RecordingError(f"{self.path}: is no recording of `swift-tiers console --record`")
        version = line.removeprefix(BEGINNING)
        if version != str(VERSION).encode():
            said = version[:20].decode("ascii", "replace")
            raise RecordingError(f"{self.path}: is of version {said!r}; this swift-tiers reads version {VERSION}")
        return len(line) + 1

    def _scan(self, offset: int) -> list[FramePlace]:
        frames: list[FramePlace] = []
        while offset < len(self._data):
            frame = self._frame(offset)
            if frame is None:
                self.cut = True
                break
            if frames and frame.at < frames[-1].at:
                raise RecordingError(f"{self.path}: damaged at byte {offset}: time goes back there")
            frames.append(frame)
            offset = frame.offset + frame.length
        return frames

    def _frame(self, offset: int) -> FramePlace | None:
        """None: it is not there as a whole, as when the process or the machine has ended while it was written."""
        begins = offset + _HEADER.size + _CHECKSUM.size
        header = self._data[offset : offset + _HEADER.size]
        if begins > len(self._data):
            return None
        kind, length, at = _HEADER.unpack(header)
        (wanted,) = _CHECKSUM.unpack_from(self._data, offset + _HEADER.size)
        if begins + length > len(self._data) or not any(header):
            # Cut; or grown before its content was on the disk, which reads as zeros. A wrong length looks like this
            # too: then what follows is lost with it.
            return None
        if zlib.crc32(self._data[begins : begins + length], zlib.crc32(header)) != wanted:
            raise RecordingError(f"{self.path}: damaged at byte {offset}: the checksum does not fit")
        return FramePlace(kind, at, begins, length)


def _map(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise RecordingError(f"{path}: is empty") from None
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from None
