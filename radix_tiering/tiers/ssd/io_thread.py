"""The thread "ssd-io": the only one that touches the device array.

One round: give every device with room its next units, reads first; submit them all at once; call back what has
ended; run at most one command (table changes, closing); collect completions; look after the devices once a second.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import numpy as np

from ...base.page import BLOCK_BYTES, PageRecord
from ...base.runner import Runner
from ..tier import DAMAGED, NOT_NOW, ReadOutcome
from .arrays import ring_batch  # noqa: F401 - compiled before the first transfer, not with it
from .arrays.devices import Completion, CompletionArrays, DeviceArray, Operation, Request, RequestArrays
from .blockio import CONTROL_TAG, LAST_CHANCE, Patience, aligned_buffer, next_tag
from .coders import Coders
from .device_state import GONE, PASSING, DeviceState, Service, write_failed
from .errands import DeviceNews, IoErrand
from .kernels import FOREIGN, RIGHT
from .layout import SUPERBLOCK_OFFSETS, SlotPlace, StoredPage, unit_identity
from .lookout import Lookout
from .slots import SlotAllocator
from .transfers import PageRead, PageWrite, Transfer, VerifyPool, explain
from .units import Units

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

#: Bytes that are hashed in one round, before reads have their turn again, but for one page: some hundred microseconds;
#: and while nobody reads, so that a round, which costs as much as a page does, is for several.
HASHED_TOGETHER, HASHED_ALONE = 1 << 20, 8 << 20
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
        coders: int,
        codes: bool,
        stall_seconds: float,
        runner: Runner,
        on_device_out: Callable[[int, str], None],
        on_device_full: Callable[[int, str], None],
        on_room: Callable[[], None],
    ) -> None:
        self.array = array
        self.runner = runner
        self.lock = runner.lock()
        self._wake = runner.condition(self.lock)
        self._depth = depth
        self._max_writes = max_writes
        self._max_units = max_units
        self._clock = clock = runner.monotonic
        self._on_device_out, self._on_device_full, self._on_room = on_device_out, on_device_full, on_room
        self._devices: list[DeviceState] = []
        self._allocator = SlotAllocator([])
        self._set_id = b""
        self._is_flushed: Callable[[bytes, int], bool] = lambda namespace, generation: False
        self._on_answer: Callable[[int], object] = lambda device: None
        self._asked: dict[int, int] = {}  # tag of a read -> device that is out, and asked whether it answers
        self._commands: deque[IoErrand] = deque()
        self._write_queue: deque[PageWrite] = deque()
        self._writes_active = self._units_active = 0  # pages that are being written, and their units
        self._outbox: deque[Transfer | DeviceNews] = deque()  # what is to be called back, in the order it happened
        self._arrived: list[Transfer] = []  # accepted, and not yet looked at
        self.units = Units(1, depth)
        self._out: set[int] = set()  # devices that are
        self._next_check = clock() + CHECK_INTERVAL
        self._late: dict[int, int] = {}  # device that gets its last chance, see `LAST_CHANCE` -> units it was late with
        self._stirred = clock()  # when a device was last given something, or answered
        self._stopping = False
        self._given_up = False
        self.patience = Patience(stall_seconds, runner, self.complete, self._serve)
        self.answers: AbstractContextManager[object] = nullcontext()  # see `Tier.answers`
        self.pending = 0  # transfers accepted and not yet called back
        self._reading: set[Transfer] = set()  # accepted and not finished, and no unit with a device that is out
        self.callback_errors = 0
        self.outcomes = dict.fromkeys(ReadOutcome, 0)  # of the reads called back
        self.codes = codes  # pages that are written, where that makes them smaller
        self.coders = Coders(coders, self._coded, runner)
        self._pool = VerifyPool(verifiers, self._verify, self._notify, runner) if verifiers else None
        self._lookout = Lookout(array, self._not_there, runner)
        self._thread = runner.thread(self._run, "ssd-io")
        self._thread.start()

    def attach(
        self,
        devices: list[DeviceState],
        allocator: SlotAllocator,
        set_id: bytes,
        unit_bytes: int,
        is_flushed: Callable[[bytes, int], bool],
        on_answer: Callable[[int], object],
    ) -> None:
        """Serve transfers of these devices. On the I/O thread, lock held, while there are none. `is_flushed`:
        (namespace, generation). `on_answer(device)`: run on this thread, for one that is out and answers again."""
        self._devices = devices
        self._out = {state.device for state in devices if state.service is Service.OUT}
        self._allocator = allocator
        self._set_id = set_id
        self._is_flushed = is_flushed
        self._on_answer = on_answer
        self.coders.unit_bytes = unit_bytes
        self.units = Units(unit_bytes, self._depth)
        for state in devices:
            self.units.add_device(state.device_index, state.geometry)

    def add_device(self, state: DeviceState) -> None:
        """One more device, the last, whose place in the allocator there is already. On the I/O thread, lock held."""
        self._devices.append(state)
        if state.service is Service.OUT:
            self._out.add(state.device)
        self.units.add_device(state.device_index, state.geometry)

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

    def identity(self, record: PageRecord, generation: int, digest: bytes, namespace_id: int, units: int) -> bytes:
        """What the headers of a page's units say, as if of the first one in the first slot: kernels know the others."""
        place = SlotPlace(self._set_id, 0, 0)
        return unit_identity(record, generation, digest, namespace_id, 0, units, self.units.unit_bytes, place)

    # Any thread, with the lock held.

    def enqueue(self, transfers: Sequence[Transfer]) -> None:
        """Accept transfers whose places are held already."""
        self.pending += len(transfers)
        self._reading.update(transfer for transfer in transfers if not transfer.writing)
        if self.codes:
            # A page of one unit cannot take fewer. Once they have others, coders change what is theirs.
            coded = [one for one in transfers if isinstance(one, PageWrite) and len(one.placement) > 1]
            transfers = [one for one in transfers if not one.writing or len(one.placement) == 1]
            self.coders.write(coded)
        self._arrived += transfers
        self._wake.notify_all()

    def _coded(self, transfer: Transfer) -> None:
        """A page comes back from the coders. On a thread of theirs, without locks."""
        with self._wake:
            if isinstance(transfer, PageWrite):
                self._allocator.unhold(transfer.needless)
                self._allocator.give_back_taken(transfer.needless)
                self._arrived.append(transfer)
            else:
                self._outbox.append(transfer)
            self._wake.notify_all()

    def _look_at_arrived(self) -> None:
        """Queue what has been accepted. On the I/O thread, lock held."""
        arrived, self._arrived = self._arrived, []
        entering: list[Transfer] = []
        for transfer in arrived:
            if self._on_lost_device(transfer):
                transfer.lose_device("device gone")
            if self._given_up:
                transfer.lose_device("the stripe set is closed")
            if transfer.finished:
                continue
            if transfer.failed:
                self._end(transfer)
                continue
            entering.append(transfer)
        if not entering:
            return
        reads = [transfer for transfer in entering if not transfer.writing]
        with self._ending(entering, begun=False):
            self.units.enter(entering)
            if reads:
                self.units.queue(reads)
        self._write_queue.extend(transfer for transfer in entering if isinstance(transfer, PageWrite))

    @contextmanager
    def _ending(self, transfers: Sequence[Transfer], *, begun: bool) -> Iterator[None]:
        """Whatever is raised within, as where there is no memory: these end, for nobody else knows of them. `begun`:
        they count as under way, and the lock is not held."""
        try:
            yield
        except BaseException as error:
            with self._wake if begun else nullcontext():
                for transfer in transfers:
                    if not transfer.finished:
                        transfer.lose_device(f"it could not be begun: {error!r}")
                        if begun:
                            self._write_over(transfer)
                        self._end(transfer)
            raise

    def _on_lost_device(self, transfer: Transfer) -> bool:
        """Whether a unit of it lies on a device that is out."""
        return bool(self._out) and any(device in self._out for device, _ in transfer.placement)

    def wait_idle(self, deadline: float | None) -> None:
        """Wait until every accepted transfer has been called back, or only devices that do not answer could end the
        rest, or the deadline has passed."""
        while self.pending and not self._is_stuck():
            if deadline is not None and self._clock() >= deadline:
                return
            self._wake.wait(IDLE_POLL)

    def _is_stuck(self) -> bool:
        """Whether all that is still under way are reads on devices that went out and have not answered for long."""
        if self._arrived or self._outbox or self._write_queue or self._writes_active or self._verified():
            return False
        if self.coders.busy:
            return False
        units = self.units
        if self._given_up or units.any_waiting:
            return False
        oldest_hope = self._clock() - self.patience.seconds
        for state in self._devices:
            if units.in_flight(state.device) and (
                state.service is not Service.OUT or units.newest(state.device) > oldest_hope
            ):
                return False
        return units.all_flying > 0

    def _end(self, transfer: Transfer) -> None:
        """-> finished: its callback follows; that of a page that was read, and is coded, once it is decoded. Its places
        are free for others, those of units under way once these are back."""
        transfer.finished = True
        self._reading.discard(transfer)
        if self.units.flying(transfer):
            away = self.units.places_away(transfer)
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
            self.coders.give_back(transfer)
        self.units.leave(transfer)
        if isinstance(transfer, PageRead) and transfer.coded and not transfer.failed:
            self.coders.read(transfer)
        else:
            self._outbox.append(transfer)

    # The I/O thread.

    def stop(self) -> None:
        """End the thread once nothing is left to do, and wait for it."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()
        self._lookout.close()
        self.coders.close()
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
                    self.take_out(state.device, f"internal error: {error}", for_good=True)
                with self._wake:
                    self._wake.wait(CHECK_INTERVAL / 10)

    def _round(self) -> bool:
        with self._wake:
            while True:
                requests = self._collect()
                admitted = self._admit()
                command = bool(self._commands)
                answers = self._answers()
                if requests or admitted or command or self._outbox or answers or self._verified():
                    break
                if self._stopping and (not self.units.all_flying or self._given_up):
                    return False
                rest = self._next_check - self._clock()
                if rest <= 0:
                    break
                if self.units.all_flying:
                    self._wake.wait(LATE_INTERVAL)
                    break
                self._wake.wait(min(rest, CHECK_INTERVAL))
        self._begin(requests, admitted)
        self._call_back()
        if command:
            # Not sooner: whatever is raised above, somebody waits for its end.
            self._commands.popleft().run()
        if self.units.all_flying:
            wait = answers and not admitted and not command
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
        self._begin(requests, admitted)
        if self._verified():
            self._settle_verified()
        self._call_back()
        self._look_after_devices()

    def _answers(self) -> bool:
        """Whether a device that is not out has something to answer."""
        if not self._out:
            return self.units.all_flying > 0
        return any(self.units.in_flight(s.device) for s in self._devices if s.service is not Service.OUT)

    def _collect(self) -> RequestArrays | None:
        """The next units of every device that has room: reads before writes. Lock held."""
        if self._arrived:
            self._look_at_arrived()
        return self.units.fill(self._clock())

    def _submit(self, requests: RequestArrays) -> None:
        self._stirred = self._clock()
        try:
            self.array.submit(requests)
        except (OSError, ValueError):
            # An array refuses requests as a whole, before it has started any.
            logger.exception("the device array refused requests")
            self.complete([Completion(request.tag, request.device, errno.EINVAL) for request in requests])

    def _admit(self) -> list[PageWrite]:
        """The next writes to begin, if not too many are under way; few per round where somebody reads: hashing delays
        reads. Lock held."""
        admitted: list[PageWrite] = []
        hashed, most = 0, HASHED_TOGETHER if self._reading else HASHED_ALONE
        while self._write_queue:
            if self._writes_active >= self._max_writes and self._units_active >= self._max_units:
                break
            hashed += self._write_queue[0].length
            if admitted and hashed > most:
                break
            admitted.append(self._write_begins(self._write_queue.popleft()))
        return admitted

    def _write_begins(self, write: PageWrite) -> PageWrite:
        self._writes_active += 1
        self._units_active += len(write.placement)
        return write

    @property
    def reading(self) -> int:
        """Reads that are not finished, and may be. Lock held."""
        return len(self._reading)

    @property
    def writing(self) -> tuple[int, int]:
        """Pages that are being written, and their units. Lock held."""
        return self._writes_active, self._units_active

    def _write_over(self, transfer: Transfer) -> None:
        """One that has begun has ended."""
        if transfer.writing:
            self._writes_active -= 1
            self._units_active -= len(transfer.placement)

    def _begin(self, requests: RequestArrays | None, admitted: Sequence[PageWrite]) -> None:
        """Submit units, and prepare the writes that were admitted."""
        with self._ending(admitted, begun=True):
            if requests:
                self._submit(requests)
            self._prepare(admitted)

    def _prepare(self, writes: Sequence[PageWrite]) -> None:
        """Compute the checksums of writes, then queue their units."""
        if not writes:
            return
        self.units.digest(writes)
        ready = []
        with self._wake:
            for write in writes:
                if write.expected not in (None, write.digest):
                    write.failure = DAMAGED
                if self._on_lost_device(write):
                    write.lose_device("device gone")
                if write.failed:
                    self._write_over(write)
                    self._end(write)
                else:
                    ready.append(write)
            if ready:
                self.units.queue(ready)

    def complete(self, completions: Sequence[Completion]) -> None:
        """Account for completions, verify what was read, end the transfers that have all their units."""
        if not completions:
            return
        now = self._stirred = self._clock()
        answered = CompletionArrays.of(completions)
        tags, errors = answered.tags, answered.errors
        control = tags >= CONTROL_TAG
        if control.any():
            # The slow paths gave up on these, or they were asked of devices that are out.
            for tag, error in zip(tags[control].tolist(), errors[control].tolist(), strict=True):
                self.patience.abandoned.pop(tag, None)
                self._heard_of(tag, error)
            tags, errors = tags[~control], errors[~control]
        done = self.units.complete(tags, errors, now)
        if done.late:
            with self.lock:
                self._allocator.unhold(tuple(done.late))
        ending = self.units.ended(done.ending)
        for at in done.faulty.tolist():
            ending += self._failed(int(tags[at]), int(errors[at]))
        if self._pool is not None and len(done.unverified) >= self._pool.WORTH:
            self._pool.verify(done.unverified)
        elif len(done.unverified):
            ending += self._judge(done.unverified, self._verify(done.unverified))
        self._end_all(ending)

    def _failed(self, row: int, error: int) -> list[Transfer]:
        """A unit has come back with an error; the transfer that has ended with it."""
        self.units.landed(row)
        transfer, index, device = self.units.unit(row)
        fault, is_full = self._devices[device].failed(self.units, transfer.writing, error)
        if transfer.finished:
            with self.lock:
                self._allocator.unhold((transfer.placement[index],))
        elif isinstance(transfer, PageWrite):
            failure = NOT_NOW if error in PASSING else f"device {device}: {write_failed(error)}"
            transfer.failure = transfer.failure or failure
        elif not transfer.failed:
            # What was not read for want of memory is still there.
            transfer.outcome = ReadOutcome.CANCELLED if error in PASSING else ReadOutcome.IO_ERROR
        self.units.fail(transfer)
        if fault:
            self.take_out(device, fault, for_good=error in GONE)
        elif is_full and self.shut(device, write_failed(error)):
            self._outbox.append(DeviceNews(device, write_failed(error), is_out=False))
        return self.units.back(np.array([row]))

    def _verify(self, units: np.ndarray) -> np.ndarray | None:
        """As `Units.verify`. Any thread."""
        return self.units.verify(units)

    def _verified(self) -> bool:
        return self._pool is not None and bool(self._pool.results)

    def _settle_verified(self) -> None:
        """Take over what the pool has verified."""
        assert self._pool is not None  # somebody verified
        ending: list[Transfer] = []
        while self._pool.results:
            ending += self._judge(*self._pool.results.popleft())
        self._end_all(ending)

    def _judge(self, units: np.ndarray, outcomes: np.ndarray | None) -> list[Transfer]:
        """These units were verified so; the transfers that have ended with them."""
        if outcomes is not None:
            for row, outcome in zip(units.tolist(), outcomes.tolist(), strict=True):
                transfer, index, device = self.units.unit(row)
                if outcome == RIGHT or transfer.failed or transfer.finished:
                    continue
                assert isinstance(transfer, PageRead), "only what was read is verified"
                self.units.count_corrupt(device)
                transfer.outcome = ReadOutcome.CHECKSUM
                if outcome == FOREIGN:
                    place = SlotPlace(self._set_id, self.units.number_of(device), transfer.placement[index][1])
                    transfer.outcome = explain(transfer.stored, transfer.namespace_id, place, self.units.header(row))
                self.units.fail(transfer)
        return self.units.back(units)

    def _end_all(self, ending: Sequence[Transfer]) -> None:
        if ending:
            with self._wake:
                for transfer in ending:
                    # Losing a device may have ended it already.
                    if not transfer.finished:
                        self._write_over(transfer)
                        self._end(transfer)

    def shut(self, device: int, reason: str) -> bool:
        """-> DRAINING: nothing new comes to this device, and what it has is served. Whether it was in service."""
        with self._wake:
            was_in = self._devices[device].shut(reason, self._clock())
            if was_in:
                self._allocator.shut(device)
            return was_in

    def _try_again(self, now: float) -> None:
        """Devices that had no room are written to again, when it is time for that."""
        with self._wake:
            tried = [state.device for state in self._devices if state.tries(now)]
            for device in tried:
                self.open_again(device)
        if tried:
            self.guarded(self._on_room)

    def _ask_again(self, now: float) -> None:
        """Devices that are out are asked for a block, when it is time for that; nobody waits for the answer."""
        for device in sorted(self._out):
            if not self.owes(device) and self._devices[device].asks(now):
                request = Request(
                    next_tag(), Operation.READ, device, SUPERBLOCK_OFFSETS[0], [aligned_buffer(BLOCK_BYTES)]
                )
                self._asked[request.tag] = device
                self.patience.abandoned[request.tag] = request
                try:
                    self.array.submit([request])
                except (OSError, ValueError):
                    logger.exception("the device array refused a request")
                    self.complete([Completion(request.tag, device, errno.EINVAL)])

    def _heard_of(self, tag: int, error: int) -> None:
        """A device that was asked has answered."""
        device = self._asked.pop(tag, None)
        if device is None:
            return
        if error in GONE:
            self.take_out(device, "no longer present", for_good=True)
        if error:
            self.has_answered(device)
        else:
            with suppress(RuntimeError):  # it is closed meanwhile
                self.post(lambda: self._on_answer(device))

    def has_answered(self, device: int) -> None:
        """What it was asked when it was out."""
        with self.lock:
            self._devices[device].has_answered(self._clock())

    def owes(self, device: int) -> bool:
        """Whether a device has yet to answer something: what it was asked to write it may write at any time until it
        does. On the I/O thread."""
        patience = self.patience
        patience.unsynced = [one for one in patience.unsynced if one.is_alive()]
        return (
            self.units.in_flight(device) > 0
            or any(request.device == device for request in patience.abandoned.values())
            or any(one.device == device for one in patience.unsynced)
        )

    def put_back(self, device: int) -> None:
        """-> IN. On the I/O thread, lock held."""
        self._out.discard(device)
        self.units.went_well(device)
        self.open_again(device)

    def open_again(self, device: int) -> None:
        """-> IN, of one that served what it had. Lock held."""
        self._devices[device].serve(self._clock())
        self._allocator.reopen(device)

    def take_out(self, device: int, reason: str, *, for_good: bool = False) -> None:
        """-> OUT: no new work for this device; what waits for it ends, and so do writes that are under way on it.
        `for_good`: it does not come back while the stripe set is open.

        Reads that are under way are waited for: the device may still write into the caller's buffer.
        """
        with self._wake:
            state = self._devices[device]
            was_out = state.service is Service.OUT
            state.lose(reason, self._clock(), for_good=for_good)
            if was_out:
                return
            self._out.add(device)
            self._allocator.shut(device)
            self._outbox.append(DeviceNews(device, reason, is_out=True))
            hit = self.units.forget_queues(device)
            under_way = self.units.pages_on(device)
            self._reading.difference_update(under_way)
            hit += [transfer for transfer in under_way if transfer.writing]
            for transfer in hit:
                if transfer.finished:
                    continue
                transfer.lose_device(f"device {device} went out of service: {reason}")
                self.units.fail(transfer)
                if transfer.writing or not self.units.flying(transfer):
                    self._write_over(transfer)
                    self._end(transfer)

    def give_up(self, reason: str) -> None:
        """On the I/O thread, when closing: end what has not ended, whether or not its units ever come back."""
        for state in self._devices:
            if self.units.in_flight(state.device):
                self.take_out(state.device, reason)
        with self._wake:
            self._given_up = True
            self._look_at_arrived()
            for write in self._write_queue:
                self._write_begins(write)  # it is taken for an active one below
            self._write_queue.clear()
            for write in self.coders.take_back():
                write.lose_device(reason)
                self._end(write)
            for transfer in self.units.all_pages:
                if isinstance(transfer, PageRead) and not self.units.started(transfer):
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
                assert isinstance(news, DeviceNews)
                tell = self._on_device_out if news.is_out else self._on_device_full
                self.guarded(tell, news.device, news.reason)
                continue
            self.guarded(self._answer, ended)
            with self._wake:
                self.pending -= len(ended)
                if not self.pending:
                    self._wake.notify_all()

    def _ended_together(self) -> list[Transfer]:
        """The next that have ended, with nothing else to tell between them."""
        ended: list[Transfer] = []
        while self._outbox and len(ended) < ANSWERS_TOGETHER and not isinstance(self._outbox[0], DeviceNews):
            news = self._outbox.popleft()
            assert not isinstance(news, DeviceNews)
            ended.append(news)
        return ended

    def _answer(self, ended: Sequence[Transfer]) -> None:
        with self.answers:
            for transfer in ended:
                if isinstance(transfer, PageRead):
                    self.outcomes[transfer.outcome] += 1
                self.guarded(transfer.finish)

    def guarded(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back somebody who may raise. On the I/O thread, without the lock."""
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
        self._try_again(now)
        self._ask_again(now)
        since = now - self.patience.seconds
        serving = [state.device for state in self._devices if state.service is not Service.OUT]
        late = {device: self._late_answers(device, since) for device in serving}
        before, self._late = self._late, {device: units for device, units in late.items() if units}
        # Answers need not arrive all at once: as long as some do that were late, more may.
        if not any(late.get(device, 0) < units for device, units in before.items()):
            for device in self._late.keys() & before.keys():
                self.take_out(device, self.patience.no_answer)
                del self._late[device]
        if self._late:
            self._next_check = now
            self.runner.sleep(LAST_CHANCE)
        else:
            self._lookout.ask(serving)

    def _late_answers(self, device: int, since: float) -> int:
        """What was asked before `since` and is not answered: of a device, and of the system about it."""
        units = self.units.late(device, since) if self.units.in_flight(device) else 0
        return units + self._lookout.silent(device, since)

    def _not_there(self, device: int) -> None:
        """A device has gone. On the thread that looks."""
        with suppress(RuntimeError):  # it is closed meanwhile
            self.post(lambda: self.take_out(device, "no longer present", for_good=True))
