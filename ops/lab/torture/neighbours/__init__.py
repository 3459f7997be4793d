"""Servers that lend memory to the one that a world is about, and others that borrow, over a network that fails."""

from swift_tiers.radix_tiering.tiers.testing.network import Network

from .donor import DonorServer
from .neighbourhood import Neighbourhood, Tormentor, slow_memory

__all__ = ["DonorServer", "Neighbourhood", "Network", "Tormentor", "slow_memory"]
