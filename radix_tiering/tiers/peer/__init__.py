"""The peer tier: pages kept in memory that other servers of this machine lend. docs/leases.md says by which rules.

`PeerTier` is a `PeerMemory`: all that the tier stack sees of it.
"""

from .snapshot import PeerDonorSnapshot, PeerSnapshot
from .tier import PeerTier

__all__ = ["PeerDonorSnapshot", "PeerSnapshot", "PeerTier"]
