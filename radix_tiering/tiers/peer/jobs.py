"""What the tier stack asks for, one page at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...lending.leases import Ticket
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
