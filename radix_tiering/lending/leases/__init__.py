"""Leases: how a donor lends memory to borrowers, and gets it back. docs/leases.md is the protocol in words.

`Donor` and `Borrower` are state machines without I/O; `LeaseService` drives them by a
clock and a `Wire`, which is ZeroMQ where servers run.
"""

from .addresses import ipc_address
from .borrower import Borrower
from .donor import Donor
from .effects import LeaseKey, LeaseView
from .lease import LeaseState, Ticket, Use
from .link import LinkState
from .messages import Extent, Letter, Party
from .runs import RunState
from .service import LeaseService
from .sharing import elastic_unit
from .timing import Timing
from .wire import Wire

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
    "Wire",
    "elastic_unit",
    "ipc_address",
]
