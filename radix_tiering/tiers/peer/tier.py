"""The door of the peer tier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ...base.config import PeerConfig
from ...base.page import page_digest
from ...figures.counters import LinkCounters
from ...lending.donation.device_memory import DeviceMemory
from ...lending.leases import LeaseKey, LeaseService, Timing
from ...lending.leases.service import boot_time
from ...lending.leases.timing import lease_timing
from ..host.landing import Landing
from ..peer_memory import LeaseSlots, PeerPlace, PeerWatcher
from ..ssd import ReadOutcome
from .jobs import Job, Land, Read, Write
from .places import PlaceBook
from .snapshot import PeerDonorSnapshot, PeerSnapshot
from .worker import PeerWorker


class PeerTier:
    """A `PeerMemory` over shared memory: borrows from the neighbours it is told of.

    Any thread may call; nothing waits for a donor or a copy, but `close`. Answers, and what the watcher is told, come
    on the thread "swift-peer", never from within a call. What waits for a lease that is over is answered before the
    watcher is told of its end.
    """

    def __init__(
        self,
        name: str,
        page_bytes: int,
        config: PeerConfig,
        *,
        fingerprint: Callable[[np.ndarray], bytes] = page_digest,
        clock: Callable[[], float] = boot_time,
        timing: Timing | None = None,
        device: DeviceMemory | None = None,
        landing: Landing | None = None,
    ) -> None:
        """`name`: this rank's lease name. `fingerprint`: the checksum of a page, as given to `read`. `clock`: as
        `LeaseService` needs it. `timing`: None: as `config` says. `device`: this rank's own, for which donors' device
        memory is mapped; None: such donors cannot be used. `landing`: where pages come straight from donors'
        devices; None: they all come through host memory.

        Raises ArenaError where the machine has not got the memory to stage pages in.
        """
        if timing is None:
            # Soon: only donors whose memory is attached are spoken to, and the first hello is mostly too early for the
            # connection.
            timing = lease_timing(config.term, config.recall_bound, retry=0.02)
        self._page_bytes = page_bytes
        self._clock = clock
        self._book = PlaceBook()
        self._worker = PeerWorker(
            name,
            page_bytes,
            self._book,
            most_bytes=math.inf if config.borrow_limit is None else config.borrow_limit,
            fingerprint=fingerprint,
            clock=clock,
            timing=timing,
            landing=landing,
            device=device,
        )
        #: Where pages land, if they do.
        self.landing = landing

    @property
    def service(self) -> LeaseService:
        """The borrower's part in the lease protocol."""
        return self._worker.service

    @property
    def capacity_bytes(self) -> int:
        """Of the active leases, in whole pages."""
        return self._book.occupancy().slots * self._page_bytes

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        """What was copied: by all donors together ("peer-host", "host-peer"), and for each ("DONOR-host", ...).

        Seconds are from asking for a page to having it.
        """
        return self._worker.copier.links

    def lease_slots(self) -> list[LeaseSlots]:
        """What is used of each lease that is not over, all of one moment."""
        return self._book.slots()

    def watch(self, watcher: PeerWatcher) -> None:
        """Tell `watcher` from now on."""
        self._worker.watcher = watcher

    def neighbours(self, addresses: Mapping[str, str]) -> None:
        """Whoever lends now: lease name -> lease address. This server itself, and TCP addresses, are left out.

        One that is named no more is left when it lends us nothing any more, so that a bus that is down ends no lease.
        """
        self._worker.meet(addresses)

    def want(self, wanted_bytes: int) -> None:
        """How much to hold, of all donors together; `peer.borrow_limit` bounds it. Leases without pages that are
        beyond it are returned; those with pages stay."""
        self._worker.want(wanted_bytes)

    def reserve(self) -> PeerPlace | None:
        """A free place, of the donor with the smallest share in use; None if there is none."""
        return self._book.reserve()

    def release(self, place: PeerPlace) -> None:
        """Give a place back. Nothing else comes there while a read or write of it is queued or under way.

        Raises ValueError for a place that is not held.
        """
        self._book.release(place)

    def write(self, place: PeerPlace, data: np.ndarray, done: Callable[[bool, str], None], *, digest: bytes) -> None:
        """Put a page with this checksum there: uint8 [page_bytes], unchanged until `done(whether it is there, why
        not)`.

        Raises RuntimeError once it is closed or with too many jobs waiting, ValueError for a place that is not held.
        """
        self._check(data)
        covered = self._book.begin(place)
        self._submit(Write(place, data, digest, done, covered, self._clock()))

    def read(
        self,
        place: PeerPlace,
        into: np.ndarray,
        digest: bytes,
        done: Callable[[ReadOutcome], None],
        *,
        demote: bool = False,
    ) -> None:
        """Fetch a page: uint8 [page_bytes]. OK only if the lease has lasted and the bytes have this checksum.

        `demote`: to save the page from a lease that was recalled; such reads go first. CANCELLED: the lease is over, or
        recalled; CHECKSUM: the lease lives, and these are not the bytes. Raises as `write` does.
        """
        self._check(into)
        covered = self._book.begin(place)
        self._submit(Read(place, into, digest, done, demote, covered, self._clock()))

    def land(self, place: PeerPlace, done: Callable[[ReadOutcome, int], None]) -> bool:
        """Fetch a page straight into landing memory; False where that is not possible, and nothing is asked for then.

        `done(outcome, slot)`: with OK the page lies there, verified. Raises as `write` does.
        """
        digest = self._book.noted(place)
        if self.landing is None or digest is None or not self._worker.reaches(place.key.donor):
            return False
        slot = self.landing.take()
        if slot is None:
            return False
        try:
            covered = self._book.begin(place)
            self._submit(Land(place, slot, digest, done, covered, self._clock()))
        except BaseException:
            self.landing.give_back(slot)
            raise
        return True

    def paced_seconds(self, donor: str, pages: int) -> float:
        """How long `donor`'s pace lets so many pages more take, after those that wait; 0 where it sets none. As of a
        moment ago: the thread "swift-peer" goes on meanwhile."""
        neighbour = self._worker.neighbours.get(donor)
        if neighbour is None:
            return 0.0
        waiting = len(neighbour.reads) + len(neighbour.landings)
        return neighbour.pace.seconds(waiting + pages, self._page_bytes, self._clock())

    def give_up(self, key: LeaseKey) -> None:
        """Return a lease: nothing of it is needed any more. What is under way may finish."""
        self._book.close(key)
        self.service.release(key)

    def snapshot(self) -> PeerSnapshot:
        """What is borrowed, from whom, and how it is used."""
        worker, total, page = self._worker, self._book.occupancy(), self._page_bytes
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
            reads=dict(worker.copier.reads),
            writes=dict(worker.copier.writes),
            faults=worker.copier.faults,
            donors=tuple(donors),
        )

    def close(self) -> None:
        """Answer everything, return all leases, end. Waits for the donors, a few recall bounds at most. Idempotent.

        The watcher is told nothing of it. Not to be called on the thread "swift-peer".
        """
        self._worker.close()

    def _submit(self, job: Job) -> None:
        try:
            self._worker.submit(job)
        except RuntimeError:
            if job.covered:
                self._book.end(job.place)
            raise

    def _check(self, page: np.ndarray) -> None:
        if page.dtype != np.uint8 or page.shape != (self._page_bytes,) or not page.flags.c_contiguous:
            raise ValueError(f"a page is uint8 [{self._page_bytes}], contiguous, not {page.dtype} {page.shape}")
