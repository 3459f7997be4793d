"""Moves single pages to and from lent memory, and believes only what a lease and a checksum vouch for."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ...figures.counters import LinkCounters
from ...lending.donation.arena_messages import Store, Stored
from ...lending.donation.device_arena import AttachedDevice
from ...lending.leases import LeaseKey, LeaseService, Ticket, Use
from ..host.landing import Landing
from ..tier import ReadOutcome
from .jobs import LEASE_ENDED, REFUSED, Job, Land, PeerRead, PeerWrite, Storing
from .neighbour import Neighbour
from .places import PlaceBook
from .staging import Staging

logger = logging.getLogger(__name__)

#: Part of the staging memory that one donor may have, if there are others: one that is stopped keeps what it has until
#: its leases end.
_STAGING_SHARE = 0.5


class Copier:
    """Every job that it is given is answered exactly once, on the thread that calls. One thread.

    A read is: ask the lease, copy, ask it again, compare the checksum. A store is: ask the lease, stage the page, have
    the donor copy it, ask the lease again.
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
    ) -> None:
        self._service = service
        self._book = book
        self._staging = staging
        self._page_bytes = page_bytes
        self._fingerprint = fingerprint
        self._clock = clock
        self._landing = landing
        self._numbers = itertools.count(1)
        self._storing: dict[int, Storing] = {}
        #: See `Tier.answers`.
        self.answers: AbstractContextManager[object] = nullcontext()
        #: Copies that ended well: "peer-host", "host-peer" and "peer-device" of all donors, "DONOR-host" and so on of
        #: each.
        #: Replaced, not changed, when a donor comes or goes: other threads look at it.
        self.links = {"peer-host": LinkCounters(), "host-peer": LinkCounters()}
        if landing is not None:
            self.links["peer-device"] = LinkCounters()
        #: Jobs by how they were answered.
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        #: Errors of ours, logged.
        self.faults = 0

    def meet(self, donor: str) -> None:
        """Count for this donor from now on."""
        self.links = {**self.links, **{name: LinkCounters() for name in self._own_links(donor)}}

    def part(self, donor: str) -> None:
        """Forget what was counted for this donor."""
        own = self._own_links(donor)
        self.links = {name: link for name, link in self.links.items() if name not in own}

    def _own_links(self, donor: str) -> list[str]:
        return [name.replace("peer", donor) for name in ("peer-host", "host-peer", "peer-device") if name in self.links]

    def read(self, neighbour: Neighbour, job: PeerRead) -> None:
        """Fetch a page now."""
        try:
            outcome = self._fetch(neighbour, job)
        except Exception:
            self.faults += 1
            logger.exception("swift-tiers: a read of lent memory failed")
            outcome = ReadOutcome.IO_ERROR
        if outcome is ReadOutcome.OK:
            self._count(("peer-host", f"{neighbour.name}-host"), job.since)
        self.answer_read(job, outcome)

    def _fetch(self, neighbour: Neighbour, job: PeerRead) -> ReadOutcome:
        key = job.place.key
        run = self._book.run(key)
        assert neighbour.client is not None
        if run is None or not neighbour.lends(key):
            return ReadOutcome.CANCELLED
        ticket = self._service.check_before(key, Use.DEMOTE if job.demote else Use.READ)
        if ticket is None:
            return ReadOutcome.CANCELLED
        try:
            neighbour.pace.take(self._page_bytes, self._clock())
            neighbour.client.copy(run, job.place.slot, job.into)
        finally:
            # Before the checksum, which needs the copy alone: a lease that is to be returned waits for reads.
            lasted = self._service.check_after(ticket)
        if not lasted:
            return ReadOutcome.CANCELLED
        return ReadOutcome.OK if self._fingerprint(job.into) == job.digest else ReadOutcome.CHECKSUM

    def land(self, neighbour: Neighbour, jobs: list[Land]) -> None:
        """Fetch pages from a donor's device, now and together."""
        try:
            outcomes = self._fetch_to_device(neighbour, jobs)
        except Exception:
            self.faults += 1
            logger.exception("swift-tiers: pages of lent memory could not be copied to this device")
            outcomes = [ReadOutcome.IO_ERROR] * len(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome is ReadOutcome.OK:
                self._count(("peer-device", f"{neighbour.name}-device"), job.since)
            self.answer_landing(job, outcome)

    def _fetch_to_device(self, neighbour: Neighbour, jobs: list[Land]) -> list[ReadOutcome]:
        landing, arena = self._landing, neighbour.client.arena if neighbour.client is not None else None
        assert landing is not None
        outcomes = [ReadOutcome.CANCELLED] * len(jobs)
        if not isinstance(arena, AttachedDevice):
            return outcomes
        tickets: list[tuple[int, Ticket]] = []
        pages: list[np.ndarray] = []
        lasted: list[int] = []
        try:
            for number, job in enumerate(jobs):
                run = self._book.run(job.place.key)
                if run is None or not neighbour.lends(job.place.key):
                    continue
                if (ticket := self._service.check_before(job.place.key, Use.READ)) is not None:
                    tickets.append((number, ticket))
                    pages.append(run.pieces_of(job.place.slot))
                    neighbour.pace.take(self._page_bytes, self._clock())
            if pages:
                with arena.use() as memory:
                    landing.fetch(memory, pages, [jobs[number].slot for number, _ in tickets])
        finally:
            # Before the digests, which need the copies alone: a lease that is to be returned waits for reads.
            lasted += [number for number, ticket in tickets if self._service.check_after(ticket)]
        digests = landing.digests([jobs[number].slot for number in lasted]) if lasted else []
        for number, digest in zip(lasted, digests, strict=True):
            outcomes[number] = ReadOutcome.OK if digest == jobs[number].digest else ReadOutcome.CHECKSUM
        return outcomes

    def may_store(self, neighbour: Neighbour, *, alone: bool) -> bool:
        """Whether there is room to stage one more page for this donor. `alone`: there is no other."""
        most = self._staging.slots if alone else max(1, int(self._staging.slots * _STAGING_SHARE))
        return self._staging.has_room and neighbour.storing < most

    def store(self, neighbour: Neighbour, job: PeerWrite) -> None:
        """Stage a page, and ask for it to be stored; answered when its donor has, or cannot any more."""
        key = job.place.key
        client = neighbour.client
        assert client is not None
        ticket = self._service.check_before(key) if neighbour.lends(key) else None
        if ticket is None:
            self.answer_write(job, LEASE_ENDED)
            return
        now = self._clock()
        staged_at = self._staging.put(job.data)
        number = next(self._numbers)
        self._storing[number] = Storing(job, neighbour.name, ticket, staged_at)
        neighbour.asked(self._page_bytes, now)
        neighbour.pace.take(self._page_bytes, now)
        client.store([Store(number, key.lease, job.place.slot, staged_at)])

    def stored(self, neighbour: Neighbour, answers: list[Stored]) -> None:
        """What a donor has answered. Answers for pages that are not waited for are ignored."""
        for answer in answers:
            storing = self._storing.get(answer.number)
            if storing is not None and storing.donor == neighbour.name:
                neighbour.answered(self._page_bytes, self._clock())
                self._end_store(answer.number, "" if answer.ok else REFUSED)

    def abandon(self, neighbour: Neighbour, reason: str, key: LeaseKey | None = None) -> None:
        """Wait no longer for what this donor was asked to store, under one lease or all."""
        for number, storing in list(self._storing.items()):
            if storing.donor == neighbour.name and key in (None, storing.job.place.key):
                neighbour.answered(self._page_bytes, self._clock())
                self._end_store(number, reason)

    def _end_store(self, number: int, failure: str) -> None:
        storing = self._storing.pop(number)
        self._staging.give_back(storing.staged_at)
        if not self._service.check_after(storing.ticket):
            failure = failure or LEASE_ENDED
        if not failure:
            self._note(storing.job)
            self._count(("host-peer", f"host-{storing.donor}"), storing.job.since)
        self.answer_write(storing.job, failure)

    def _note(self, job: PeerWrite) -> None:
        """Remember by what the device can tell that this page has landed as it was stored."""
        if self._landing is None or self._fingerprint(job.data) != job.digest:
            return  # bytes that are damaged in host memory already must not pass for the page's
        try:
            self._book.note(job.place, self._landing.digest(job.data))
        except Exception:
            self.faults += 1
            logger.exception("swift-tiers: the digest of a page could not be computed on the device")

    def answer_read(self, job: PeerRead, outcome: ReadOutcome) -> None:
        """The job is over."""
        self.reads[outcome.value] += 1
        if job.covered:
            self._book.end(job.place)
        self._call(lambda: job.done(outcome))

    def answer_landing(self, job: Land, outcome: ReadOutcome) -> None:
        """The job is over."""
        self.reads[outcome.value] += 1
        if job.covered:
            self._book.end(job.place)
        if outcome is not ReadOutcome.OK and self._landing is not None:
            self._landing.give_back(job.slot)
        self._call(lambda: job.done(outcome, job.slot if outcome is ReadOutcome.OK else -1))

    def answer_write(self, job: PeerWrite, failure: str) -> None:
        """The job is over. `failure`: empty if the page is there."""
        self.writes[failure or "ok"] += 1
        if job.covered:
            self._book.end(job.place)
        self._call(lambda: job.done(not failure, failure))

    def refuse(self, job: Job, reason: str = LEASE_ENDED) -> None:
        """The job is not even begun."""
        if isinstance(job, PeerRead):
            self.answer_read(job, ReadOutcome.CANCELLED)
        elif isinstance(job, Land):
            self.answer_landing(job, ReadOutcome.CANCELLED)
        else:
            self.answer_write(job, reason)

    def _call(self, done: Callable[[], None]) -> None:
        try:
            with self.answers:
                done()
        except Exception:
            self.faults += 1
            logger.exception("swift-tiers: whoever waited for a page of lent memory raised")

    def _count(self, links: tuple[str, str], since: float) -> None:
        seconds = max(0.0, self._clock() - since)
        for name in links:
            if name in self.links:
                self.links[name].count(1, self._page_bytes, seconds)
