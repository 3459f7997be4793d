"""Who lends how much to whom, as both sides know it."""

from .view import Leases

__all__ = ["Leases"]
