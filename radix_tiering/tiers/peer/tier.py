"""The door of the peer tier."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec
import numpy as np

from ...base.config import PeerConfig
from ...base.events import EventLog
from ...base.page import HeldPages, PageRecord, page_digest
from ...base.runner import THREADS, Runner
from ...figures.counters import LinkCounters
from ...lending.donation.device_memory import DeviceMemory
from ...lending.leases import LeaseService, Timing, Wire
from ...lending.leases.timing import lease_timing
from ...table.tier_copies import Copy
from ..host.landing import Landing
from ..tier import LandDone, Read, TierListener, Write, Written, as_many_as_free
from . import jobs
from .lent_memory import LeaseSlots, LentMemory, PeerPlace
from .outgoing import OutgoingMemory
from .places import PlaceBook
from .worker import PeerWorker

# ---- what the peer tier says about itself ----


class PeerDonorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One neighbour that lends, or could."""

    name: str
    address: str
    attached: bool  # its memory is mapped here
    reason: str  # why it lends us nothing, as far as that is known; or empty
    bandwidth: float | None  # bytes per second that it allows; None: no limit, or not known
    share: float | None  # of a core's time that may be spent on its memory now; None: any
    leases: int
    capacity_bytes: int
    used_bytes: int
    queued: int  # reads and writes that wait
    storing: int  # pages staged, and not yet answered


class PeerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The peer tier at one moment."""

    wanted_bytes: int  # what is to be borrowed, limits considered
    capacity_bytes: int  # of the active leases, in whole pages
    used_bytes: int  # reserved or holding pages
    staging_bytes: int  # this process' memory for pages on their way to donors
    outgoing_bytes: int  # of its device's, likewise
    reads: dict[str, int]  # answered, by outcome: "ok", "cancelled", ...
    writes: dict[str, int]  # answered: "ok", or why not
    faults: int  # errors of ours, logged
    donors: tuple[PeerDonorSnapshot, ...]


class PeerTier(LentMemory):
    """Lent memory over shared memory: borrows from the neighbours it is told of.

    Nothing waits for a donor or a copy, but `close`. Answers, and what the listener is told, come on the thread
    "swift-peer". What waits for a lease that is over is answered before the listener is told of its end.
    """

    def __init__(
        self,
        name: str,
        page_bytes: int,
        config: PeerConfig,
        *,
        fingerprint: Callable[[np.ndarray], bytes] = page_digest,
        runner: Runner = THREADS,
        wire: Wire[Any] | None = None,
        timing: Timing | None = None,
        device: DeviceMemory | None = None,
        landing: Landing | None = None,
        outgoing: OutgoingMemory | None = None,
        events: EventLog | None = None,
    ) -> None:
        """`name`: this rank's lease name. `fingerprint`: the checksum of a page, as given to `read`. `wire`: how
        letters go to donors; None: over ZeroMQ. `timing`: None: as `config` says. `device`: this rank's own, for which
        donors' device memory is mapped; None: such donors cannot be used. `landing`: where pages come straight from
        donors' devices; None: they all come through host memory. `outgoing`: from where donors' devices store pages;
        None: they all go through host memory. It is closed with this. `events`: where it is told why a neighbour
        lends nothing.

        Raises ArenaError where the machine has not got the memory to stage pages in.
        """
        if timing is None:
            # Soon: only donors whose memory is attached are spoken to, and the first hello is mostly too early for the
            # connection.
            timing = lease_timing(config.term, config.recall_bound, retry=0.02)
        self.page_bytes = page_bytes
        self._limit_bytes = config.borrow_limit
        self._clock = runner.boot_time
        self._book = PlaceBook(runner)
        self._worker = PeerWorker(
            name,
            page_bytes,
            self._book,
            most_bytes=math.inf if config.borrow_limit is None else config.borrow_limit,
            fingerprint=fingerprint,
            runner=runner,
            wire=wire,
            timing=timing,
            landing=landing,
            device=device,
            outgoing=outgoing,
            events=events,
        )
        #: Where pages land, if they do.
        self.landing = landing
        self._outgoing = outgoing

    def answer_within(self, answers: AbstractContextManager[object]) -> None:
        super().answer_within(answers)
        self._worker.copier.answers = answers

    def still(self) -> AbstractContextManager[object]:
        """Leases go on."""
        return self._worker.rounds

    @property
    def service(self) -> LeaseService:
        """The borrower's part in the lease protocol."""
        return self._worker.service

    @property
    def capacity_bytes(self) -> int:
        """Of the active leases, in whole pages."""
        return self._book.occupancy().slots * self.page_bytes

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        """What was copied: by all donors together ("peer-host", "host-peer", and where pages go straight between
        devices "peer-device", "device-peer"), and for each ("DONOR-host", ...).

        Seconds are from asking for a page to having it.
        """
        return self._worker.copier.links

    def lease_slots(self) -> list[LeaseSlots]:
        """What is used of each lease that is not over, all of one moment."""
        return self._book.slots()

    def watch(self, listener: TierListener) -> None:
        self._worker.listener = listener

    def neighbours(self, addresses: Mapping[str, str]) -> None:
        """Whoever lends now: lease name -> lease address. This server itself, and TCP addresses, are left out.

        One that is named no more is left when it lends us nothing any more, so that a bus that is down ends no lease.
        """
        self._worker.meet(addresses)

    def want(self, wanted_bytes: int) -> None:
        """How much to hold, of all donors together; `peer.borrow_limit` bounds it. Leases without pages that are
        beyond it are returned; those with pages stay."""
        self._worker.want(wanted_bytes)

    @property
    def limit_bytes(self) -> int | None:
        """What is borrowed at most."""
        return self._limit_bytes

    @property
    def faults(self) -> int:
        """Errors of ours, which were logged."""
        return self._worker.copier.faults

    def reserve(self, lengths: Sequence[int]) -> list[PeerPlace]:
        """Free places, each of the donor with the smallest share in use."""
        return as_many_as_free(lambda length: self._book.reserve(), lengths)

    def release(self, places: Sequence[PeerPlace]) -> None:
        """Nothing else comes there while a read or write of them is queued or under way. Raises ValueError for a place
        that is not held."""
        for place in places:
            self._book.release(place)

    def write(self, writes: Sequence[Write]) -> None:
        """Raises RuntimeError once it is closed or with too many jobs waiting, ValueError for a place that is not held
        or a page without a digest."""
        now, asked = self._clock(), []
        for one in writes:
            if one.digest is None:
                raise ValueError("nobody could verify a page without a digest")
            asked.append((self._page(one.data), one.digest, partial(self._written, one)))
        self._submit(
            [write.place for write in writes],
            lambda at, covered: jobs.PeerWrite(writes[at].place, *asked[at], covered, now),
        )

    def _written(self, write: Write, made: bool, reason: str) -> None:
        """On "swift-peer"."""
        if not made:
            self._book.release(write.place)
        write.done(Written(write.place, write.digest or b"") if made else None, reason)

    def read(self, reads: Sequence[Read]) -> None:
        """OK only if the lease has lasted and the bytes have the copy's checksum. CANCELLED: the lease is over, or
        recalled; CHECKSUM: the lease lives, and these are not the bytes. Raises as `write` does."""
        now, into = self._clock(), [self._page(read.into) for read in reads]

        def job(at: int, covered: bool) -> jobs.PeerRead:
            copy = reads[at].copy
            return jobs.PeerRead(
                copy.place, into[at], copy.digest or b"", reads[at].done, reads[at].saving, covered, now
            )

        self._submit([read.copy.place for read in reads], job)

    def _page(self, run: np.ndarray) -> np.ndarray:
        """The bytes of a page, of the whole blocks it lies in."""
        if run.dtype != np.uint8 or run.ndim != 1 or len(run) < self.page_bytes or not run.flags.c_contiguous:
            raise ValueError(f"a page is uint8 [{self.page_bytes}], contiguous, not {run.dtype} {run.shape}")
        return run[: self.page_bytes]

    def land(self, record: PageRecord, copy: Copy, done: LandDone) -> bool:
        place = copy.place
        digest = self._book.noted(place)
        if self.landing is None or digest is None or not self._worker.reaches(place.key.donor):
            return False
        slot = self.landing.take()
        if slot is None:
            return False
        now = self._clock()
        try:
            self._submit([place], lambda at, covered: jobs.Land(place, slot, digest, done, covered, now))
        except BaseException:
            self.landing.give_back(slot)
            raise
        return True

    def paced_seconds(self, lane: Hashable, pages: int) -> float:
        """By the donor's pace, as of a moment ago: the thread "swift-peer" goes on meanwhile."""
        neighbour = self._worker.neighbours.get(str(lane))
        if neighbour is None:
            return 0.0
        waiting = len(neighbour.reads) + len(neighbour.landings)
        return neighbour.pace.seconds(waiting + pages, self.page_bytes, self._clock())

    def give_up(self, part: Any) -> None:
        """Return a lease: nothing of it is needed any more. What is under way may finish."""
        self._book.close(part)
        self.service.release(part)

    def snapshot(self) -> PeerSnapshot:
        """What is borrowed, from whom, and how it is used."""
        worker, total, page = self._worker, self._book.occupancy(), self.page_bytes
        donors = []
        for one in list(worker.neighbours.values()):
            held = self._book.occupancy(one.name)
            donors.append(
                PeerDonorSnapshot(
                    name=one.name,
                    address=one.address,
                    attached=one.attached,
                    reason=one.reason,
                    bandwidth=one.pace.bytes_per_second,
                    share=one.pace.share,
                    leases=held.leases,
                    capacity_bytes=held.slots * page,
                    used_bytes=held.used * page,
                    queued=one.queued,
                    storing=one.storing,
                )
            )
        return PeerSnapshot(
            wanted_bytes=worker.asked_bytes,
            capacity_bytes=total.slots * page,
            used_bytes=total.used * page,
            staging_bytes=worker.staging.arena.size,
            outgoing_bytes=self._outgoing.size_bytes if self._outgoing is not None else 0,
            reads=dict(worker.copier.reads),
            writes=dict(worker.copier.writes),
            faults=self.faults,
            donors=tuple(donors),
        )

    def details(self) -> dict[str, Any]:
        rows = self._outgoing
        return {"outgoing_pages": rows.open_rows, "outgoing_used_pages": rows.used_rows} if rows is not None else {}

    def close(self, held: Iterable[HeldPages] | None = None, timeout: float | None = None) -> None:
        """Answer everything, return all leases, end. Waits for the donors, a few recall bounds at most. Idempotent.

        The listener is told nothing of it. Not to be called on the thread "swift-peer".
        """
        self._worker.close()

    def _submit(self, places: Sequence[PeerPlace], job: Callable[[int, bool], jobs.Job]) -> None:
        """Have something done at each of these places, or nothing. `job(at, covered)`: what, at `places[at]`;
        `covered`: whether its lease lasts yet."""
        covered: list[bool] = []
        try:
            covered += (self._book.begin(place) for place in places)
            self._worker.submit([job(at, lasts) for at, lasts in enumerate(covered)])
        except BaseException:
            for place, lasts in zip(places, covered, strict=False):
                if lasts:
                    self._book.end(place)
            raise
