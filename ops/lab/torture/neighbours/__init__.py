"""Servers that lend memory to the one that a world is about, and others that borrow, over a network that fails."""

from .donor import DonorServer
from .neighbourhood import Neighbourhood, Tormentor, slow_memory
from .network import Network

__all__ = ["DonorServer", "Neighbourhood", "Network", "Tormentor", "slow_memory"]
