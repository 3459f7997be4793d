"""What the peer tier says about itself."""

from __future__ import annotations

import msgspec


class PeerDonorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One neighbour that lends, or could."""

    name: str
    address: str
    attached: bool  # its memory is mapped here
    reason: str  # why it lends us nothing, as far as that is known; or empty
    bandwidth: float | None  # bytes per second that it allows; None: no limit, or not known
    share: float | None  # of a core's time that may be spent on its memory now; None: any
    leases: int
    capacity_bytes: int
    used_bytes: int
    queued: int  # reads and writes that wait
    storing: int  # pages staged, and not yet answered


class PeerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The peer tier at one moment."""

    wanted_bytes: int  # what is to be borrowed, limits considered
    capacity_bytes: int  # of the active leases, in whole pages
    used_bytes: int  # reserved or holding pages
    staging_bytes: int  # this process' memory for pages on their way to donors
    reads: dict[str, int]  # answered, by outcome: "ok", "cancelled", ...
    writes: dict[str, int]  # answered: "ok", or why not
    faults: int  # errors of ours, logged
    donors: tuple[PeerDonorSnapshot, ...]
