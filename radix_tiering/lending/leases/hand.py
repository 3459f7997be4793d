"""What operators see of one rank's leases, and what they may do to those that it has given."""

from __future__ import annotations

from collections.abc import Callable, Collection
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

    @property
    def lent_bytes(self) -> int:
        return sum(view.bytes for view in self.lent)

    @property
    def borrowed_bytes(self) -> int:
        return sum(view.bytes for view in self.borrowed)


class LeaseHand(Protocol):
    """An operator's hand on the leases of one rank. Any thread; waits for nothing but short locks.

    Leases are called by the numbers that this rank gave them as their donor.
    """

    @property
    def name(self) -> str:
        """The rank, as leases call it: SERVER.RANK."""
        ...

    @property
    def lends(self) -> bool:
        """Whether it may give leases. If not, `recall`, `pin` and `cap` raise ValueError."""
        ...

    def snapshot(self) -> LeaseSnapshot:
        """What is lent and borrowed now."""
        ...

    def leases(self) -> list[LeaseView]:
        """Both, in one list."""
        ...

    def recall(self, leases: Collection[int] | None = None, borrower: str = "") -> int:
        """Ask borrowers to return these leases, or all; only those of `borrower`, a lease name, if that is given. How
        many were asked for: those that are not lent, or recalled already, are none of them. Pins do not count here."""
        ...

    def pin(self, lease: int, pinned: bool) -> bool:
        """A pinned lease is recalled last. False if there is no such lease."""
        ...

    def cap(self, limit_bytes: int | None) -> None:
        """Lend at most so many bytes from now on, and recall what is beyond; None: as many as there are. Raises
        ValueError where there is nobody who lends."""
        ...


class ServiceHand:
    """A `LeaseHand` over the services that give and hold a rank's leases."""

    def __init__(
        self,
        name: str,
        *,
        lender: LeaseService | None = None,
        address: str = "",
        borrower: LeaseService | None = None,
        on_cap: Callable[[int | None], None] | None = None,
    ) -> None:
        """`lender` is this rank's donor and listens at `address`; `borrower` may be the same service or another one.
        `on_cap` is called in place of the lender's `set_limit`, and is to lead to it."""
        self._name = name
        self._lender = lender
        self._address = address if lender is not None else ""
        self._services = tuple(dict.fromkeys(service for service in (lender, borrower) if service is not None))
        self._on_cap = on_cap

    @property
    def name(self) -> str:
        return self._name

    @property
    def lends(self) -> bool:
        return self._lender is not None

    def snapshot(self) -> LeaseSnapshot:
        leases = self.leases()
        return LeaseSnapshot(
            name=self._name,
            address=self._address,
            lent=tuple(view for view in leases if view.donor.name == self._name),
            borrowed=tuple(view for view in leases if view.donor.name != self._name),
            lendable_bytes=self._lender.bytes_in(RunState.FREE) if self._lender is not None else 0,
            limit_bytes=self._lender.limit_bytes if self._lender is not None else None,
        )

    def leases(self) -> list[LeaseView]:
        return [view for service in self._services for view in service.leases()]

    def recall(self, leases: Collection[int] | None = None, borrower: str = "") -> int:
        lender = self._lending()
        chosen = [
            view.lease
            for view in lender.leases()
            if view.donor.name == self._name
            and view.state == RunState.LENT.value
            and (leases is None or view.lease in leases)
            and borrower in ("", view.borrower.name)
        ]
        lender.recall(chosen)
        return len(chosen)

    def pin(self, lease: int, pinned: bool) -> bool:
        return self._lending().pin(lease, pinned)

    def cap(self, limit_bytes: int | None) -> None:
        (self._on_cap or self._lending().set_limit)(limit_bytes)

    def _lending(self) -> LeaseService:
        if self._lender is None:
            raise ValueError("this server does not lend")
        return self._lender
