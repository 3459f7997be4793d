"""The peer tier: pages kept in memory that other servers of this machine lend. docs/leases.md says by which rules.

`PeerTier` is a `PeerMemory`: all that the tier stack sees of it.
"""

from swift_tiers.radix_tiering.tiers.peer.snapshot import PeerDonorSnapshot, PeerSnapshot
from swift_tiers.radix_tiering.tiers.peer.tier import PeerTier

__all__ = ["PeerDonorSnapshot", "PeerSnapshot", "PeerTier"]
