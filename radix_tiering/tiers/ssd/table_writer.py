"""The namespace table on the devices of an open stripe set: kept up to date, each device at its own pace.

A device writes copy 0, syncs, writes copy 1, syncs, so that it holds a whole copy at every moment. When a stripe set
is opened, the newest table on any of its devices counts. So whoever waits for a change need not wait for the device
that takes longest: after a moment it is enough that others have it, and the slow one follows, or goes out of service.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Generator, Iterable, Sequence

import numpy as np

from ...base.page import BLOCK_BYTES
from ...base.runner import Flag
from .arrays.devices import Operation, Request
from .blockio import POLL, Syncing, aligned_buffer, next_tag
from .device_state import DeviceState, Service
from .io_thread import IoThread
from .layout import SUPERBLOCK_OFFSETS, TABLE_BYTES, TABLE_OFFSETS, Defect, Superblock, decode_superblock
from .namespaces import NamespaceTable

logger = logging.getLogger(__name__)

#: So many seconds after a change it need not be on every device any more, but on one.
SLOW_SECONDS = 1.0


class Change:
    """A change of the table on its way to the devices."""

    def __init__(self, sequence: int, since: float, done: Callable[[bool], None] | None, ended: Flag) -> None:
        self.sequence = sequence  # of the table that has it
        self.since = since
        self._done = done
        self._ended = ended
        self._durable = False

    def wait(self) -> bool:
        """Wait until it is durable; False where no device is left to write it to."""
        self._ended.wait()
        return self._durable

    def end(self, durable: bool) -> None:
        self._durable = durable
        self._ended.set()
        if self._done is not None:
            self._done(durable)


class TableWriter:
    """Works on "ssd-io". The stripe set's lock guards the table and the list of changes."""

    def __init__(
        self, io: IoThread, table: NamespaceTable, devices: Sequence[DeviceState], up_to_date: Iterable[int]
    ) -> None:
        """`up_to_date`: devices that hold `table` as it is now."""
        self._io = io
        self._table = table
        self._devices = devices
        self._durable = dict.fromkeys(up_to_date, table.sequence)  # device -> sequence of the table that it holds
        self._changes: list[Change] = []
        self._flows: dict[int, Generator[None]] = {}
        self._answers: dict[int, int | None] = {}  # tag -> errno, or None as long as there is no answer
        self._syncs: list[Syncing] = []
        self._returning: set[int] = set()
        self._now = 0.0

    def announce(self, done: Callable[[bool], None] | None = None) -> Change:
        """Wait for the table as it is now. Any thread, lock held; whoever calls this has `run` called after that.

        `done(durable)` is called on "ssd-io", without the lock.
        """
        change = Change(self._table.sequence, self._io.patience.clock(), done, self._io.runner.flag())
        self._changes.append(change)
        return change

    def come_back(self, device: int, expected: Superblock, copy: int) -> Superblock | int:
        """Write to a member that is out what the others have got meanwhile, which also shows whether it can be written:
        the namespace table, and `copy` of its superblock, which says what `expected` does. Before that it has to be
        there, and to say what it was left with: else it has been somebody else's. The superblock then, or an errno
        (ENODEV, ESTALE: for good). Serves transfers, and changes of the table, meanwhile."""
        with self._io.lock:
            sequence, content = self._table.sequence, self._table.encode()
        ended: list[Superblock | int] = []
        self._returning.add(device)
        self._flows[device] = self._return(device, sequence, content, expected, copy, ended)
        try:
            self.run()
        finally:
            self._returning.discard(device)
        return ended[0] if ended else errno.EIO

    def run(self) -> None:
        """Return when every device in service has the newest table; serves transfers meanwhile."""
        try:
            while self._advance():
                self._listen()
                self._io.patience.serve()
        except Exception:
            # Nothing is known to raise here. If something does, nobody must wait for it.
            logger.exception("the namespace table cannot be written")
            self._end(self._changes, [False] * len(self._changes))

    def _advance(self) -> bool:
        """One step of every device; False when there is nothing left to do."""
        with self._io.lock:
            sequence = self._table.sequence
            usable = [state.device for state in self._devices if state.service is not Service.OUT]
            behind = [
                device for device in usable if device not in self._flows and self._durable.get(device, -1) < sequence
            ]
            content = self._table.encode() if behind else b""
        for device in behind:
            self._flows[device] = self._bring_up(device, sequence, content)
        for device, flow in list(self._flows.items()):
            if device not in usable and device not in self._returning:
                flow.close()
                del self._flows[device]
            elif next(flow, self) is self:
                del self._flows[device]
        self._settle()
        return bool(self._flows)

    def _settle(self) -> None:
        """Tell those whose change is durable, or never will be."""
        now = self._io.patience.clock()
        ended, durable = [], []
        with self._io.lock:
            usable = [state.device for state in self._devices if state.service is not Service.OUT]
            for change in self._changes:
                have = {device for device, sequence in self._durable.items() if sequence >= change.sequence}
                if have.issuperset(usable) or (have and now - change.since >= SLOW_SECONDS):
                    ended.append(change)
                    durable.append(bool(have))
        self._end(ended, durable)

    def _end(self, changes: Sequence[Change], durable: Sequence[bool]) -> None:
        with self._io.lock:
            self._changes = [change for change in self._changes if change not in changes]
        for change, one in zip(changes, durable, strict=True):
            try:
                change.end(one)
            except Exception:
                logger.exception("a callback of the stripe set raised")

    def _listen(self) -> None:
        """Wait for an answer of some device, for a moment."""
        # Before the answers are looked at: one that has arrived counts, however late we are.
        self._now = self._io.patience.clock()
        if not self._io.array.in_flight:
            for thread in self._syncs:
                thread.join(POLL)
                return
        for completion in self._io.array.reap(1, POLL):
            if completion.tag in self._answers:
                self._answers[completion.tag] = completion.error
            else:
                self._io.patience.stray([completion])

    # What one device does; each `yield` waits for `_listen`.

    def _bring_up(self, device: int, sequence: int, content: bytes) -> Generator[None]:
        error = yield from self._write_table(device, sequence, content)
        if error:
            name = errno.errorcode.get(error, error)
            self._io.take_out(device, f"its namespace table cannot be written ({name})")

    def _write_table(self, device: int, sequence: int, content: bytes) -> Generator[None, None, int]:
        buffer = aligned_buffer(TABLE_BYTES)
        buffer[:] = np.frombuffer(content, dtype=np.uint8)
        for offset in TABLE_OFFSETS:
            error = (yield from self._ask(device, Operation.WRITE, offset, buffer)) or (yield from self._sync(device))
            if error:
                return error
        self._durable[device] = sequence
        return 0

    def _return(
        self,
        device: int,
        sequence: int,
        content: bytes,
        expected: Superblock,
        copy: int,
        ended: list[Superblock | int],
    ) -> Generator[None]:
        found, block = [], aligned_buffer(BLOCK_BYTES)
        error = yield from self._sync(device, looks=True)
        for offset in SUPERBLOCK_OFFSETS:
            error = error or (yield from self._ask(device, Operation.READ, offset, block))
            found.append(decode_superblock(block.tobytes()))
        if not error and not _is_as_left(found, expected):
            error = errno.ESTALE
        error = error or (yield from self._write_table(device, sequence, content))
        superblock = expected._replace(sequence=expected.sequence + 1)
        block[:] = np.frombuffer(superblock.encode(), dtype=np.uint8)
        error = error or (yield from self._ask(device, Operation.WRITE, SUPERBLOCK_OFFSETS[copy], block))
        error = error or (yield from self._sync(device))
        ended.append(error or superblock)

    def _ask(self, device: int, operation: Operation, offset: int, buffer: np.ndarray) -> Generator[None, None, int]:
        patience, tag = self._io.patience, next_tag()
        request = Request(tag, operation, device, offset, [buffer])
        self._answers[tag] = None
        since = patience.clock()
        self._io.array.submit([request])
        try:
            while (error := self._answers[tag]) is None:
                if patience.ended(since, self._now):
                    return errno.ETIMEDOUT
                yield
            return error
        finally:
            if self._answers.pop(tag) is None:
                patience.give_up([request])

    def _sync(self, device: int, *, looks: bool = False) -> Generator[None, None, int]:
        since = self._io.patience.clock()
        syncing = Syncing(self._io.array, device, self._io.runner, looks=looks)
        self._syncs.append(syncing)
        try:
            while syncing.is_alive():
                if self._io.patience.ended(since, self._now):
                    return errno.ETIMEDOUT
                yield
            return syncing.error
        finally:
            self._syncs.remove(syncing)
            if syncing.is_alive():
                self._io.patience.unsynced.append(syncing)


def _is_as_left(copies: Sequence[Superblock | Defect], expected: Superblock) -> bool:
    """Whether both copies of a superblock are those of a member that nobody has opened meanwhile. A write of ours whose
    answer was an error may be there."""
    found = [one for one in copies if isinstance(one, Superblock)]
    newest = max((one.sequence for one in found), default=0)
    return expected.sequence <= newest <= expected.sequence + 1 and all(
        (one.set_id, one.device_index, one.geometry) == (expected.set_id, expected.device_index, expected.geometry)
        and not (one.clean and one.sequence >= expected.sequence)
        for one in found
    )
