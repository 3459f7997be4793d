"""Moves pages to and from lent memory, and believes only what a lease and a checksum vouch for."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ...base.repeats import FaultLogger
from ...figures.counters import LinkCounters
from ...lending.donation.arena_messages import Store, Stored
from ...lending.donation.device_arena import AttachedDevice
from ...lending.donation.extents import CutRun
from ...lending.leases import LeaseKey, LeaseService, Ticket, Use
from ..host.landing import Landing
from ..tier import ReadOutcome
from .jobs import FAILED, LEASE_ENDED, REFUSED, Job, Land, PeerRead, PeerWrite, Storing
from .lent_memory import PeerPlace
from .neighbour import Neighbour
from .outgoing import OutgoingMemory
from .places import PlaceBook
from .staging import Staging

logger = logging.getLogger(__name__)

#: Part of the staging memory that one donor may have, if there are others: one that is stopped keeps what it has until
#: its leases end.
_STAGING_SHARE = 0.5


class Copier:
    """Every job that it is given is answered exactly once, on the thread that calls. One thread.

    A read is: ask the lease, copy, ask it again, compare the checksum. A store is: ask the lease, stage the page,
    unless it lies in outgoing memory, have the donor copy it, ask the lease again. Jobs come in batches: a lease is
    asked once for all that a batch reads of it, and what a batch has come to is told at once.
    """

    def __init__(
        self,
        service: LeaseService,
        book: PlaceBook,
        staging: Staging,
        page_bytes: int,
        fingerprint: Callable[[np.ndarray], bytes],
        clock: Callable[[], float],
        landing: Landing | None = None,
        outgoing: OutgoingMemory | None = None,
    ) -> None:
        self._service = service
        self._book = book
        self._staging = staging
        self._page_bytes = page_bytes
        self._fingerprint = fingerprint
        self._clock = clock
        self._landing = landing
        self._outgoing = outgoing
        self._numbers = itertools.count(1)
        self._storing: dict[int, Storing] = {}
        #: See `Tier.answers`.
        self.answers: AbstractContextManager[object] = nullcontext()
        #: Copies that ended well: "peer-host", "host-peer", "peer-device" and "device-peer" of all donors, "DONOR-host"
        #: and so on of each.
        #: Replaced, not changed, when a donor comes or goes: other threads look at it.
        self.links = {"peer-host": LinkCounters(), "host-peer": LinkCounters()}
        if landing is not None:
            self.links["peer-device"] = LinkCounters()
        if outgoing is not None:
            self.links["device-peer"] = LinkCounters()
        #: Jobs by how they were answered.
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        #: Errors of ours, logged.
        self.faults = 0
        self._fault_logger = FaultLogger(logger)

    def meet(self, donor: str) -> None:
        """Count for this donor from now on."""
        self.links = {**self.links, **{name: LinkCounters() for name in self._own_links(donor)}}

    def part(self, donor: str) -> None:
        """Forget what was counted for this donor."""
        own = self._own_links(donor)
        self.links = {name: link for name, link in self.links.items() if name not in own}

    def _own_links(self, donor: str) -> list[str]:
        ways = ("peer-host", "host-peer", "peer-device", "device-peer")
        return [name.replace("peer", donor) for name in ways if name in self.links]

    def read(self, neighbour: Neighbour, jobs: Sequence[PeerRead]) -> None:
        """Fetch pages to host memory, now and together."""
        outcomes = self._tried(lambda: self._fetch(neighbour, jobs), len(jobs))
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome is ReadOutcome.OK:
                self._count(("peer-host", f"{neighbour.name}-host"), job.since)
        self._answer([self._read_ended(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)])

    def land(self, neighbour: Neighbour, jobs: Sequence[Land]) -> None:
        """Fetch pages from a donor's device to landing memory, now and together."""
        outcomes = self._tried(lambda: self._fetch_to_device(neighbour, jobs), len(jobs))
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome is ReadOutcome.OK:
                self._count(("peer-device", f"{neighbour.name}-device"), job.since)
        self._answer([self._landing_ended(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)])

    def _tried(self, fetch: Callable[[], list[ReadOutcome]], pages: int) -> list[ReadOutcome]:
        try:
            return fetch()
        except Exception:
            self.faults += 1
            self._fault_logger.exception("swift-tiers: pages of lent memory could not be read")
            return [ReadOutcome.IO_ERROR] * pages

    def _fetch(self, neighbour: Neighbour, jobs: Sequence[PeerRead]) -> list[ReadOutcome]:
        client = neighbour.client
        assert client is not None

        def copy(begun: list[tuple[int, CutRun]]) -> None:
            for at, run in begun:
                client.copy(run, jobs[at].place.slot, jobs[at].into)

        lasted = self._copied(neighbour, [job.place for job in jobs], copy)
        return self._outcomes(jobs, lasted, [self._fingerprint(jobs[at].into) for at in lasted])

    def _fetch_to_device(self, neighbour: Neighbour, jobs: Sequence[Land]) -> list[ReadOutcome]:
        landing, arena = self._landing, neighbour.client.arena if neighbour.client is not None else None
        assert landing is not None
        if not isinstance(arena, AttachedDevice):
            return [ReadOutcome.CANCELLED] * len(jobs)

        def copy(begun: list[tuple[int, CutRun]]) -> None:
            pages = [run.pieces_of(jobs[at].place.slot) for at, run in begun]
            with arena.use() as memory:
                landing.fetch(memory, pages, [jobs[at].slot for at, _ in begun])

        lasted = self._copied(neighbour, [job.place for job in jobs], copy)
        digests = landing.digests([jobs[at].slot for at in lasted]) if lasted else []
        return self._outcomes(jobs, lasted, digests)

    def _copied(
        self, neighbour: Neighbour, places: list[PeerPlace], copy: Callable[[list[tuple[int, CutRun]]], None]
    ) -> list[int]:
        """Have `copy` fetch those whose leases are held, each given by where it is in `places` and its lease's run;
        which of them were their leases' when all were copied. What is read of a lease that has been recalled is saved
        from it, whoever wanted it."""
        tickets: dict[LeaseKey, Ticket] = {}
        begun: list[tuple[int, CutRun]] = []
        lasted: set[LeaseKey] = set()
        try:
            for at, (key, _) in enumerate(places):
                run = self._book.run(key)
                if run is None or not neighbour.lends(key):
                    continue
                if key not in tickets:
                    if (ticket := self._service.check_before(key, Use.DEMOTE)) is None:
                        continue
                    tickets[key] = ticket
                begun.append((at, run))
            if begun:
                neighbour.pace.take(len(begun) * self._page_bytes, self._clock())
                copy(begun)
        finally:
            # Before the checksums, which need the copies alone: a lease that is to be returned waits for reads.
            lasted.update(key for key, ticket in tickets.items() if self._service.check_after(ticket))
        return [at for at, _ in begun if places[at].key in lasted]

    @staticmethod
    def _outcomes(jobs: Sequence[PeerRead | Land], lasted: list[int], digests: Sequence[bytes]) -> list[ReadOutcome]:
        """What has come of each; `digests`: of those whose leases have lasted."""
        outcomes = [ReadOutcome.CANCELLED] * len(jobs)
        for at, digest in zip(lasted, digests, strict=True):
            outcomes[at] = ReadOutcome.OK if digest == jobs[at].digest else ReadOutcome.CHECKSUM
        return outcomes

    def room_to_store(self, neighbour: Neighbour, *, alone: bool) -> int:
        """How many pages more can be staged for this donor. `alone`: there is no other."""
        most = self._staging.slots if alone else max(1, int(self._staging.slots * _STAGING_SHARE))
        return max(0, min(self._staging.room, most - neighbour.storing))

    def store(self, neighbour: Neighbour, jobs: Sequence[PeerWrite]) -> None:
        """Ask for pages to be stored, staged unless they lie in outgoing memory; each is answered when its donor has,
        or cannot any more."""
        client, now = neighbour.client, self._clock()
        assert client is not None
        stores: list[Store] = []
        refused: list[PeerWrite] = []
        failed: dict[int, str] = {}
        outgoing = self._outgoing if client.pulls else None
        for job in jobs:
            key = job.place.key
            ticket = self._service.check_before(key) if neighbour.lends(key) else None
            if ticket is None:
                refused.append(job)
                continue
            number, row, staged_at = next(self._numbers), None, None
            try:
                row = outgoing.hold(job.digest) if outgoing is not None else None
                if outgoing is not None and row is not None:
                    stores.append(Store(number, key.lease, job.place.slot, outgoing.place(row), outgoing=True))
                else:
                    staged_at = self._staging.put(job.data)
                    stores.append(Store(number, key.lease, job.place.slot, staged_at))
            except Exception:
                # The others of the batch are stored all the same.
                self.faults += 1
                self._fault_logger.exception("swift-tiers: a page for lent memory could not be staged")
                failed[number] = FAILED
            self._storing[number] = Storing(job, neighbour.name, ticket, staged_at, row)
        self._answer([self._write_ended(job, LEASE_ENDED) for job in refused])
        self._end_stores(failed)
        if stores:
            for _ in stores:
                neighbour.asked(self._page_bytes, now)
            neighbour.pace.take(len(stores) * self._page_bytes, now)
            client.store(stores)

    def stored(self, neighbour: Neighbour, answers: Sequence[Stored]) -> None:
        """What a donor has answered. Answers for pages that are not waited for are ignored."""
        ended: dict[int, str] = {}
        for answer in answers:
            storing = self._storing.get(answer.number)
            if storing is not None and storing.donor == neighbour.name and answer.number not in ended:
                neighbour.answered(self._page_bytes, self._clock())
                ended[answer.number] = "" if answer.ok else REFUSED
        self._end_stores(ended)

    def abandon(self, neighbour: Neighbour, reason: str, key: LeaseKey | None = None) -> None:
        """Wait no longer for what this donor was asked to store, under one lease or all."""
        ended: dict[int, str] = {}
        for number, storing in self._storing.items():
            if storing.donor == neighbour.name and key in (None, storing.job.place.key):
                neighbour.answered(self._page_bytes, self._clock())
                ended[number] = reason
        self._end_stores(ended)

    def _end_stores(self, failures: dict[int, str]) -> None:
        """These stores are over; why they have failed, or empty."""
        ended: list[tuple[Storing, str]] = []
        for number, failure in failures.items():
            storing = self._storing.pop(number)
            lasted = self._service.check_after(storing.ticket)
            ended.append((storing, failure if lasted else failure or LEASE_ENDED))
        self._note([storing for storing, failure in ended if not failure])
        for storing, failure in ended:
            if self._outgoing is not None and storing.row is not None:
                self._outgoing.give_back([storing.row])
            if storing.staged_at is not None:
                self._staging.give_back(storing.staged_at)
            if not failure:
                way = "host" if storing.row is None else "device"
                self._count((f"{way}-peer", f"{way}-{storing.donor}"), storing.job.since)
        self._answer([self._write_ended(storing.job, failure) for storing, failure in ended])

    def _note(self, stored: Sequence[Storing]) -> None:
        """Remember by what the device can tell that these pages have landed as they were stored."""
        landing = self._landing
        if landing is None:
            return
        held = [(storing, storing.row) for storing in stored if storing.row is not None]
        try:
            if held and self._outgoing is not None:
                digests = landing.digests_in(self._outgoing.memory, [row for _, row in held])
                for (storing, _), digest in zip(held, digests, strict=True):
                    self._book.note(storing.job.place, digest)
            for storing in stored:
                # Bytes that are damaged in host memory already must not pass for the page's.
                if storing.row is None and self._fingerprint(storing.job.data) == storing.job.digest:
                    self._book.note(storing.job.place, landing.digest(storing.job.data))
        except Exception:
            self.faults += 1
            logger.exception("swift-tiers: the digests of pages could not be computed on the device")

    def refuse(self, jobs: Sequence[Job], reason: str = LEASE_ENDED) -> None:
        """These jobs are not even begun."""
        self._answer([self._refused(job, reason) for job in jobs])

    def _refused(self, job: Job, reason: str) -> Callable[[], None]:
        if isinstance(job, PeerRead):
            return self._read_ended(job, ReadOutcome.CANCELLED)
        if isinstance(job, Land):
            return self._landing_ended(job, ReadOutcome.CANCELLED)
        return self._write_ended(job, reason)

    # A job is over. What is returned tells whoever waits for it.

    def _read_ended(self, job: PeerRead, outcome: ReadOutcome) -> Callable[[], None]:
        self.reads[outcome.value] += 1
        self._left(job)
        return lambda: job.done(outcome)

    def _landing_ended(self, job: Land, outcome: ReadOutcome) -> Callable[[], None]:
        self.reads[outcome.value] += 1
        self._left(job)
        if outcome is not ReadOutcome.OK and self._landing is not None:
            self._landing.give_back(job.slot)
        return lambda: job.done(outcome, job.slot if outcome is ReadOutcome.OK else -1)

    def _write_ended(self, job: PeerWrite, failure: str) -> Callable[[], None]:
        """`failure`: empty if the page is there."""
        self.writes[failure or "ok"] += 1
        self._left(job)
        return lambda: job.done(not failure, failure)

    def _left(self, job: Job) -> None:
        if job.covered:
            self._book.end(job.place)

    def _answer(self, ended: Sequence[Callable[[], None]]) -> None:
        """Tell whoever waits for these, within one hold of the page table's lock."""
        if not ended:
            return

        def tell_all() -> None:
            with self.answers:
                for tell in ended:
                    self._guarded(tell)

        self._guarded(tell_all)

    def _guarded(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:
            self.faults += 1
            logger.exception("swift-tiers: whoever waited for a page of lent memory raised")

    def _count(self, links: tuple[str, str], since: float) -> None:
        seconds = max(0.0, self._clock() - since)
        for name in links:
            if name in self.links:
                self.links[name].count(1, self._page_bytes, seconds)
