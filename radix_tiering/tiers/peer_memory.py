"""Memory of other servers, as the tier stack sees it: places for pages that may be taken away at any time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from ..figures.counters import LinkCounters
from ..lending.leases import LeaseKey
from .ssd import ReadOutcome


class PeerPlace(NamedTuple):
    """Room for one page in lent memory."""

    key: LeaseKey
    slot: int  # from 0, within the lease's run


class LeaseSlots(NamedTuple):
    """The slots of one lease. Those that are in neither list are free."""

    key: LeaseKey
    slots: int
    held: list[int]  # reserved, with a page or not
    left: list[int]  # of these, given back, but in use still


class PeerWatcher(Protocol):
    """What is told of leases, on the peer memory's own thread."""

    def lease_began(self) -> None:
        """There is more room."""
        ...

    def lease_recalled(self, key: LeaseKey, until: float) -> None:
        """Nothing new goes there. What is to be saved is read with `demote`, before `until` by the clock of leases;
        then `give_up` returns the lease."""
        ...

    def lease_ended(self, key: LeaseKey) -> None:
        """Nothing under this lease can be read any more. Every read and write of it has been answered."""
        ...


class PeerMemory(Protocol):
    """Places for pages of one size. Any thread may call; nothing here waits, and answers come on a thread of its own.

    Every `read` and `write` is answered exactly once, never from within the call. They raise RuntimeError once it is
    closed.
    """

    @property
    def capacity_bytes(self) -> int:
        """Of the active leases, in whole pages."""
        ...

    @property
    def links(self) -> Mapping[str, LinkCounters]:
        """What was copied: by all donors together ("peer-host", "host-peer"), and for each."""
        ...

    def lease_slots(self) -> list[LeaseSlots]:
        """What is used of each lease that is not over, all of one moment."""
        ...

    def watch(self, watcher: PeerWatcher) -> None:
        """Tell `watcher` from now on."""
        ...

    def reserve(self) -> PeerPlace | None:
        """A free place; None if there is none."""
        ...

    def release(self, place: PeerPlace) -> None:
        """Give a place back. Nothing else comes there while a read or write of it is under way."""
        ...

    def write(self, place: PeerPlace, data: np.ndarray, done: Callable[[bool, str], None], *, digest: bytes) -> None:
        """Put a page with this checksum there: uint8 [page_bytes], unchanged until `done(whether it is there, why
        not)`."""
        ...

    def read(
        self,
        place: PeerPlace,
        into: np.ndarray,
        digest: bytes,
        done: Callable[[ReadOutcome], None],
        *,
        demote: bool = False,
    ) -> None:
        """Fetch a page: uint8 [page_bytes]. OK only if the bytes have this checksum and the lease has lasted.

        `demote`: to save the page from a lease that was recalled. CANCELLED: the lease is over.
        """
        ...

    def land(self, place: PeerPlace, done: Callable[[ReadOutcome, int], None]) -> bool:
        """Fetch a page straight into this server's landing memory; False, and no answer, where that is not possible:
        there is none, or no room in it, or the donor's memory cannot be reached from this device.

        `done(outcome, slot)`: with OK the page lies verified in that slot, and whoever is told gives it back; else
        there is none. Outcomes as of `read`.
        """
        ...

    def paced_seconds(self, donor: str, pages: int) -> float:
        """How long `donor`, by the pace that it sets just now, lets so many pages more take, after those that wait to
        be read from it; 0 where it sets none. The reads themselves are not in it."""
        ...

    def want(self, wanted_bytes: int) -> None:
        """How much is to be borrowed, from all donors together."""
        ...

    def give_up(self, key: LeaseKey) -> None:
        """Return a lease. Nothing of it is needed any more."""
        ...

    def close(self) -> None:
        """Return everything and end. Idempotent."""
        ...
