"""What every array asks of a request before it starts: a bad request is the caller's fault and is raised at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .devices import Operation, Request, RequestArrays

_UINT8 = np.dtype(np.uint8)
_OPERATIONS = (Operation.READ, Operation.WRITE)
_byte_at: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_address = ctypes.addressof
#: What one preadv or pwritev takes (IOV_MAX).
MOST_BUFFERS = 1024


def check_requests(requests: Sequence[Request], sizes: Sequence[int]) -> None:
    """Raise ValueError if any request cannot be meant: no such device, outside it, or buffers of the wrong kind.

    All are looked at before the first is started. In particular a write beyond the end would make a regular file
    longer, where a block device would refuse it.
    """
    if isinstance(requests, RequestArrays):
        _check_arrays(requests, sizes)
        return
    for tag, operation, device, offset, buffers in requests:
        if not 0 <= device < len(sizes):
            raise ValueError(f"request {tag}: device {device} of {len(sizes)}")
        if not 0 < len(buffers) <= MOST_BUFFERS:
            raise ValueError(f"request {tag}: {len(buffers)} buffers; 1 to {MOST_BUFFERS} are possible")
        length = 0
        for buffer in buffers:
            nbytes = buffer.nbytes
            if buffer.dtype != _UINT8 or not buffer.flags.carray or not nbytes:
                raise ValueError(
                    f"request {tag}: a buffer is not a C-contiguous, writable, non-empty uint8 array "
                    f"({buffer.dtype}, shape {buffer.shape})"
                )
            length += nbytes
        if offset < 0 or offset + length > sizes[device]:
            raise ValueError(
                f"request {tag}: bytes {offset} to {offset + length} of device {device}, which has {sizes[device]}"
            )
        if operation not in _OPERATIONS:
            raise ValueError(f"request {tag}: operation {operation}")


def _check_arrays(requests: RequestArrays, sizes: Sequence[int]) -> None:
    """The buffers of these are right by construction: whole blocks of headers and of pages that were checked."""
    if requests.devices.min() < 0 or requests.devices.max() >= len(sizes):
        raise ValueError(f"devices {requests.devices.tolist()} of {len(sizes)}")
    ends = requests.offsets + requests.lengths.sum(axis=1)
    if requests.offsets.min() < 0 or (ends > np.asarray(sizes)[requests.devices]).any():
        raise ValueError(f"bytes up to {ends.tolist()} of devices {requests.devices.tolist()}, which have {sizes}")


def address_of(buffer: np.ndarray) -> int:
    """Where the bytes of a writable, C-contiguous, non-empty array begin; a third of the cost of `.ctypes.data`."""
    return _address(_byte_at(buffer))


def copy_in(buffers: Sequence[np.ndarray], source: np.ndarray) -> None:
    """Fill `buffers` in order from `source`, which is as long as they are together."""
    at = 0
    for buffer in buffers:
        buffer.reshape(-1)[:] = source[at : at + buffer.nbytes]
        at += buffer.nbytes


def copy_out(buffers: Sequence[np.ndarray]) -> np.ndarray:
    """The bytes of `buffers` in order, as one new array."""
    return np.concatenate([buffer.reshape(-1) for buffer in buffers])
