"""The seam below the SSD tier: an ordered set of devices on which batches of reads and writes are carried out.

One interface, several arrays: `UringArray` and `ThreadArray` (real files and block devices), `MemoryArray` (bytes in
RAM, for tests), and arrays that wrap another: `RecordingArray` (crash points), `FaultyArray` (injected errors),
`ThrottledArray` (several slow devices on one fast disk). The engine above sees no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, overload

import numpy as np

from .device_file import DeviceFile

#: A device that is to be added to an array: an open file, or the bytes of one in memory. `size` is in bytes.
NewDevice = DeviceFile | np.ndarray


class Operation(IntEnum):
    READ = 0
    WRITE = 1


class Request(NamedTuple):
    """One contiguous read or write on one device.

    `buffers` are C-contiguous, writable `uint8` arrays that are filled (or written) in order, as by preadv and
    pwritev. With direct I/O each buffer's address and length, and `offset`, must be multiples of 4096. The buffers
    must stay alive, and for a write unchanged, until the completion has been reaped.
    """

    tag: int  # the caller's own number for this request; comes back in the completion
    operation: Operation
    device: int  # index into the array
    offset: int  # bytes from the start of the device
    buffers: Sequence[np.ndarray]

    @property
    def length(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)


class RequestArrays(Sequence[Request]):
    """Requests of two buffers each, in arrays of as many elements; read one by one they are what they would have been.

    The batch keeps their buffers alive.
    """

    def __init__(
        self,
        tags: np.ndarray,
        writing: np.ndarray,
        devices: np.ndarray,
        offsets: np.ndarray,
        addresses: np.ndarray,
        lengths: np.ndarray,
        request: Callable[[int, int], Request],
    ) -> None:
        """All int64; `addresses` and `lengths`: [requests, 2], of the buffers. `request(at, tag)` makes one of them."""
        self.tags = tags
        self.writing = writing
        self.devices = devices
        self.offsets = offsets
        self.addresses = addresses
        self.lengths = lengths
        self._request = request

    def __len__(self) -> int:
        return len(self.tags)

    @overload
    def __getitem__(self, at: int) -> Request: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Request]: ...
    def __getitem__(self, at: int | slice) -> Request | Sequence[Request]:
        if isinstance(at, slice):
            return list(self)[at]
        return self._request(at, int(self.tags[at]))

    def __iter__(self) -> Iterator[Request]:
        return map(self._request, range(len(self)), self.tags.tolist())

    def tagged(self, tag: int) -> Request:
        """The request of this tag."""
        return self[self.tags.tolist().index(tag)]


class Completion(NamedTuple):
    """The outcome of one request: `error` is 0, or an errno. A short transfer is reported as EIO."""

    tag: int
    device: int
    error: int


class CompletionArrays(Sequence[Completion]):
    """Completions in arrays of as many elements, int64."""

    def __init__(self, tags: np.ndarray, devices: np.ndarray, errors: np.ndarray) -> None:
        self.tags = tags
        self.devices = devices
        self.errors = errors

    @classmethod
    def of(cls, completions: Sequence[Completion]) -> CompletionArrays:
        """Any completions, so."""
        if isinstance(completions, CompletionArrays):
            return completions
        words = np.array(completions, np.int64).reshape(-1, 3).T.copy()
        return cls(words[0], words[1], words[2])

    def followed_by(self, others: CompletionArrays) -> CompletionArrays:
        """Both."""
        if not len(self) or not len(others):
            return self if len(self) else others
        pairs = ((self.tags, others.tags), (self.devices, others.devices), (self.errors, others.errors))
        return CompletionArrays(*map(np.concatenate, pairs))

    def __len__(self) -> int:
        return len(self.tags)

    @overload
    def __getitem__(self, at: int) -> Completion: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Completion]: ...
    def __getitem__(self, at: int | slice) -> Completion | Sequence[Completion]:
        if isinstance(at, slice):
            return list(self)[at]
        return Completion(int(self.tags[at]), int(self.devices[at]), int(self.errors[at]))

    def __iter__(self) -> Iterator[Completion]:
        return map(Completion, self.tags.tolist(), self.devices.tolist(), self.errors.tolist())


class DeviceArray(Protocol):
    """Devices opened for use by one thread. Only `close` may be called from another thread, after that one ended."""

    #: How requests are carried out, for people: "io_uring, O_DIRECT", "threads, O_DIRECT", "memory", ...
    description: str

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each device."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Start all requests, across devices, in one system call where the system can; returns at once.

        Never raises for a device's fault: that is a completion with an errno.
        """

    def reap(self, at_least: int, timeout: float | None = None) -> Sequence[Completion]:
        """Completions that have arrived, in any order; waits for `at_least` of them or `timeout` seconds (None: ever).

        `at_least=0` never waits. Asking for more than are in flight waits only for those that are.
        """

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet reaped."""

    def append(self, device: NewDevice) -> None:
        """One more device, behind the others; the array closes it from now on. On the thread that uses the array.

        Raises TypeError for a kind of device that the array does not drive.
        """

    def sync(self, device: int) -> int:
        """Make completed writes of one device durable (fdatasync); returns 0 or an errno. Blocks."""

    def present(self, device: int) -> bool:
        """False once the file behind the device has been deleted or the device has gone."""

    def close(self) -> None:
        """Wait for what is in flight, then release every handle. Safe to call twice."""
