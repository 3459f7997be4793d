"""The thread "ssd-io": the only one that touches the device array.

One round: give every device with room its next units, reads first; submit them all at once; call back what has
ended; run at most one command (table changes, closing); collect completions; look after the devices once a second.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np

from ...base.page import BLOCK_BYTES, PageRecord, page_digest
from ...base.runner import Runner
from ..tier import DAMAGED, ReadOutcome
from .arrays.devices import Completion, DeviceArray, Operation, Request
from .blockio import CONTROL_TAG, Patience, aligned_buffer
from .device_state import DeviceState, Service
from .errands import DeviceOut, IoErrand
from .layout import PageIdentity, StoredPage, combined_digest, unit_length, write_header
from .slots import SlotAllocator
from .transfers import PageRead, PageWrite, ReadUnit, Transfer, TransferStage, VerifyPool

logger = logging.getLogger(__name__)

#: Seconds between two looks at whether the devices are still there.
CHECK_INTERVAL = 1.0
#: Longest wait for a completion, in seconds, before newly queued transfers are looked at ...
REAP_TIMEOUT = 0.0005
#: ... or, up to so long, for as long as the devices have been quiet: to look two thousand times a second at devices
#: that answer a hundred times takes a twentieth of a core from whoever computes meanwhile.
QUIET_REAP_TIMEOUT = 0.005
#: How often devices that are out are asked, in seconds, whether they have answered after all.
LATE_INTERVAL = 0.005
#: How often closing looks, in seconds, whether there is still something to wait for.
IDLE_POLL = 0.01

#: Bytes that are hashed in one round, before reads have their turn again, but for one page: some hundred microseconds.
HASHED_TOGETHER = 1 << 20
#: Transfers whose ends are told together: bounds how long a lock is held for them.
ANSWERS_TOGETHER = 16

Result = TypeVar("Result")


class IoThread:
    """Owns the queues. `lock` guards all shared state, the stripe set's as well; no callback runs under it."""

    def __init__(
        self,
        array: DeviceArray,
        *,
        depth: int,
        max_writes: int,
        max_units: int,
        verifiers: int,
        stall_seconds: float,
        runner: Runner,
        on_device_out: Callable[[int, str], None],
    ) -> None:
        self.array = array
        self.runner = runner
        self.lock = runner.lock()
        self._wake = runner.condition(self.lock)
        self._depth = depth
        self._max_writes = max_writes
        self._max_units = max_units
        self._clock = clock = runner.monotonic
        self._on_device_out = on_device_out
        self._devices: list[DeviceState] = []
        self._allocator = SlotAllocator([])
        self._set_id = b""
        self._unit_bytes = 0
        self._is_flushed: Callable[[bytes, int], bool] = lambda namespace, generation: False
        self._commands: deque[IoErrand] = deque()
        self._write_queue: deque[PageWrite] = deque()
        self._writes_active = self._units_active = 0  # pages that are being written, and their units
        self._outbox: deque[Transfer | DeviceOut] = deque()  # what is to be called back, in the order it happened
        self._flying: dict[int, tuple[Transfer, int, np.ndarray]] = {}  # by tag: a unit, and its header
        self._out: set[int] = set()  # devices that are
        self._next_tag = 0
        self._headers: list[np.ndarray] = []
        self._next_check = clock() + CHECK_INTERVAL
        self._stirred = clock()  # when a device was last given something, or answered
        self._stopping = False
        self._given_up = False
        self.patience = Patience(stall_seconds, runner, self.complete, self._serve)
        self.answers: AbstractContextManager[object] = nullcontext()  # see `Tier.answers`
        self.pending = 0  # transfers accepted and not yet called back
        self.callback_errors = 0
        self.outcomes = dict.fromkeys(ReadOutcome, 0)  # of the reads called back
        self._pool = VerifyPool(verifiers, self._notify, runner) if verifiers else None
        self._thread = runner.thread(self._run, "ssd-io")
        self._thread.start()

    def attach(
        self,
        devices: list[DeviceState],
        allocator: SlotAllocator,
        set_id: bytes,
        unit_bytes: int,
        is_flushed: Callable[[bytes, int], bool],
    ) -> None:
        """Begin to serve transfers. Called once, on the I/O thread. `is_flushed`: (namespace, generation)."""
        with self.lock:
            self._devices = devices
            self._out = {state.device for state in devices if state.service is Service.OUT}
            self._allocator = allocator
            self._set_id = set_id
            self._unit_bytes = unit_bytes
            self._is_flushed = is_flushed
            blocks = aligned_buffer(max(1, len(devices)) * self._depth * BLOCK_BYTES)
            self._headers = list(blocks.reshape(-1, BLOCK_BYTES))

    def add_device(self, state: DeviceState) -> None:
        """One more device, the last, whose place in the allocator there is already. On the I/O thread, lock held."""
        self._devices.append(state)
        if state.service is Service.OUT:
            self._out.add(state.device)
        self._headers += list(aligned_buffer(self._depth * BLOCK_BYTES).reshape(-1, BLOCK_BYTES))

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function on the I/O thread and wait for it. Raises what it raises."""
        self.check_outside()
        command = self.post(function)
        command.ended.wait()
        if command.error is not None:
            raise command.error
        result: Result = command.result
        return result

    def post(self, function: Callable[[], object]) -> IoErrand:
        """Have a function run on the I/O thread. Any thread; waits for nothing."""
        command = IoErrand(function, self.runner.flag())
        with self._wake:
            if self._stopping:
                raise RuntimeError("the stripe set is closed")
            self._commands.append(command)
            self._wake.notify_all()
        return command

    def check_outside(self) -> None:
        """Raise RuntimeError on the I/O thread, which would wait for itself."""
        if self.runner.here(self._thread):
            raise RuntimeError("a callback of the stripe set must not wait for it: hand this over to another thread")

    def identity(self, record: PageRecord, generation: int, digest: bytes, namespace_id: int) -> PageIdentity:
        """What the headers of a page's units say alike."""
        return PageIdentity(record, generation, digest, namespace_id, self._unit_bytes, self._set_id)

    # Any thread, with the lock held.

    def enqueue(self, transfers: Sequence[Transfer]) -> None:
        """Accept transfers whose places are held already."""
        self.pending += len(transfers)
        for transfer in transfers:
            if self._on_lost_device(transfer):
                transfer.lose_device("device gone")
            if transfer.failed:
                self._end(transfer)
            elif isinstance(transfer, PageWrite):
                self._write_queue.append(transfer)
            else:
                for index, (device, _) in enumerate(transfer.placement):
                    self._devices[device].reads.append((transfer, index))
        self._wake.notify_all()

    def _on_lost_device(self, transfer: Transfer) -> bool:
        """Whether a unit of it lies on a device that is out."""
        return bool(self._out) and any(device in self._out for device, _ in transfer.placement)

    def cancel(self, transfer: PageRead) -> bool:
        """End a read that has not started; False where it has."""
        if transfer.stage is not TransferStage.QUEUED:
            return False
        transfer.outcome = ReadOutcome.CANCELLED
        self._end(transfer)
        self._wake.notify_all()
        return True

    def wait_idle(self, deadline: float | None) -> None:
        """Wait until every accepted transfer has been called back, or only devices that do not answer could end the
        rest, or the deadline has passed."""
        while self.pending and not self._is_stuck():
            if deadline is not None and self._clock() >= deadline:
                return
            self._wake.wait(IDLE_POLL)

    def _is_stuck(self) -> bool:
        """Whether all that is still under way are reads on devices that went out and have not answered for long."""
        if self._outbox or self._write_queue or self._writes_active or self._verified() or self._given_up:
            return False
        oldest_hope = self._clock() - self.patience.seconds
        for state in self._devices:
            if state.reads or state.writes:
                return False
            if state.in_flight and (
                state.service is not Service.OUT or next(reversed(state.in_flight.values())) > oldest_hope
            ):
                return False
        return any(state.in_flight for state in self._devices)

    def _end(self, transfer: Transfer) -> None:
        """-> FINISHED: its callback follows. Its places are free for others, those of units under way once these are
        back."""
        transfer.stage = TransferStage.FINISHED
        if transfer.flying:
            away = {number for other, number, _ in self._flying.values() if other is transfer}
            back = [place for number, place in enumerate(transfer.placement) if number not in away]
            self._allocator.unhold(tuple(back))
        else:
            self._allocator.unhold(transfer.placement)
        if isinstance(transfer, PageWrite):
            if self._on_lost_device(transfer):
                transfer.lose_device("a device went out of service meanwhile")
            if self._is_flushed(transfer.record.namespace, transfer.generation):
                transfer.lose_device("the namespace was flushed meanwhile")
            if transfer.failed:
                self._allocator.give_back_taken(transfer.placement)
            else:
                self._allocator.fill(transfer.placement)
                transfer.stored = StoredPage(transfer.record, transfer.generation, transfer.digest, transfer.placement)
        self._outbox.append(transfer)

    # The I/O thread.

    def stop(self) -> None:
        """End the thread once nothing is left to do, and wait for it."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()
        if self._pool is not None:
            self._pool.close()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            try:
                if not self._round():
                    return
            except Exception as error:
                # Nothing is known to raise here. If something does, every waiter must still get an answer.
                logger.exception("the I/O thread failed")
                for state in self._devices:
                    self.take_out(state.device, f"internal error: {error}")
                with self._wake:
                    self._wake.wait(CHECK_INTERVAL / 10)

    def _round(self) -> bool:
        with self._wake:
            while True:
                requests = self._collect()
                admitted = self._admit()
                command = self._commands.popleft() if self._commands else None
                answers = self._flying and any(s.in_flight for s in self._devices if s.service is not Service.OUT)
                if requests or admitted or command or self._outbox or answers or self._verified():
                    break
                if self._stopping and (not self._flying or self._given_up):
                    return False
                rest = self._next_check - self._clock()
                if rest <= 0:
                    break
                if self._flying:
                    self._wake.wait(LATE_INTERVAL)
                    break
                self._wake.wait(min(rest, CHECK_INTERVAL))
        if requests:
            self._submit(requests)
        for write in admitted:
            self._prepare(write)
        self._call_back()
        if command is not None:
            command.run()
        if self._flying:
            wait = answers and not admitted and command is None
            self.complete(self.array.reap(1, self._reap_timeout()) if wait else self.array.reap(0))
        if self._verified():
            self._settle_verified()
        self._call_back()
        if self.patience.abandoned and self._clock() >= self._next_check:
            # Not while a command waits for answers of its own, which would be taken for late ones.
            self.complete(self.array.reap(0))
        self._look_after_devices()
        return True

    def _reap_timeout(self) -> float:
        """Seconds to wait for a completion."""
        return min(max(REAP_TIMEOUT, self._clock() - self._stirred), QUIET_REAP_TIMEOUT)

    def _serve(self) -> None:
        """What a round does for transfers, for a command that waits for devices; it hands completions to `complete`."""
        with self._wake:
            requests = self._collect()
            admitted = self._admit()
        if requests:
            self._submit(requests)
        for write in admitted:
            self._prepare(write)
        if self._verified():
            self._settle_verified()
        self._call_back()
        self._look_after_devices()

    def _collect(self) -> list[Request]:
        """The next units of every device that has room: reads before writes. Lock held."""
        requests: list[Request] = []
        for state in self._devices:
            if (state.reads or state.writes) and len(state.in_flight) < self._depth:
                self._fill(state, requests)
        return requests

    def _fill(self, state: DeviceState, requests: list[Request]) -> None:
        """Give a device as many units as it has room for."""
        geometry, in_flight, tag = state.geometry, state.in_flight, self._next_tag
        assert geometry is not None  # a device without one is out of service
        unit_bytes, first, stride, now = self._unit_bytes, geometry.first_slot, geometry.slot_bytes, self._clock()
        for queue, operation in ((state.reads, Operation.READ), (state.writes, Operation.WRITE)):
            while queue and len(in_flight) < self._depth:
                transfer, index = queue.popleft()
                if transfer.stage is TransferStage.FINISHED or transfer.failed:
                    continue
                transfer.stage = TransferStage.STARTED
                transfer.flying += 1
                slot = transfer.placement[index][1]
                header = self._headers.pop()
                if isinstance(transfer, PageWrite):
                    assert transfer.identity is not None  # since `_prepare`
                    identity = transfer.identity.of_unit(index, state.device_index, slot)
                    write_header(header.data, identity, transfer.unit_digests[index])
                start = index * unit_bytes
                tag += 1
                self._flying[tag] = transfer, index, header
                in_flight[tag] = now
                buffers = header, transfer.data[start : start + unit_bytes]
                requests.append(Request(tag, operation, state.device, first + slot * stride, buffers))
        self._next_tag = tag

    def _submit(self, requests: Sequence[Request]) -> None:
        self._stirred = self._clock()
        try:
            self.array.submit(requests)
        except (OSError, ValueError):
            # An array refuses requests as a whole, before it has started any.
            logger.exception("the device array refused requests")
            self.complete([Completion(request.tag, request.device, errno.EINVAL) for request in requests])

    def _admit(self) -> list[PageWrite]:
        """The next writes to begin, if not too many are under way; few per round: hashing delays reads. Lock held."""
        admitted: list[PageWrite] = []
        hashed = 0
        while self._write_queue:
            if self._writes_active >= self._max_writes and self._units_active >= self._max_units:
                break
            hashed += self._write_queue[0].length
            if admitted and hashed > HASHED_TOGETHER:
                break
            admitted.append(self._write_begins(self._write_queue.popleft()))
        return admitted

    def _write_begins(self, write: PageWrite) -> PageWrite:
        self._writes_active += 1
        self._units_active += len(write.placement)
        return write

    def _write_over(self, transfer: Transfer) -> None:
        """One that has begun has ended."""
        if transfer.writing:
            self._writes_active -= 1
            self._units_active -= len(transfer.placement)

    def _prepare(self, write: PageWrite) -> None:
        """Compute the checksums of a write, then queue its units."""
        for index in range(len(write.placement)):
            start = index * self._unit_bytes
            payload = write.data[start : start + unit_length(write.length, self._unit_bytes, index)]
            write.unit_digests.append(page_digest(payload.data))
        write.digest = combined_digest(write.unit_digests)
        write.identity = self.identity(write.record, write.generation, write.digest, write.namespace_id)
        if write.expected not in (None, write.digest):
            write.failure = DAMAGED
        with self._wake:
            if self._on_lost_device(write):
                write.lose_device("device gone")
            if write.failed:
                self._write_over(write)
                self._end(write)
                return
            for index, (device, _) in enumerate(write.placement):
                self._devices[device].writes.append((write, index))

    def complete(self, completions: Sequence[Completion]) -> None:
        """Account for completions, verify what was read, end the transfers that have all their units."""
        now = self._clock()
        if completions:
            self._stirred = now
        ending: list[Transfer] = []
        unverified: list[ReadUnit] = []
        for tag, device, error in completions:
            if tag >= CONTROL_TAG:
                # The slow paths gave up on this one.
                self.patience.abandoned.pop(tag, None)
                continue
            transfer, index, header = self._flying.pop(tag)
            state = self._devices[device]
            start = index * self._unit_bytes
            length = min(self._unit_bytes, transfer.length - start)
            fault = state.completed(transfer.writing, length, error, now - state.in_flight.pop(tag))
            verifying = False
            if transfer.stage is TransferStage.FINISHED:
                with self.lock:
                    self._allocator.unhold((transfer.placement[index],))
            elif isinstance(transfer, PageWrite):
                if error:
                    transfer.failure = transfer.failure or f"device {device}: {fault}"
            elif error:
                if not transfer.failed:
                    transfer.outcome = ReadOutcome.IO_ERROR
            elif not transfer.failed:
                verifying = True
                payload = transfer.data[start : start + length]
                unverified.append(
                    ReadUnit(transfer, index, device, state.device_index, self._set_id, header.tobytes(), payload)
                )
            self._headers.append(header)
            if fault:
                self.take_out(device, fault)
            if not verifying:
                self._unit_back(transfer, ending)
        if self._pool is not None and len(unverified) >= self._pool.WORTH:
            self._pool.verify(unverified)
        else:
            for unit in unverified:
                self._judge(unit, unit.verify(), ending)
        self._end_all(ending)

    def _verified(self) -> bool:
        return self._pool is not None and bool(self._pool.results)

    def _settle_verified(self) -> None:
        """Take over what the pool has verified."""
        assert self._pool is not None  # somebody verified
        ending: list[Transfer] = []
        while self._pool.results:
            unit, outcome = self._pool.results.popleft()
            self._judge(unit, outcome, ending)
        self._end_all(ending)

    def _judge(self, unit: ReadUnit, outcome: ReadOutcome, ending: list[Transfer]) -> None:
        if (
            outcome is not ReadOutcome.OK
            and not unit.transfer.failed
            and unit.transfer.stage is not TransferStage.FINISHED
        ):
            self._devices[unit.device].counters.corrupt_units += 1
            unit.transfer.outcome = outcome
        self._unit_back(unit.transfer, ending)

    def _unit_back(self, transfer: Transfer, ending: list[Transfer]) -> None:
        transfer.flying -= 1
        transfer.todo -= 1
        if not transfer.flying and (not transfer.todo or transfer.failed):
            ending.append(transfer)

    def _end_all(self, ending: Sequence[Transfer]) -> None:
        if ending:
            with self._wake:
                for transfer in ending:
                    # Losing a device may have ended it already.
                    if transfer.stage is not TransferStage.FINISHED:
                        self._write_over(transfer)
                        self._end(transfer)

    def take_out(self, device: int, reason: str) -> None:
        """-> OUT: no new work for this device; what waits for it ends, and so do writes that are under way on it.

        Reads that are under way are waited for: the device may still write into the caller's buffer.
        """
        with self._wake:
            state = self._devices[device]
            if state.service is Service.OUT:
                return
            state.service = Service.OUT
            state.reason = reason
            self._out.add(device)
            self._allocator.shut(device)
            self._outbox.append(DeviceOut(device, reason))
            hit = [transfer for queue in (state.reads, state.writes) for transfer, _ in queue]
            under_way = [self._flying[tag][0] for tag in state.in_flight if tag in self._flying]
            hit += [transfer for transfer in under_way if transfer.writing]
            state.reads.clear()
            state.writes.clear()
            for transfer in hit:
                if transfer.stage is TransferStage.FINISHED:
                    continue
                transfer.lose_device(f"device {device} went out of service: {reason}")
                if transfer.writing or not transfer.flying:
                    self._write_over(transfer)
                    self._end(transfer)

    def give_up(self, reason: str) -> None:
        """On the I/O thread, when closing: end what has not ended, whether or not its units ever come back."""
        for state in self._devices:
            if state.in_flight:
                self.take_out(state.device, reason)
        with self._wake:
            self._given_up = True
            left: list[Transfer] = [transfer for transfer, _, _ in self._flying.values()]
            for state in self._devices:
                left += [transfer for queue in (state.reads, state.writes) for transfer, _ in queue]
            left += map(self._write_begins, self._write_queue)  # they are taken for active ones below
            self._write_queue.clear()
            for transfer in left:
                if transfer.stage is TransferStage.FINISHED:
                    continue
                if isinstance(transfer, PageRead) and transfer.stage is TransferStage.QUEUED:
                    transfer.outcome = ReadOutcome.CANCELLED
                transfer.lose_device(reason)
                self._write_over(transfer)
                self._end(transfer)

    def _call_back(self) -> None:
        """Tell the callers what has ended. A callback that raises is logged and harms nobody else."""
        while self._outbox:
            ended = self._ended_together()
            if not ended:
                news = self._outbox.popleft()
                assert isinstance(news, DeviceOut)
                self._guarded(self._on_device_out, news.device, news.reason)
                continue
            self._guarded(self._answer, ended)
            with self._wake:
                self.pending -= len(ended)
                if not self.pending:
                    self._wake.notify_all()

    def _ended_together(self) -> list[Transfer]:
        """The next that have ended, with nothing else to tell between them."""
        ended: list[Transfer] = []
        while self._outbox and len(ended) < ANSWERS_TOGETHER and not isinstance(self._outbox[0], DeviceOut):
            news = self._outbox.popleft()
            assert not isinstance(news, DeviceOut)
            ended.append(news)
        return ended

    def _answer(self, ended: Sequence[Transfer]) -> None:
        with self.answers:
            for transfer in ended:
                if isinstance(transfer, PageRead):
                    self.outcomes[transfer.outcome] += 1
                self._guarded(transfer.finish)

    def _guarded(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:
            logger.exception("a callback of the stripe set raised")
            self.callback_errors += 1

    def _look_after_devices(self) -> None:
        """Once in CHECK_INTERVAL: which devices have gone, or do not answer."""
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        for state in self._devices:
            if state.service is Service.OUT:
                continue
            if not self.array.present(state.device):
                self.take_out(state.device, "no longer present")
            elif state.in_flight and now - next(iter(state.in_flight.values())) > self.patience.seconds:
                self.take_out(state.device, f"no answer for {self.patience.seconds:g} seconds")
