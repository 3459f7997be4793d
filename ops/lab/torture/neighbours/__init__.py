"""Servers that lend memory to the one that a world is about, and others that borrow, over a network that fails."""

from swift_tiers.radix_tiering.tiers.testing.network import Network

from .donor import DonorServer
from .neighbourhood import Neighbourhood, Tormentor, slow_memory
from .ranked_donor import RANK_FAILURES, RankedDonor

__all__ = ["RANK_FAILURES", "DonorServer", "Neighbourhood", "Network", "RankedDonor", "Tormentor", "slow_memory"]
