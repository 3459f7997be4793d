"""The peer tier: pages kept in memory that other servers of this machine lend. docs/leases.md says by which rules.

`PeerTier` is the tier; `LentMemory` what holds of any memory that others lend.
"""

from .lent_memory import LeaseSlots, LentMemory, PeerPlace
from .tier import PeerDonorSnapshot, PeerSnapshot, PeerTier

__all__ = ["LeaseSlots", "LentMemory", "PeerDonorSnapshot", "PeerPlace", "PeerSnapshot", "PeerTier"]
