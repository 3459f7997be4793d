"""The thread "swift-peer": follows leases and donors, and has pages copied in the order in which they matter."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ...base.errors import ConfigError
from ...base.events import EventLog
from ...base.repeats import FaultLogger
from ...base.runner import Runner
from ...base.units import format_size
from ...lending.donation.arena_socket import arena_path
from ...lending.donation.device_memory import DeviceMemory
from ...lending.donation.extents import CutRun
from ...lending.leases import Borrower, LeaseKey, LeaseService, Timing, Wire
from ...lending.leases.effects import (
    BorrowerEffect,
    DonorJoined,
    DonorRefused,
    LeaseBegan,
    LeaseEnded,
    LeaseRecalled,
)
from ..host.landing import Landing
from ..tier import TierListener
from .copier import Copier
from .jobs import CLOSING, FAILED, LEASE_ENDED, Job, Land, PeerWrite
from .neighbour import LENDS_NO_MORE, MISTRUST_SECONDS, UNSUITED_SECONDS, Neighbour
from .outgoing import OutgoingMemory
from .places import PlaceBook
from .staging import Staging

logger = logging.getLogger(__name__)

#: Donors that one server borrows from at most; others are left out.
MAX_NEIGHBOURS = 64
#: Reads and writes that are under way or queued at most.
MAX_JOBS = 16384
#: What is copied in one go, pages and bytes of host memory: enough for what a batch costs to be little beside it, and
#: over well within a recall's bound.
PAGES_AT_ONCE, BYTES_AT_ONCE = 32, 8 * 2**20
#: The longest that the thread waits, seconds.
IDLE_SECONDS = 1.0
#: How long the thread rests after an error of ours, seconds.
FAULT_SECONDS = 0.1

_NO_MORE = object()
_Said = TypeVar("_Said")


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A lease that is recalled, and of which not all that is to be saved has been asked for."""

    steps: Iterator[None]
    landings: Sequence[Land]  # what waited to land from there


