"""Leases as both of their sides know them, put together and compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..contract.views import LeaseEntry, LeasesView, RankState
from .figures import UNKNOWN, epoch, text

#: What the borrower's state of a lease may be, by the donor's (docs/leases.md). Where letters are under way, a side is
#: behind the other; what is not here cannot be, however they are delayed.
FITTING = {
    "lent": {"active", "closing", "draining", "returned"},
    "recalled": {"active", "recalled", "closing", "draining", "returned"},
}
#: How much longer than its donor a borrower may believe in a lease, both having spoken at different times, seconds.
SLACK_SECONDS = 1.0


class Pair(NamedTuple):
    """One donor and one borrower. None: that side is not on the bus, or knows of no lease."""

    donor: str
    borrower: str
    lent: LeasesView | None
    borrowed: LeasesView | None

    @property
    def views(self) -> list[LeasesView]:
        return [view for view in (self.lent, self.borrowed) if view is not None]


class PairedLease(NamedTuple):
    """One lease of a pair."""

    pair: Pair
    number: int
    at_donor: LeaseEntry | None
    at_borrower: LeaseEntry | None

    @property
    def entry(self) -> LeaseEntry:
        """The donor's word, else the borrower's."""
        entry = self.at_donor or self.at_borrower
        assert entry is not None, "a lease is there because a side told of it"
        return entry

    @property
    def plain(self) -> bool:
        """Lent, and nothing else."""
        return self.at_donor is not None and self.at_donor.state == "lent" and not self.at_donor.pinned


def views_of(ranks: Iterable[RankState]) -> list[LeasesView]:
    """What these ranks say of leases, from either side."""
    return [view for rank in ranks for view in (*rank.lent, *rank.borrowed)]


def pairs_of(views: Iterable[LeasesView]) -> list[Pair]:
    """Both sides' views, put together; by the names of donors and borrowers."""
    lent: dict[tuple[str, str], LeasesView] = {}
    borrowed: dict[tuple[str, str], LeasesView] = {}
    for view in views:
        side = lent if view.lends else borrowed
        side[view.donor, view.borrower] = view
    return [Pair(*names, lent.get(names), borrowed.get(names)) for names in sorted(lent.keys() | borrowed.keys())]


def leases_of(pair: Pair) -> list[PairedLease]:
    """Those that are listed on the bus, by number."""
    at_donor, at_borrower = (
        {entry.lease: entry for entry in view.table} if view is not None else {} for view in (pair.lent, pair.borrowed)
    )
    numbers = sorted(at_donor.keys() | at_borrower.keys())
    return [PairedLease(pair, number, at_donor.get(number), at_borrower.get(number)) for number in numbers]


def differences(pair: Pair) -> list[str]:
    """In what the two sides contradict each other, in a few words each; nothing where one has said nothing at all.

    Both speak at their own times: a difference that is gone with the next look was none.
    """
    if pair.lent is None or pair.borrowed is None:
        return []
    found = []
    if None not in (pair.lent.epoch, pair.borrowed.epoch) and pair.lent.epoch != pair.borrowed.epoch:
        found.append(f"epoch {epoch(pair.lent.epoch)}, {epoch(pair.borrowed.epoch)} at the borrower")
    if pair.lent.leases != pair.borrowed.leases:
        found.append(f"{_count(pair.lent.leases)} leases, {_count(pair.borrowed.leases)} at the borrower")
    if _complete(pair.lent) and _complete(pair.borrowed):
        odd = [(lease, difference(lease)) for lease in leases_of(pair)]
        found += [f"lease {lease.number}: {what}" for lease, what in odd if what]
    return found


def difference(lease: PairedLease) -> str:
    """In what the two sides of one lease contradict each other; empty if they do not, or one said nothing at all."""
    donor, borrower = lease.at_donor, lease.at_borrower
    if lease.pair.lent is None or lease.pair.borrowed is None:
        return ""
    if borrower is None:
        return "the borrower does not know it"
    if donor is None:
        return f"ended at the donor, {text(borrower.state) or UNKNOWN} at the borrower"
    if donor.bytes != borrower.bytes:
        return "not of the same size"
    if borrower.state not in FITTING.get(donor.state, {borrower.state}):
        return f"{text(donor.state)}, but {text(borrower.state)} at the borrower"
    if borrower.state == "active" and borrower.seconds_left > donor.seconds_left + SLACK_SECONDS:
        return "the borrower believes in it for longer"
    return ""


def _complete(view: LeasesView) -> bool:
    return view.leases is not None and view.leases == len(view.table)


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
