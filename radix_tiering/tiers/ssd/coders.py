"""Threads "ssd-code" that make fewer bytes of pages before these are written, and pages of them when they were read.

    accepted --(write)--> coded, or as it is --> "ssd-io"        read and verified --(read)--> decoded --> told

Reads go first. A page that is coded lies in memory of this until its write has ended. There is so much of that, and
writes that would need more wait; they hold up no read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...base.checksum import digests_at
from ...base.page import BLOCK_BYTES, round_up
from ...base.repeats import FaultLogger
from ...base.runner import Runner
from ..tier import DAMAGED, ReadOutcome
from .blockio import aligned_buffer
from .coding import Coder
from .transfers import PageRead, PageWrite, Transfer

logger = logging.getLogger(__name__)

#: Memory for pages that are coded and not written yet, of each rank; and pages that there is room for at least, as
#: some wait for their devices and others are being coded.
CODED_BYTES, LEAST_PAGES = 64 << 20, 4


class Coders:
    """Any thread gives it pages, with the stripe set's lock; `done` is called on its own threads, without any."""

    def __init__(self, threads: int, done: Callable[[Transfer], None], runner: Runner) -> None:
        """`done(transfer)`: it is to be written, coded or as it is, or has failed; or it is read, or has failed."""
        self._done = done
        self._lock = runner.lock()
        self._wake = runner.condition(self._lock)
        self._reads: deque[PageRead] = deque()
        self._writes: deque[PageWrite] = deque()
        self._rooms: list[np.ndarray] = []  # memory for coded pages that nobody has
        self._lent = 0  # pages that have some, or may
        self._busy = 0  # pages that are here
        self._ended = False
        self._fault_logger = FaultLogger(logger)
        self.unit_bytes = 1  # set before the first page
        self.coded_pages = 0
        # Where there is no memory for them, or no thread, is known before there is a page.
        coders = [Coder() for _ in range(threads)]
        self._threads = [
            runner.thread(partial(self._run, coder), f"ssd-code-{number}") for number, coder in enumerate(coders)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.close()
            raise

    @property
    def busy(self) -> bool:
        """Whether there is a page here that is not done."""
        return self._busy > 0

    def write(self, writes: Sequence[PageWrite]) -> None:
        """Code these, where that makes them smaller."""
        with self._lock:
            self._writes.extend(writes)
            self._busy += len(writes)
            self._wake.notify_all()

    def read(self, read: PageRead) -> None:
        """Decode this one, which was read and verified."""
        with self._lock:
            self._reads.append(read)
            self._busy += 1
            self._wake.notify_all()

    def take_back(self) -> list[PageWrite]:
        """Code nothing more of what waits: these, which are the caller's again."""
        with self._lock:
            left = list(self._writes)
            self._writes.clear()
            self._busy -= len(left)
        return left

    def give_back(self, write: PageWrite) -> None:
        """A page has been written, or not. A device that still works on it writes what comes next there, but not the
        checksum of that."""
        if write.room is not None:
            self._spare(write.room)

    def _spare(self, room: np.ndarray | None) -> None:
        """A page needs no memory here any more; what it had is another's."""
        with self._lock:
            if room is not None:
                self._rooms.append(room)
            self._lent -= 1
            self._wake.notify_all()

    def close(self) -> None:
        """End the threads, once nothing is left to do."""
        with self._lock:
            self._ended = True
            self._wake.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _run(self, coder: Coder) -> None:
        while (transfer := self._next()) is not None:
            if isinstance(transfer, PageWrite):
                self._encode(coder, transfer)
            else:
                self._decode(coder, transfer)
            self._done(transfer)
            with self._lock:
                self._busy -= 1

    def _next(self) -> Transfer | None:
        """The next page; None: there will be none."""
        with self._lock:
            while True:
                if self._reads:
                    return self._reads.popleft()
                if self._writes and self._lent < max(LEAST_PAGES, CODED_BYTES // self._writes[0].length):
                    self._lent += 1
                    return self._writes.popleft()
                if self._ended and not self._writes:
                    return None
                self._wake.wait()

    def _encode(self, coder: Coder, write: PageWrite) -> None:
        """What cannot be coded is written as it is."""
        room: np.ndarray | None = None
        try:
            page = write.data[: write.length]
            with self._lock:
                room = self._rooms.pop() if self._rooms else None
            if room is None or len(room) < write.length:
                room = aligned_buffer(round_up(write.length, BLOCK_BYTES))
            if units := coder.encode(page, room, self.unit_bytes):
                digest = self._digest(page)
                if write.expected not in (None, digest):
                    write.failure = DAMAGED
                else:
                    write.lie_coded(room, units, self.unit_bytes, digest)
                    with self._lock:
                        self.coded_pages += 1
        except Exception:
            self._fault_logger.exception("a page could not be coded")
        if not write.coded:
            self._spare(room)

    def _digest(self, page: np.ndarray) -> bytes:
        return digests_at(np.array([page.ctypes.data]), len(page), self.unit_bytes)[0]

    def _decode(self, coder: Coder, read: PageRead) -> None:
        """What has not the checksum of the page is not the page."""
        length = read.stored.record.length
        try:
            is_page = coder.decode(read.into, read.length, length)
            if not is_page or self._digest(read.into[:length]) != read.stored.digest:
                read.outcome = ReadOutcome.CHECKSUM
        except MemoryError:
            read.outcome = ReadOutcome.CANCELLED  # it is still there
        except Exception:
            self._fault_logger.exception("a page could not be decoded")
            read.outcome = ReadOutcome.CHECKSUM
