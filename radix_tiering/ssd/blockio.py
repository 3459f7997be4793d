"""Whole blocks on a device array, waited for: the slow paths (superblocks, tables, checkpoints, scans) use these.

Every function must be called on the one thread that may touch the array.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from swift_tiers.radix_tiering.page import BLOCK_BYTES, round_up
from swift_tiers.radix_tiering.ssd.devices import Completion, DeviceArray, Operation, Request

logger = logging.getLogger(__name__)

#: Tags from here on belong to `execute`; page transfers count up from 0 and never get this far.
CONTROL_TAG = 1 << 48
#: Largest single request of the slow paths, in bytes.
CHUNK_BYTES = 1 << 20
#: How long a wait that is not for ever lasts, in seconds, before the clock is looked at.
POLL = 0.001
#: Seconds of `sync_devices` for one device before the next one's sync starts beside it.
SYNC_ALONE = 0.25


class Patience:
    """How long the slow paths of an open stripe set wait for a device, and what they gave up on.

    A device that answers nothing for `seconds` while something is asked of it is not waited for any longer. What it
    was asked stays in `abandoned` until it is answered after all: the device may still use those buffers.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float],
        stray: Callable[[Sequence[Completion]], None],
        serve: Callable[[], None],
    ) -> None:
        """`stray` gets the completions of other requests; `serve` is called now and then while others wait."""
        self.seconds = seconds
        self.clock = clock
        self.stray = stray
        self.serve = serve
        #: By `clock`: nobody is waited for beyond it.
        self.deadline: float | None = None
        self.abandoned: dict[int, Request] = {}
        self._next_tag = CONTROL_TAG

    def take_tags(self, count: int) -> int:
        """The first of `count` tags that no request had before."""
        self._next_tag += count
        return self._next_tag - count

    def ended(self, since: float, now: float) -> bool:
        """Whether a device that was heard of at `since` is not waited for any longer."""
        return now - since >= self.seconds or (self.deadline is not None and now >= self.deadline)


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


def execute(array: DeviceArray, requests: Sequence[Request], patience: Patience | None = None) -> list[int]:
    """Carry out all requests and wait: the errno of each (0: done), in order. Tags are replaced.

    With `patience`, ETIMEDOUT for those of a device that does not answer; without, the wait has no end.
    """
    errors = [errno.EIO] * len(requests)
    first = CONTROL_TAG if patience is None else patience.take_tags(len(requests))
    missing = {first + index: request._replace(tag=first + index) for index, request in enumerate(requests)}
    array.submit(list(missing.values()))
    start = 0.0 if patience is None else patience.clock()
    heard = {request.device: start for request in requests}
    while missing:
        # Before the answers are looked at: one that has arrived counts, however late we are.
        now = 0.0 if patience is None else patience.clock()
        for completion in array.reap(1, None if patience is None else POLL):
            if completion.tag in missing:
                del missing[completion.tag]
                errors[completion.tag - first] = completion.error
                heard[completion.device] = max(now, start)
            elif patience is not None:
                patience.stray([completion])
        if patience is None or not missing:
            continue
        for tag, request in list(missing.items()):
            if patience.ended(heard[request.device], now):
                patience.abandoned[tag] = missing.pop(tag)
                errors[tag - first] = errno.ETIMEDOUT
        patience.serve()
    return errors


def sync_devices(array: DeviceArray, devices: Iterable[int], patience: Patience | None = None) -> dict[int, int]:
    """Make completed writes durable: 0 or an errno for each device.

    With `patience`, ETIMEDOUT for a device whose sync does not return. Nothing can interrupt it: a thread is left
    behind in it, which ends when the device answers, and the device must not be used again.
    """
    if patience is None:
        return {device: array.sync(device) for device in devices}
    errors = dict.fromkeys(devices, errno.ETIMEDOUT)

    def sync(device: int) -> None:
        try:
            errors[device] = array.sync(device)
        except Exception:
            logger.exception("the device array failed to sync device %d", device)
            errors[device] = errno.EIO

    start = patience.clock()
    waiting = []
    for device in list(errors):
        thread = threading.Thread(target=sync, args=(device,), name="ssd-sync", daemon=True)
        thread.start()
        thread.join(SYNC_ALONE)
        if thread.is_alive():
            waiting.append(thread)
    for thread in waiting:
        while thread.is_alive() and not patience.ended(start, patience.clock()):
            thread.join(POLL)
    return dict(errors)


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
    patience: Patience | None = None,
) -> int:
    """Write `content`, padded with zeros to whole blocks, and wait; returns 0 or an errno. Does not sync."""
    raw = np.frombuffer(content, dtype=np.uint8) if isinstance(content, bytes) else content
    buffer = aligned_buffer(round_up(raw.nbytes, BLOCK_BYTES))
    buffer[: raw.nbytes] = raw
    requests = [
        Request(0, Operation.WRITE, device, offset + at, [buffer[at : at + CHUNK_BYTES]])
        for at in range(0, buffer.nbytes, CHUNK_BYTES)
    ]
    return next((error for error in execute(array, requests, patience) if error), 0)
