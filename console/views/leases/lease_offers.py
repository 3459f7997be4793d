"""What an operator may do about leases. Donors carry it out: borrowers are asked by them."""

from __future__ import annotations

from swift_tiers.radix_tiering.bus.contract.commands import (
    AnyCommand,
    CapLending,
    CommandRefusedError,
    PinLease,
    RecallLeases,
    UnpinLease,
)
from swift_tiers.radix_tiering.bus.contract.policy_values import written_limit
from swift_tiers.radix_tiering.bus.hear.figures import size, text
from swift_tiers.radix_tiering.bus.hear.lease_pairs import Pair, PairedLease

from ..parts.view import OfferedAction, Scene

_BACK = (
    "Its borrower saves what would be lost as far as it can, and returns it at once; at the latest its term ends it. "
)
_AGAIN = "What comes back may be lent again; a cap keeps it."


def offers_for(scene: Scene, pair: Pair, lease: PairedLease | None) -> tuple[OfferedAction, ...]:
    """About a pair, and one of its leases; nothing where the donor obeys no commands, or is gone."""
    server, _, rank = pair.donor.rpartition(".")
    state = scene.moment.server(server)
    if state is None or not state.server.alive or not state.server.control:
        return ()
    donor, borrower = text(pair.donor), text(pair.borrower)
    return (
        *(() if lease is None else _of_lease(lease, server, rank)),
        OfferedAction(
            "A", "recall all", server, f"recall all that {donor} lends to {borrower}",
            f"{_lent(pair)} come back. {_BACK}{_AGAIN}",
            lambda _: RecallLeases(leases="all", borrower=pair.borrower, rank=rank),
        ),
        OfferedAction(
            "C", "cap lending", server, f"limit what {donor} lends",
            "What is beyond the limit is recalled, pinned leases last; without a limit it lends as it decides itself.",
            lambda typed: CapLending(limit=_limit(typed), rank=rank), "a limit as 8GiB, or none",
        ),
    )  # fmt: skip


def _of_lease(lease: PairedLease, server: str, rank: str) -> tuple[OfferedAction, ...]:
    number = lease.number
    recall = OfferedAction(
        "R",
        "recall",
        server,
        f"recall lease {number} ({size(lease.entry.bytes)})",
        _BACK + _AGAIN,
        lambda _: RecallLeases(leases=number, borrower=lease.pair.borrower, rank=rank),
    )
    if lease.at_donor is not None and lease.at_donor.pinned:
        make: type[PinLease | UnpinLease] = UnpinLease
        key, label, effect = "U", "unpin", "It is recalled like others again."
    else:
        make, key, label = PinLease, "P", "pin"
        effect = "It is recalled last, until it is unpinned or ends. A recall by its number, or of all, takes it too."

    def command(_: str) -> AnyCommand:
        return make(lease=number, rank=rank)

    return recall, OfferedAction(key, label, server, f"{label} lease {number}", effect, command)


def _lent(pair: Pair) -> str:
    view = pair.lent or pair.borrowed
    assert view is not None
    return f"{size(view.bytes)} in {view.leases if view.leases is not None else 'all'} leases"


def _limit(typed: str) -> str | int | None:
    """Raises CommandRefusedError."""
    try:
        return None if typed == "none" else written_limit(typed)
    except CommandRefusedError as error:
        raise CommandRefusedError(f"cap lending: {error}, or none") from None
