"""The stripe set: pages striped over many devices, written and read by one I/O thread, recovered after any crash."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from ...base.errors import ConfigError, FormatError
from ...base.page import BLOCK_BYTES, HELD_TOGETHER, PageRecord
from ...base.runner import THREADS, Runner
from ..tier import ReadOutcome
from .arrays.devices import DeviceArray, NewDevice
from .blockio import STALL_SECONDS, check_buffer, sync_devices
from .checkpoint import build_checkpoints, write_checkpoint
from .device_state import DRAINED, DeviceStatus, Service
from .io_thread import IoThread
from .joining import join
from .layout import (
    DIGEST_BYTES,
    Geometry,
    Placement,
    StoredPage,
    Superblock,
    check_record,
    unit_count,
    unit_length,
)
from .members import Members, find_members, silent_devices
from .namespaces import NamespaceEntry
from .opening import Opened, create_set, is_new, not_opened, open_set, write_superblock
from .stored_pages import StoredPages, in_batches
from .table_writer import TableWriter
from .transfers import (
    PageRead,
    PageWrite,
    ReadDone,
    ReadRequest,
    WriteDone,
    WriteRequest,
)

logger = logging.getLogger(__name__)

#: Device, reason, and the stored pages that cannot be read any more.
DeviceOutCallback = Callable[[int, str], None]


#: Errors of a device that comes back after which nothing is to be expected of it any more.
_GONE_FOR_GOOD = {errno.ENODEV: "it is no longer present", errno.ESTALE: "what it holds is not what it was left with"}


class StripeSetStatus(NamedTuple):
    """A snapshot for operators."""

    set_id: bytes
    unit_bytes: int
    missing: int  # members of the set that are not in the array
    capacity_units: int  # of the devices in service
    free_units: int
    queued: int  # transfers accepted and not yet called back
    callback_errors: int
    outcomes: dict[ReadOutcome, int]  # reads called back, by outcome
    coded_pages: int  # that are written, or were, in fewer units than they have
    devices: tuple[DeviceStatus, ...]
    names: tuple[str, ...]  # of the devices


class DeviceSlots(NamedTuple):
    """The slots of one device."""

    service: Service
    states: bytes  # of each slot, as in `slots`


class UnitPlace(NamedTuple):
    """Where the payload of a stripe unit lies."""

    path: str  # of its device
    offset: int  # bytes
    length: int  # that are the page's; there are whole blocks of 4 KiB behind the offset


class StripeSet:
    """Thread-safe. Callbacks run on the thread "ssd-io": they must be short and must not wait for the stripe set.

    The array stays the caller's: it is used by "ssd-io" alone (which has helpers sync it) from `open` until `close`
    returns, then the caller closes it. After `on_device_out(device, reason)` no stored page that has a unit on that
    device can be read: the caller, who alone knows which these are, drops them and calls `release` for each, which
    frees their units on other devices; then `let_go`, from which on the device may come back.
    """

    def __init__(
        self,
        io: IoThread,
        members: Members,
        names: Sequence[str],
        on_device_out: DeviceOutCallback,
        progress: Callable[[int, int, int], None] | None,
    ) -> None:
        self._io = io
        self._lock = io.lock
        self._closing = io.runner.lock()
        self._closed = False
        self._members = members
        self._progress = progress
        self._names = [*names, *(f"device {device}" for device in range(len(names), len(members.probes)))]
        #: Called on "ssd-io" when a device goes out of service. May be replaced; pass it to `open` to miss nothing.
        self.on_device_out = on_device_out
        #: ... and when it has no room, or cannot be written, any more: nothing new goes there. May be replaced.
        self.on_device_full: DeviceOutCallback = lambda device, reason: None
        self.on_room: Callable[[], None] = lambda: None
        #: ... and when it is in service again after it was out. May be replaced.
        self.on_device_back: Callable[[int], None] = lambda device: None
        self.set_id = members.set_id
        self.unit_bytes = members.unit_bytes
        #: Whether it is known what the devices have. Nothing is read or written before.
        self.opened = False
        #: After `close` with pages: devices that served until then, and whose index is not written.
        self.not_indexed: set[int] = set()
        self._serve(not_opened(members))

    def _serve(self, opened: Opened) -> None:
        """On "ssd-io"."""
        with self._lock:
            self._devices = opened.devices
            self._allocator = opened.allocator
            self._table = opened.table
            self._table_writer = TableWriter(self._io, opened.table, opened.devices, opened.superblocks)
            self._next_generation = opened.next_generation
            self._device_count, self._forgotten = opened.device_count, opened.forgotten
            self._superblocks = opened.superblocks
            self._next_copy = opened.next_copy
            #: Members of the set that are looked for, and not in the array.
            self.missing = self._count_missing()
            #: Devices whose slot headers were read on opening, because they were not closed in order.
            self.scanned = opened.scanned
            #: The complete pages found on opening, each in its newest version; the caller owns their slots.
            self.recovered = opened.recovered
            self._io.attach(
                opened.devices,
                opened.allocator,
                opened.set_id,
                opened.unit_bytes,
                self._is_flushed,
                self._answers_again,
            )

    @classmethod
    def open(
        cls,
        array: DeviceArray,
        *,
        create: int | None = None,
        depth: int = 32,
        max_writes: int = 8,
        max_units: int = 0,
        verifiers: int = 0,
        coders: int = 1,
        codes: bool = False,
        stall_seconds: float = STALL_SECONDS,
        runner: Runner = THREADS,
        names: Sequence[str] = (),
        on_device_out: DeviceOutCallback = lambda device, reason: None,
        progress: Callable[[int, int, int], None] | None = None,
        behind: bool = False,
    ) -> StripeSet:
        """Open for reading and writing; blank devices join the set, missing and silent ones leave it degraded.

        `behind`: find out which devices there are, and no more: `finish` reads what they have, which may take minutes.
        Until then there is no room, and `register_namespace`, `flush_namespace`, `add` and transfers are refused.

        `create`: where no device was ever used, make them a new set with stripe units of so many bytes. `depth`:
        requests in flight per device. `max_writes`: pages being written at a time, or more as long as they have less
        than `max_units` stripe units. `verifiers`: threads that compute the checksums of what is read; 0 does it on
        "ssd-io". `codes`: pages are written coded where they take fewer units so, which `coders` threads do; what is
        read is decoded by them, whoever has written it. `stall_seconds`: a device that leaves a request unanswered so
        long goes out of service, and nothing that waits for devices waits for one of them longer; all by the runner's
        clock, so whoever moves one by hand must let it run while he closes. `names`: what people call the devices.
        `progress(device, done, slots)` is called, on "ssd-io", while slot headers are scanned. Raises FormatError where
        the devices cannot be one stripe set, or no member of one answers; ConfigError for sizes that cannot work.
        """
        if depth < 1 or max_writes < 1 or coders < 1 or verifiers < 0:
            raise ConfigError(
                f"depth ({depth}), max_writes ({max_writes}) and coders ({coders}) must be at least 1, verifiers not "
                "negative"
            )
        stripes: StripeSet
        io = IoThread(
            array,
            depth=depth,
            max_writes=max_writes,
            max_units=max_units,
            verifiers=verifiers,
            coders=coders,
            codes=codes,
            stall_seconds=stall_seconds,
            runner=runner,
            on_device_out=lambda device, reason: stripes.on_device_out(device, reason),
            on_device_full=lambda device, reason: stripes.on_device_full(device, reason),
            on_room=lambda: stripes.on_room(),
        )

        def start() -> None:
            nonlocal stripes
            if create is not None and is_new(array, io.patience):
                create_set(array, create, io.patience, runner.random.randbytes(16))
            stripes = cls(io, find_members(array, io.patience), names, on_device_out, progress)
            if not behind:
                stripes._finish()

        try:
            io.call(start)
        except BaseException:
            io.stop()
            raise
        return stripes

    def finish(self) -> None:
        """Read what the devices have, if that was left for later; waits for it. Raises RuntimeError where the set
        is closed meanwhile: the devices are as they were then. After another error all of them are out of service."""
        if not self.opened:
            self._io.call(self._finish)

    def _finish(self) -> None:
        """On "ssd-io"."""
        if self.opened:
            return
        try:
            opened = open_set(self._io.array, self._members, self._io.patience, self._progress, self._check_not_closed)
        except Exception as error:
            with self._lock:
                for state in self._devices:
                    if state.service is Service.OPENING and not self._closed:
                        state.service, state.reason = Service.OUT, f"what it has could not be read: {error}"
            raise
        self._serve(opened)
        self.opened = True

    def answer_within(self, answers: AbstractContextManager[object]) -> None:
        """Call what is told that transfers have ended within these; see `Tier.answers`. Before the first transfer."""
        self._io.answers = answers

    # Space.

    def units(self, length: int) -> int:
        """Stripe units of a page of `length` bytes."""
        return unit_count(length, self.unit_bytes)

    @property
    def capacity_units(self) -> int:
        """Units that the devices in service can hold; exact."""
        with self._lock:
            if not self.opened:
                return sum(state.slot_count for state in self._devices)
            return self._allocator.capacity_units

    @property
    def served_units(self) -> int:
        """Units of the devices that serve what they have: those in service, and those that get no new pages."""
        with self._lock:
            return sum(state.slot_count for state in self._devices if state.service is not Service.OUT)

    @property
    def free_units(self) -> int:
        """Units that can be reserved now; exact."""
        with self._lock:
            return self._allocator.free_units

    @property
    def partly_shut(self) -> bool:
        """Whether a device serves what it has, and takes nothing more."""
        with self._lock:
            return any(state.service is Service.DRAINING for state in self._devices)

    def makes_room(self, placement: Placement) -> bool:
        """Whether pages could be written where a page lies, once that is gone: on a device that takes any."""
        with self._lock:
            return self._allocator.makes_room(placement)

    def reserve(self, length: int) -> Placement | None:
        """Slots for a page of `length` bytes, round-robin over the devices in service (Swarm, Eq. 7).

        None where there is no room, or the stripe set is closed. The caller returns them with `release`, or hands
        them on with `write`.
        """
        if length <= 0:
            raise ValueError(f"a page has at least one byte, not {length}")
        with self._lock:
            return None if self._closed else self._allocator.take(self.units(length))

    def release(self, placement: Placement) -> None:
        """Return the slots of a reservation or of a stored page. They are used again once no transfer uses them.

        Nothing is written: after a crash the page may be found again, which harms nobody, as a key names content.
        Raises ValueError for slots that are not reserved.
        """
        with self._lock:
            self._allocator.give_back(placement)

    def forget_recovered(self) -> StoredPages:
        """`recovered`, which nobody else has from now on."""
        recovered, self.recovered = self.recovered, StoredPages.of(())
        return recovered

    # Transfers.

    def write(self, record: PageRecord, placement: Placement, data: np.ndarray, done: WriteDone) -> None:
        """Write one page; see `write_many`."""
        self.write_many([WriteRequest(record, placement, data, done)])

    def write_many(self, requests: Sequence[WriteRequest]) -> None:
        """Write pages, in order of acceptance but not of completion.

        `data`: uint8, address a multiple of 4096, at least `record.length` rounded up to 4096 bytes, unchanged until
        `done`. What lies between the page and the end of its last block goes to the device as it is. `done(stored,
        "")`: the page can be read. `done(None, reason)`: it is not stored and its slots are free again. When a device
        goes out of service, that is said while requests are still under way: `data` must outlive them (the array keeps
        it alive), and what they write of data that has changed is never taken for the page. A page that is written
        coded gives back the last of its slots, and `stored` has the others. The slots belong to the stripe set from
        here until `done`, which never runs on the caller's thread. Raises ValueError, and accepts nothing, for a
        request that cannot be meant; RuntimeError once the stripe set is closed.
        """
        for request in requests:
            check_record(request.record)
            check_buffer(request.data, request.record.length, "data")
            if len(request.placement) != self.units(request.record.length):
                raise ValueError(f"{len(request.placement)} slots for a page of {request.record.length} bytes")
        with self._lock:
            for request in requests:
                self._allocator.check_taken(request.placement)
                if self._table.get(request.record.namespace) is None:
                    raise ValueError(f"namespace {request.record.namespace.hex()} is not registered")
            self._check_open()
            transfers = []
            for request in requests:
                entry = self._table.get(request.record.namespace)
                assert entry is not None  # looked up above
                self._allocator.hold(request.placement)
                generation = self._next_generation
                units = len(request.placement)
                identity = self._io.identity(request.record, generation, bytes(DIGEST_BYTES), entry.identifier, units)
                transfers.append(PageWrite(request, generation, identity))
                self._next_generation += 1
            self._io.enqueue(transfers)

    def read(self, stored: StoredPage, into: np.ndarray, done: ReadDone) -> None:
        """Read one page; see `read_many`."""
        self.read_many([ReadRequest(stored, into, done)])

    def read_many(self, requests: Sequence[ReadRequest]) -> None:
        """Read pages; each `done(outcome)` is called once, and `into` is left alone from then on (but see `close`).

        A device that does not answer holds up `done` of the reads it works on until it answers, or until `close`.

        `into`: as `data` in `write_many`. Only with ReadOutcome.OK its first `length` bytes are the page, verified;
        the rest of its last block is undefined. `done` never runs on the caller's thread. Raises ValueError, and
        accepts nothing, for a request that cannot be meant; RuntimeError once the stripe set is closed.
        """
        for request in requests:
            check_buffer(request.into, request.stored.record.length, "into")
            if not 0 < len(request.stored.placement) <= self.units(request.stored.record.length):
                raise ValueError(f"a page of {request.stored.record.length} bytes in {request.stored.placement}")
        with self._lock:
            for request in requests:
                self._allocator.check_places(request.stored.placement)
            self._check_open()
            transfers = []
            for request in requests:
                record, generation, digest, placement = request.stored
                entry = self._table.get(record.namespace)
                number = 0 if entry is None else entry.identifier
                identity = self._io.identity(record, generation, digest, number, len(placement))
                transfer = PageRead(request, number, identity, self.unit_bytes)
                if entry is None or generation < entry.minimum_generation:
                    transfer.outcome = ReadOutcome.FLUSHED
                self._allocator.hold(transfer.placement)
                transfers.append(transfer)
            self._io.enqueue(transfers)

    def begin_reading_beside(self, stored: StoredPage) -> list[UnitPlace] | None:
        """Where the units of a page lie, for somebody who reads them by other means, and who alone can tell then
        whether they are the page: nothing else comes there until `end_reading_beside`, which must follow. None, and
        nothing to follow, where the page cannot be read so: a device is out, the page was flushed or is coded, or this
        is closed."""
        length = stored.record.length
        if len(stored.placement) < self.units(length):
            return None
        with self._lock:
            if self._closed or self._is_flushed(stored.record.namespace, stored.generation):
                return None
            self._allocator.check_places(stored.placement)
            places = []
            for number, (device, slot) in enumerate(stored.placement):
                state = self._devices[device]
                if state.service is Service.OUT or state.geometry is None:
                    return None
                places.append(
                    UnitPlace(
                        self._names[device],
                        state.geometry.slot_offset(slot) + BLOCK_BYTES,
                        unit_length(length, self.unit_bytes, number),
                    )
                )
            self._allocator.hold(stored.placement)
        return places

    def end_reading_beside(self, stored: StoredPage) -> None:
        """The read has ended."""
        with self._lock:
            self._allocator.unhold(stored.placement)

    def _check_open(self) -> None:
        # Said by an exception, not by calling back: callers hold locks here that their callbacks take.
        self._check_not_closed()
        if not self.opened:
            raise RuntimeError("what the devices have is being read")

    def _check_not_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the stripe set is closed")

    # Namespaces.

    @property
    def namespaces(self) -> tuple[NamespaceEntry, ...]:
        with self._lock:
            return self._table.entries

    def register_namespace(self, digest: bytes, description: str, done: Callable[[bool], None] | None = None) -> int:
        """Make a namespace known, durably, so that its pages may be written; returns its id on this stripe set.

        Waits for the devices if it is new, as `flush_namespace` does. With `done`, waits for nothing: `done(durable)`
        follows on "ssd-io", False where no device is left, and pages must not be written before. When the table is
        full, the oldest namespace that was not registered in this session, or was retired since, makes room. Raises
        ConfigError where there is none, RuntimeError once the stripe set is closed.
        """
        if done is None:
            self._io.check_outside()
        with self._lock:
            self._check_open()
            identifier, _ = self._table.register(digest, description, self._next_generation)
            change = self._table_writer.announce(done)
        self._io.post(self._table_writer.run)
        if done is None:
            change.wait()
        return identifier

    def retire_namespace(self, digest: bytes, *, comes_back: bool = True) -> None:
        """Say that a namespace registered in this session may make room for another; before all others where it never
        `comes_back`. Any thread; waits for nothing.

        It stays usable, and its pages recoverable, until a new one really takes its place: from then on its pages
        read as FLUSHED and are not recovered, also if it is registered again. Registering it before that takes this
        back. Unknown namespaces are left alone.
        """
        with self._lock:
            self._table.retire(digest, comes_back=comes_back)

    def flush_namespace(self, digest: bytes) -> bool:
        """Let nothing that was written of this namespace so far be read or recovered ever again.

        It is not read from the moment of the call. To be recovered by nobody this is written to the devices, and waited
        for: for all of them, or, if one takes longer than a second, for at least one, since the newest table on any of
        them counts on opening; where none answers, until all are out of service, `stall_seconds` each but all together.

        The caller still releases the slots of its pages. False where no device is left to write this down. A member
        that is missing meanwhile learns of it when it is opened together with one that was present. Raises
        RuntimeError once the stripe set is closed.
        """
        self._io.check_outside()
        with self._lock:
            self._check_open()
            if not self._table.flush(digest, self._next_generation):
                return True  # of a namespace that is not in the table nothing is recovered
            change = self._table_writer.announce()
        self._io.post(self._table_writer.run)
        return change.wait()

    def _is_flushed(self, digest: bytes, generation: int) -> bool:
        entry = self._table.get(digest)
        return entry is None or generation < entry.minimum_generation

    def _usable(self) -> list[int]:
        return [state.device for state in self._devices if state.service is not Service.OUT]

    # Devices.

    def add(self, device: NewDevice, name: str) -> int:
        """Let one more device, which must be blank, join the open set, durably; returns its number. Waits for devices.

        Raises ConfigError where it is too small and RuntimeError once the stripe set is closed, having taken nothing;
        FormatError where it cannot be written: the array keeps it until the end, out of service.
        """
        self._io.check_outside()
        geometry = Geometry.of(device.size, self.unit_bytes)
        return self._io.call(lambda: self._join(device, name, geometry))

    def _join(self, device: NewDevice, name: str, geometry: Geometry) -> int:
        with self._lock:
            self._check_open()
            table, generation = self._table.encode(), self._next_generation
        number, index = len(self._devices), self._device_count
        self._io.array.append(device)
        first = Superblock(self.set_id, 1, index, index + 1, geometry, generation, forgotten=self._forgotten)
        joined = join(
            self._io.array,
            number,
            first,
            table,
            self._usable(),
            self._superblocks,
            self._next_copy,
            self._io.take_out,
            self._io.patience,
        )
        with self._lock:
            self._device_count += joined.index_taken
            if joined.superblock is not None:
                self._superblocks[number], self._next_copy[number] = joined.superblock, 0
            self.missing = self._count_missing()
            self._names.append(name)
            self._allocator.add(joined.slots)
            self._io.add_device(joined.state)
        if joined.superblock is None:
            raise FormatError(f"{name}: {joined.state.reason}; check the device, or name another")
        return number

    def _count_missing(self) -> int:
        return self._device_count - len(self._forgotten) - len(self._superblocks)

    def drain(self, device: int) -> None:
        """Place no new pages on a device; those on it stay readable until the caller has moved or dropped them. One
        that is out does not come back until it is readmitted."""
        self._io.shut(device, DRAINED)

    def let_go(self, device: int) -> None:
        """Every page has been released that lay on this device when it went out of service."""
        with self._lock:
            self._devices[device].is_let_go = True

    def readmit(self, device: int) -> str:
        """Take back a `drain`, or take a device that is out of service, and answers, into it again, with nothing on it.
        Waits for it. Why that cannot be; empty if it serves. Raises RuntimeError once the stripe set is closed."""
        self._io.check_outside()

        def again() -> str:
            with self._lock:
                takes_nothing = self._devices[device].service is Service.DRAINING
                if takes_nothing:
                    self._io.open_again(device)
            if not takes_nothing:
                return self._come_back(device)
            self._io.guarded(self.on_room)
            return ""

        return self._io.call(again)

    def _answers_again(self, device: int) -> None:
        """On "ssd-io", of one that is out."""
        try:
            reason = self._come_back(device)
        finally:  # whatever is raised, as where no thread can be started
            self._io.has_answered(device)
        if reason:
            logger.info("swift-tiers: %s does not come back: %s", self.names[device], reason)

    def _come_back(self, device: int) -> str:
        """On "ssd-io", of one that is out; as `readmit`."""
        state, io = self._devices[device], self._io
        with self._lock:
            if self._closed or state.service is not Service.OUT:
                return "the stripe set is being closed" if self._closed else ""
            if state.kept_out:
                return state.kept_out
            superblock = self._superblocks[device]._replace(
                device_count=self._device_count, forgotten=self._forgotten, next_generation=self._next_generation
            )
        if io.owes(device):
            return "it has not answered what it was asked before"
        io.patience.given_up.discard(device)
        back = self._table_writer.come_back(device, superblock, self._next_copy[device])
        if isinstance(back, int):
            for_good = _GONE_FOR_GOOD.get(back, "")
            if for_good:
                io.take_out(device, for_good, for_good=True)
            return for_good or io.patience.reason(back)
        with self._lock:
            self._superblocks[device] = back
            self._next_copy[device] = 1 - self._next_copy[device]
            io.put_back(device)
        io.guarded(self.on_device_back, device)
        return ""

    @property
    def description(self) -> str:
        """How the devices are read and written, for people."""
        return self._io.array.description

    @property
    def names(self) -> tuple[str, ...]:
        """What people call the devices, by number."""
        with self._lock:
            return tuple(self._names)

    def status(self) -> StripeSetStatus:
        with self._lock:
            return StripeSetStatus(
                self.set_id,
                self.unit_bytes,
                self.missing,
                self._allocator.capacity_units,
                self._allocator.free_units,
                self._io.pending,
                self._io.callback_errors,
                dict(self._io.outcomes),
                self._io.coders.coded_pages,
                tuple(state.status(self._io.units) for state in self._devices),
                tuple(self._names),
            )

    @property
    def reading(self) -> int:
        """Pages that are to be read, or are being read."""
        return self._io.reading

    @property
    def writing(self) -> tuple[int, int]:
        """Pages that are being written, and their units; each count bounds what is begun. For checks."""
        with self._lock:
            return self._io.writing

    def slot_states(self) -> tuple[DeviceSlots, ...]:
        """What each slot is used for, by device; all of one moment."""
        with self._lock:
            return tuple(
                DeviceSlots(state.service, state.slots.states() if state.slots is not None else b"")
                for state in self._devices
            )

    # The end.

    def close(self, pages: Iterable[StoredPage | StoredPages] | None, timeout: float | None = None) -> None:
        """Finish what was accepted, write the index of `pages` to the devices, mark them clean, end the thread.

        None: write nothing, so that the next opening scans. Where it was not known yet what the devices have, they stay
        as they are. Idempotent; later calls wait for the first and do nothing. Devices that fail now, or are out, stay
        unclean. Does not close the array.

        Ends although devices do not answer: each is waited for `stall_seconds` at most, and all together, with
        `timeout`, about so many seconds (by the runner's clock). What has not ended then is given up: writes are
        called back as failed, reads, as the last thing, with DEVICE_GONE or CANCELLED, and after `timeout` no index is
        written. After DEVICE_GONE the system may still write into a read's buffer until the array is closed: buffers
        must outlive the array, whose own `close` may still wait for the kernel.
        """
        self._io.check_outside()
        with self._closing:
            if self._closed:
                return
            patience = self._io.patience
            with self._lock:
                self._closed = True
                patience.deadline = None if timeout is None else patience.clock() + timeout
                self._io.wait_idle(patience.deadline)
            try:
                if pages is not None:
                    self._io.call(lambda: self._checkpoint(in_batches(pages, HELD_TOGETHER)))
            finally:  # whatever goes wrong with the index: the devices stay unclean, and are scanned
                self._io.call(lambda: self._io.give_up("it did not answer before the stripe set was closed"))
                with self._lock:
                    self._io.wait_idle(None)
                self._io.stop()

    def _checkpoint(self, batches: Iterable[StoredPages]) -> None:
        """On "ssd-io": pages and records durable first, then the superblocks that vouch for them."""
        if not self.opened:
            return
        array, patience = self._io.array, self._io.patience
        self.not_indexed = set(self._usable())
        self._leave_out_silent()
        with self._lock:
            namespaces = {entry.digest: entry for entry in self._table.entries}
            slots = {device: self._devices[device].slot_count for device in self._usable()}

        def late() -> bool:
            return patience.deadline is not None and patience.clock() >= patience.deadline

        for device, checkpoint in (build_checkpoints(batches, namespaces, slots, late) or {}).items():
            if late():
                return
            error = write_checkpoint(array, device, checkpoint, patience)
            error = error or sync_devices(array, [device], patience)[device]
            if not error:
                superblock = self._superblocks[device]
                superblock = superblock._replace(
                    sequence=superblock.sequence + 1,
                    clean=True,
                    next_generation=self._next_generation,
                    checkpoint_bytes=checkpoint.nbytes,
                    checkpoint_digest=checkpoint.digest,
                )
                error = write_superblock(array, device, self._next_copy[device], superblock, patience)
            if not error:
                self.not_indexed.discard(device)
            else:
                self._io.take_out(device, f"its checkpoint cannot be written ({errno.errorcode.get(error, error)})")

    def _leave_out_silent(self) -> None:
        """On "ssd-io": before each is waited for on its own."""
        for device in silent_devices(self._io.array, self._usable(), self._io.patience):
            self._io.take_out(device, "it did not answer when the stripe set was closed")
