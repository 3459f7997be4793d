"""Whole blocks on a device array, waited for: the slow paths (superblocks, tables, checkpoints, scans) use these.

Every function must be called on the one thread that may touch the array.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import numpy as np

from swift_tiers.radix_tiering.page import BLOCK_BYTES, round_up
from swift_tiers.radix_tiering.ssd.devices import Completion, DeviceArray, Operation, Request

#: Tags from here on belong to `execute`; page transfers count up from 0 and never get this far.
CONTROL_TAG = 1 << 48
#: Largest single request of the slow paths, in bytes.
CHUNK_BYTES = 1 << 20


def aligned_buffer(nbytes: int) -> np.ndarray:
    """A zeroed uint8 array of `nbytes` bytes whose address is a multiple of 4096."""
    raw = np.zeros(nbytes + BLOCK_BYTES, dtype=np.uint8)
    start = -raw.__array_interface__["data"][0] % BLOCK_BYTES
    return raw[start : start + nbytes]


def check_buffer(buffer: np.ndarray, length: int, what: str) -> None:
    """Raise ValueError unless `buffer` can carry a page of `length` bytes straight to or from a device."""
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.carray:
        raise ValueError(
            f"{what} must be a contiguous, writable, one-dimensional uint8 array, not {buffer.dtype} {buffer.shape}"
        )
    if buffer.__array_interface__["data"][0] % BLOCK_BYTES:
        raise ValueError(f"{what} must start at a multiple of {BLOCK_BYTES} bytes")
    if buffer.nbytes < round_up(length, BLOCK_BYTES):
        raise ValueError(
            f"{what} holds {buffer.nbytes} bytes; a page of {length} needs {round_up(length, BLOCK_BYTES)}"
        )


def execute(
    array: DeviceArray,
    requests: Sequence[Request],
    stray: Callable[[Sequence[Completion]], None] | None = None,
) -> list[int]:
    """Carry out all requests and wait: the errno of each (0: done), in order.

    Tags are replaced. Completions of other requests that arrive meanwhile go to `stray`.
    """
    errors = [errno.EIO] * len(requests)
    array.submit([request._replace(tag=CONTROL_TAG + index) for index, request in enumerate(requests)])
    missing = len(requests)
    while missing:
        for completion in array.reap(1):
            if completion.tag >= CONTROL_TAG:
                errors[completion.tag - CONTROL_TAG] = completion.error
                missing -= 1
            elif stray is not None:
                stray([completion])
    return errors


def read_blocks(array: DeviceArray, device: int, offset: int, length: int) -> np.ndarray | None:
    """`length` bytes (a multiple of 4096) from one device, or None where any part of them cannot be read."""
    if offset + length > array.sizes[device]:
        return None
    buffer = aligned_buffer(length)
    requests = [
        Request(0, Operation.READ, device, offset + at, [buffer[at : at + CHUNK_BYTES]])
        for at in range(0, length, CHUNK_BYTES)
    ]
    return None if any(execute(array, requests)) else buffer


def write_blocks(
    array: DeviceArray,
    device: int,
    offset: int,
    content: bytes | np.ndarray,
    stray: Callable[[Sequence[Completion]], None] | None = None,
) -> int:
    """Write `content`, padded with zeros to whole blocks, and wait; returns 0 or an errno. Does not sync."""
    raw = np.frombuffer(content, dtype=np.uint8) if isinstance(content, bytes) else content
    buffer = aligned_buffer(round_up(raw.nbytes, BLOCK_BYTES))
    buffer[: raw.nbytes] = raw
    requests = [
        Request(0, Operation.WRITE, device, offset + at, [buffer[at : at + CHUNK_BYTES]])
        for at in range(0, buffer.nbytes, CHUNK_BYTES)
    ]
    return next((error for error in execute(array, requests, stray) if error), 0)
