"""The donor's end of the arena socket: hands its memory out for reading, and stores what borrowers have staged.

The donor alone writes to its arena. A borrower that wants a page stored puts it into a small arena of its own and asks;
the thread "swift-arena" copies it, after asking whether the lease is still held. Whatever happens to the borrower,
stopped in the middle of anything, no byte of the donor's changes once the lease has ended here.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager

import numpy as np

from ...base.errors import ConfigError
from ...base.poller import BROKEN, READABLE
from ...base.private_directory import LEASE_DIRECTORY, open_private_directory
from ...base.runner import THREADS, Runner
from ..leases.messages import GarbledError, Party
from ..leases.runs import HeldRun
from .arena import ArenaError, AttachedArena, ExportedArena
from .arena_guest import Guest
from .arena_messages import (
    Attach,
    Attached,
    OfferAnswered,
    OtherVersionError,
    OutgoingOffer,
    Refused,
    Store,
    Stored,
    Stores,
    decode_borrowers,
    encode,
)
from .arena_socket import (
    arena_path,
    close_all,
    is_own_user,
    packet_socket,
    receive,
)
from .device_arena import DeviceArena
from .extents import CutRun
from .pace import MovePace

logger = logging.getLogger(__name__)

#: Connections at one time, attached or not.
MAX_GUESTS = 128
#: How long a connection may take to say who it is, seconds.
ATTACH_SECONDS = 5.0
#: How long the thread rests after an error of ours, seconds; and how long nobody new is let in where that failed.
FAULT_SECONDS, CLOSED_SECONDS = 0.1, 1.0
#: Packets taken from one connection, or pages stored for it, before the others get their turn; and bytes stored.
_BATCH, _BYTES_AT_ONCE = 16, 8 * 2**20


class ArenaServer:
    """Hands out one arena. Any thread may call its methods."""

    def __init__(
        self,
        address: str,
        party: Party,
        arena: ExportedArena,
        lent: Callable[[Party, int], HeldRun | None],
        *,
        bandwidth: float | None = None,
        interference: float | None = None,
        runner: Runner = THREADS,
    ) -> None:
        """Serve at the socket beside the lease address `address`, which a `LeaseService` of this process has taken.

        `party`: this life of the donor. `arena`: buffer 0 of the extents it lends; stays the caller's. `lent`:
        `LeaseService.lent_to`. `bandwidth`: bytes per second that each borrower may have stored here, and is told to
        keep to with all that it moves. `interference`: the part of a processor core's time that copies may cost while
        the donor computes, here and at all borrowers together; None: any. Raises ConfigError.
        """
        path = arena_path(address)
        self._party, self._arena, self._lent, self._clock = party, arena, lent, runner.monotonic
        self._runner = runner
        self._bandwidth = bandwidth
        self._interference = interference
        self._computes = False
        #: `attached` borrowers, pages `stored` or `refused`, and what was ignored: `strangers` (other users),
        #: `garbled`, `oversized`, of an `other version`; `full`: turned away; `faults`: errors of ours, logged.
        self.counters: Counter[str] = Counter()
        self._guests: dict[int, Guest] = {}  # by descriptor
        self._opens: float | None = None  # when the next may come in, where none may now
        self._told = ""  # the error that was counted last
        self._lock = runner.lock()  # of what is being copied
        self._rounds = runner.lock()  # held in each round, but for the wait in it
        self._copying: Set[int] = frozenset()
        self._copy_since = self._clock()
        self._stopping = False
        os.close(open_private_directory(path.parent, LEASE_DIRECTORY, create=True))
        self._listener = packet_socket()
        try:
            # Left behind by a former life: whoever holds the lease address' lock is the only one to listen here.
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            os.chmod(path, 0o600)
            self._listener.listen(MAX_GUESTS)
        except OSError as error:
            self._listener.close()
            raise ConfigError(f"{LEASE_DIRECTORY}: cannot listen at {path} ({error.strerror}); name another") from None
        self._poll = runner.poller()
        self._poll.register(self._listener.fileno(), READABLE)
        self._thread = runner.thread(self._run, "swift-arena")
        self._thread.start()

    def copying(self) -> Set[int]:
        """The runs that some pages are being copied to now, which takes milliseconds, or for ever where a device hangs.

        Whoever has been told that a run is `Reclaimed`, and then does not find it here, has its bytes to itself. Not to
        be called under the lease service's lock.
        """
        with self._lock:
            return self._copying

    @property
    def copying_seconds(self) -> float:
        """For how long what is being copied has been; 0.0 if nothing is."""
        with self._lock:
            return self._clock() - self._copy_since if self._copying else 0.0

    def still(self) -> AbstractContextManager[object]:
        """Within this nothing is copied, nor mapped for anybody. Waits for what is being copied now."""
        return self._rounds

    def computing(self, computes: bool) -> None:
        """Whether the donor has requests to compute, for which the interference is bounded. Costs nothing unless that
        has changed."""
        if computes != self._computes:
            self._computes = computes
            if self._interference is not None:
                self._poll.wake()

    @property
    def guests(self) -> list[Party]:
        """Who is attached."""
        return [guest.party for guest in list(self._guests.values()) if guest.party is not None]

    def close(self) -> None:
        """End all connections and the thread. Idempotent. The socket's path goes with the lease address."""
        if self._stopping:
            return
        self._stopping = True
        self._poll.wake()
        self._thread.join()
        self._poll.close()

    # The thread

    def _run(self) -> None:
        seconds = 0.0
        while not self._stopping:
            try:
                seconds = self._round(seconds)
            except Exception as error:
                if self._counts(error):
                    logger.exception("swift-tiers: arena socket: a round failed")
                self._runner.sleep(FAULT_SECONDS)
        for guest in list(self._guests.values()):
            self._drop(guest)
        self._listener.close()

    def _round(self, seconds: float) -> float:
        """Wait so long at most for something to do, and do a little of it; how long to wait next."""
        ready = self._poll.poll(seconds)
        with self._rounds:
            return self._do_a_little(ready)

    def _do_a_little(self, ready: dict[int, int]) -> float:
        knocks = ready.pop(self._listener.fileno(), 0)
        if self._opens is not None and self._clock() >= self._opens:
            self._opens = None
            self._poll.register(self._listener.fileno(), READABLE)
        for descriptor, events in ready.items():
            guest = self._guests.get(descriptor)
            if guest is not None:
                self._guarded(guest, lambda guest=guest, events=events: self._hear(guest, events))  # type: ignore[misc]
        if knocks:
            self._accept()  # last: a new connection may get the descriptor of one that has just been closed
        now = self._clock()
        waits = [FAULT_SECONDS * 10]
        share = self._share()
        for guest in list(self._guests.values()):
            if guest.party is None and guest.since + ATTACH_SECONDS <= now:
                self._drop(guest)
                continue
            if guest.party is not None:
                guest.allow(share)
            self._guarded(guest, lambda guest=guest: self._serve(guest))  # type: ignore[misc]
            if guest.has_work:
                waits.append(guest.pace.wait(now))
        return min(waits)

    def _share(self) -> float | None:
        """Of the time, that each borrower may spend now; as much again is spent here on what each wants stored."""
        if self._interference is None or not self._computes:
            return None
        return self._interference / (2 * max(1, len(self.guests)))

    def _guarded(self, guest: Guest, step: Callable[[], None]) -> None:
        """What goes wrong with one connection ends that one alone."""
        try:
            step()
        except OSError:
            self._drop(guest)
        except Exception as error:
            if self._counts(error):
                logger.exception("swift-tiers: arena socket: a connection failed")
            self._drop(guest)

    def _counts(self, error: Exception) -> bool:
        """Count an error of ours; whether it is to be logged, and not the last one come again."""
        self.counters["faults"] += 1
        told, self._told = self._told, repr(error)
        return told != self._told

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # No descriptor is left, perhaps. Who knocks would wake us all the time; those who are in are served.
            if self._counts(error):
                logger.exception("swift-tiers: arena socket: nobody new can come in")
            self._poll.unregister(self._listener.fileno())
            self._opens = self._clock() + CLOSED_SECONDS
            return
        connection.setblocking(False)
        own = is_own_user(connection)
        if not own or len(self._guests) >= MAX_GUESTS:
            self.counters["full" if own else "strangers"] += 1
            connection.close()
            return
        guest = Guest(connection, self._clock())
        self._guests[connection.fileno()] = guest
        self._poll.register(guest.descriptor, READABLE)

    def _drop(self, guest: Guest) -> None:
        """The end of a connection. What it asked for and has not got will not be done."""
        if self._guests.get(guest.descriptor) is guest:
            del self._guests[guest.descriptor]
            self._poll.unregister(guest.descriptor)
        guest.close()

    def _hear(self, guest: Guest, events: int) -> None:
        if not events & READABLE:
            if events & BROKEN:
                self._drop(guest)
            return
        for _ in range(_BATCH):
            if not guest.may_ask or guest.closed:
                return
            try:
                packet = receive(guest.connection)
            except BlockingIOError:
                return
            if packet.ended:
                self._drop(guest)
            elif not packet.whole:
                close_all(packet.descriptors)
                self.counters["oversized"] += 1
            else:
                self._understand(guest, packet.data, packet.descriptors)

    def _understand(self, guest: Guest, data: bytes, descriptors: tuple[int, ...]) -> None:
        try:
            message = decode_borrowers(data)
            carries = isinstance(message, Attach | OutgoingOffer)
            if carries != bool(descriptors) or isinstance(message, Attach) != (guest.party is None):
                raise GarbledError("not the time for that")
        except OtherVersionError as error:
            close_all(descriptors)
            self.counters["other version"] += 1
            self._refuse(guest, str(error))
        except GarbledError:
            close_all(descriptors)
            self.counters["garbled"] += 1
        else:
            if isinstance(message, Attach):
                self._attach(guest, message, descriptors[0])
            elif isinstance(message, OutgoingOffer):
                guest.say(encode(OfferAnswered(self._map(guest, message, descriptors[0])[:1024])))
            elif isinstance(message, Stores):
                guest.stores.extend(message.stores)

    def _attach(self, guest: Guest, attach: Attach, descriptor: int) -> None:
        try:
            staging = AttachedArena(descriptor, attach.staging_bytes)
        except ArenaError as error:
            self.counters["garbled"] += 1
            self._refuse(guest, str(error))
            return
        for former in [other for other in self._guests.values() if other.party == attach.party]:
            # What it has not had stored must not overwrite what it asks for from now on.
            self._drop(former)
        guest.begin(attach.party, attach.page_bytes, staging, MovePace(self._bandwidth), self._arena)
        self.counters["attached"] += 1
        arena = self._arena
        attached = Attached(self._party, arena.size, arena.kind, arena.device, self._bandwidth)
        guest.say(encode(attached), arena.fd)

    def _map(self, guest: Guest, offer: OutgoingOffer, descriptor: int) -> str:
        """Have what a borrower offers for copies from it; why not, or empty."""
        if not isinstance(self._arena, DeviceArena) or guest.outgoing is not None:
            close_all((descriptor,))
            return "nothing of that kind is asked for"
        try:
            guest.outgoing = self._arena.attach(descriptor, offer.size, self._runner)
        except ArenaError as error:
            return str(error) or "it cannot be mapped"
        self.counters["offers"] += 1
        return ""

    def _refuse(self, guest: Guest, reason: str) -> None:
        guest.say(encode(Refused(reason)))
        self._drop(guest)

    def _serve(self, guest: Guest) -> None:
        """A few stores, as long as it is their time, and the answers that wait."""
        moved = 0
        for _ in range(_BATCH):
            if not guest.has_work or moved >= _BYTES_AT_ONCE or guest.pace.wait(self._clock()):
                break
            # At a rate, page by page.
            most = 1 if self._bandwidth is not None else max(1, _BYTES_AT_ONCE // guest.page_bytes)
            stores, began = guest.next_stores(min(most, _BATCH)), self._runner.thread_time()
            stored = self._store(guest, stores)
            guest.answers.extend(Stored(store.number, store in stored) for store in stores)
            now, nbytes = self._clock(), len(stores) * guest.page_bytes
            moved += nbytes
            guest.pace.take(nbytes, now)
            guest.pace.spent(self._runner.thread_time() - began, now, len(stores))
        guest.flush()
        self._poll.register(guest.descriptor, guest.interest)

    def _store(self, guest: Guest, stores: Sequence[Store]) -> list[Store]:
        """Copy pages, in one go, if their leases are held; which were."""
        assert guest.party is not None
        with self._lock:
            # Asked here so that whoever sees the lease's end, and then that nothing is copied there, knows it is over.
            held = {lease: self._lent(guest.party, lease) for lease in {store.lease for store in stores}}
            runs = [(store, run) for store in stores if (run := self._cut(guest, store, held[store.lease])) is not None]
            self.counters["refused"] += len(stores) - len(runs)
            if not runs:
                return []
            self._copying = frozenset(run.number for run in held.values() if run is not None)
            self._copy_since = self._clock()
        try:
            self._copy(guest, runs)
        except ArenaError as error:
            if not runs[0][0].outgoing:
                raise
            self._pull_no_more(guest, str(error))
            return []
        finally:
            with self._lock:
                self._copying = frozenset()
        self.counters["stored"] += len(runs)
        return [store for store, _ in runs]

    def _pull_no_more(self, guest: Guest, reason: str) -> None:
        """Its outgoing memory is mapped and cannot be copied from: what it has stored goes through host memory again.
        Ending the connection would end its leases, and the next one would go wrong in the same way."""
        self.counters["faults"] += 1
        logger.warning(
            "swift-tiers: pages cannot be copied from a borrower's device, and come through host: %s", reason
        )
        assert guest.outgoing is not None
        guest.outgoing.close()
        guest.outgoing = None
        guest.say(encode(OfferAnswered(reason[:1024] or "it cannot be copied from")))

    def _cut(self, guest: Guest, store: Store, held: HeldRun | None) -> CutRun | None:
        """Where a page is to be copied; None where it may not be."""
        source = guest.outgoing if store.outgoing else guest.staging
        run = None if held is None else guest.cut(store.lease, held.extents)
        if run is None or store.slot >= run.slots or source is None or store.at > source.size - guest.page_bytes:
            return None
        return run

    def _copy(self, guest: Guest, runs: Sequence[tuple[Store, CutRun]]) -> None:
        """Pages of its outgoing memory, or one of its staging memory."""
        first, run = runs[0]
        if not first.outgoing:
            assert guest.staging is not None
            page = guest.staging.array[first.at : first.at + guest.page_bytes]
            self._arena.write(page, run.pieces_of(first.slot)[:, [1, 0, 2]])
            return
        assert guest.outgoing is not None
        assert isinstance(self._arena, DeviceArena)
        pieces = [run.pieces_of(store.slot, store.at)[:, [1, 0, 2]] for store, run in runs]
        self._arena.pull(guest.outgoing, np.concatenate(pieces))
