"""Lending: the donor's side (`donation`) and the protocol that both sides speak (`leases`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.door import lazily

if TYPE_CHECKING:
    from .donation import (
        ArenaClient,
        ArenaError,
        ArenaServer,
        AttachedDevice,
        DeviceArena,
        DeviceMemory,
        ElasticSizer,
        Lender,
        PoolLayout,
        SharedArena,
    )
    from .leases import Borrower, Donor, Extent, LeaseKey, LeaseService, LeaseState, Party, Ticket, Timing
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "ArenaClient",
    "ArenaError",
    "ArenaServer",
    "AttachedDevice",
    "Borrower",
    "DeviceArena",
    "DeviceMemory",
    "Donor",
    "ElasticSizer",
    "Extent",
    "LeaseKey",
    "LeaseService",
    "LeaseState",
    "Lender",
    "Party",
    "PoolLayout",
    "SharedArena",
    "Ticket",
    "Timing",
]
