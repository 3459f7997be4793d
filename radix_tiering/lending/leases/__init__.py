"""Leases: how a donor lends memory to borrowers, and gets it back. docs/leases.md is the protocol in words.

`Donor` and `Borrower` are state machines without I/O; `LeaseService` drives them with real time and ZeroMQ.
"""

from swift_tiers.radix_tiering.lending.leases.addresses import ipc_address
from swift_tiers.radix_tiering.lending.leases.borrower import Borrower
from swift_tiers.radix_tiering.lending.leases.donor import Donor
from swift_tiers.radix_tiering.lending.leases.effects import LeaseKey, LeaseView
from swift_tiers.radix_tiering.lending.leases.lease import LeaseState, Ticket, Use
from swift_tiers.radix_tiering.lending.leases.link import LinkState
from swift_tiers.radix_tiering.lending.leases.messages import Extent, Letter, Party
from swift_tiers.radix_tiering.lending.leases.runs import RunState
from swift_tiers.radix_tiering.lending.leases.service import LeaseService
from swift_tiers.radix_tiering.lending.leases.timing import Timing

__all__ = [
    "Borrower",
    "Donor",
    "Extent",
    "LeaseKey",
    "LeaseService",
    "LeaseState",
    "LeaseView",
    "Letter",
    "LinkState",
    "Party",
    "RunState",
    "Ticket",
    "Timing",
    "Use",
    "ipc_address",
]
