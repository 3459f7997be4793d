"""One lease as its borrower holds it, and the tickets under which its bytes are used."""

from __future__ import annotations

import math
from enum import Enum

from .effects import Ended, LeaseKey
from .messages import Extents


class LeaseState(Enum):
    """What a lease allows its borrower."""

    ACTIVE = "active"  # every use
    RECALLED = "recalled"  # reads to demote; what is under way may finish
    CLOSING = "closing"  # what is under way may finish
    DRAINING = "draining"  # nothing; a store under way has yet to stop before the lease is returned
    RETURNED = "returned"  # nothing; the donor has been told, and has not answered yet


class Use(Enum):
    """What a ticket is for."""

    READ = "read"
    DEMOTE = "demote"  # a read that saves a page of a recalled lease
    STORE = "store"  # writes: unlike a read it cannot be cancelled by not believing it, so a return waits for it


#: Of which states a use may begin.
_BEGINS = {
    Use.READ: (LeaseState.ACTIVE,),
    Use.DEMOTE: (LeaseState.ACTIVE, LeaseState.RECALLED),
    Use.STORE: (LeaseState.ACTIVE,),
}
_USABLE = (LeaseState.ACTIVE, LeaseState.RECALLED, LeaseState.CLOSING)


class Lease:
    """The borrower's record. `end` and `until` are by its clock."""

    def __init__(self, key: LeaseKey, extents: Extents, end: float) -> None:
        self.key = key
        self.extents = extents
        self.bytes = sum(extent.length for extent in extents)
        self.end = end  # of the term
        self.until = math.inf  # of the recall
        self.state = LeaseState.ACTIVE
        self.closing: Ended | None = None  # why, while it is CLOSING
        self.reads = 0
        self.stores = 0
        self.return_again = math.inf
        self.forget_at = math.inf

    def usable(self, now: float) -> bool:
        """Whether bytes read up to `now` are this lease's."""
        return self.state in _USABLE and now < self.end

    def begin(self, use: Use, now: float) -> Ticket | None:
        if self.state not in _BEGINS[use] or now >= self.end:
            return None
        if use is Use.STORE:
            self.stores += 1
        else:
            self.reads += 1
        return Ticket(self, use)

    @property
    def wake(self) -> float:
        """When time changes something."""
        if self.state in _USABLE:
            return min(self.end, self.until)
        return min(self.return_again, self.forget_at)


class Ticket:
    """One use under way. Ends by `check_after`, exactly once, however the use went."""

    def __init__(self, lease: Lease, use: Use) -> None:
        self.lease = lease
        self.use = use
        self._open = True

    def close(self) -> None:
        """Raises ValueError the second time."""
        if not self._open:
            raise ValueError(f"the ticket for {self.lease.key} has been ended before; end each exactly once")
        self._open = False
        if self.use is Use.STORE:
            self.lease.stores -= 1
        else:
            self.lease.reads -= 1
