"""What the tier stack asks for, one page at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ...lending.leases import LeaseKey, Ticket
from ..tier import ReadOutcome
from .lent_memory import PeerPlace

#: Why a page was not written.
LEASE_ENDED = "lease ended"
REFUSED = "the donor refused"
FAILED = "an error here, which was logged"
CLOSING = "the server is ending"


@dataclass(frozen=True, slots=True, eq=False)
class PeerRead:
    """A page to be fetched."""

    place: PeerPlace
    into: np.ndarray
    digest: bytes
    done: Callable[[ReadOutcome], None]
    demote: bool
    covered: bool  # False: its lease was over when it was asked for
    since: float  # by the clock of leases


@dataclass(frozen=True, slots=True, eq=False)
class Land:
    """A page to be fetched into landing memory."""

    place: PeerPlace
    slot: int  # there; taken, and given back by whoever answers with anything but OK
    digest: bytes  # as landing memory computes it
    done: Callable[[ReadOutcome, int], None]
    covered: bool
    since: float  # by the clock of leases


@dataclass(frozen=True, slots=True, eq=False)
class PeerWrite:
    """A page to be put there."""

    place: PeerPlace
    data: np.ndarray
    digest: bytes  # its checksum
    done: Callable[[bool, str], None]
    covered: bool
    since: float


Job = PeerRead | Land | PeerWrite

_Kind = TypeVar("_Kind", bound=Job)


class Waiting(Generic[_Kind]):
    """Jobs in the order in which they came. Those of one lease are found without looking at the others: many leases
    end at once where their donor needs memory, with thousands of jobs waiting."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[_Kind, None] = OrderedDict()
        self._of: dict[LeaseKey, dict[_Kind, None]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: _Kind) -> None:
        self._jobs[job] = None
        self._of.setdefault(job.place.key, {})[job] = None

    def first(self, most: int) -> list[_Kind]:
        """Take out those that have waited longest, so many at most."""
        taken = []
        for _ in range(min(most, len(self._jobs))):
            job, _none = self._jobs.popitem(last=False)
            same_lease = self._of[job.place.key]
            del same_lease[job]
            if not same_lease:
                del self._of[job.place.key]
            taken.append(job)
        return taken

    def of(self, key: LeaseKey) -> list[_Kind]:
        """Take out those for places of a lease."""
        taken = list(self._of.pop(key, ()))
        for job in taken:
            del self._jobs[job]
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class Storing:
    """A page that is staged, or held in outgoing memory, and that its donor has been asked to store."""

    job: PeerWrite
    donor: str
    #: For a use as a read: the donor itself asks whether the lease is held before it stores, so that no return has to
    #: wait for it. A donor that does not answer could keep it from being sent otherwise.
    ticket: Ticket
    staged_at: int | None
    row: int | None  # of outgoing memory
