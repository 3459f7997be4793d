"""Whole blocks on a device array, waited for: the slow paths (superblocks, tables, checkpoints, scans) use these.

Every function must be called on the one thread that may touch the array. None waits for ever: see `Patience`.
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ...base.page import BLOCK_BYTES, round_up
from ...base.runner import THREADS, Runner
from .arrays.checking import address_of
from .arrays.devices import Completion, DeviceArray, Operation, Request

logger = logging.getLogger(__name__)

#: Tags from here on belong to `execute`; page transfers count up from 0 and never get this far.
CONTROL_TAG = 1 << 48
#: Largest single request of the slow paths, in bytes.
CHUNK_BYTES = 1 << 20
#: Requests of `execute` under way on one device: enough to keep it busy, few enough that what a silent one leaves
#: behind does not use up an array that takes a bounded number.
IN_FLIGHT = 32
#: How long one wait lasts, in seconds, before the clock is looked at.
POLL = 0.001
#: Seconds of `sync_devices` for one device before the next one's sync starts beside it.
SYNC_ALONE = 0.25
#: A device that leaves a request unanswered for so many seconds is not waited for any longer.
STALL_SECONDS = 30.0
#: Before a device that has not answered for so long is given up, whoever has stood still himself, as a process that was
#: paused, lets it answer after all: seconds.
LAST_CHANCE = 0.25
#: How long the end of a process waits for the system to let go of the devices.
CLOSE_SECONDS = 5.0

# One for all: what was given up under one `Patience` may be answered under another.
_tags = itertools.count(CONTROL_TAG)


class Patience:
    """How long the slow paths wait for a device, and what they gave up on.

    A device that answers nothing for `seconds` while something is asked of it is given up: nothing is asked of it any
    more. What it was asked stays in `abandoned` until it is answered after all: the device may still use those buffers.
    """

    def __init__(
        self,
        seconds: float = STALL_SECONDS,
        runner: Runner = THREADS,
        stray: Callable[[Sequence[Completion]], None] | None = None,
        serve: Callable[[], None] = lambda: None,
    ) -> None:
        """`stray` gets the completions of other requests; `serve` is called now and then while others wait."""
        self.seconds = seconds
        self.runner = runner
        self.clock = runner.monotonic
        self.stray = stray or self._forget
        self.serve = serve
        #: By `clock`: nobody is waited for beyond it.
        self.deadline: float | None = None
        self.given_up: set[int] = set()
        self.abandoned: dict[int, Request] = {}
        self.unsynced: list[Syncing] = []  # that nobody waits for any more

    def ended(self, since: float, now: float) -> bool:
        """Whether a device that was heard of at `since` is not waited for any longer."""
        return now - since >= self.seconds or self.over(now)

    def over(self, now: float) -> bool:
        """Whether nobody is waited for any longer."""
        return self.deadline is not None and now >= self.deadline

    @property
    def no_answer(self) -> str:
        """Why a device that was given up is not used, for people."""
        return f"no answer for {self.seconds:g} seconds"

    def reason(self, error: int) -> str:
        """Why a device is not used that could not be written, for people."""
        return (
            self.no_answer
            if error == errno.ETIMEDOUT
            else f"cannot be written ({errno.errorcode.get(error, f'errno {error}')})"
        )

    def give_up(self, requests: Iterable[Request]) -> None:
        """Wait for none of these any longer, and ask their devices nothing more."""
        for request in requests:
            self.given_up.add(request.device)
            self.abandoned[request.tag] = request

    def _forget(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            self.abandoned.pop(completion.tag, None)


def next_tag() -> int:
    """One that no request of a slow path had before."""
    return next(_tags)


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
    if buffer.nbytes < round_up(length, BLOCK_BYTES):
        raise ValueError(
            f"{what} holds {buffer.nbytes} bytes; a page of {length} needs {round_up(length, BLOCK_BYTES)}"
        )
    if address_of(buffer) % BLOCK_BYTES:
        raise ValueError(f"{what} must start at a multiple of {BLOCK_BYTES} bytes")


def execute(array: DeviceArray, requests: Sequence[Request], patience: Patience) -> list[int]:
    """Carry out all requests and wait: the errno of each (0: done), in order. Tags are replaced.

    ETIMEDOUT for those of a device that does not answer, or has been given up before.
    """
    errors = [errno.ETIMEDOUT] * len(requests)
    index_of: dict[int, int] = {}
    waiting: dict[int, deque[Request]] = {}
    for index, request in enumerate(requests):
        if request.device not in patience.given_up:
            tag = next_tag()
            index_of[tag] = index
            waiting.setdefault(request.device, deque()).append(request._replace(tag=tag))
    under_way: dict[int, dict[int, Request]] = {device: {} for device in waiting}
    heard = dict.fromkeys(waiting, patience.clock())
    warned: set[int] = set()  # that get their last chance
    while waiting:
        _start(array, waiting, under_way)
        # Before the answers are looked at: one that has arrived counts, however late we are.
        now = patience.clock()
        for completion in array.reap(1, POLL):
            if under_way.get(completion.device, {}).pop(completion.tag, None) is None:
                patience.stray([completion])
            else:
                errors[index_of[completion.tag]] = completion.error
                heard[completion.device] = now
                warned.discard(completion.device)
        for device in list(waiting):
            if not waiting[device] and not under_way[device]:
                del waiting[device]
            elif not patience.ended(heard[device], now):
                continue
            elif device not in warned and not patience.over(now):
                warned.add(device)
            else:
                patience.given_up.add(device)
                patience.give_up(under_way.pop(device).values())
                del waiting[device]
        if warned & waiting.keys():
            patience.runner.sleep(LAST_CHANCE)
        if waiting:
            patience.serve()
    return errors


def _start(array: DeviceArray, waiting: dict[int, deque[Request]], under_way: dict[int, dict[int, Request]]) -> None:
    """Hand the array as many requests of each device as may be under way."""
    starting: list[Request] = []
    for device, queue in waiting.items():
        flying = under_way[device]
        while queue and len(flying) < IN_FLIGHT:
            request = queue.popleft()
            flying[request.tag] = request
            starting.append(request)
    if starting:
        array.submit(starting)


def sync_devices(array: DeviceArray, devices: Iterable[int], patience: Patience) -> dict[int, int]:
    """Make completed writes durable: 0 or an errno for each device.

    ETIMEDOUT for a device whose sync does not return, or that has been given up before. Nothing can interrupt a sync:
    a thread is left behind in it, which ends when the device answers.
    """
    errors = dict.fromkeys(devices, errno.ETIMEDOUT)
    start = patience.clock()
    waiting = []
    for device in [device for device in errors if device not in patience.given_up]:
        syncing = Syncing(array, device, patience.runner)
        syncing.join(SYNC_ALONE)
        waiting.append(syncing)
    for syncing in waiting:
        while syncing.is_alive() and not patience.ended(start, patience.clock()):
            syncing.join(POLL)
        if syncing.is_alive():
            patience.given_up.add(syncing.device)
            patience.unsynced.append(syncing)
        else:
            errors[syncing.device] = syncing.error
    return errors


class Syncing:
    """One device being synced on a thread of its own, from now on. `error`: 0 or an errno, once it has ended."""

    def __init__(self, array: DeviceArray, device: int, runner: Runner, *, looks: bool = False) -> None:
        """`looks`: whether it is there still, first: ENODEV where it is not."""
        self._array = array
        self._looks = looks
        self.device = device
        self.error = errno.EIO
        thread = runner.thread(self._run, "ssd-sync")
        self.join, self.is_alive = thread.join, thread.is_alive
        thread.start()

    def _run(self) -> None:
        try:
            gone = self._looks and not self._array.present(self.device)
            self.error = errno.ENODEV if gone else self._array.sync(self.device)
        except Exception:
            logger.exception("the device array failed to sync device %d", self.device)


def read_blocks(array: DeviceArray, device: int, offset: int, length: int, patience: Patience) -> np.ndarray | None:
    """`length` bytes (a multiple of 4096) from one device, or None where any part of them cannot be read."""
    if offset + length > array.sizes[device]:
        return None
    buffer = aligned_buffer(length)
    requests = [
        Request(0, Operation.READ, device, offset + at, [buffer[at : at + CHUNK_BYTES]])
        for at in range(0, length, CHUNK_BYTES)
    ]
    return None if any(execute(array, requests, patience)) else buffer


def write_blocks(
    array: DeviceArray,
    device: int,
    offset: int,
    content: bytes | np.ndarray,
    patience: Patience,
) -> int:
    """Write `content`, padded with zeros to whole blocks, and wait; returns 0 or an errno. Does not sync."""
    raw = np.frombuffer(content, dtype=np.uint8) if isinstance(content, bytes) else content
    buffer = aligned_buffer(round_up(raw.nbytes, BLOCK_BYTES))
    buffer[: raw.nbytes] = raw
    return write_aligned(array, device, offset, buffer, patience)


def write_aligned(array: DeviceArray, device: int, offset: int, buffer: np.ndarray, patience: Patience) -> int:
    """`write_blocks` of what `aligned_buffer` gave, in whole blocks: nothing is copied."""
    requests = [
        Request(0, Operation.WRITE, device, offset + at, [buffer[at : at + CHUNK_BYTES]])
        for at in range(0, buffer.nbytes, CHUNK_BYTES)
    ]
    return next((error for error in execute(array, requests, patience) if error), 0)


def close_array(array: DeviceArray, runner: Runner, seconds: float = CLOSE_SECONDS) -> bool:
    """Close an array whose devices may never answer; False where that has not ended after `seconds`.

    A thread is then left behind that waits for the system to give back what was asked for, and keeps it in memory
    until then; the end of the process ends it.
    """
    closing = runner.thread(array.close, "swift-close")
    closing.start()
    closing.join(seconds)
    return not closing.is_alive()
