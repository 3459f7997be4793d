"""What is told of a rank's leases: sums in the record of the rank, and a record for each partner. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...lending.leases.effects import LeaseView
from ...lending.leases.hand import LeaseSnapshot
from ...lending.leases.lease import LeaseState
from ...lending.leases.runs import RunState
from .neighbours import Scope
from .records import Record, record
from .views import MOST_LISTED_LEASES, MOST_PARTNERS, LeasesView

#: States of a lease that nobody has asked back, at its donor and at its borrower; and of one that can be used.
_UNDISTURBED = (RunState.LENT.value, LeaseState.ACTIVE.value)
_USABLE = (*_UNDISTURBED, RunState.RECALLED.value, LeaseState.CLOSING.value)

Partners = Mapping[str, Sequence[LeaseView]]


def partners(leases: Iterable[LeaseView], own: str) -> Partners:
    """The leases by who is on the other side of them, those with the most bytes if there are too many."""
    found: dict[str, list[LeaseView]] = {}
    for view in leases:
        found.setdefault(view.borrower.name if view.donor.name == own else view.donor.name, []).append(view)
    largest = sorted(found, key=lambda name: -_bytes(found[name]))[:MOST_PARTNERS]
    return {name: found[name] for name in sorted(largest)}


def lease_sums(leases: LeaseSnapshot | None, scope: Scope) -> dict[str, float | str | None]:
    """The fields of `rank` that are about leases; `scope` of their address, as `neighbours.lease_scope` has it."""
    if leases is None:
        return {}
    return {
        "lease_address": leases.address,
        "lease_scope": scope(leases.address) if leases.address else "",
        "lent_bytes": leases.lent_bytes,
        "lendable_bytes": leases.lendable_bytes,
        "lend_limit_bytes": leases.limit_bytes,
        "lend_window_seconds": leases.window_seconds,
        "lend_peak_bytes": leases.peak_bytes,
        "lends_to": ",".join(partners(leases.lent, leases.name)),
        "borrowed_bytes": leases.borrowed_bytes,
        "borrows_from": ",".join(partners(leases.borrowed, leases.name)),
        "lend_ignored": leases.lend_ignored,
        "lend_other_releases": leases.lend_other_releases,
        "lend_faults": leases.lend_faults,
    }


def leases_record(leases: Sequence[LeaseView], *, at_donor: bool, time: float) -> Record:
    """`lent`, or `borrowed`: the leases with one partner, of which there is at least one."""
    listed = sorted(leases, key=lambda view: (view.lease, view.seconds_left))[:MOST_LISTED_LEASES]
    return record(
        LeasesView,
        time=time,
        epoch=leases[0].donor.epoch,  # a donor forgets those of its former lives, and so does who borrowed them
        leases=len(leases),
        bytes=_bytes(leases),
        recalled_bytes=_bytes(view for view in leases if view.state not in _UNDISTURBED),
        pinned_bytes=_bytes(view for view in leases if view.pinned) if at_donor else None,
        shortest_seconds=min((view.seconds_left for view in leases if view.state in _USABLE), default=None),
        listed=len(listed),
        table=listed,
    )


def _bytes(leases: Iterable[LeaseView]) -> int:
    return sum(view.bytes for view in leases)
