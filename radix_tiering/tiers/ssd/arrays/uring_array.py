"""Real devices driven by one io_uring."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ....base.errors import ConfigError
from .checking import address_of
from .devices import CompletionArrays, NewDevice, Operation, Request, RequestArrays
from .file_array import FileArray
from .uring import READV, WRITEV, Ring

#: How often one transfer is tried again after EINTR or EAGAIN before the errno is believed.
_ATTEMPTS = 16


class UringArray(FileArray):
    """Devices driven by one io_uring: a batch over all of them is one system call.

    At most `depth` requests are in the ring; more wait in a queue here and move up when completions are reaped. A
    request and its buffers are held from `submit` until its completion has been reaped.
    """

    #: iovecs of one slot in the shared table; a request with more buffers gets a table of its own.
    _WIDTH = 8

    def __init__(self, paths: Sequence[Path | str], *, depth: int = 256) -> None:
        super().__init__(paths)
        try:
            self._ring = Ring(depth)
        except OSError as error:
            self._close_files()
            raise ConfigError(f"io_uring cannot be set up: {error.strerror}; use engine auto or threads") from error
        slots = self._ring.entries
        self._iovecs = np.zeros((slots * self._WIDTH, 2), np.uint64)
        self._iovecs_at = address_of(self._iovecs)
        self._left = np.zeros(slots, np.int64)  # bytes still to move, by slot
        self._running: list[Request | RequestArrays | None] = [None] * slots  # of a batch, the one of the slot's tag
        self._tags = np.zeros(slots, np.int64)  # by slot
        self._numbers = np.zeros(slots, np.int64)  # and their devices
        self._wide: dict[int, np.ndarray] = {}
        self._attempts: dict[int, int] = {}
        self._free = list(range(slots))
        self._resume: list[int] = []  # slots whose transfer came back short and goes on
        self._waiting: deque[Request] = deque()
        self._in_flight = 0
        self.description = f"io_uring, {self._mode()}"

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def append(self, device: NewDevice) -> None:
        super().append(device)
        self.description = f"io_uring, {self._mode()}"

    def submit(self, requests: Sequence[Request]) -> None:
        self._check(requests)
        self._in_flight += len(requests)
        if isinstance(requests, RequestArrays) and not self._waiting and len(requests) <= len(self._free):
            self._start_batch(requests)
        else:
            self._waiting.extend(requests)
            self._start()
        self._ring.enter()  # what the kernel puts off is sent by the next reap

    def reap(self, at_least: int, timeout: float | None = None) -> CompletionArrays:
        wanted = min(at_least, self._in_flight)
        deadline = None if timeout is None else time.monotonic() + timeout
        arrived = self._collect()
        while True:
            self._start()
            missing = wanted - len(arrived)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if missing <= 0 or left == 0.0:
                self._ring.enter()
                self._in_flight -= len(arrived)
                return arrived
            # With requests waiting for a slot, come back early enough to keep the devices busy.
            wait = min(missing, max(1, self._ring.entries // 4)) if self._waiting else missing
            if not self._ring.enter(wait, left):
                self._wait_for_memory(left)
            arrived = arrived.followed_by(self._collect())

    def close(self) -> None:
        if self._closed:
            return
        while self._in_flight:
            self.reap(self._in_flight)
        self._closed = True
        self._ring.close()
        self._close_files()

    def _start_batch(self, batch: RequestArrays) -> None:
        """Put a batch for which there are slots into the ring."""
        from .ring_batch import push  # those who have no batches, to check devices, need nothing compiled

        count = len(batch)
        slots, ring = self._free[-count:], self._ring
        del self._free[-count:]
        push(
            ring.words, ring.mask, ring.tail, self._iovecs, self._iovecs_at, self._left, self._tags, self._numbers,
            np.array(slots), np.array(self._fds), batch.tags, batch.writing, batch.devices, batch.offsets,
            batch.addresses, batch.lengths,
        )  # fmt: skip
        for slot in slots:
            self._running[slot] = batch
        ring.pushed(count)

    def _start(self) -> None:
        """Fill free slots from the queue, and put those and the transfers that go on into the ring."""
        slots, self._resume = self._resume, []
        addresses: list[int] = []
        counts: list[int] = []
        requests = [self._request(slot) for slot in slots]
        offsets = [
            request.offset + request.length - int(self._left[slot])
            for slot, request in zip(slots, requests, strict=True)
        ]
        for slot in slots:
            address, count = self._rest(slot)
            addresses.append(address)
            counts.append(count)
        positions: list[int] = []
        iovecs: list[tuple[int, int]] = []
        while self._waiting and self._free:
            request = self._waiting.popleft()
            slot = self._free.pop()
            pairs = [(address_of(buffer), buffer.nbytes) for buffer in request.buffers]
            self._running[slot], self._tags[slot], self._numbers[slot] = request, request.tag, request.device
            self._left[slot] = sum(length for _, length in pairs)
            if len(pairs) <= self._WIDTH:
                first = slot * self._WIDTH
                positions.extend(range(first, first + len(pairs)))
                iovecs.extend(pairs)
                addresses.append(self._iovecs_at + first * 16)
            else:
                self._wide[slot] = np.array(pairs, np.uint64)
                addresses.append(address_of(self._wide[slot]))
            slots.append(slot)
            counts.append(len(pairs))
            requests.append(request)
            offsets.append(request.offset)
        if not slots:
            return
        if positions:
            self._iovecs[positions] = np.array(iovecs, np.uint64)
        self._ring.push(
            opcodes=[READV if request.operation == Operation.READ else WRITEV for request in requests],
            fds=[self._fds[request.device] for request in requests],
            offsets=offsets,
            addresses=addresses,
            lengths=counts,
            user_data=slots,
        )

    def _collect(self) -> CompletionArrays:
        """Turn what the ring has completed into completions, and short transfers into transfers that go on."""
        slots, results = self._ring.reap()
        errors, goes_on = np.zeros(len(slots), np.int64), np.zeros(len(slots), np.bool_)
        for at in np.flatnonzero(results != self._left[slots]).tolist():
            slot = int(slots[at])
            error = self._outcome(slot, self._request(slot), int(results[at]))
            goes_on[at] = error is None
            errors[at] = error or 0
        if goes_on.any():
            self._resume += slots[goes_on].tolist()
            slots, errors = slots[~goes_on], errors[~goes_on]
        done = slots.tolist()
        for slot in done:
            self._running[slot] = None
        if self._wide or self._attempts:
            for slot in done:
                self._wide.pop(slot, None)
                self._attempts.pop(slot, None)
        self._free += done
        return CompletionArrays(self._tags[slots], self._numbers[slots], errors)

    def _outcome(self, slot: int, request: Request, result: int) -> int | None:
        """The errno of a transfer that did not move everything, or None if it is to go on."""
        if result in (-errno.EINTR, -errno.EAGAIN):
            self._attempts[slot] = self._attempts.get(slot, 0) + 1
            return None if self._attempts[slot] < _ATTEMPTS else -result
        if result < 0:
            return -result
        if not self._resumable(request.device, result):
            return errno.EIO
        self._left[slot] -= result
        return None

    def _rest(self, slot: int) -> tuple[int, int]:
        """Address and count of iovecs for what is left of a transfer."""
        request = self._request(slot)
        skip = request.length - int(self._left[slot])
        pairs = remaining_pairs(request.buffers, skip)
        self._wide[slot] = np.array(pairs, np.uint64)
        return address_of(self._wide[slot]), len(pairs)

    def _request(self, slot: int) -> Request:
        request = self._running[slot]
        assert request is not None, "the slot of an operation in the ring holds its request"
        return request.tagged(int(self._tags[slot])) if isinstance(request, RequestArrays) else request

    def _wait_for_memory(self, left: float | None) -> None:
        """The kernel could not take the batch: let something finish first, and never spin."""
        pause = 0.001 if left is None else min(0.001, left)
        if self._ring.outstanding > self._ring.unsent:
            self._ring.enter(1, left, submit=False)
        else:
            time.sleep(pause)


def remaining_pairs(buffers: Sequence[np.ndarray], skip: int) -> list[tuple[int, int]]:
    """(address, length) of what is left of `buffers` after their first `skip` bytes."""
    pairs = []
    for buffer in buffers:
        if skip >= buffer.nbytes:
            skip -= buffer.nbytes
            continue
        pairs.append((address_of(buffer) + skip, buffer.nbytes - skip))
        skip = 0
    return pairs
