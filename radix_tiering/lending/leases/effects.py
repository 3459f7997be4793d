"""What the state machines tell whoever drives them. Every method of theirs returns such a list, to be done in order."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .messages import Extents, Letter, Party


class LeaseKey(NamedTuple):
    """A lease as the borrower knows it. No other lease ever has the same key."""

    donor: str
    epoch: int
    lease: int


class LeaseView(NamedTuple):
    """A lease as an operator sees it, on either side."""

    donor: Party
    borrower: Party
    lease: int
    bytes: int
    state: str  # of the run at its donor, of the lease at its borrower
    seconds_left: float  # of the term, as the side that was asked counts; negative if that is over
    pinned: bool = False  # by an operator of its donor; its borrower does not know


class Send(NamedTuple):
    """Send a letter to the life `to` of a borrower, or to the donor of that name."""

    to: Party | str
    letter: Letter


# For the donor's side


class Fence(NamedTuple):
    """Call `fenced(run)` when all that may still read or write this run's bytes here has finished."""

    run: int


class Back(Enum):
    """How a run came back to its donor."""

    UNUSED = "unused"  # it was not lent
    RETURNED = "returned"  # the borrower said that it touches it no more
    GONE = "gone"  # the borrower's process has ended
    #: The lease's time is over. The borrower serves nothing of it any more; but a stopped or hanging borrower may still
    #: touch the bytes. A read does no harm. Where borrowers can write, cut off its mapping before using the memory.
    EXPIRED = "expired"


class Reclaimed(NamedTuple):
    """The run is the donor's own again; the machine has forgotten it."""

    run: int
    back: Back


class BorrowerJoined(NamedTuple):
    """A borrower begins a session. What it is lent is a multiple of `unit_bytes`."""

    borrower: Party
    unit_bytes: int


class BorrowerLeft(NamedTuple):
    """A borrower that holds nothing has ended, or has been silent for long."""

    borrower: Party


DonorEffect = Fence | Reclaimed | BorrowerJoined | BorrowerLeft

# For the borrower's side


class DonorJoined(NamedTuple):
    """A donor has answered: map the memory of this epoch."""

    donor: str
    epoch: int
    unit_bytes: int


class DonorLeft(NamedTuple):
    """No lease of this donor's epoch is left, and none will come: unmap its memory once no read is under way."""

    donor: str
    epoch: int


class DonorRefused(NamedTuple):
    """A donor takes no session with this borrower; it is asked again from time to time."""

    donor: str
    reason: str


class LeaseBegan(NamedTuple):
    """These bytes may be used until the lease ends."""

    key: LeaseKey
    extents: Extents


class LeaseRecalled(NamedTuple):
    """Begin no more reads or stores; demote what is worth it; then release. At `until` it is returned in any case."""

    key: LeaseKey
    until: float  # by the borrower's clock


class Ended(Enum):
    """Why a lease is over for its borrower."""

    RELEASED = "released"  # the borrower gave it back
    RECALLED = "recalled"  # the donor wanted it
    EXPIRED = "expired"  # it was not renewed in time
    LOST = "lost"  # the donor's process, or its epoch, has ended


class LeaseEnded(NamedTuple):
    """Nothing read from these bytes passes `check_after` any more. Comes exactly once for each lease that began."""

    key: LeaseKey
    ended: Ended


BorrowerEffect = DonorJoined | DonorLeft | DonorRefused | LeaseBegan | LeaseRecalled | LeaseEnded