class PeerWorker:
    """Any thread may call the methods above the line; nothing there waits."""

    def __init__(
        self,
        name: str,
        page_bytes: int,
        book: PlaceBook,
        *,
        most_bytes: float,
        fingerprint: Callable[[np.ndarray], bytes],
        runner: Runner,
        wire: Wire[Any] | None,
        timing: Timing,
        landing: Landing | None = None,
        device: DeviceMemory | None = None,
        outgoing: OutgoingMemory | None = None,
        events: EventLog | None = None,
    ) -> None:
        """`most_bytes`: what is borrowed at most, of all donors together. `wire` is closed with this. `events`: where
        it is told why a neighbour lends nothing."""
        self._events = events
        self._name = name
        self._page_bytes = page_bytes
        self._pages_at_once = max(1, min(PAGES_AT_ONCE, BYTES_AT_ONCE // page_bytes))
        self._book = book
        self._most_bytes = most_bytes
        self._runner = runner
        self._fault_logger = FaultLogger(logger)
        self._clock = runner.boot_time
        self._device = device
        self._outgoing = outgoing
        self._lock = runner.lock()  # of what other threads put here
        #: Held by its thread in each round, but for the wait in it: nothing is copied while another one has it.
        self.rounds = runner.lock()
        self._inbox: deque[Job] = deque()
        self._named: Mapping[str, str] | None = None
        self._closing = False
        self.wanted_bytes = 0
        self.asked_bytes = 0  # what the lease service was told
        self._ceiling = math.inf  # where a whole run more would be too much, until a lease ends
        self._effects: deque[BorrowerEffect] = deque()
        self._leaving: dict[LeaseKey, _Leaving] = {}  # recalled leases, the first one first
        self.listener: TierListener | None = None
        self.neighbours: dict[str, Neighbour] = {}
        self._turn = 0
        self.staging = Staging(page_bytes)
        borrower = Borrower(name, page_bytes, runner.random, timing=timing)
        self._party = borrower.party
        self.service = LeaseService(borrower=borrower, on_borrower=self._on_effect, runner=runner, wire=wire)
        self.copier = Copier(
            self.service, book, self.staging, page_bytes, fingerprint, runner.boot_time, landing, outgoing
        )
        self._poll = runner.poller()
        self._thread = runner.thread(self._run, "swift-peer")
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Have pages copied. Raises RuntimeError once it is closed, or where too many wait, and takes none then."""
        with self._lock:
            if self._closing:
                raise RuntimeError("the peer tier is closed")
            if len(self._inbox) + sum(one.queued for one in list(self.neighbours.values())) >= MAX_JOBS:
                raise RuntimeError(f"{MAX_JOBS} reads and writes of lent memory wait already")
            self._inbox.extend(jobs)
        self._poll.wake()

    def reaches(self, donor: str) -> bool:
        """Whether pages can be copied from this donor's device to this server's: a hint, which may change at once."""
        neighbour = self.neighbours.get(donor)
        return neighbour is not None and neighbour.on_device

    def meet(self, named: Mapping[str, str]) -> None:
        """Who lends now: lease name -> lease address."""
        with self._lock:
            self._named = dict(named)
        self._poll.wake()

    def want(self, wanted_bytes: int) -> None:
        """How much to hold."""
        with self._lock:
            self.wanted_bytes = wanted_bytes
        self._poll.wake()

    def close(self) -> None:
        """Answer everything, return everything, end. Waits for the donors, a few recall bounds at most. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._poll.wake()
        self._thread.join()
        self.service.close()
        self._poll.close()
        self.staging.close()
        if self._outgoing is not None:
            self._outgoing.close()

    def _on_effect(self, effect: BorrowerEffect) -> None:
        """Under the lease service's lock."""
        self._effects.append(effect)
        self._poll.wake()

    # ---- the thread ----

    def _run(self) -> None:
        seconds = 0.0
        while not self._closing:
            try:
                seconds = self._round(seconds)
            except Exception:
                self.copier.faults += 1
                self._fault_logger.exception("swift-tiers: lent memory: a round failed")
                self._runner.sleep(FAULT_SECONDS)
        for neighbour in list(self.neighbours.values()):
            self.copier.abandon(neighbour, CLOSING)
            self.copier.refuse(neighbour.take(), CLOSING)
            neighbour.end()
        landings = [job for leaving in self._leaving.values() for job in leaving.landings]
        self.copier.refuse([*landings, *self._inbox], CLOSING)

    def _round(self, seconds: float) -> float:
        """Wait so long at most for something to do, and do it; how long to wait next."""
        ready = self._poll.poll(seconds)
        with self.rounds:
            return self._do_what_there_is(ready)

    def _do_what_there_is(self, ready: Container[int]) -> float:
        for neighbour in list(self.neighbours.values()):
            if neighbour.client is not None and neighbour.client.descriptor in ready:
                self._hear(neighbour)
        self._take_effects()
        self._take_names()
        for neighbour in list(self.neighbours.values()):
            self._tend(neighbour, self._clock())
        self._take_effects()  # what ended with a connection
        if self._outgoing is not None:
            self._outgoing.wanted = any(one.pulls for one in self.neighbours.values())
        self._adjust()
        self._take_jobs()
        self._list_leaving()
        if self._work(self._clock()):
            return 0.0
        now = self._clock()
        waits = [one.wake - now for one in self.neighbours.values()]
        waits += [
            one.pace.wait(now) or IDLE_SECONDS
            for one in self.neighbours.values()
            if one.reads or one.landings or one.writes
        ]
        return min([IDLE_SECONDS, *(max(0.0, wait) for wait in waits)])

    # Pages

    def _take_jobs(self) -> None:
        refused = []
        while self._inbox:
            job = self._inbox.popleft()
            neighbour = self.neighbours.get(job.place.key.donor)
            if neighbour is None or not job.covered or self._book.run(job.place.key) is None:
                refused.append(job)
            else:
                neighbour.put(job, recalled=job.place.key in self._leaving)
        self.copier.refuse(refused)

    def _work(self, now: float) -> bool:
        """A few pages of those that matter most: to be saved, then to be read, then to be stored; donors take turns.

        Pages that are saved do not keep to the pace: their donor wants its memory back.
        """
        began = self._runner.thread_time()
        worked = self._work_for(now)
        if worked is not None:
            neighbour, pages = worked
            # Of this thread's own time: that it was kept waiting costs the donor nothing.
            neighbour.pace.spent(self._runner.thread_time() - began, self._clock(), pages)
        return worked is not None

    def _work_for(self, now: float) -> tuple[Neighbour, int] | None:
        """Whose pages they were, and how many; None if there was nothing to do, or it is nobody's time."""
        donors = [one for one in self._in_turn() if one.attached]
        for one in donors:
            if one.demotes:
                demotes = one.demotes.first(self._pages_at_once)
                self.copier.read(one, demotes)
                return one, len(demotes)
        donors = [one for one in donors if not one.pace.wait(now)]
        for one in donors:
            # At a rate, page by page.
            if one.landings:
                landings = one.landings.first(PAGES_AT_ONCE if one.pace.bytes_per_second is None else 1)
                self.copier.land(one, landings)
                return one, len(landings)
            if one.reads:
                reads = one.reads.first(self._pages_at_once if one.pace.bytes_per_second is None else 1)
                self.copier.read(one, reads)
                return one, len(reads)
        for one in donors:
            room = self.copier.room_to_store(one, alone=len(self.neighbours) == 1)
            if one.writes and room:
                most = min(room, self._pages_at_once) if one.pace.bytes_per_second is None else 1
                writes = one.writes.first(most)
                try:
                    self.copier.store(one, writes)
                except Exception:
                    # Of what was asked for nobody knows what was sent: no answer would be waited for otherwise.
                    self._part(one, FAILED)
                    raise
                self._poll_for(one)
                return one, len(writes)
        return None

    def _in_turn(self) -> Iterator[Neighbour]:
        found = list(self.neighbours.values())
        self._turn = (self._turn + 1) % max(1, len(found))
        yield from found[self._turn :]
        yield from found[: self._turn]

    # Leases

    def _take_effects(self) -> None:
        more_room = False
        while self._effects:
            effect = self._effects.popleft()
            match effect:
                case LeaseBegan():
                    more_room |= self._began(effect)
                case LeaseRecalled():
                    self._recalled(effect)
                case LeaseEnded():
                    self._ended(effect.key)
                case DonorJoined():
                    self._joined(effect)
                case DonorRefused() if effect.donor in self.neighbours:
                    self.neighbours[effect.donor].reason = f"refuses: {effect.reason}"
        if more_room:
            self._tell(lambda listener: listener.room())

    def _joined(self, joined: DonorJoined) -> None:
        neighbour = self.neighbours.get(joined.donor)
        party = neighbour.client.party if neighbour is not None and neighbour.client is not None else None
        if neighbour is not None and party is not None and party.epoch != joined.epoch:
            # A process that inherited the former life's connection may keep it open.
            self._detach(neighbour, "has begun a new life")

    def _began(self, began: LeaseBegan) -> bool:
        """Whether there is more room now."""
        key = began.key
        neighbour = self.neighbours.get(key.donor)
        if neighbour is None or neighbour.client is None or not neighbour.lends(key):
            self.service.release(key)  # of another life than the one whose memory is mapped
            return False
        try:
            run = CutRun(began.extents, self._page_bytes)
        except ValueError as error:
            self._part(neighbour, f"lends what is no memory ({error})", MISTRUST_SECONDS)
            return False
        if not neighbour.client.has(run):
            self._part(neighbour, "lends memory that it has not handed out", MISTRUST_SECONDS)
            return False
        held, nbytes = self._book.occupancy().slots * self._page_bytes, run.slots * self._page_bytes
        if held + nbytes > self._most_bytes:
            if nbytes > self._most_bytes and not self._book.has_leases(key.donor):
                limit = format_size(int(self._most_bytes))
                reason = f"lends {format_size(nbytes)} at a time, and peer.borrow_limit is {limit}"
                self._part(neighbour, reason, UNSUITED_SECONDS)
            else:
                self._ceiling = held
                self._adjust()  # before it is returned, or another one would be asked for in its place
                self.service.release(key)
            return False
        neighbour.reason = ""
        neighbour.told.clear()
        self._book.open(key, run)
        return True

    def _recalled(self, recalled: LeaseRecalled) -> None:
        self._book.close(recalled.key)
        neighbour = self.neighbours.get(recalled.key.donor)
        waiting = neighbour.recall(recalled.key) if neighbour is not None else []
        self.copier.refuse([job for job in waiting if isinstance(job, PeerWrite)])
        steps = self._tell(lambda listener: listener.leaving(recalled.key, recalled.until))
        landings = [job for job in waiting if isinstance(job, Land)]
        self._leaving[recalled.key] = _Leaving(steps or iter(()), landings)

    def _list_leaving(self) -> None:
        """Have it found out what is to be saved next, when all that was found out before has been copied.

        Leases are recalled many at once, and each page that is found takes about as long as its copy: were all looked
        for first, the time to save them would be over."""
        while self._leaving and not any(one.attached and one.demotes for one in self.neighbours.values()):
            key, leaving = next(iter(self._leaving.items()))
            if not self._tell(lambda _, steps=leaving.steps: next(steps, _NO_MORE) is not _NO_MORE):  # type: ignore[misc]
                self._left(self._leaving.pop(key))
            self._take_jobs()

    def _left(self, leaving: _Leaving) -> None:
        """All of a lease that is to be saved has been asked for."""
        # What was to land comes up to host memory by now.
        self.copier.refuse(leaving.landings)

    def _ended(self, key: LeaseKey) -> None:
        if not self._book.forget(key):
            return
        self._ceiling = math.inf
        neighbour = self.neighbours.get(key.donor)
        if neighbour is not None:
            self.copier.abandon(neighbour, LEASE_ENDED, key)
        self._take_jobs()
        self._drop_jobs(key)
        self._tell(lambda listener: listener.gone(key, LEASE_ENDED))
        leaving = self._leaving.pop(key, None)
        if leaving is not None:
            self._tell(lambda _: deque(leaving.steps, 0))  # there is nothing left to save
            self._left(leaving)

    def _drop_jobs(self, key: LeaseKey) -> None:
        """Answer what waits for places of a lease that allows it no more."""
        neighbour = self.neighbours.get(key.donor)
        if neighbour is not None:
            self.copier.refuse(neighbour.take(key))

    def _adjust(self) -> None:
        """Say how much is wanted, and return idle leases that are beyond it."""
        wanted = int(min(self.wanted_bytes, self._most_bytes, self._ceiling))
        if wanted == self.asked_bytes:
            return
        self.asked_bytes = wanted
        # First, so that nothing is asked for in place of what is returned here.
        self.service.want(wanted)
        beyond = self._book.occupancy().slots - wanted // self._page_bytes
        for key in self._book.close_idle(beyond):
            self.service.release(key)

    def _tell(self, what: Callable[[TierListener], _Said]) -> _Said | None:
        """What the listener says; None where there is none, or it raises."""
        if self.listener is None:
            return None
        try:
            return what(self.listener)
        except Exception:
            self.copier.faults += 1
            logger.exception("swift-tiers: whoever is told of leases raised")
            return None

    # Donors

    def _take_names(self) -> None:
        with self._lock:
            named, self._named = self._named, None
        if named is None:
            return
        for name, neighbour in list(self.neighbours.items()):
            if name not in named:
                neighbour.named = False
            elif named[name] != neighbour.address:
                self._forget(neighbour, "has moved")
        for name, address in named.items():
            if name in self.neighbours:
                self.neighbours[name].named = True
            elif name != self._name and len(self.neighbours) < MAX_NEIGHBOURS:
                self._meet(name, address)

    def _meet(self, name: str, address: str) -> None:
        try:
            path = arena_path(address)
        except ConfigError as error:
            logger.warning("swift-tiers: %s lends nothing here: %s", name, error)
            return
        self.neighbours[name] = Neighbour(name, address, path)
        self.copier.meet(name)

    def _hear(self, neighbour: Neighbour) -> None:
        """Something has come from a donor."""
        client = neighbour.client
        assert client is not None
        was_attached = neighbour.attached
        self.copier.stored(neighbour, client.handle())
        if client.ended:
            self._part(neighbour, client.ended)
            return
        if neighbour.attached and not was_attached:
            neighbour.begin()
        neighbour.pace.share = client.share
        self._poll_for(neighbour)

    def _tend(self, neighbour: Neighbour, now: float) -> None:
        """What is due with a donor."""
        if not neighbour.named and not self._book.has_leases(neighbour.name):
            self._forget(neighbour, LENDS_NO_MORE)
        elif now >= neighbour.answer_by:
            self._part(neighbour, "does not answer")
        elif now >= neighbour.next_at:
            if neighbour.client is None:
                outgoing = self._outgoing.arena if self._outgoing is not None else None
                if neighbour.call(
                    self._party, self._page_bytes, self.staging.arena, now, self._device, self._runner, outgoing
                ):
                    self._poll_for(neighbour)
            elif neighbour.attached and not neighbour.joined:
                self._join(neighbour, now)
        if neighbour.reason and neighbour.reason not in neighbour.told and self._events is not None:
            neighbour.told.add(neighbour.reason)
            self._events.emit("donor.away", donor=neighbour.name, reason=neighbour.reason)

    def _join(self, neighbour: Neighbour, now: float) -> None:
        """Ask a donor for leases, now that they could be used."""
        try:
            self.service.connect(neighbour.name, neighbour.address)
        except ValueError:
            neighbour.rest("leases of before are being returned", now)
        except ConfigError as error:
            self._part(neighbour, str(error), MISTRUST_SECONDS)
        else:
            neighbour.joined = True

    def _part(self, neighbour: Neighbour, reason: str, seconds: float = 0.0) -> None:
        """The connection to a donor's memory has ended, or is to end: all its leases end at once, and are returned."""
        self._detach(neighbour, reason, seconds)
        if neighbour.joined:
            neighbour.joined = False
            self.service.disconnect(neighbour.name)

    def _detach(self, neighbour: Neighbour, reason: str, seconds: float = 0.0) -> None:
        """Give up a donor's memory, and try to get it anew, not before so many seconds."""
        if neighbour.client is not None:
            self._poll.unregister(neighbour.client.descriptor)
            self.copier.abandon(neighbour, LEASE_ENDED)
        neighbour.end()
        neighbour.rest(reason, self._clock(), seconds)

    def _forget(self, neighbour: Neighbour, reason: str) -> None:
        self._part(neighbour, reason)
        self._take_effects()
        self.copier.refuse(neighbour.take())
        del self.neighbours[neighbour.name]
        self.copier.part(neighbour.name)

    def _poll_for(self, neighbour: Neighbour) -> None:
        if neighbour.client is not None:
            self._poll.register(neighbour.client.descriptor, neighbour.client.interest)
