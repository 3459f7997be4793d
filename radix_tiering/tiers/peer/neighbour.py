"""One server that lends, or could: the way to its memory, and what waits for it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from ...base.errors import SwiftTiersError
from ...base.runner import Runner
from ...lending.donation.arena import SharedArena
from ...lending.donation.arena_client import ArenaClient
from ...lending.donation.device_arena import DeviceArena
from ...lending.donation.device_memory import DeviceMemory
from ...lending.donation.pace import MovePace
from ...lending.leases import LeaseKey, Party
from .jobs import Job, Land, PeerRead, PeerWrite, Waiting

#: How long a donor may take to hand its memory out, or to answer a store that it has had time for, seconds.
ANSWER_SECONDS = 5.0
#: How soon, and at last how seldom, a donor that is not there is looked for, seconds.
RETRY_SECONDS, RETRY_MOST_SECONDS = 0.05, 2.0
#: Why one lends nothing that has said so itself.
LENDS_NO_MORE = "is said to lend no more"
#: When one that did what no donor does is tried again, seconds.
MISTRUST_SECONDS = 10.0
#: When one is that lends more at a time than may be borrowed, seconds. It makes room for each attempt, and may lend
#: less at a time once other borrowers have gone.
UNSUITED_SECONDS = 60.0


class Neighbour:
    """Away until its memory is attached; then leases are asked for (`joined`); away again when the connection ends.

    So no lease is held whose bytes cannot be reached. One thread.
    """

    def __init__(self, name: str, address: str, path: Path) -> None:
        self.name = name
        self.address = address
        self.path = path
        #: Whether it is still said to lend. One that is not is left when it lends us nothing any more.
        self.named = True
        self.client: ArenaClient | None = None
        self.joined = False
        #: Why it lends us nothing, or empty.
        self.reason = ""
        self.told: set[str] = set()  # the reasons that were told since it lent something
        self.pace = MovePace(None)
        self.demotes: Waiting[PeerRead] = Waiting()
        self.reads: Waiting[PeerRead] = Waiting()
        self.landings: Waiting[Land] = Waiting()
        self.writes: Waiting[PeerWrite] = Waiting()
        self.storing = 0  # pages staged and not answered for
        self.next_at = -math.inf  # when it is tried again, attached or joined
        self.answer_by = math.inf
        self._retry = RETRY_SECONDS

    @property
    def attached(self) -> bool:
        """Whether its memory is mapped here."""
        return self.client is not None and self.client.arena is not None

    @property
    def on_device(self) -> bool:
        """Whether its memory lies on a device, and is mapped for this server's own."""
        return self.client is not None and self.client.memory is not None

    @property
    def pulls(self) -> bool:
        """Whether it stores pages from this server's outgoing memory."""
        return self.client is not None and self.client.pulls

    def lends(self, key: LeaseKey) -> bool:
        """Whether the bytes of this lease are in the memory that is mapped here."""
        party = self.client.party if self.client is not None else None
        return party is not None and party.epoch == key.epoch

    @property
    def queued(self) -> int:
        return len(self.demotes) + len(self.reads) + len(self.landings) + len(self.writes)

    def put(self, job: Job, *, recalled: bool = False) -> None:
        """Let a job wait. `recalled`: its lease is: who wants a page saves it by that."""
        if isinstance(job, PeerWrite):
            self.writes.put(job)
        elif isinstance(job, Land):
            self.landings.put(job)
        elif recalled:
            self.demotes.put(replace(job, demote=True))
        else:
            (self.demotes if job.demote else self.reads).put(job)

    def take(self, key: LeaseKey | None = None) -> list[Job]:
        """Take out what waits for places of a lease; None: everything."""
        taken: list[Job] = []
        for queue in (self.demotes, self.reads, self.landings, self.writes):
            taken += queue.first(len(queue)) if key is None else queue.of(key)
        return taken

    def recall(self, key: LeaseKey) -> list[Job]:
        """Take out what waits for places of a lease that is recalled, but reads, which `put` tells of."""
        for job in self.reads.of(key):
            self.put(job, recalled=True)
        return [*self.landings.of(key), *self.writes.of(key)]

    @property
    def wake(self) -> float:
        """When something is to be done about it, by the clock of `now`."""
        waits_for_try = self.client is None or (self.attached and not self.joined)
        return min(self.answer_by, self.next_at if waits_for_try else math.inf)

    def call(
        self,
        party: Party,
        page_bytes: int,
        staging: SharedArena,
        now: float,
        device: DeviceMemory | None,
        runner: Runner,
        outgoing: DeviceArena | None,
    ) -> bool:
        """Try to attach its memory, for `device` if it lies on one, and offer it `outgoing` memory then. False if it is
        not there; then it is tried again later, ever less often."""
        try:
            self.client = ArenaClient(self.path, self.name, party, page_bytes, staging, device, runner, outgoing)
        except SwiftTiersError as error:
            self.rest(str(error), now)
            return False
        self.answer_by = now + ANSWER_SECONDS
        return True

    def begin(self) -> None:
        """Its memory is attached."""
        assert self.client is not None
        self.answer_by = math.inf
        self.next_at = -math.inf
        self._retry = RETRY_SECONDS
        self.reason = ""
        self.pace = MovePace(self.client.bandwidth)

    def rest(self, reason: str, now: float, seconds: float = 0.0) -> None:
        """Try no more for so long at least."""
        self.reason = reason
        self.next_at = now + max(seconds, self._retry)
        self._retry = min(2 * self._retry, RETRY_MOST_SECONDS)

    def asked(self, page_bytes: int, now: float) -> None:
        """A page is on its way to it. As long as there are any, it must answer now and then."""
        self.storing += 1
        self._expect(page_bytes, now)

    def answered(self, page_bytes: int, now: float) -> None:
        """It has answered for a page, or is not expected to any more."""
        self.storing -= 1
        self._expect(page_bytes, now)

    def _expect(self, page_bytes: int, now: float) -> None:
        # At the rate it allows, several pages may be before this one.
        rate = self.pace.bytes_per_second
        slow = 0.0 if rate is None else (self.storing + 1) * page_bytes / rate
        self.answer_by = now + ANSWER_SECONDS + slow if self.storing else math.inf

    def end(self) -> None:
        """The connection is over; its memory is unmapped when the last read of it has ended."""
        if self.client is not None:
            self.client.end("closed here")
            self.client = None
        self.storing = 0
        self.answer_by = math.inf
