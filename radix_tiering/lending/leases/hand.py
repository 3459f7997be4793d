"""What operators see of one rank's leases, and what they may do to those that it has given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from .effects import LeaseView
from .runs import RunState
from .service import LeaseService


class LeaseSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank lends and borrows at one moment."""

    name: str  # of the rank, as leases call it: SERVER.RANK
    address: str  # where borrowers find it; empty if it lends nothing
    lent: tuple[LeaseView, ...] = ()
    borrowed: tuple[LeaseView, ...] = ()
    lendable_bytes: int = 0  # at the disposal of borrowers, and not lent
    limit_bytes: int | None = None  # the most that is lent, set by an operator
    window_seconds: float | None = None  # over which the rank's own demand counts; None: it does not lend
    peak_bytes: int | None = None  # that its own requests needed at most at one time, within that
    #: So far: letters and connections that were ignored, those of servers of another release, and errors of ours.
    lend_ignored: int = 0
    lend_other_releases: int = 0
    lend_faults: int = 0

    @property
    def lent_bytes(self) -> int:
        return sum(view.bytes for view in self.lent)

    @property
    def borrowed_bytes(self) -> int:
        return sum(view.bytes for view in self.borrowed)


class OperatedLender(Protocol):
    """What operators see of whoever decides how much a rank lends, and do to it; see `donation.Lender`."""

    peak_bytes: int

    @property
    def window_seconds(self) -> float: ...
    def cap(self, limit_bytes: int | None) -> None: ...
    def rest(self) -> None: ...


class LeaseHand:
    """An operator's hand on the leases of one rank. Any thread; waits for nothing but short locks.

    Leases are called by the numbers that this rank gave them as their donor.
    """

    def __init__(
        self,
        name: str,
        *,
        service: LeaseService | None = None,
        address: str = "",
        borrower: LeaseService | None = None,
        lender: Callable[[], OperatedLender | None] = lambda: None,
        counters: Callable[[], Iterable[Mapping[str, int]]] = tuple,
    ) -> None:
        """`name`: of the rank, as leases call it, SERVER.RANK. `service` lends at `address`, `borrower` borrows, which
        may be the same one. `lender`: who decides how much `service` lends, once there is somebody, and is told what
        was done to it. `counters`: of those who move pages, by the names that `LeaseService.counters` has."""
        self.name = name
        self._service = service
        self._address = address if service is not None else ""
        self._services = tuple(dict.fromkeys(one for one in (service, borrower) if one is not None))
        self._lender = lender
        self._counters = counters

    @property
    def lends(self) -> bool:
        """Whether it may give leases. If not, `recall`, `pin` and `cap` raise ValueError."""
        return self._service is not None

    def snapshot(self) -> LeaseSnapshot:
        """What is lent and borrowed now."""
        leases, service, lender = self.leases(), self._service, self._lender()
        counted: Counter[str] = Counter()
        for counters in (*(one.counters for one in self._services), *self._counters()):
            counted.update(counters)
        return LeaseSnapshot(
            name=self.name,
            address=self._address,
            lent=tuple(view for view in leases if view.donor.name == self.name),
            borrowed=tuple(view for view in leases if view.donor.name != self.name),
            lendable_bytes=service.bytes_in(RunState.FREE) if service is not None else 0,
            limit_bytes=service.limit_bytes if service is not None else None,
            window_seconds=lender.window_seconds if lender is not None else None,
            peak_bytes=lender.peak_bytes if lender is not None else None,
            lend_ignored=counted["strangers"] + counted["garbled"] + counted["oversized"],
            lend_other_releases=counted["other version"],
            lend_faults=counted["faults"],
        )

    def leases(self) -> list[LeaseView]:
        """Both, in one list."""
        return [view for service in self._services for view in service.leases()]

    def recall(self, leases: Collection[int] | None = None, borrower: str = "") -> int:
        """Ask borrowers to return these leases, or all; only those of `borrower`, a lease name, if that is given. How
        many were asked for: those that are not lent, or recalled already, are none of them. Pins do not count here."""
        service, lender = self._lending(), self._lender()
        if lender is not None:
            lender.rest()
        chosen = [
            view.lease
            for view in service.leases()
            if view.donor.name == self.name
            and view.state == RunState.LENT.value
            and (leases is None or view.lease in leases)
            and borrower in ("", view.borrower.name)
        ]
        service.recall(chosen)
        return len(chosen)

    def pin(self, lease: int, pinned: bool) -> bool:
        """A pinned lease is recalled last. False if there is no such lease."""
        return self._lending().pin(lease, pinned)

    def cap(self, limit_bytes: int | None) -> None:
        """Lend at most so many bytes from now on, and recall what is beyond; None: as many as there are. Raises
        ValueError where there is nobody who lends."""
        self._lending()
        lender = self._lender()
        if lender is None:
            raise ValueError("this server does not lend yet, or no longer")
        lender.cap(limit_bytes)

    def _lending(self) -> LeaseService:
        if self._service is None:
            raise ValueError("this server does not lend")
        return self._service
